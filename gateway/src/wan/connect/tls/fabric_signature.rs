//! The signature of a fabric file by the CA of a deployment: Ed25519 (RFC 8032) over the text, in a file
//! of its own.

use super::credentials::Credentials;
use ::ring::signature::{ED25519, UnparsedPublicKey};
use std::fmt;

/// The first line of a file with a signature: what it is, and the version of its form.
const SIGNATURE_FILE_HEADER: &str = "landbridge fabric signature 1";

/// The bytes before the text in what is signed, so that the signature of a fabric is that of nothing else
/// that the CA signs: no certificate begins with them.
const SIGNED_PREFIX: &[u8] = b"landbridge fabric 1\0";

/// The 10 bytes before the 32 bytes of an Ed25519 key in a certificate (RFC 8410): the algorithm's
/// identifier, and the head of a bit string.
const ED25519_KEY_HEADER: [u8; 10] = [0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// The signature of a fabric file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FabricSignature(pub [u8; Self::BYTES]);

/// Why a signature does not show that a fabric is the deployment's. The author's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FabricSignatureError {
    /// It is no signature.
    #[error(
        "it is no signature of a fabric: two lines, `{SIGNATURE_FILE_HEADER}` and 128 hexadecimal digits, as \
         `landbridge fabric sign` writes them"
    )]
    Malformed,
    /// Another text was signed, or by another key.
    #[error(
        "the CA of this gateway has not signed this text: sign the file as it is now, with the CA of the \
         deployment"
    )]
    Other,
    /// The CA's key has another algorithm.
    #[error(
        "no CA of this gateway has an Ed25519 key, as `landbridge certs` makes it, so that none can sign a \
         fabric: change the files at all gateways, and restart them"
    )]
    NoKey,
}

impl FabricSignature {
    /// 64 bytes: the length of an Ed25519 signature, which stands before the text of a signed fabric.
    pub const BYTES: usize = 64;

    /// Reads the text of a file with a signature.
    ///
    /// # Errors
    /// [`FabricSignatureError::Malformed`].
    pub fn parse(text: &str) -> Result<Self, FabricSignatureError> {
        let malformed = FabricSignatureError::Malformed;
        let mut lines = text.lines();
        let digits = lines.next().filter(|line| *line == SIGNATURE_FILE_HEADER);
        let digits = digits.and_then(|_| lines.next()).ok_or(malformed)?;
        let is_hexadecimal = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        if lines.next().is_some() || digits.len() != 2 * Self::BYTES || !is_hexadecimal {
            return Err(malformed);
        }
        let mut bytes = [0; Self::BYTES];
        for (index, byte) in bytes.iter_mut().enumerate() {
            let pair = digits.get(2 * index..2 * index + 2).ok_or(malformed)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| malformed)?;
        }
        Ok(Self(bytes))
    }

    /// Returns the bytes that are signed for the text of a fabric.
    pub fn signed_bytes(text: &str) -> Vec<u8> {
        [SIGNED_PREFIX, text.as_bytes()].concat()
    }
}

impl Credentials {
    /// Checks that a CA of this gateway has signed the text of a fabric.
    ///
    /// # Errors
    /// [`FabricSignatureError`]: it has not, or has no key that could.
    pub fn verify_fabric(
        &self,
        text: &str,
        signature: FabricSignature,
    ) -> Result<(), FabricSignatureError> {
        let keys = self
            .roots
            .roots
            .iter()
            .filter_map(|root| root.subject_public_key_info.strip_prefix(&ED25519_KEY_HEADER));
        let keys: Vec<&[u8]> = keys.filter(|key| key.len() == 32).collect();
        if keys.is_empty() {
            return Err(FabricSignatureError::NoKey);
        }
        let message = FabricSignature::signed_bytes(text);
        let has_signed = |key: &&[u8]| {
            UnparsedPublicKey::new(&ED25519, key).verify(&message, &signature.0).is_ok()
        };
        match keys.iter().any(has_signed) {
            true => Ok(()),
            false => Err(FabricSignatureError::Other),
        }
    }
}

impl fmt::Display for FabricSignature {
    /// Prints the text of a file with the signature.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{SIGNATURE_FILE_HEADER}")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        writeln!(f)
    }
}

impl fmt::Debug for FabricSignature {
    /// Prints the first bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "FabricSignature({a:02x}{b:02x}{c:02x}{d:02x})")
    }
}
