//! Errors of making certificates and tokens.

use crate::limits::process_limits::ProcessLimitRemedy;
use std::path::PathBuf;

/// Why certificates were not made. The caller's fault, or the file system's.
#[derive(Debug, thiserror::Error)]
pub enum CertsError {
    /// A file cannot be read or written.
    #[error("{}: {source}{}", file.display(), ProcessLimitRemedy(source))]
    Io {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The CA's certificate is there without its key, which may be kept elsewhere. It is not
    /// replaced.
    #[error(
        "{} exists, but {} does not: put the key beside it to sign with this CA, or use --force to \
         make another CA, and give that to all gateways", certificate.display(), key.display()
    )]
    CaKeyMissing {
        /// The CA's certificate.
        certificate: PathBuf,
        /// Its key.
        key: PathBuf,
    },
    /// The CA's key belongs to another certificate, so gateways would not trust what it signs.
    #[error(
        "{} is not the key of {}: put the CA's own key there, or use --force to make another CA, and \
         give that to all gateways", key.display(), certificate.display()
    )]
    OtherCaKey {
        /// The CA's certificate.
        certificate: PathBuf,
        /// The key beside it.
        key: PathBuf,
    },
    /// Another process makes certificates in the folder. Nothing was written.
    #[error("another `landbridge certs` writes into {}: run this one when it has ended", folder.display())]
    Busy {
        /// The folder.
        folder: PathBuf,
    },
    /// The folder for the files is something else. Nothing was written.
    #[error("{} is no folder: name one for the files, which may be new", out.display())]
    NoFolder {
        /// The path.
        out: PathBuf,
    },
    /// A gateway's files would overwrite the CA's own files.
    #[error("a gateway cannot be called `ca`: ca.pem and ca.key belong to the CA")]
    NameTaken,
    /// A job's name is not valid.
    #[error(
        "`{0}` is not a valid job name: use lower-case letters, digits and inner hyphens, at most 63"
    )]
    JobName(String),
    /// The CA's key has an algorithm by which gateways check no fabric.
    #[error(
        "the CA's key is not of Ed25519, as `landbridge certs` makes it, so that gateways could not check its \
         signature: change the files at all gateways, and restart them"
    )]
    OtherAlgorithm,
    /// A file does not contain a CA, or a certificate cannot contain a name.
    #[error("{subject}: {source}")]
    Certificate {
        /// The file or name at fault.
        subject: String,
        /// The reason.
        source: rcgen::Error,
    },
}
