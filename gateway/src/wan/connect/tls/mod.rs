//! Who is at the other end: mutual TLS 1.3 in which a gateway proves its name in the fabric.
//!
//! A gateway's certificate carries the DNS name `GATEWAY.FABRIC.landbridge`. The dialling side
//! asks for the name it wants; the answering side takes any certificate of the CA and checks
//! with [`proves`] the name that the dialler's hello claims.

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::RootCertStore;
use rustls::client::{Resumption, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, cipher_suite};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The protocol and version that both ends must speak.
pub const ALPN: &[u8] = b"landbridge/1";

/// The protocol of a [`path_probe`](super::path_probe), which carries no collective.
pub const PROBE_ALPN: &[u8] = b"landbridge-probe/1";

/// The DNS name that a gateway's certificate proves.
pub fn dns_name(gateway: &str, fabric: &str) -> String {
    format!("{gateway}.{fabric}.landbridge")
}

/// What a gateway shows of itself, and whom it believes. Valid at the time of loading.
#[derive(Debug)]
pub struct Credentials {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    roots: Arc<RootCertStore>,
    files: Files,
}

#[derive(Debug, Clone)]
struct Files {
    certificate: PathBuf,
    ca: PathBuf,
}

/// A certificate or key that cannot be used. The fault of whoever made or named the file.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// A file that cannot be read, or is no PEM.
    #[error("{}: {problem}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A certificate that TLS refuses.
    #[error("{}: {source}; make certificates with `landbridge certs`", file.display())]
    Refused {
        /// The file.
        file: PathBuf,
        /// The reason.
        source: rustls::Error,
    },
}

/// A certificate of our CA that does not prove the name claimed. The peer's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// No certificate at all.
    #[error("the peer shows no certificate, so it does not prove that it is `{claimed}`")]
    NoCertificate {
        /// The name it claims.
        claimed: String,
    },
    /// A certificate with another name.
    #[error("the peer claims to be `{claimed}`, but its certificate is for {proven}")]
    OtherName {
        /// The name it claims.
        claimed: String,
        /// The names its certificate has.
        proven: String,
    },
}

impl Credentials {
    /// Loads a gateway's certificate chain, its key and the CA it trusts. Call again to take up
    /// files that were renewed.
    ///
    /// # Errors
    /// A file that is missing, is no PEM, or holds a key that does not fit its certificate.
    pub fn load(certificate: &Path, key: &Path, ca: &Path) -> Result<Self, CredentialsError> {
        let chain = read_chain(certificate)?;
        let key_der = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, &error))?;
        let mut roots = RootCertStore::empty();
        for root in read_chain(ca)? {
            roots.add(root).map_err(|source| refused(ca, source))?;
        }
        let files = Files { certificate: certificate.to_owned(), ca: ca.to_owned() };
        let credentials = Self { chain, key: key_der, roots: Arc::new(roots), files };
        // A key that does not fit is found here, not at the first connection.
        credentials.server()?;
        Ok(credentials)
    }

    /// TLS for the answering side: any certificate of the CA, then see [`proves`].
    ///
    /// # Errors
    /// A certificate, key or CA that TLS refuses.
    pub fn server(&self) -> Result<Arc<QuicServerConfig>, CredentialsError> {
        let config = QuicServerConfig::try_from(self.answerer(cpu_has_aes())?);
        Ok(Arc::new(config.expect("both suites are offered")))
    }

    /// TLS for the dialling side; the name wanted, a [`dns_name`], is given to `connect`.
    ///
    /// # Errors
    /// A certificate or key that TLS refuses.
    pub fn client(&self) -> Result<Arc<QuicClientConfig>, CredentialsError> {
        self.dialler(ALPN, cpu_has_aes()).map(for_quic)
    }

    /// As [`client`](Self::client), for a probe.
    ///
    /// # Errors
    /// A certificate or key that TLS refuses.
    pub fn probe_client(&self) -> Result<Arc<QuicClientConfig>, CredentialsError> {
        self.dialler(PROBE_ALPN, cpu_has_aes()).map(for_quic)
    }

    fn answerer(&self, has_aes: bool) -> Result<rustls::ServerConfig, CredentialsError> {
        let verifier = self
            .verifier()
            .map_err(|error| refused(&self.files.ca, rustls::Error::General(error.to_string())))?;
        let mut config = rustls::ServerConfig::builder_with_provider(provider(has_aes))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .and_then(|builder| {
                let builder = builder.with_client_cert_verifier(verifier);
                builder.with_single_cert(self.chain.clone(), self.key.clone_key())
            })
            .map_err(|source| refused(&self.files.certificate, source))?;
        config.alpn_protocols = vec![ALPN.to_vec(), PROBE_ALPN.to_vec()];
        // Each connection proves its name afresh: no tickets, so nothing outlives a certificate.
        config.send_tls13_tickets = 0;
        // Without AES instructions here, ChaCha20 also when the dialler prefers AES.
        config.ignore_client_order = !has_aes;
        Ok(config)
    }

    /// Whether a peer with the same CA would believe this gateway's own certificate now.
    ///
    /// # Errors
    /// Why it would not.
    pub fn believes_itself(&self) -> Result<(), rustls::Error> {
        let Some((own, between)) = self.chain.split_first() else {
            return Err(rustls::Error::NoCertificatesPresented);
        };
        let verifier =
            self.verifier().map_err(|error| rustls::Error::General(error.to_string()))?;
        verifier.verify_client_cert(own, between, UnixTime::now()).map(|_| ())
    }

    fn verifier(&self) -> Result<Arc<dyn ClientCertVerifier>, VerifierBuilderError> {
        let (roots, provider) = (Arc::clone(&self.roots), provider(cpu_has_aes()));
        WebPkiClientVerifier::builder_with_provider(roots, provider).build()
    }

    fn dialler(
        &self,
        protocol: &[u8],
        has_aes: bool,
    ) -> Result<rustls::ClientConfig, CredentialsError> {
        let mut config = rustls::ClientConfig::builder_with_provider(provider(has_aes))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .and_then(|builder| {
                let builder = builder.with_root_certificates(Arc::clone(&self.roots));
                builder.with_client_auth_cert(self.chain.clone(), self.key.clone_key())
            })
            .map_err(|source| refused(&self.files.certificate, source))?;
        config.alpn_protocols = vec![protocol.to_vec()];
        config.resumption = Resumption::disabled();
        Ok(config)
    }

    /// The certificate chain, own certificate first.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }
}

