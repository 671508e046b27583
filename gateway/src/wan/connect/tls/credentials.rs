//! Certificate, key and CA of a gateway, and the TLS settings that they make.

use super::certificate_usage::certificate_usage_problem;
use super::cipher_suites::{cpu_has_aes, tls_cipher_provider};
use super::credentials_error::{CredentialsError, refused_credentials_error};
use super::credentials_pem::{read_credentials_pem_chain, read_credentials_pem_pair};
use super::trust_anchors::{TrustAnchors, root_store_of_trust_anchors};
use ::ring::hmac;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::RootCertStore;
use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The ALPN protocol of connections between gateways, with its version. TLS refuses a connection on
/// which the ends do not name a common protocol.
pub const GATEWAY_ALPN: &[u8] = b"landbridge/1";

/// The ALPN protocol of a [path probe](crate::wan::connect::path_probe), by which the accepting
/// gateway tells it from a peer's lane. The connection carries no collective.
pub const PROBE_ALPN: &[u8] = b"landbridge-probe/1";

/// The ALPN protocol of a trainer's connection to the gateway of another host, with its version.
/// TLS refuses a trainer that names another protocol.
pub const ATTACH_ALPN: &[u8] = b"landbridge-attach/1";

/// The certificate and key of a gateway, and the CA that it trusts. They were valid when loaded.
#[derive(Debug)]
pub struct Credentials {
    pub(super) chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    pub(super) roots: Arc<RootCertStore>,
    expiry: CertificateExpiry,
    files: CredentialFiles,
}

/// The times at which certificates expire, in seconds since 1970; `None` where it cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CertificateExpiry {
    /// Of the gateway's own certificate.
    pub own: Option<i64>,
    /// Of the CA; of several, of the one that expires last.
    pub ca: Option<i64>,
}

/// The files of certificate and CA, for error messages.
#[derive(Debug, Clone)]
struct CredentialFiles {
    certificate: PathBuf,
    ca: PathBuf,
}

impl Credentials {
    /// Loads a gateway's certificate chain, its key and the CA that it trusts. Another call loads
    /// files that were renewed.
    ///
    /// # Errors
    /// A file is missing or is not PEM, or the key does not fit the certificate.
    pub fn load(certificate: &Path, key: &Path, ca: &Path) -> Result<Self, CredentialsError> {
        let (chain, key_der) = read_credentials_pem_pair(certificate, key)?;
        let kinds = tls_cipher_provider(cpu_has_aes()).key_provider;
        if kinds.load_private_key(key_der.clone_key()).is_err() {
            return Err(CredentialsError::UnusableKey(key.to_owned()));
        }
        let authorities = read_credentials_pem_chain(ca)?;
        let expiry = CertificateExpiry {
            own: chain.first().and_then(credential_expires_at),
            ca: authorities.iter().filter_map(credential_expires_at).max(),
        };
        let roots = root_store_of_trust_anchors(ca, authorities)?;
        let files = CredentialFiles { certificate: certificate.to_owned(), ca: ca.to_owned() };
        let usage_problem = chain.first().and_then(certificate_usage_problem);
        let credentials = Self { chain, key: key_der, roots, expiry, files };
        // A key that does not fit is found here, not at the first connection.
        credentials.server_config().map_err(|error| match error {
            CredentialsError::Refused { source: rustls::Error::InconsistentKeys(_), .. } => {
                CredentialsError::OtherKey {
                    certificate: certificate.to_owned(),
                    key: key.to_owned(),
                }
            }
            CredentialsError::Refused { .. } if usage_problem.is_some() => {
                CredentialsError::OtherUsage {
                    certificate: certificate.to_owned(),
                    problem: usage_problem.unwrap_or_default(),
                }
            }
            error => error,
        })?;
        Ok(credentials)
    }

    /// Makes the TLS settings of the accepting side. They accept any certificate of the CA;
    /// [`check_gateway_identity`](super::check_gateway_identity) checks its name.
    ///
    /// # Errors
    /// TLS refuses the certificate, the key or the CA.
    pub fn server_config(&self) -> Result<Arc<QuicServerConfig>, CredentialsError> {
        let config = QuicServerConfig::try_from(self.acceptor_config(cpu_has_aes())?);
        Ok(Arc::new(config.expect("both suites are offered")))
    }

    /// Makes the TLS settings of the dialling side, which gives the wanted
    /// [`gateway_identity_dns_name`](super::gateway_identity_dns_name) to `connect`.
    ///
    /// # Errors
    /// TLS refuses the certificate or the key.
    pub fn client_config(&self) -> Result<Arc<QuicClientConfig>, CredentialsError> {
        self.dialler_config(GATEWAY_ALPN, cpu_has_aes()).map(client_config_of_credentials)
    }

    /// Makes the TLS settings of a path probe's dialling side.
    ///
    /// # Errors
    /// TLS refuses the certificate or the key.
    pub fn probe_client_config(&self) -> Result<Arc<QuicClientConfig>, CredentialsError> {
        self.dialler_config(PROBE_ALPN, cpu_has_aes()).map(client_config_of_credentials)
    }

