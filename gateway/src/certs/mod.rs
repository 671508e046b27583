//! Certificates and tokens of a deployment.
//!
//! `landbridge certs` and the quickstart call it, as do simulations and tests. It reads and writes
//! files, and starts no task.

mod authority;
mod error;
mod files;

#[cfg(test)]
mod tests;

pub use authority::{CertificateAuthority, CertificateValidity, IssuedCertificate};
pub use error::CertsError;
pub use files::{CertificateOptions, FileOutcome, make_certificate_files};
