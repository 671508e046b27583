//! One peer, as all lanes to it share it: link, send queue, pacer, number of lanes.
//!
//! The daemon makes a [`PeerLink`] for each peer at the start. Tasks of lanes and the engine read it;
//! its parts have locks of their own.

use crate::lock::lock_ignoring_poison;
use crate::observe::metrics::PeerMetrics;
use crate::wan::congestion::PathMemory;
use crate::wan::connect::lane_addresses::LaneAddresses;
use crate::wan::connect::liveness::PeerLiveness;
use crate::wan::connect::path_probe::path_check::CheckedPaths;
use crate::wan::connect::peer_addresses::PeerLocation;
use crate::wan::link::controller_policy::ControllerPolicy;
use crate::wan::link::lane_number::LaneNumberTerms;
use crate::wan::link_trace::PeerTrace;
use crate::wan::pacing::pair_pacer::PairPacer;
use crate::wan::stream::packet_train::PacketTrains;
use crate::wan::stream::segment_queue::SendQueue;
use hier_collectives::ids::GatewayId;
use hier_collectives::topology::{Fabric, Link};
use std::num::NonZeroU16;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::watch;
use units::BitRate;

/// One peer, as all lanes share it.
pub struct PeerLink {
    /// The peer.
    pub id: GatewayId,
    /// The addresses of its lanes; `None` for a gateway that no other can dial.
    pub addresses: Option<PeerLocation>,
    /// The addresses that this gateway's lanes to it have.
    pub local: LaneAddresses,
    /// The MTU that the fabric file states for every path, in bytes; `None` where lanes discover
    /// it.
    pub pinned_mtu: Option<u16>,
    /// The link to its region, at the rate that the pair alone could send; the engine changes it with
    /// the fabric.
    pub link: Mutex<Link>,
    /// The segments to it.
    pub send_queue: SendQueue,
    /// The rate limit of the payload to it.
    pub pair_pacer: PairPacer,
    /// The congestion controller of its lanes.
    pub controller: ControllerPolicy,
    /// The findings of its lanes about the path, on a shared link.
    pub memory: Arc<PathMemory>,
    /// The packet trains to it that measure the capacity of a shared link.
    pub trains: PacketTrains,
    /// The bounds of the number of lanes.
    pub lane_terms: LaneNumberTerms,
    /// The number of lanes in use, which the engine sets and diallers follow.
    pub lanes: watch::Sender<u16>,
    /// The number of lanes that share the link, which the engine sets and windows follow. It is
    /// that of the lanes that are up, or the fewest that there may be if that is more.
    pub sharing: AtomicU16,
    /// When its lanes were last heard.
    pub liveness: PeerLiveness,
    /// Its counters.
    pub metrics: PeerMetrics,
    /// The trace of the link and its lanes.
    pub trace: PeerTrace,
}

impl PeerLink {
    /// Returns the link to the peer's region, at the rate that the pair alone could send.
    pub fn link(&self) -> Link {
        lock_ignoring_poison(&self.link).clone()
    }

    /// Takes over the link to the peer's region from another fabric, in which `me` is this gateway. Lanes
    /// follow with their next round. Does nothing for a peer of the same region.
    pub(crate) fn replace_link(&self, fabric: &Fabric, me: GatewayId) {
        let regions = [me, self.id].map(|id| fabric.gateway(id).region);
        if let Some(link) = fabric.link(regions[0], regions[1]) {
            *lock_ignoring_poison(&self.link) = pair_link_of_fabric(fabric, link, (me, self.id));
            self.pair_pacer.set_link(link);
        }
    }

    /// Returns the number of lanes to this peer that are in use: lanes 0 to one less.
    pub fn lanes_in_use(&self) -> u16 {
        *self.lanes.borrow()
    }

    /// Sets the number of lanes in use, and wakes the diallers if it is another one.
    pub(crate) fn set_lanes_in_use(&self, lanes: u16) {
        self.lanes.send_if_modified(|now| std::mem::replace(now, lanes) != lanes);
    }

    /// Sets how many lanes are up. As many share the link and the pacer, but no fewer than the
    /// fewest that there may be.
    pub(crate) fn set_lanes_up(&self, up: u16) {
        let sharing = up.max(self.lane_terms.least);
        self.sharing.store(sharing, Ordering::Relaxed);
        self.pair_pacer.set_lanes(NonZeroU16::new(sharing).unwrap_or(NonZeroU16::MIN));
    }

    /// Returns the paths of the lanes in use to this peer, with RTT and MTU, to be checked. `None` for a
    /// peer that cannot be dialled, or whose host name is not resolved. `fabric` gives the MTU that
    /// plans assume.
    pub(crate) fn lane_paths(&self, fabric: &Fabric) -> Option<CheckedPaths> {
        let addresses = self.addresses.as_ref()?.now()?;
        let mtu = self.pinned_mtu.unwrap_or(fabric.mtu());
        let ends = (&self.local, &addresses);
        Some(CheckedPaths::of_lanes(ends, self.lanes_in_use(), self.link().rtt, mtu))
    }

    /// Returns what the peer could acknowledge, in IP bytes per second, if the link had no limit
    /// but `limit` and were filled. `None` where no rate is known: on a shared link and within a
    /// region.
    pub(crate) fn promised_rate(&self, limit: BitRate) -> Option<f64> {
        let pair = self.pair_pacer.share().rate_over(limit).bytes_per_second();
        let link = self.link();
        let is_known = link.a != link.b && self.controller != ControllerPolicy::Shared;
        is_known.then(|| pair * (1.0 - link.loss.as_f64()))
    }

    /// Returns the rate that the pair alone could send, within the present limit of the link.
    pub(crate) fn pair_rate_now(&self) -> BitRate {
        self.link().rate.min(self.pair_pacer.link_limit())
    }
}

impl std::fmt::Debug for PeerLink {
    /// Prints the peer's number for logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeerLink").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Returns a link between the regions of two gateways, at the rate at which both can exchange if they
/// have it alone, in the faster direction: the least of link and ports.
pub(crate) fn pair_link_of_fabric(
    fabric: &Fabric,
    link: &Link,
    (me, peer): (GatewayId, GatewayId),
) -> Link {
    let (Some(here), Some(there)) = (fabric.gateway(me).wan, fabric.gateway(peer).wan) else {
        return link.clone();
    };
    let (out, inward) = (here.egress.min(there.ingress), here.ingress.min(there.egress));
    Link { rate: link.rate.min(out.max(inward)), ..link.clone() }
}
