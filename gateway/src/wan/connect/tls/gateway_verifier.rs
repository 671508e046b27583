//! The trainer's side of TLS with the gateway of another host.
//!
//! The address at which a trainer finds its gateway is in no certificate. So the trainer accepts the
//! certificate of any gateway of its CA, or of the one gateway that it wants. All gateways of a
//! deployment have its tokens and see its contributions, so none gains by taking another's place.

use super::cipher_suites::{cpu_has_aes, tls_cipher_provider};
use super::credentials::ATTACH_ALPN;
use super::credentials_error::{CredentialsError, refused_credentials_error};
use super::credentials_pem::read_credentials_pem_pair;
use super::gateway_identity::{gateway_identity_dns_names, proves_gateway_identity};
use super::trust_anchors::TrustAnchors;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, SignatureScheme};
use std::path::Path;
use std::sync::Arc;

/// Makes rustls's settings of a trainer that trusts the CA in `ca`. `gateway` is the name of the one
/// gateway that it accepts. `identity` has the files of a certificate and its key, for gateways that
/// ask for one.
///
/// # Errors
/// A file is missing or is not PEM, or the key does not fit the certificate.
pub fn gateway_verifier_client_config(
    ca: &Path,
    gateway: Option<&str>,
    identity: Option<(&Path, &Path)>,
) -> Result<Arc<rustls::ClientConfig>, CredentialsError> {
    let provider = tls_cipher_provider(cpu_has_aes());
    let verifier = GatewayVerifier {
        authorities: TrustAnchors::load(ca)?,
        gateway: gateway.map(ToOwned::to_owned),
        provider: Arc::clone(&provider),
    };
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|source| refused_credentials_error(ca, source))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let (chain, key) = read_credentials_pem_pair(certificate, key)?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|source| refused_credentials_error(certificate, source))?
        }
    };
    config.alpn_protocols = vec![ATTACH_ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Judges the certificate that a gateway shows to a trainer.
#[derive(Debug)]
struct GatewayVerifier {
    authorities: TrustAnchors,
    gateway: Option<String>,
    provider: Arc<CryptoProvider>,
}

/// A certificate of the CA that proves another name than the wanted one.
#[derive(Debug, thiserror::Error)]
#[error("the certificate is for {proven}, and {wanted} is wanted")]
struct OtherName {
    proven: String,
    wanted: String,
}

impl ServerCertVerifier for GatewayVerifier {
    /// Accepts a valid certificate of the CA for a server that proves the wanted gateway's name. The
    /// name of the host is not looked at.
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &self.authorities.roots,
            intermediates,
            now,
            self.provider.signature_verification_algorithms.all,
        )?;
        if proves_gateway_identity(end_entity, self.gateway.as_deref()) {
            return Ok(ServerCertVerified::assertion());
        }
        let wanted = match &self.gateway {
            Some(gateway) => format!("gateway `{gateway}`"),
            None => "a gateway".to_owned(),
        };
        let other = OtherName { proven: gateway_identity_dns_names(end_entity), wanted };
        Err(CertificateError::Other(OtherError(Arc::new(other))).into())
    }

    /// Refuses: only TLS 1.3 is spoken.
    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken".to_owned()))
    }

    /// Checks that the gateway has the private key of its certificate.
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    /// Returns the signature algorithms that can be checked.
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
