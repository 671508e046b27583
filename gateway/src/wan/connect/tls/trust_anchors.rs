//! Certificates of CAs that one side of a connection trusts.

use super::cipher_suites::{cpu_has_aes, tls_cipher_provider};
use super::credentials_error::{CredentialsError, refused_credentials_error};
use super::credentials_pem::read_credentials_pem_chain;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Certificates of CAs that one side of a connection trusts.
#[derive(Debug, Clone)]
pub struct TrustAnchors {
    file: PathBuf,
    pub(super) roots: Arc<RootCertStore>,
}

impl TrustAnchors {
    /// Loads the certificates of a PEM file.
    ///
    /// # Errors
    /// The file is missing, is not PEM, or holds something else.
    pub fn load(file: &Path) -> Result<Self, CredentialsError> {
        let roots = root_store_of_trust_anchors(file, read_credentials_pem_chain(file)?)?;
        Ok(Self { file: file.to_owned(), roots })
    }

    /// Makes the verifier that accepts clients' certificates of these CAs.
    pub(super) fn client_verifier(&self) -> Result<Arc<dyn ClientCertVerifier>, CredentialsError> {
        let (roots, provider) = (Arc::clone(&self.roots), tls_cipher_provider(cpu_has_aes()));
        WebPkiClientVerifier::builder_with_provider(roots, provider).build().map_err(|error| {
            refused_credentials_error(&self.file, rustls::Error::General(error.to_string()))
        })
    }
}

/// Collects certificates of CAs, which are in `file`, in the form in which rustls trusts them.
pub(super) fn root_store_of_trust_anchors(
    file: &Path,
    authorities: Vec<CertificateDer<'static>>,
) -> Result<Arc<RootCertStore>, CredentialsError> {
    let mut roots = RootCertStore::empty();
    for root in authorities {
        roots.add(root).map_err(|source| refused_credentials_error(file, source))?;
    }
    Ok(Arc::new(roots))
}
