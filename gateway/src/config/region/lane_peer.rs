//! A peer to which a gateway of a region file has lanes.
//!
//! The doctor and `landbridge ports` read it; the daemon makes the same links
//! (`daemon/link_setup.rs`).

use crate::wan::connect::lane_addresses::LaneAddresses;
use crate::wan::connect::path_probe::path_check::CheckedPaths;
use crate::wan::connect::peer_addresses::PeerAddresses;
use hier_collectives::ids::GatewayId;
use hier_collectives::plan;
use hier_collectives::topology::{Fabric, Link};
use units::Span;

/// A peer to which a gateway has lanes, over the WAN or over the LAN of their region.
#[derive(Debug, Clone, PartialEq)]
pub struct LanePeer {
    /// Its number in the fabric.
    pub id: GatewayId,
    /// The link to its region; `None` within the region.
    pub link: Option<Link>,
    /// Whether the gateway dials the lanes to it; otherwise it dials them.
    pub dials: bool,
    /// The addresses of the gateway's lanes to it, on this host.
    pub own: LaneAddresses,
    /// The addresses at which it reaches these lanes; they differ from `own` behind NAT or a relay.
    /// `None` where it cannot dial them.
    pub own_seen_at: Option<PeerAddresses>,
    /// The addresses of its lanes; `None` if it cannot be dialled.
    pub theirs: Option<PeerAddresses>,
}

impl LanePeer {
    /// Returns the paths of all lanes to the peer at these addresses, up to the most lanes that may be
    /// in use, to be checked. The RTT of a path within a region is given as 0.
    pub fn lane_paths(&self, fabric: &Fabric, theirs: &LaneAddresses) -> CheckedPaths {
        let rtt = self.link.as_ref().map_or(Span::ZERO, |link| link.rtt);
        let lanes = plan::plan_lanes_limit(fabric);
        CheckedPaths::of_lanes((&self.own, theirs), lanes, rtt, fabric.mtu())
    }
}
