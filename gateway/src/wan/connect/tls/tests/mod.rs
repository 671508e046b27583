//! Tests of mutual TLS between gateways.

mod alerts;
mod authentication;
mod ciphers;

use super::Credentials;
use crate::certs::{CertificateAuthority, CertificateValidity, IssuedCertificate};

const FABRIC: &str = "two-region";

fn authority() -> CertificateAuthority {
    CertificateAuthority::generate(FABRIC).expect("a CA")
}

fn issue(authority: &CertificateAuthority, gateway: &str) -> IssuedCertificate {
    authority
        .issue_certificate(gateway, FABRIC, CertificateValidity::days(1))
        .expect("a certificate")
}

/// Credentials loaded from files, as a gateway does.
fn credentials(issued: &IssuedCertificate, authority: &CertificateAuthority) -> Credentials {
    credentials_trusting(issued, &[authority])
}

/// Credentials with several CAs in one file.
fn credentials_trusting(
    issued: &IssuedCertificate,
    authorities: &[&CertificateAuthority],
) -> Credentials {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).expect("a temporary file");
        path
    };
    let certificate = file("own.pem", &issued.certificate_pem);
    let key = file("own.key", &issued.key_pem);
    let authorities: Vec<&str> = authorities.iter().map(|each| each.certificate_pem()).collect();
    let ca = file("ca.pem", &authorities.concat());
    Credentials::load(&certificate, &key, &ca).expect("credentials")
}
