//! What simulated gateways show each other.

use super::SimulateError;
use crate::certs::{self, Order, Validity};
use crate::wan::connect::tls::Credentials;
use hier_collectives::ids::GatewayId;
use hier_collectives::topology::Fabric;

/// What a gateway shows of itself.
pub struct Papers {
    /// Digest of what it takes for the fabric.
    pub identity: [u8; 32],
    /// Its certificate and key, and the CA that it believes.
    pub credentials: Credentials,
}

/// Keys for every gateway of a fabric, which go away with this.
pub struct Keys {
    folder: tempfile::TempDir,
}

impl Keys {
    /// Makes them.
    ///
    /// # Errors
    /// The file system refuses, or a gateway's name is no file name.
    pub fn make(fabric: &Fabric) -> Result<Self, SimulateError> {
        let folder = tempfile::tempdir()?;
        let order = Order { validity: Validity::days(30), jobs: &[], force: false };
        certs::make(fabric, folder.path(), &order)?;
        Ok(Self { folder })
    }

    /// What a gateway shows.
    ///
    /// # Errors
    /// The files are gone.
    pub fn papers(&self, fabric: &Fabric, me: GatewayId) -> Result<Papers, SimulateError> {
        let name = &fabric.gateway(me).name;
        let file = |suffix: &str| self.folder.path().join(format!("{name}.{suffix}"));
        let ca = self.folder.path().join("ca.pem");
        let credentials = Credentials::load(&file("pem"), &file("key"), &ca)?;
        Ok(Papers { identity: [1; 32], credentials })
    }
}
