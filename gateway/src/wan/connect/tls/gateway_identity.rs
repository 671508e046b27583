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
pub fn gateway_identity_dns_name(gateway: &str, fabric: &str) -> String {
    format!("{gateway}.{fabric}.landbridge")
}

/// Checks that the first certificate of `chain`, which TLS has verified, is for `gateway` of
/// `fabric`.
///
/// # Errors
/// The certificate has other names, or there is none.
pub fn check_gateway_identity(
    chain: &[CertificateDer<'_>],
    gateway: &str,
    fabric: &str,
) -> Result<(), IdentityError> {
    let claimed = gateway_identity_dns_name(gateway, fabric);
    let Some(own) = chain.first() else {
        return Err(IdentityError::NoCertificate { claimed });
    };
    let name = ServerName::try_from(claimed.as_str()).ok();
    let parsed = ParsedCertificate::try_from(own).ok();
    match name.zip(parsed).map(|(name, parsed)| verify_server_name(&parsed, &name)) {
        Some(Ok(())) => Ok(()),
        _ => Err(IdentityError::OtherName { claimed, proven: gateway_identity_dns_names(own) }),
    }
}

/// Returns whether a certificate proves the name of `gateway`, or where that is `None` of any
/// gateway. The fabric may have any name.
pub(super) fn proves_gateway_identity(
    certificate: &CertificateDer<'_>,
    gateway: Option<&str>,
) -> bool {
    let names = parse_gateway_identity_names(certificate).unwrap_or_default();
    names.iter().any(|name| {
        let labels: Vec<&str> = name.split('.').collect();
        let [named, _fabric, "landbridge"] = labels[..] else { return false };
        gateway.is_none_or(|gateway| gateway == named)
    })
}

/// Returns the DNS names of a certificate, for messages.
pub fn gateway_identity_dns_names(certificate: &CertificateDer<'_>) -> String {
    let Some(names) = parse_gateway_identity_names(certificate) else {
        return "names that cannot be read".to_owned();
    };
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Returns the DNS names of a certificate; `None` if they cannot be read.
fn parse_gateway_identity_names(certificate: &CertificateDer<'_>) -> Option<Vec<String>> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let names = parsed.subject_alternative_name().ok()??;
    let names = names.value.general_names.iter().filter_map(|name| match name {
        x509_parser::extensions::GeneralName::DNSName(name) => Some((*name).to_owned()),
        _ => None,
    });
    Some(names.collect())
}
