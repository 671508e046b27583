//! Mutual TLS 1.3, in which a gateway proves its name in the fabric.
//!
//! A gateway's certificate has the DNS name `GATEWAY.FABRIC.landbridge`. The dialling side asks for the
//! name that it wants. The accepting side takes any certificate of the CA, and checks with
//! [`check_gateway_identity`] the name that the dialler's hello claims. A trainer on another host
//! may be without a certificate: [`gateway_verifier_client_config`] makes its settings.

mod alert;
mod certificate_usage;
mod cipher_suites;
mod credentials;
mod credentials_error;
mod credentials_pem;
mod fabric_signature;
mod gateway_identity;
mod gateway_verifier;
mod own_certificate;
#[cfg(test)]
mod tests;
mod trust_anchors;

pub(super) use alert::{explain_connection_alert, is_close_without_alert};
pub(super) use credentials::PROBE_ALPN;
pub use credentials::{ATTACH_ALPN, CertificateExpiry, Credentials, credentials_file_expiry};
pub use credentials_error::CredentialsError;
pub use fabric_signature::{FabricSignature, FabricSignatureError};
pub use gateway_identity::{
    IdentityError, check_gateway_identity, gateway_identity_dns_name, gateway_identity_dns_names,
};
pub use gateway_verifier::gateway_verifier_client_config;
pub use own_certificate::{OwnCertificateError, OwnCertificateFault};
pub use trust_anchors::TrustAnchors;
