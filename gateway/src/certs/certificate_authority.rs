//! The CA of a deployment, and the certificates that it signs.

use super::certificate_validity::CertificateValidity;
use super::error::CertsError;
use crate::access::read_credential_bytes;
use crate::host::{Host as _, RealHost};
use crate::local::token_file::make_token_file_text;
use crate::wan::connect::tls::{FabricSignature, gateway_identity_dns_name};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ED25519, PublicKeyData as _, SigningKey as _,
};
use std::io;
use std::path::Path;
use x509_parser::pem::parse_x509_pem;

/// The CA of one deployment, which signs the certificates that its gateways trust.
pub struct CertificateAuthority {
    issuer: Issuer<'static, KeyPair>,
    certificate_pem: String,
    pub(super) key_pem: String,
}

/// A certificate and its private key, both PEM.
#[derive(Clone)]
pub struct IssuedCertificate {
    /// The certificate.
    pub certificate_pem: String,
    /// Its private key, a secret.
    pub key_pem: String,
}

impl CertificateAuthority {
    /// Makes a self-signed CA, valid for ten years.
    ///
    /// # Errors
    /// A certificate cannot contain the fabric's name.
    pub fn generate(fabric: &str) -> Result<Self, CertsError> {
        let at_fault = |source| CertsError::Certificate { subject: fabric.to_owned(), source };
        let mut params = CertificateParams::default();
        // A random part tells two CAs of one fabric apart in error texts.
        let common_name = format!("Landbridge CA of {fabric}, {}", &make_token_file_text()[..8]);
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        set_authority_validity(&mut params, CertificateValidity::days(CA_VALIDITY_DAYS));
        let key = generate_authority_key_pair().map_err(at_fault)?;
        let key_pem = key.serialize_pem();
        let certified = CertifiedIssuer::self_signed(params, key).map_err(at_fault)?;
        let certificate_pem = certified.pem();
        Self::from_pem(certificate_pem, key_pem).map_err(at_fault)
    }

    /// Loads a CA that was made earlier, from its PEM files.
    ///
    /// # Errors
    /// A file cannot be read or does not contain a CA, or the key is not the certificate's own.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, CertsError> {
        let (certificate_pem, key_pem) =
            (read_authority_pem_file(certificate)?, read_authority_pem_file(key)?);
        let authority = Self::from_pem(certificate_pem, key_pem).map_err(|source| {
            let subject = format!("{} and {}", certificate.display(), key.display());
            CertsError::Certificate { subject, source }
        })?;
        if !authority.key_fits() {
            let (certificate, key) = (certificate.to_owned(), key.to_owned());
            return Err(CertsError::OtherCaKey { certificate, key });
        }
        Ok(authority)
    }

    /// Returns whether the CA's private key is the one of its certificate.
    fn key_fits(&self) -> bool {
        let parsed = parse_x509_pem(self.certificate_pem.as_bytes()).ok();
        let parsed = parsed.as_ref().and_then(|(_, pem)| pem.parse_x509().ok());
        let own = self.issuer.key().subject_public_key_info();
        parsed.is_some_and(|certificate| certificate.public_key().raw == own)
    }

    /// Signs a certificate by which a gateway proves its name, as TLS client and as TLS server.
    ///
    /// # Errors
    /// A certificate cannot contain the gateway's name.
    pub fn issue_certificate(
        &self,
        gateway: &str,
        fabric: &str,
        validity: CertificateValidity,
    ) -> Result<IssuedCertificate, CertsError> {
        let name = gateway_identity_dns_name(gateway, fabric);
        let at_fault = |source| CertsError::Certificate { subject: name.clone(), source };
        let mut params = CertificateParams::new(vec![name.clone()]).map_err(at_fault)?;
        params.distinguished_name.push(DnType::CommonName, gateway);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        set_authority_validity(&mut params, validity);
        let key = generate_authority_key_pair().map_err(at_fault)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(at_fault)?;
        Ok(IssuedCertificate { certificate_pem: certificate.pem(), key_pem: key.serialize_pem() })
    }

    /// Signs the text of a fabric file, so that gateways put it in force while they run.
    ///
    /// # Errors
    /// [`CertsError::OtherAlgorithm`]: the CA's key is not of Ed25519.
    pub fn sign_fabric(&self, text: &str) -> Result<FabricSignature, CertsError> {
        let signed = self.issuer.key().sign(&FabricSignature::signed_bytes(text)).ok();
        let is_of_kind = self.issuer.key().algorithm() == &PKCS_ED25519;
        let bytes = signed.filter(|_| is_of_kind).and_then(|bytes| bytes.try_into().ok());
        bytes.map(FabricSignature).ok_or(CertsError::OtherAlgorithm)
    }

    /// Returns the CA's certificate in PEM, which every gateway needs.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// Makes a CA from its certificate and private key, both in PEM.
    fn from_pem(certificate_pem: String, key_pem: String) -> Result<Self, rcgen::Error> {
        let key = KeyPair::from_pem(&key_pem)?;
        let issuer = Issuer::from_ca_cert_pem(&certificate_pem, key)?;
        Ok(Self { issuer, certificate_pem, key_pem })
    }
}

/// The 16 bytes before the 32 bytes of an Ed25519 private key in its encoding by version 1 of
/// PKCS#8 (RFC 8410). They are the heads of a sequence of the version, the algorithm's identifier,
/// and an octet string that holds the key as another octet string.
const ED25519_PKCS8_V1_HEADER: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// Makes an Ed25519 key in version 1 of PKCS#8. OpenSSL 3.0 and Python's cryptography read no keys
/// of version 2, in which rcgen would make it. Tested by `keys_are_in_version_1_of_pkcs8`.
fn generate_authority_key_pair() -> Result<KeyPair, rcgen::Error> {
    let der = [&ED25519_PKCS8_V1_HEADER[..], &RealHost.random_bytes()].concat();
    KeyPair::try_from(der)
}

/// Reads the text of a certificate file or key file.
fn read_authority_pem_file(file: &Path) -> Result<String, CertsError> {
    let text = read_credential_bytes(file).and_then(|bytes| {
        let invalid = |_| io::Error::new(io::ErrorKind::InvalidData, "not a text in UTF-8");
        String::from_utf8(bytes).map_err(invalid)
    });
    text.map_err(|source| CertsError::Io { file: file.to_owned(), source })
}

/// Sets the first and the last moment at which a certificate is valid.
fn set_authority_validity(params: &mut CertificateParams, validity: CertificateValidity) {
    params.not_before = validity.not_before;
    params.not_after = validity.not_after;
}

/// 3,650 days: how long a CA's certificate is valid from its making; after that, gateways trust no
/// certificate of that CA. Gateways' certificates expire earlier, so that renewing those
/// certificates changes no other file.
const CA_VALIDITY_DAYS: u32 = 3650;
