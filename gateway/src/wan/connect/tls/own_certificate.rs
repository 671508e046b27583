//! The judgement that peers will pass on a gateway's own certificate.
//!
//! `landbridge run` refuses a certificate with a fault whenever it loads files, and reports one that
//! ends while it runs. The doctor asks [`Credentials::check_own_certificate_issue`] and
//! [`Credentials::check_own_certificate_name`] one by one.

use super::certificate_usage::certificate_usage_problem;
use super::cipher_suites::{cpu_has_aes, tls_cipher_provider};
use super::credentials::{Credentials, credential_validity};
use super::gateway_identity::{check_gateway_identity, gateway_identity_dns_names};
use rustls::CertificateError;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::UnixTime;
use rustls::server::ParsedCertificate;
use std::path::PathBuf;
use std::time::Duration;

/// A certificate of this gateway that peers with the same CA refuse now.
#[derive(Debug, thiserror::Error)]
#[error("certificate {} {fault}, and peers refuse it: {}", file.display(), fault.remedy())]
pub struct OwnCertificateError {
    /// The file of the certificate.
    file: PathBuf,
    /// The reason. Its text begins with a verb, whose subject is the certificate.
    pub fault: OwnCertificateFault,
}

/// The reason why peers with the same CA refuse the certificate of this gateway.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OwnCertificateFault {
    /// Its time has passed. A renewed file, or a corrected clock, ends this.
    #[error("has expired")]
    Expired,
    /// Its time has not come. A corrected clock ends this.
    #[error("is not valid yet")]
    NotValidYet,
    /// The CA has not signed it. The operator's fault.
    #[error("is not trusted by {} ({reason})", ca.display())]
    Untrusted {
        /// The file of the CA.
        ca: PathBuf,
        /// The reason of TLS.
        reason: String,
    },
    /// The CA has signed it, for another use than a gateway's. The operator's fault.
    #[error("{0}")]
    OtherUsage(String),
    /// It is another gateway's. The operator's fault.
    #[error("is for {}", if proven.is_empty() { "no DNS name" } else { proven })]
    OtherGateway {
        /// The names of the certificate.
        proven: String,
        /// The name of this gateway.
        gateway: String,
        /// The name of the fabric.
        fabric: String,
    },
}

impl OwnCertificateFault {
    /// Returns whether time alone may end the fault, as where a certificate is not valid yet.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Expired | Self::NotValidYet)
    }

    /// Returns the action that ends the fault.
    pub fn remedy(&self) -> String {
        match self {
            Self::Expired => "renew it with `landbridge certs --renew 30`, and copy both files \
                              here, or correct this host's clock"
                .to_owned(),
            Self::NotValidYet => "correct this host's clock, or wait".to_owned(),
            Self::Untrusted { .. } => "make a new one with `landbridge certs`, and give all \
                                       gateways the same CA"
                .to_owned(),
            Self::OtherUsage(_) => "make a new one with `landbridge certs`".to_owned(),
            Self::OtherGateway { gateway, fabric, .. } => {
                format!("install the one of `{gateway}` of {fabric}")
            }
        }
    }
}

impl Credentials {
    /// Checks that peers with the same CA will accept this certificate of a gateway of `fabric` now.
    ///
    /// # Errors
    /// The reason why they will not.
    pub fn check_own_certificate_as_gateway(
        &self,
        gateway: &str,
        fabric: &str,
    ) -> Result<(), OwnCertificateError> {
        let judged = self.check_own_certificate_name(gateway, fabric).and_then(|()| {
            self.check_own_certificate().map_err(|error| self.own_certificate_fault(&error))
        });
        judged.map_err(|fault| OwnCertificateError {
            file: self.certificate_file().to_owned(),
            fault,
        })
    }

    /// Checks that the certificate is for `gateway` of `fabric`.
    ///
    /// # Errors
    /// It is another gateway's.
    pub fn check_own_certificate_name(
        &self,
        gateway: &str,
        fabric: &str,
    ) -> Result<(), OwnCertificateFault> {
        let chain = self.certificate_chain();
        check_gateway_identity(chain, gateway, fabric).map_err(|_| {
            OwnCertificateFault::OtherGateway {
                proven: chain.first().map(gateway_identity_dns_names).unwrap_or_default(),
                gateway: gateway.to_owned(),
                fabric: fabric.to_owned(),
            }
        })
    }

