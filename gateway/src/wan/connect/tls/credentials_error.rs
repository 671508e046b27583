//! Why a certificate or key cannot be used.

use std::path::{Path, PathBuf};

/// A certificate or key that cannot be used: always a fault of the files or their names.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// A file that cannot be read, or that is not PEM.
    #[error("{}: {problem}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The problem.
        problem: String,
    },
    /// A certificate that TLS refuses.
    #[error("{}: {source}; make certificates with `landbridge certs`", file.display())]
    Refused {
        /// The file.
        file: PathBuf,
        /// The reason.
        source: rustls::Error,
    },
    /// A certificate for another use than a gateway's.
    #[error("{} {problem}: make a new one with `landbridge certs`", certificate.display())]
    OtherUsage {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The problem, as a verb with its object.
        problem: String,
    },
    /// A key of a kind or length that TLS does not use.
    #[error(
        "{}: this private key cannot be used; accepted: ECDSA (P-256 or P-384), Ed25519, or RSA of \
         2,048 to 4,096 bits; `landbridge certs` makes one", .0.display()
    )]
    UnusableKey(PathBuf),
    /// A key that belongs to another certificate.
    #[error(
        "{} is not the key of {}; make both with `landbridge certs`, or correct a path in the \
         region file",
        key.display(),
        certificate.display()
    )]
    OtherKey {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
}

/// Makes the error about a certificate or key file that cannot be read.
pub(super) fn unreadable_credentials_error(
    file: &Path,
    error: &dyn std::error::Error,
) -> CredentialsError {
    let problem =
        format!("{error}; make it with `landbridge certs`, or correct its path in the region file");
    CredentialsError::Unreadable { file: file.to_owned(), problem }
}

/// Makes the error about a certificate file that TLS refuses.
pub(super) fn refused_credentials_error(file: &Path, source: rustls::Error) -> CredentialsError {
    CredentialsError::Refused { file: file.to_owned(), source }
}
