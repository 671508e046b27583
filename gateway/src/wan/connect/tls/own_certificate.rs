//! The judgement that peers will pass on a gateway's own certificate.
//!
//! `landbridge run` refuses such a certificate whenever it loads files. The doctor asks
//! [`Credentials::check_own_certificate`] and [`check_gateway_identity`] one by one.

use super::credentials::Credentials;
use super::identity::{check_gateway_identity, identity_dns_names};
use rustls::CertificateError;
use std::path::PathBuf;

/// Why peers with the same CA would refuse the certificate of this gateway now.
#[derive(Debug, thiserror::Error)]
pub enum OwnCertificateError {
    /// Its time has passed. A renewed file, or a corrected clock, ends this.
    #[error(
        "certificate {} has expired, and peers refuse it: renew it with `landbridge certs --renew \
         30`, and copy both files here, or correct this host's clock", .0.display()
    )]
    Expired(PathBuf),
    /// Its time has not come. A corrected clock ends this.
    #[error(
        "certificate {} is not valid yet, and peers refuse it: correct this host's clock, or wait",
        .0.display()
    )]
    NotValidYet(PathBuf),
    /// The CA has not signed it. The operator's fault.
    #[error(
        "certificate {} is not trusted by {}, and peers refuse it ({source}): make a new one with \
         `landbridge certs`, and give all gateways the same CA",
        certificate.display(), ca.display()
    )]
    Untrusted {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the CA.
        ca: PathBuf,
        /// The reason.
        source: rustls::Error,
    },
    /// It is another gateway's. The operator's fault.
    #[error(
        "certificate {} is for {}, and peers refuse it: install the one of `{gateway}` of \
         {fabric}", certificate.display(), if proven.is_empty() { "no DNS name" } else { proven }
    )]
    OtherGateway {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The names of the certificate.
        proven: String,
        /// The name of this gateway.
        gateway: String,
        /// The name of the fabric.
        fabric: String,
    },
}

impl OwnCertificateError {
    /// Returns whether time alone may end the error, as where a certificate is not valid yet.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Expired(_) | Self::NotValidYet(_))
    }
}

impl Credentials {
    /// Checks that peers with the same CA will accept this certificate of a gateway of `fabric` now.
    ///
    /// # Errors
    /// The reason why they will not.
    pub fn check_as_gateway(&self, gateway: &str, fabric: &str) -> Result<(), OwnCertificateError> {
        let certificate = || self.certificate_file().to_owned();
        let chain = self.certificate_chain();
        if check_gateway_identity(chain, gateway, fabric).is_err() {
            return Err(OwnCertificateError::OtherGateway {
                certificate: certificate(),
                proven: chain.first().map(identity_dns_names).unwrap_or_default(),
                gateway: gateway.to_owned(),
                fabric: fabric.to_owned(),
            });
        }
        self.check_own_certificate().map_err(|source| match source {
            rustls::Error::InvalidCertificate(
                CertificateError::Expired | CertificateError::ExpiredContext { .. },
            ) => OwnCertificateError::Expired(certificate()),
            rustls::Error::InvalidCertificate(
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
            ) => OwnCertificateError::NotValidYet(certificate()),
            source => OwnCertificateError::Untrusted {
                certificate: certificate(),
                ca: self.ca_file().to_owned(),
                source,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certs::{CertificateAuthority, CertificateValidity};

    /// Loads a certificate for `name` that is valid in `validity` and of another CA where `ca` is
    /// given. Returns the judgement on it at `east-0`.
    fn judge(
        name: &str,
        validity: CertificateValidity,
        ca: Option<&CertificateAuthority>,
    ) -> Result<(), OwnCertificateError> {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let authority = CertificateAuthority::generate("two-region").expect("a CA");
        let issued = authority.issue_certificate(name, "two-region", validity).expect("issued");
        let files = ["own.pem", "own.key", "ca.pem"].map(|name| folder.path().join(name));
        let trusted = ca.unwrap_or(&authority).certificate_pem();
        let texts = [issued.certificate_pem.as_str(), issued.key_pem.as_str(), trusted];
        for (file, text) in files.iter().zip(texts) {
            std::fs::write(file, text).expect("ours");
        }
        let credentials = Credentials::load(&files[0], &files[1], &files[2]).expect("loaded");
        credentials.check_as_gateway("east-0", "two-region")
    }

    #[test]
    fn a_certificate_that_peers_refuse_is_refused() {
        assert!(judge("east-0", CertificateValidity::days(1), None).is_ok());
        let refused = |name, validity, ca: Option<&CertificateAuthority>| {
            let error = judge(name, validity, ca).expect_err("refused");
            (error.may_pass(), error.to_string())
        };
        let (may_pass, text) = refused("east-0", CertificateValidity::not_yet(), None);
        assert!(may_pass && text.contains("not valid yet"), "{text}");
        let (may_pass, text) = refused("east-0", CertificateValidity::expired(), None);
        assert!(may_pass && text.contains("has expired"), "{text}");
        let (may_pass, text) = refused("west-0", CertificateValidity::days(1), None);
        assert!(!may_pass && text.contains("is for `west-0.two-region.landbridge`"), "{text}");
        let other = CertificateAuthority::generate("two-region").expect("a CA");
        let (may_pass, text) = refused("east-0", CertificateValidity::days(1), Some(&other));
        assert!(!may_pass && text.contains("not trusted by"), "{text}");
    }
}