fn for_quic(config: rustls::ClientConfig) -> Arc<QuicClientConfig> {
    Arc::new(QuicClientConfig::try_from(config).expect("both suites are offered"))
}

/// Whether the first certificate of `chain`, which TLS has verified, proves that its owner is
/// `gateway` of `fabric`.
///
/// # Errors
/// The names that it proves instead.
pub fn proves(
    chain: &[CertificateDer<'_>],
    gateway: &str,
    fabric: &str,
) -> Result<(), IdentityError> {
    let claimed = dns_name(gateway, fabric);
    let Some(own) = chain.first() else {
        return Err(IdentityError::NoCertificate { claimed });
    };
    let name = ServerName::try_from(claimed.as_str()).ok();
    let parsed = ParsedCertificate::try_from(own).ok();
    match name.zip(parsed).map(|(name, parsed)| verify_server_name(&parsed, &name)) {
        Some(Ok(())) => Ok(()),
        _ => Err(IdentityError::OtherName { claimed, proven: dns_names_of(own) }),
    }
}

/// The DNS names of a certificate, to be shown.
pub fn dns_names_of(certificate: &CertificateDer<'_>) -> String {
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

/// All certificates of a PEM file; at least one.
pub(crate) fn read_chain(file: &Path) -> Result<Vec<CertificateDer<'static>>, CredentialsError> {
    let certificates = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| unreadable(file, &error))?;
    if certificates.is_empty() {
        let problem = "holds no certificate in PEM".to_owned();
        return Err(CredentialsError::Unreadable { file: file.to_owned(), problem });
    }
    Ok(certificates)
}

fn unreadable(file: &Path, error: &rustls::pki_types::pem::Error) -> CredentialsError {
    CredentialsError::Unreadable { file: file.to_owned(), problem: error.to_string() }
}

fn refused(file: &Path, source: rustls::Error) -> CredentialsError {
    CredentialsError::Refused { file: file.to_owned(), source }
}

/// AES-128-GCM where the CPU has instructions for it, else ChaCha20; the other one second, so
/// that unlike hosts still meet.
fn provider(has_aes: bool) -> Arc<CryptoProvider> {
    let (aes, chacha) =
        (cipher_suite::TLS13_AES_128_GCM_SHA256, cipher_suite::TLS13_CHACHA20_POLY1305_SHA256);
    let cipher_suites = if has_aes { vec![aes, chacha] } else { vec![chacha, aes] };
    Arc::new(CryptoProvider { cipher_suites, ..aws_lc_rs::default_provider() })
}

#[cfg(target_arch = "x86_64")]
fn cpu_has_aes() -> bool {
    std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq")
}

#[cfg(target_arch = "aarch64")]
fn cpu_has_aes() -> bool {
    std::arch::is_aarch64_feature_detected!("aes")
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn cpu_has_aes() -> bool {
    false
}

#[cfg(test)]
mod tests;