    /// Checks that the CA has signed the certificate for the use of a gateway. Its validity is not
    /// judged.
    ///
    /// # Errors
    /// The reason why a peer would refuse it while it is valid.
    pub fn check_own_certificate_issue(&self) -> Result<(), OwnCertificateFault> {
        self.check_own_certificate_signature().map_err(|error| self.own_certificate_fault(&error))
    }

    /// Returns the fault for which TLS refuses the own certificate.
    fn own_certificate_fault(&self, error: &rustls::Error) -> OwnCertificateFault {
        let refusal = match error {
            rustls::Error::InvalidCertificate(refusal) => refusal,
            error => return self.untrusted_own_certificate(error.to_string()),
        };
        match refusal {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                OwnCertificateFault::Expired
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                OwnCertificateFault::NotValidYet
            }
            CertificateError::UnknownIssuer => {
                self.untrusted_own_certificate("another CA has signed it".to_owned())
            }
            refusal => match self.certificate_chain().first().and_then(certificate_usage_problem) {
                Some(problem) => OwnCertificateFault::OtherUsage(problem),
                None => self.untrusted_own_certificate(refusal.to_string()),
            },
        }
    }

    /// Makes the fault of a certificate that the CA has not signed.
    fn untrusted_own_certificate(&self, reason: String) -> OwnCertificateFault {
        OwnCertificateFault::Untrusted { ca: self.ca_file().to_owned(), reason }
    }

    /// Checks that a peer with the same CA would accept this gateway's own certificate now.
    ///
    /// # Errors
    /// The reason why a peer would refuse it.
    pub(super) fn check_own_certificate(&self) -> Result<(), rustls::Error> {
        self.check_own_certificate_at(UnixTime::now())
    }

    /// Checks that the CA has signed this gateway's own certificate. Its own validity is not judged:
    /// the check is for the time in it that is closest to now.
    ///
    /// # Errors
    /// The reason why a peer would refuse it at that time.
    pub(super) fn check_own_certificate_signature(&self) -> Result<(), rustls::Error> {
        let now = UnixTime::now().as_secs();
        let validity = self.chain.first().and_then(credential_validity);
        let at = validity.map_or(now, |(from, until)| {
            let [from, until] = [from, until].map(|time| u64::try_from(time).unwrap_or(0));
            now.clamp(from, until.max(from))
        });
        self.check_own_certificate_at(UnixTime::since_unix_epoch(Duration::from_secs(at)))
    }

    /// Checks that a peer with the same CA would accept this gateway's own certificate at a time.
    fn check_own_certificate_at(&self, time: UnixTime) -> Result<(), rustls::Error> {
        let Some((own, between)) = self.chain.split_first() else {
            return Err(rustls::Error::NoCertificatesPresented);
        };
        let verifier =
            self.dialler_verifier().map_err(|error| rustls::Error::General(error.to_string()))?;
        verifier.verify_client_cert(own, between, time)?;
        // A gateway dials some peers and accepts others: its certificate is for both uses.
        let algorithms = tls_cipher_provider(cpu_has_aes()).signature_verification_algorithms.all;
        let own = ParsedCertificate::try_from(own)?;
        verify_server_cert_signed_by_trust_anchor(&own, &self.roots, between, time, algorithms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certs::{CertificateAuthority, CertificateValidity};
    use crate::wan::connect::tls::CredentialsError;
    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, CustomExtension,
        ExtendedKeyUsagePurpose, IsCa, KeyPair,
    };

    /// Judges a certificate at `east-0`. `texts`: the certificate, its key and the CA in PEM.
    fn judge_texts(texts: [&str; 3]) -> Result<(), Refusal> {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let files = ["own.pem", "own.key", "ca.pem"].map(|name| folder.path().join(name));
        for (file, text) in files.iter().zip(texts) {
            std::fs::write(file, text).expect("ours");
        }
        let credentials = Credentials::load(&files[0], &files[1], &files[2])?;
        Ok(credentials.check_own_certificate_as_gateway("east-0", "two-region")?)
    }

    /// Why a certificate is refused, with the judgement on it where its files can be loaded.
    #[derive(Debug, thiserror::Error)]
    enum Refusal {
        #[error(transparent)]
        Files(#[from] CredentialsError),
        #[error(transparent)]
        Own(#[from] OwnCertificateError),
    }

    /// Judges a certificate for `name` that is valid in `validity`; `ca` is trusted in place of its
    /// own CA.
    fn judge(
        name: &str,
        validity: CertificateValidity,
        ca: Option<&CertificateAuthority>,
    ) -> Result<(), Refusal> {
        let authority = CertificateAuthority::generate("two-region").expect("a CA");
        let issued = authority.issue_certificate(name, "two-region", validity).expect("issued");
        let trusted = ca.unwrap_or(&authority).certificate_pem();
        judge_texts([&issued.certificate_pem, &issued.key_pem, trusted])
    }

    /// Judges a certificate of `east-0` of whose parameters `change` changes some.
    fn judge_changed(change: impl FnOnce(&mut CertificateParams)) -> Result<(), String> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("a CA");
        let names = vec!["east-0.two-region.landbridge".to_owned()];
        let mut params = CertificateParams::new(names).expect("a name");
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let own = params.signed_by(&key, &issuer).expect("a certificate");
        let texts = [own.pem(), key.serialize_pem(), issuer.pem()];
        judge_texts([&texts[0], &texts[1], &texts[2]]).map_err(|error| error.to_string())
    }

    #[test]
    fn a_certificate_that_peers_refuse_is_refused() {
        assert!(judge("east-0", CertificateValidity::days(1), None).is_ok());
        let refused = |name, validity, ca: Option<&CertificateAuthority>| {
            let Err(Refusal::Own(error)) = judge(name, validity, ca) else { panic!("refused") };
            (error.fault.may_pass(), error.to_string())
        };
        let (may_pass, text) = refused("east-0", CertificateValidity::not_yet(), None);
        assert!(may_pass && text.contains("is not valid yet"), "{text}");
        let (may_pass, text) = refused("east-0", CertificateValidity::expired(), None);
        assert!(may_pass && text.contains("has expired"), "{text}");
        let (may_pass, text) = refused("west-0", CertificateValidity::days(1), None);
        assert!(!may_pass && text.contains("is for `west-0.two-region.landbridge`"), "{text}");
        let other = CertificateAuthority::generate("two-region").expect("a CA");
        let (may_pass, text) = refused("east-0", CertificateValidity::days(1), Some(&other));
        assert!(!may_pass && text.contains("is not trusted by"), "{text}");
        assert!(text.contains("(another CA has signed it)"), "{text}");
    }

    #[test]
    fn a_certificate_for_another_use_is_refused_in_words() {
        use ExtendedKeyUsagePurpose::{ClientAuth, CodeSigning, ServerAuth};
        let with_usages = |usages: &[ExtendedKeyUsagePurpose]| {
            judge_changed(|params| params.extended_key_usages = usages.to_vec())
        };
        // Without the extension a certificate is for every use.
        assert_eq!(with_usages(&[]), Ok(()));
        assert_eq!(with_usages(&[ServerAuth, ClientAuth, CodeSigning]), Ok(()));
        for (usages, lacking) in [
            (vec![ClientAuth], "lacks serverAuth in its extended key usage"),
            (vec![ServerAuth], "lacks clientAuth in its extended key usage"),
            (vec![CodeSigning], "lacks serverAuth and clientAuth in its extended key usage"),
        ] {
            let text = with_usages(&usages).expect_err("refused");
            assert!(text.contains(lacking) && !text.contains("trusted"), "{text}");
        }
        let authority = IsCa::Ca(BasicConstraints::Unconstrained);
        let text = judge_changed(|params| params.is_ca = authority).expect_err("refused");
        assert!(text.contains("is the certificate of a CA"), "{text}");
        let mut extension =
            CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 99_999], vec![5, 0]);
        extension.set_criticality(true);
        let critical = judge_changed(|params| params.custom_extensions.push(extension));
        let text = critical.expect_err("refused");
        assert!(text.contains("has the critical extension 1.3.6.1.4.1.99999"), "{text}");
    }
}
