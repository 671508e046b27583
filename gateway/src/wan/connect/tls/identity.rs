//! The name that a certificate proves.

use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::ParsedCertificate;

/// A certificate of our CA that does not prove the claimed name: always the peer's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// The peer has no certificate.
    #[error("the peer shows no certificate, so it does not prove that it is `{claimed}`")]
    NoCertificate {
        /// The claimed name.
        claimed: String,
    },
    /// The certificate has another name.
    #[error("the peer claims to be `{claimed}`, but its certificate is for {proven}")]
    OtherName {
        /// The claimed name.
        claimed: String,
        /// The names of its certificate.
        proven: String,
    },
}

/// Returns the DNS name that the certificate of a gateway of a fabric proves.
pub fn gateway_dns_name(gateway: &str, fabric: &str) -> String {
    format!("{gateway}.{fabric}.landbridge")
}

/// Checks that the first certificate of `chain`, which TLS has verified, is for `gateway` of
/// `fabric`.
///
/// # Errors
/// The certificate has other names, or there is none.
pub fn check_gateway_name(
    chain: &[CertificateDer<'_>],
    gateway: &str,
    fabric: &str,
) -> Result<(), IdentityError> {
    let claimed = gateway_dns_name(gateway, fabric);
    let Some(own) = chain.first() else {
        return Err(IdentityError::NoCertificate { claimed });
    };
    let name = ServerName::try_from(claimed.as_str()).ok();
    let parsed = ParsedCertificate::try_from(own).ok();
    match name.zip(parsed).map(|(name, parsed)| verify_server_name(&parsed, &name)) {
        Some(Ok(())) => Ok(()),
        _ => Err(IdentityError::OtherName { claimed, proven: certificate_dns_names(own) }),
    }
}

/// Returns the DNS names of a certificate, for messages.
pub fn certificate_dns_names(certificate: &CertificateDer<'_>) -> String {
    let unreadable = || "names that cannot be read".to_owned();
    let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else {
        return unreadable();
    };
    let Ok(Some(names)) = parsed.subject_alternative_name() else {
        return unreadable();
    };
    let names = names.value.general_names.iter().filter_map(|name| match name {
        x509_parser::extensions::GeneralName::DNSName(name) => Some(format!("`{name}`")),
        _ => None,
    });
    names.collect::<Vec<_>>().join(", ")
}