    /// Makes rustls's settings of the accepting side. `has_aes`: the CPU has AES instructions, so
    /// AES is preferred.
    pub(super) fn acceptor_config(
        &self,
        has_aes: bool,
    ) -> Result<rustls::ServerConfig, CredentialsError> {
        let verifier = self.dialler_verifier().map_err(|error| {
            refused_credentials_error(&self.files.ca, rustls::Error::General(error.to_string()))
        })?;
        self.server_settings(verifier, &[GATEWAY_ALPN, PROBE_ALPN], has_aes)
    }

    /// Makes rustls's settings of the gateway's side of connections of trainers on other hosts. They
    /// must show a certificate of `trainers` where that is given.
    ///
    /// # Errors
    /// TLS refuses the certificate, the key or the CA of the trainers.
    pub fn attach_acceptor_config(
        &self,
        trainers: Option<&TrustAnchors>,
    ) -> Result<rustls::ServerConfig, CredentialsError> {
        let verifier = match trainers {
            None => WebPkiClientVerifier::no_client_auth(),
            Some(trainers) => trainers.client_verifier()?,
        };
        self.server_settings(verifier, &[ATTACH_ALPN], cpu_has_aes())
    }

    /// Makes rustls's settings of an accepting side, which speaks one of `protocols` (ALPN).
    fn server_settings(
        &self,
        verifier: Arc<dyn ClientCertVerifier>,
        protocols: &[&[u8]],
        has_aes: bool,
    ) -> Result<rustls::ServerConfig, CredentialsError> {
        let mut config = rustls::ServerConfig::builder_with_provider(tls_cipher_provider(has_aes))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .and_then(|builder| {
                let builder = builder.with_client_cert_verifier(verifier);
                builder.with_single_cert(self.chain.clone(), self.key.clone_key())
            })
            .map_err(|source| refused_credentials_error(&self.files.certificate, source))?;
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        // No tickets: each connection proves its name anew, and no session outlives a certificate.
        config.send_tls13_tickets = 0;
        // Without AES instructions here, ChaCha20 is used even if the dialler prefers AES.
        config.ignore_client_order = !has_aes;
        Ok(config)
    }

    /// Makes the verifier of dialling gateways' certificates, which must be of the CA.
    pub(super) fn dialler_verifier(
        &self,
    ) -> Result<Arc<dyn ClientCertVerifier>, VerifierBuilderError> {
        let (roots, provider) = (Arc::clone(&self.roots), tls_cipher_provider(cpu_has_aes()));
        WebPkiClientVerifier::builder_with_provider(roots, provider).build()
    }

    /// Makes rustls's settings of the dialling side, for the ALPN `protocol`. `has_aes`: the CPU
    /// has AES instructions, so AES is preferred.
    pub(super) fn dialler_config(
        &self,
        protocol: &[u8],
        has_aes: bool,
    ) -> Result<rustls::ClientConfig, CredentialsError> {
        let mut config = rustls::ClientConfig::builder_with_provider(tls_cipher_provider(has_aes))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .and_then(|builder| {
                let builder = builder.with_root_certificates(Arc::clone(&self.roots));
                builder.with_client_auth_cert(self.chain.clone(), self.key.clone_key())
            })
            .map_err(|source| refused_credentials_error(&self.files.certificate, source))?;
        config.alpn_protocols = vec![protocol.to_vec()];
        config.resumption = Resumption::disabled();
        Ok(config)
    }

    /// Returns 32 bytes that follow from the private key and a purpose. They are the same after a
    /// restart, and nobody without the key can compute them.
    pub fn derive_secret(&self, purpose: &str) -> [u8; 32] {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.key.secret_der());
        let mut secret = [0; 32];
        secret.copy_from_slice(hmac::sign(&key, purpose.as_bytes()).as_ref());
        secret
    }

    /// Returns when the gateway's certificate and that of its CA expire.
    pub fn expiry(&self) -> CertificateExpiry {
        self.expiry
    }

    /// Returns the file of the own certificate.
    pub(super) fn certificate_file(&self) -> &Path {
        &self.files.certificate
    }

    /// Returns the file of the CA's certificate.
    pub(super) fn ca_file(&self) -> &Path {
        &self.files.ca
    }

    /// Returns the certificate chain, own certificate first.
    pub fn certificate_chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }
}

/// Returns when the first certificate of a file expires, in seconds since 1970; `None` if there is
/// none that can be read.
pub fn credentials_file_expiry(file: &Path) -> Option<i64> {
    credential_expires_at(read_credentials_pem_chain(file).ok()?.first()?)
}

/// Returns when a certificate expires, in seconds since 1970; `None` if it cannot be read.
fn credential_expires_at(certificate: &CertificateDer<'_>) -> Option<i64> {
    credential_validity(certificate).map(|(_, until)| until)
}

/// Returns when the validity of a certificate begins and ends, in seconds since 1970; `None` if it
/// cannot be read.
pub(super) fn credential_validity(certificate: &CertificateDer<'_>) -> Option<(i64, i64)> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let validity = parsed.validity();
    Some((validity.not_before.timestamp(), validity.not_after.timestamp()))
}

/// Converts rustls's settings of a dialling side to those of quinn.
fn client_config_of_credentials(config: rustls::ClientConfig) -> Arc<QuicClientConfig> {
    Arc::new(QuicClientConfig::try_from(config).expect("both suites are offered"))
}
