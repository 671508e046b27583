//! The estimates of the link to one peer, which are compared with what the fabric says.

use crate::wan::PeerLink;
use crate::wan::link::capacity::LinkCapacity;
use crate::wan::link::controller_policy::ControllerPolicy;
use crate::wan::link::loss_alarm::LossAlarm;
use crate::wan::link::rtt_alarm::RttAlarm;
use hier_collectives::topology::Fabric;

/// The estimates of the link to one peer.
pub(super) struct LinkEstimates {
    /// Whether the link loses more than the fabric says.
    pub loss_alarm: LossAlarm,
    /// Whether the path is longer than the fabric says; `None` for a peer in the same region,
    /// and on a shared link, where other traffic may fill the queue.
    pub rtt_alarm: Option<RttAlarm>,
    /// Capacity estimate of the link; `None` for a peer in the same region.
    pub capacity: Option<LinkCapacity>,
}

impl LinkEstimates {
    /// Makes the estimates of the link to a peer, of which nothing is measured yet.
    pub fn new(fabric: &Fabric, peer: &PeerLink) -> Self {
        let link = peer.link();
        let of_fabric = fabric.link(link.a, link.b);
        let is_shared = peer.controller == ControllerPolicy::Shared;
        Self {
            loss_alarm: LossAlarm::new(link.loss),
            rtt_alarm: of_fabric.filter(|_| !is_shared).map(|link| RttAlarm::new(link.rtt)),
            capacity: of_fabric.cloned().map(|link| match is_shared {
                true => LinkCapacity::found_by_lanes(link),
                false => LinkCapacity::new(link),
            }),
        }
    }
}
