//! Job tokens in files: 64 hexadecimal digits.

use super::CommandError;
use crate::local::protocol::{TOKEN_BYTES, Token};
use std::path::Path;

/// Reads a token.
pub(crate) fn load(path: &Path) -> Result<Token, CommandError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| CommandError::Path { path: path.to_owned(), source })?;
    parse(text.trim()).ok_or_else(|| CommandError::Token(path.to_owned()))
}

fn parse(text: &str) -> Option<Token> {
    let mut token = [0; TOKEN_BYTES];
    // `from_str_radix` takes a sign as well.
    if text.len() != 2 * TOKEN_BYTES || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (index, byte) in token.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(Token(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_64_hexadecimal_digits() {
        assert_eq!(parse(&"0f".repeat(32)), Some(Token([15; 32])));
        for bad in ["", "0f", &"0g".repeat(32), &"0f".repeat(33), &"é".repeat(32), &"+f".repeat(32)]
        {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
