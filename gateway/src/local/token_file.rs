//! A job's token in a file: 64 hexadecimal digits. Trainers, the daemon and the doctor read it.

use super::protocol::{TOKEN_BYTES, Token};
use crate::access::{read_credential_bytes, unreadable_secret_file_advice};
use crate::host::{Host as _, RealHost};
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

/// Why a token file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// The file cannot be read.
    #[error("{}: {source}; {}", path.display(), unreadable_secret_file_advice(path, source))]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The file holds something else.
    #[error("{}: not a job token: 64 hexadecimal digits; make one with `landbridge certs`", .0.display())]
    Malformed(PathBuf),
}

/// Reads a job's token from the file at `path`.
///
/// # Errors
/// [`TokenFileError`].
pub fn load_token_file(path: &Path) -> Result<Token, TokenFileError> {
    let bytes = read_credential_bytes(path)
        .map_err(|source| TokenFileError::Read { path: path.to_owned(), source })?;
    let text = std::str::from_utf8(bytes.trim_ascii()).ok();
    text.and_then(parse_token_file).ok_or_else(|| TokenFileError::Malformed(path.to_owned()))
}

/// Parses 64 hexadecimal digits to a token; `None` for any other text.
fn parse_token_file(text: &str) -> Option<Token> {
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

/// Returns a random secret of 32 bytes as 64 hexadecimal digits.
pub(crate) fn make_token_file_text() -> String {
    RealHost.random_bytes().iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes every write");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_64_hexadecimal_digits() {
        assert_eq!(parse_token_file(&"0f".repeat(32)), Some(Token([15; 32])));
        for bad in ["", "0f", &"0g".repeat(32), &"0f".repeat(33), &"é".repeat(32), &"+f".repeat(32)]
        {
            assert_eq!(parse_token_file(bad), None, "{bad}");
        }
    }
}
