//! Certificates and tokens of a deployment.
//!
//! `landbridge certs` and the quickstart call it, as do simulations and tests. It reads and writes
//! files, and starts no task.

mod certificate_authority;
mod certificate_files;
mod certificate_validity;
mod error;

#[cfg(test)]
mod tests;

pub use certificate_authority::{CertificateAuthority, IssuedCertificate};
pub use certificate_files::{CertificateOptions, FileOutcome, make_certificate_files};
pub use certificate_validity::CertificateValidity;
pub use error::CertsError;
