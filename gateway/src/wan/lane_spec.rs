//! The state that all lanes of a gateway share: [`LaneSpec`], with a [`PeerLink`] for each peer.
//!
//! The daemon makes it at the start. Tasks of all lanes and the engine read it.

use super::peer_link::PeerLink;
use crate::events::EventSender;
use crate::host::{Host, PortShare};
use crate::observe::metrics::MetricsRegistry;
use crate::wan::congestion::lane_path::LanePath;
use crate::wan::connect::lane_addresses::LaneAddresses;
use crate::wan::connect::tls::Credentials;
use hier_collectives::ids::{BootId, GatewayId};
use hier_collectives::plan;
use hier_collectives::topology::{Fabric, Link};
use hier_collectives::wire::WireVersions;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use units::{ByteCount, Span};

/// The state that every lane of a gateway shares.
pub struct LaneSpec {
    /// The host: clock, sockets, threads, compute pool.
    pub host: Arc<dyn Host>,
    /// The fabric.
    pub fabric: Arc<Fabric>,
    /// The digest of the fabric's identity, which peers compare.
    pub identity: [u8; 32],
    /// This gateway.
    pub me: GatewayId,
    /// The random number of this start.
    pub boot: BootId,
    /// The versions of messages that this gateway speaks.
    pub versions: WireVersions,
    /// The addresses of lanes on this host.
    pub listen: LaneAddresses,
    /// Whether no peer can dial this gateway, which dials all then and listens nowhere.
    pub dials_only: bool,
    /// The threads of the lanes.
    pub threads: LaneThreads,
    /// Whether each packet is handed to the system by itself, without GSO.
    pub one_by_one: bool,
    /// Whether the fabric file states the MTU of every path; otherwise it is discovered.
    pub mtu_pinned: bool,
    /// Bytes of the plan's segments.
    pub segment_bytes: u64,
    /// The most bytes that the receive windows of all connections of these lanes together grow to
    /// when RTTs are over four times the configured ones.
    pub receive_windows_max: ByteCount,
    /// The certificate of this gateway and the CA that it trusts. A change holds from the next
    /// handshake on.
    pub credentials: watch::Receiver<Arc<Credentials>>,
    /// All other gateways with a WAN port.
    pub peers: BTreeMap<GatewayId, Arc<PeerLink>>,
    /// The metrics of the gateway.
    pub metrics: Arc<MetricsRegistry>,
    /// The event queue of the engine.
    pub events: EventSender,
    /// Ends the lanes. A lane that ends by itself cancels it, which ends the gateway.
    pub shutdown: CancellationToken,
    /// The writers of control messages of all lanes, for which a shutdown waits.
    pub control_writers: TaskTracker,
}

/// The threads of a gateway's lanes; see [`LaneThread`](crate::host::LaneThread).
#[derive(Debug, Clone, Copy)]
pub struct LaneThreads {
    /// The number of the first thread.
    pub first: usize,
    /// The number of threads of all lanes of this process.
    pub of: usize,
}

impl LaneSpec {
    /// Returns the peers with lanes at the address `from`, from which they may dial at any port.
    pub(crate) fn peers_at(&self, from: IpAddr) -> impl Iterator<Item = &Arc<PeerLink>> {
        let is_there = move |peer: &&Arc<PeerLink>| {
            peer.addresses.as_ref().is_some_and(|location| location.has_ip(from))
        };
        self.peers.values().filter(is_there)
    }

    /// Returns the peer at the address `from`, if there is exactly one.
    pub(crate) fn peer_at(&self, from: IpAddr) -> Option<GatewayId> {
        let mut peers = self.peers_at(from);
        peers.next().filter(|_| peers.next().is_none()).map(|peer| peer.id)
    }

    /// Returns the number of lanes that listen: all if a peer dials this gateway. Otherwise it is one
    /// at each address, which answers the probes of paths.
    fn listening_lanes(&self) -> u16 {
        let most = plan::plan_lanes_limit(&self.fabric);
        match self.peers.values().any(|peer| !peer.lane_terms.dials) {
            _ if self.dials_only => 0,
            true => most,
            false => self.listen.count().min(most),
        }
    }

    /// Returns the place of a lane's socket among those that share the UDP port where the gateway
    /// listens; `None` for a lane that does not listen.
    pub(crate) fn port_share(&self, lane: u16) -> Option<PortShare> {
        let listening = self.listening_lanes();
        let lanes = (0..listening).filter(|other| self.listen.have_same_address(*other, lane));
        let sockets = u16::try_from(lanes.count()).unwrap_or(u16::MAX);
        let place = self.listen.place_of_lane(lane);
        (lane < listening).then_some(PortShare { place, sockets })
    }

    /// Returns the longest round trip to a peer by the fabric.
    pub(crate) fn longest_rtt(&self) -> Span {
        self.peers.values().map(|peer| peer.link().rtt).max().unwrap_or(Span::ZERO)
    }

    /// Returns the path of a lane to `peer`, from which its windows follow. It has the present rate
    /// limit of the link and the number of lanes that share it now.
    pub(crate) fn lane_path(&self, peer: &PeerLink) -> LanePath {
        let lanes = u64::from(peer.sharing.load(Ordering::Relaxed));
        let connections = lanes * self.peers.len() as u64;
        LanePath {
            link: Link { rate: peer.pair_rate_now(), ..peer.link() },
            inbound: peer.link().rate,
            lanes,
            segment_bytes: self.segment_bytes,
            receive_window_max: self.receive_windows_max.get() / connections.max(1),
            memory: Arc::clone(&peer.memory),
            probe_seed: self.me.0.into(),
        }
    }
}
