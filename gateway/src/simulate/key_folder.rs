//! Certificates and keys of simulated gateways.

use super::error::SimulateError;
use crate::certs::{self, CertificateOptions, CertificateValidity};
use crate::wan::connect::tls::Credentials;
use hier_collectives::ids::GatewayId;
use hier_collectives::topology::Fabric;
use hier_collectives::wire::WireVersions;

/// The identity that a gateway presents to its peers.
pub struct GatewayIdentity {
    /// Digest of its fabric file.
    pub fabric: [u8; 32],
    /// The versions of messages between gateways that it speaks.
    pub versions: WireVersions,
    /// Its certificate and key, and the CA that it trusts.
    pub credentials: Credentials,
}

/// A temporary folder with the keys of every gateway of a fabric, removed when dropped.
pub struct KeyFolder {
    folder: tempfile::TempDir,
}

impl KeyFolder {
    /// Makes certificates and keys for all gateways of a fabric.
    ///
    /// # Errors
    /// The file system refuses, or a gateway is called `ca`.
    pub fn make(fabric: &Fabric) -> Result<Self, SimulateError> {
        let folder = tempfile::tempdir()?;
        let options = CertificateOptions {
            validity: CertificateValidity::days(30),
            jobs: &[],
            force: false,
            renew_days: 0,
        };
        certs::make_certificate_files(fabric, folder.path(), &options)?;
        Ok(Self { folder })
    }

    /// Returns the identity of the gateway `me`, with credentials read from the folder.
    ///
    /// # Errors
    /// The files are gone.
    pub fn identity(
        &self,
        fabric: &Fabric,
        me: GatewayId,
    ) -> Result<GatewayIdentity, SimulateError> {
        let name = &fabric.gateway(me).name;
        let file = |suffix: &str| self.folder.path().join(format!("{name}.{suffix}"));
        let ca = self.folder.path().join("ca.pem");
        let credentials = Credentials::load(&file("pem"), &file("key"), &ca)?;
        Ok(GatewayIdentity { fabric: [1; 32], versions: WireVersions::OWN, credentials })
    }
}
