//! The use that a certificate declares, for the text of a refusal.
//!
//! TLS decides whether a certificate is accepted. [`certificate_usage_problem`] finds in a refused one
//! the words for it.

use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;

/// The critical extensions that TLS of a gateway judges, by the last number of their OID 2.5.29.n.
/// They are key usage, alternative names, basic constraints, name constraints, CRL distribution
/// points and extended key usage. A certificate with any other critical extension is refused.
const JUDGED_EXTENSIONS: [u64; 6] = [15, 17, 19, 30, 31, 37];

/// Returns why the use that a certificate declares is not that of a gateway, as a verb with its
/// object. `None` where no reason is found.
pub(super) fn certificate_usage_problem(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    if let Some(oid) = unjudged_certificate_usage_extension(&parsed) {
        return Some(format!("has the critical extension {oid}, which gateways do not know"));
    }
    if parsed.is_ca() {
        return Some("is the certificate of a CA (CA:TRUE), and not a gateway's".to_owned());
    }
    let usage = parsed.extended_key_usage().ok()??.value;
    let uses = [("serverAuth", usage.server_auth), ("clientAuth", usage.client_auth)];
    let lacking: Vec<&str> =
        uses.into_iter().filter(|(_, has)| !has).map(|(name, _)| name).collect();
    (!lacking.is_empty()).then(|| {
        let lacking = lacking.join(" and ");
        format!("lacks {lacking} in its extended key usage, and a gateway dials and accepts")
    })
}

/// Returns the OID of a critical extension for which TLS refuses a certificate.
fn unjudged_certificate_usage_extension(certificate: &X509Certificate<'_>) -> Option<String> {
    let judged = JUDGED_EXTENSIONS.map(|number| format!("2.5.29.{number}"));
    let mut critical = certificate.extensions().iter().filter(|extension| extension.critical);
    critical.find_map(|extension| {
        let oid = extension.oid.to_id_string();
        (!judged.contains(&oid)).then_some(oid)
    })
}
