//! The credentials that gateways present: valid ones, and invalid ones of several kinds.

use gateway::certs::{
    self, CertificateAuthority, CertificateOptions, CertificateValidity, IssuedCertificate,
};
use gateway::simulate;
use gateway::wan::connect::tls::Credentials;
use hier_collectives::ids::GatewayId;
use hier_collectives::topology::Fabric;
use hier_collectives::wire::{WIRE_VERSION, WireVersion, WireVersions};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Environment variable with the folder of another process's keys. With equal keys, two processes
/// send packets that are equal to the byte.
pub const KEYS_VARIABLE: &str = "LANDBRIDGE_SIM_KEYS";

/// The kind of credentials that a gateway presents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CredentialKind {
    /// Valid credentials.
    Valid,
    /// A certificate with its name, of an unknown CA.
    OtherAuthority,
    /// A certificate that was good until an hour ago.
    Expired,
    /// A good certificate with the other gateway's name.
    OtherName,
    /// A valid certificate, but another fabric file.
    OtherFabric,
    /// Valid credentials of a program that also speaks the next version of messages.
    BothVersions,
    /// Valid credentials of a program that speaks the next version of messages alone.
    NextVersion,
}

impl CredentialKind {
    /// The digest of its fabric file.
    pub fn fabric_identity(self) -> [u8; 32] {
        [if self == Self::OtherFabric { 2 } else { 1 }; 32]
    }

    /// The credentials and the fabric's identity.
    pub fn of(self, fabric: &Fabric, me: GatewayId) -> simulate::GatewayIdentity {
        let (identity, credentials) = (self.fabric_identity(), self.credentials(fabric, me));
        simulate::GatewayIdentity { fabric: identity, versions: self.versions(), credentials }
    }

    /// The versions of messages that its program speaks.
    fn versions(self) -> WireVersions {
        let next = WireVersion(WIRE_VERSION.0 + 1);
        let versions = match self {
            Self::BothVersions => WireVersions::new(WIRE_VERSION, next),
            Self::NextVersion => WireVersions::new(next, next),
            _ => Some(WireVersions::OWN),
        };
        versions.expect("in order")
    }

    /// Its certificate and key, and the CA that it trusts, which is always the valid one.
    pub fn credentials(self, fabric: &Fabric, me: GatewayId) -> Credentials {
        let own = &fabric.gateway(me).name;
        let other = fabric.gateway_ids().find(|id| *id != me).expect("another gateway");
        let (ca, ca_key) = (keys().join("ca.pem"), keys().join("ca.key"));
        let right = || CertificateAuthority::load(&ca, &ca_key).expect("a CA");
        let issued = match self {
            Self::Valid | Self::OtherFabric | Self::BothVersions | Self::NextVersion => {
                let file = |suffix: &str| keys().join(format!("{own}.{suffix}"));
                /// Held while key files are made and read: tests of one process share the files,
                /// and none may read a half-written file.
                static MAKING: Mutex<()> = Mutex::new(());
                let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
                if !file("key").exists() {
                    let issued = right().issue_certificate(
                        own,
                        fabric.name(),
                        CertificateValidity::days(30),
                    );
                    let IssuedCertificate { certificate_pem, key_pem } =
                        issued.expect("a certificate");
                    std::fs::write(file("pem"), certificate_pem).expect("written");
                    std::fs::write(file("key"), key_pem).expect("written");
                }
                return Credentials::load(&file("pem"), &file("key"), &ca).expect("keys");
            }
            Self::OtherAuthority => {
                let outsider = CertificateAuthority::generate(fabric.name()).expect("a CA");
                outsider.issue_certificate(own, fabric.name(), CertificateValidity::days(1))
            }
            Self::Expired => {
                right().issue_certificate(own, fabric.name(), CertificateValidity::expired())
            }
            Self::OtherName => {
                let name = &fabric.gateway(other).name;
                right().issue_certificate(name, fabric.name(), CertificateValidity::days(1))
            }
        };
        let IssuedCertificate { certificate_pem, key_pem } = issued.expect("a certificate");
        let folder = tempfile::tempdir().expect("a folder");
        let (certificate, key) = (folder.path().join("own.pem"), folder.path().join("own.key"));
        std::fs::write(&certificate, certificate_pem).expect("written");
        std::fs::write(&key, key_pem).expect("written");
        Credentials::load(&certificate, &key, &ca).expect("keys")
    }
}

/// The folder of keys that all simulations of this process share, since making keys is slow.
pub fn keys() -> &'static Path {
    /// The folder of keys, and the temporary folder that holds it if this process made one.
    static KEYS: OnceLock<(Option<tempfile::TempDir>, PathBuf)> = OnceLock::new();
    let (_, folder) = KEYS.get_or_init(|| {
        if let Some(folder) = std::env::var_os(KEYS_VARIABLE) {
            return (None, folder.into());
        }
        let folder = tempfile::tempdir().expect("a folder");
        let fabric = super::shape::Shape::new(1, 1).fabric();
        let order = CertificateOptions {
            validity: CertificateValidity::days(30),
            jobs: &[],
            force: false,
            renew_days: 0,
        };
        certs::make_certificate_files(&fabric, folder.path(), &order).expect("keys");
        let path = folder.path().to_owned();
        (Some(folder), path)
    });
    folder
}
