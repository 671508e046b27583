//! Certificates for QUIC over the virtual network.

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, ServerConfig};
use rustls::pki_types::PrivatePkcs8KeyDer;
use std::sync::Arc;

/// An Ed25519 certificate: its signatures have one length, so packets have one size.
pub fn tls() -> (ClientConfig, ServerConfig) {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["wan".into()]).unwrap();
    // A random one may be a byte shorter.
    params.serial_number = Some(7.into());
    let certificate = params.self_signed(&key).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.der().clone()).unwrap();
    let client =
        rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let client = QuicClientConfig::try_from(client).unwrap();
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let server =
        ServerConfig::with_single_cert(vec![certificate.der().clone()], key.into()).unwrap();
    (ClientConfig::new(Arc::new(client)), server)
}
