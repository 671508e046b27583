//! Settings of a region file for one gateway on its host, and for one job.

use crate::access::{Account, AccountError};
use crate::local::socket::GatewaySocketMode;
use crate::observe::spans::otlp_endpoint::OtlpEndpoint;
use crate::wan::connect::lane_addresses::LaneAddresses;
use hier_collectives::ids::GatewayId;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use units::ByteCount;

/// One gateway's settings on its host. Paths are resolved against the file's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayConfig {
    /// Its number in the fabric.
    pub id: GatewayId,
    /// Its name in the fabric.
    pub name: String,
    /// Unix socket where its ranks attach.
    pub socket: PathBuf,
    /// User as whom it runs, where its trainers run as others.
    pub user: Option<Account>,
    /// Group whose members may connect to the socket.
    pub group: Option<Account>,
    /// Users whose processes may connect to the socket; `None` for the gateway's user, and `group` if
    /// there is one.
    pub mode: Option<GatewaySocketMode>,
    /// TCP address at which ranks on other hosts attach; `None` to serve this host alone.
    pub attach: Option<SocketAddr>,
    /// CA whose certificates ranks on other hosts must show, PEM.
    pub trainers_ca: Option<PathBuf>,
    /// Addresses that its lanes bind, where those are not the fabric's: behind NAT or a relay.
    pub listen: Option<LaneAddresses>,
    /// Whether lanes may hand several packets to the system in one call (UDP GSO). A qdisc such as
    /// netem takes those for one packet, and drops them together.
    pub segmentation_offload: bool,
    /// TCP address of the status page, `/status`, `/metrics`, `/healthz` and `/readyz`.
    pub status: SocketAddr,
    /// Folder for dumps of failures; `None` to write none.
    pub dumps: Option<PathBuf>,
    /// The collector to which it posts spans of collectives.
    pub otlp: Option<OtlpEndpoint>,
    /// Its certificate chain, PEM.
    pub certificate: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// Certificate of the CA that all gateways trust, PEM.
    pub ca: PathBuf,
    /// Memory for QUIC windows, lanes, and the partial sums of all jobs. Partial sums get what
    /// windows and lanes leave, and at least half. Arenas of ranks are not part of it.
    pub memory: ByteCount,
}

impl GatewayConfig {
    /// Returns the number of the user as whom the gateway runs; `None` if the file does not say.
    ///
    /// # Errors
    /// This host has no such user.
    pub fn user_id(&self) -> Result<Option<u32>, AccountError> {
        self.user.as_ref().map(Account::user_id).transpose()
    }

    /// Returns the number of the group that may connect to the socket; `None` for no group.
    ///
    /// # Errors
    /// This host has no such group.
    pub fn group_id(&self) -> Result<Option<u32>, AccountError> {
        self.group.as_ref().map(Account::group_id).transpose()
    }
}

/// One training job that may attach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobConfig {
    /// Its name.
    pub name: String,
    /// File with the token that its ranks present.
    pub token: PathBuf,
    /// Sum of its ranks' arenas on one gateway, at most.
    pub memory: ByteCount,
    /// Its share of a link in relation to other jobs', from 1 to 1000.
    pub weight: NonZeroU32,
}
