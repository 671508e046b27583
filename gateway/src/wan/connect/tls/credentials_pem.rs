//! Reads certificates and keys from PEM files.

use super::credentials_error::{CredentialsError, unreadable_credentials_error};
use crate::access::read_credential_bytes;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::io;
use std::path::Path;

/// Reads a certificate chain and its private key from PEM files.
///
/// # Errors
/// A file is missing or is not PEM.
pub(super) fn read_credentials_pem_pair(
    certificate: &Path,
    key: &Path,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), CredentialsError> {
    let chain = read_credentials_pem_chain(certificate)?;
    let text = read_credentials_pem(key)?;
    let key = PrivateKeyDer::from_pem_slice(&text).map_err(|error| match error {
        pem::Error::NoItemsFound if is_encrypted_credentials_pem(&text) => {
            let problem = "is encrypted, and nobody is there to type a password: decrypt it with \
                           `openssl pkey -in FILE -out NEWFILE`";
            CredentialsError::Unreadable { file: key.to_owned(), problem: problem.to_owned() }
        }
        pem::Error::NoItemsFound => no_credentials_pem_item(key, "private key"),
        error => broken_credentials_pem(key, &error),
    })?;
    Ok((chain, key))
}

/// Reads all certificates of a PEM file; an error where it has none.
pub(super) fn read_credentials_pem_chain(
    file: &Path,
) -> Result<Vec<CertificateDer<'static>>, CredentialsError> {
    let certificates = CertificateDer::pem_slice_iter(&read_credentials_pem(file)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| broken_credentials_pem(file, &error))?;
    if certificates.is_empty() {
        return Err(no_credentials_pem_item(file, "certificate"));
    }
    Ok(certificates)
}

/// Reads the bytes of a PEM file with certificates or a key.
fn read_credentials_pem(file: &Path) -> Result<Vec<u8>, CredentialsError> {
    read_credential_bytes(file).map_err(|error| unreadable_credentials_error(file, &error))
}

/// Returns whether a PEM file has a private key that is encrypted.
fn is_encrypted_credentials_pem(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    text.contains("BEGIN ENCRYPTED PRIVATE KEY") || text.contains("Proc-Type: 4,ENCRYPTED")
}

/// Makes the error about a file that is no whole PEM.
fn broken_credentials_pem(file: &Path, error: &pem::Error) -> CredentialsError {
    match error {
        pem::Error::MissingSectionEnd { .. } => {
            let cut = io::Error::other("it is cut off: a section has no END line");
            unreadable_credentials_error(file, &cut)
        }
        error => unreadable_credentials_error(file, error),
    }
}

/// Makes the error about a PEM file without any `item`.
fn no_credentials_pem_item(file: &Path, item: &str) -> CredentialsError {
    let problem = format!("holds no {item} in PEM; make it with `landbridge certs`");
    CredentialsError::Unreadable { file: file.to_owned(), problem }
}
