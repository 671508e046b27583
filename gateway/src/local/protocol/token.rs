//! The token of a job.

use std::fmt;
use subtle::ConstantTimeEq;

/// 32 bytes: the length of every job's token, the secret that a trainer shows when it attaches. So
/// many random bytes cannot be guessed.
pub const TOKEN_BYTES: usize = 32;

/// The secret that admits a trainer to a job. Its `Debug` form never shows the bytes.
#[derive(Clone, Copy)]
pub struct Token(pub [u8; TOKEN_BYTES]);

impl From<[u8; TOKEN_BYTES]> for Token {
    /// Makes a token of its bytes; any bytes are a token.
    fn from(bytes: [u8; TOKEN_BYTES]) -> Self {
        Self(bytes)
    }
}

/// Comparison takes equally long for all pairs of tokens, so that its time tells nothing.
impl PartialEq for Token {
    /// Compares all bytes in constant time, so that the time tells nothing of the token.
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Token {}

impl fmt::Debug for Token {
    /// Prints `Token(..)` for logs, which must not show the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}
