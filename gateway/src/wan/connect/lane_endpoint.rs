//! The endpoints of a lane: UDP sockets with a thread of their own (the engine's for a gateway's first
//! lane), shared by the connections to all peers.
//!
//! All lanes of an address listen on one UDP port, each with a socket of its own, and connection ids
//! bring packets to the right one ([`PortShare`]). A lane dials from another socket, whose port the
//! system chooses, so that networks with several paths tell lanes apart.
//!
//! The daemon calls [`start_lane_endpoints`]. The thread of each lane runs an accept loop, and tasks for dialling
//! (`dialler.rs`) and for each connection (`lane_connection.rs`). Both ends of a connection authenticate.
//! A connection without a checked hello holds a slot of a bounded admission control. When all slots are
//! taken, the oldest of the source with most slots is evicted. All strangers are one source, of which
//! the address with the most slots loses one: a peer behind a NAT is a stranger until its hello is checked.

use super::dialler::Dialler;
use super::handshake::handshake_timeout;
use super::lane_connection::{
    ConnectionOrigin, EstablishedConnection, PendingSlot, serve_lane_connection,
};
use super::packet_gathering::make_gathering_socket;
use super::packet_size::{ACCEPTED_PACKET_BYTES_MIN, PacketSizes};
use super::peer_addresses::{PeerLocation, RESOLUTION_TIMEOUT};
use super::quic_config::{quic_endpoint_config, quic_transport_config};
use super::tls;
use crate::admission::AdmissionControl;
use crate::events::Event;
use crate::host::{BoxFuture, LaneThread, PortShare};
use crate::log_throttle::LogThrottle;
use crate::wan::error_code::CONNECTION_CLOSING_CODE;
use crate::wan::lane_spec::{LaneSpec, LaneThreads};
use crate::wan::peer_link::PeerLink;
use crate::warn_if_due;
use crate::warnings::WarningCause;
use hier_collectives::plan;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use tokio_util::task::TaskTracker;
use tracing::{debug, info};
use units::ByteCount;

/// 16 MiB: the buffer that a lane's UDP socket requests for each direction, for a burst of a fast
/// link while a core is busy. What is received beyond it is lost. The kernel may give less, which
/// is logged.
const SOCKET_BUFFER_BYTES: usize = 16 << 20;
/// 8 MiB: the estimated memory of QUIC for a busy lane, for datagrams and packet records of both
/// directions. A gateway counts it in the memory that it may need; no limit holds a lane to 8 MiB.
pub const LANE_QUIC_BYTES: ByteCount = ByteCount::new(8 << 20);
/// 64 connections to one lane whose hello is not checked yet, path probes included: one more ends
/// the oldest of the source (a peer's address, or all strangers) with the most, and among strangers of
/// the address with the most. The number is chosen; it bounds the cost of connections from strangers.
/// Tested by `half_open_handshakes_keep_no_peer_out` and `strangers_keep_no_peer_behind_nat_out`.
const PENDING_CONNECTIONS_MAX: usize = 64;
/// 64 KiB: the most bytes of datagrams kept for a QUIC connection that is not accepted yet, enough
/// for several first flights. Further datagrams are dropped. The default of quinn is 10 MiB.
const INCOMING_BUFFER_BYTES: u64 = 64 << 10;

/// The reason why a lane cannot start.
#[derive(Debug, thiserror::Error)]
pub enum LaneError {
    /// The socket cannot be bound.
    #[error("cannot listen on {address} (UDP): {source}; {}", unbound_lane_endpoint_remedy(source))]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The reason.
        source: std::io::Error,
    },
    /// The thread cannot be started.
    #[error("cannot start a lane's thread: {0}")]
    Thread(std::io::Error),
    /// Our own credentials are invalid.
    #[error(transparent)]
    Credentials(#[from] tls::CredentialsError),
    /// The lane ended before it was up.
    #[error("lane {0} did not start")]
    Lost(u16),
}

/// Returns the remedy where a lane's address cannot be bound.
fn unbound_lane_endpoint_remedy(source: &std::io::Error) -> &'static str {
    match source.kind() {
        ErrorKind::AddrInUse => {
            "end the other program that uses it, or give this gateway another port"
        }
        ErrorKind::AddrNotAvailable => {
            "it is no address of this host: correct `wan` of the fabric, or behind NAT set `listen` of \
             the region file"
        }
        _ => "use an address of this host and a port above 1023",
    }
}

/// Starts the threads and endpoints of all lanes of a gateway; returns when each of them listens.
///
/// # Errors
/// [`LaneError`]: lanes that had started are told to end.
pub async fn start_lane_endpoints(spec: Arc<LaneSpec>) -> Result<(), LaneError> {
    // A gateway without peers needs no port.
    let lanes = if spec.peers.is_empty() { 0 } else { plan::plan_lanes_limit(&spec.fabric) };
    resolve_lane_endpoint_peers(&spec).await;
    for lane in 0..lanes {
        let (up, is_up) = tokio::sync::oneshot::channel();
        let lane_spec = Arc::clone(&spec);
        let body = move || -> BoxFuture<()> {
            Box::pin(async move {
                let sizes = PacketSizes::for_lane(&lane_spec, lane);
                match bind_lane_endpoints(&lane_spec, lane, &sizes) {
                    Ok(endpoints) => {
                        let _ = up.send(Ok(()));
                        run_lane_endpoints(lane_spec, lane, endpoints, sizes).await;
                    }
                    Err(error) => {
                        let _ = up.send(Err(error));
                    }
                }
            })
        };
        let LaneThreads { first, of } = spec.threads;
        let name = format!("lane-{lane}");
        let thread = LaneThread { name, number: first + usize::from(lane), of };
        let started = spec.host.spawn_lane(thread, Box::new(body));
        let outcome = match started {
            Ok(()) => is_up.await.unwrap_or(Err(LaneError::Lost(lane))),
            Err(error) => Err(LaneError::Thread(error)),
        };
        if outcome.is_err() {
            spec.shutdown.cancel();
            return outcome;
        }
    }
    Ok(())
}

/// Resolves the host names of all peers at once, for 5 s at most. Packet sizes follow from the
/// addresses; peers that are not known by then are found later.
async fn resolve_lane_endpoint_peers(spec: &Arc<LaneSpec>) {
    let questions = TaskTracker::new();
    let has_names =
        |peer: &&Arc<PeerLink>| peer.addresses.as_ref().is_some_and(PeerLocation::has_names);
    for peer in spec.peers.values().filter(has_names) {
        let (spec, peer) = (Arc::clone(spec), Arc::clone(peer));
        let host = Arc::clone(&spec.host);
        let question = async move {
            if let Some(location) = &peer.addresses {
                location.refresh(&*spec.host, peer.local.first().ip()).await;
            }
        };
        host.spawn(Box::pin(questions.track_future(question)));
    }
    questions.close();
    tokio::select! {
        biased;
        () = questions.wait() => {}
        () = spec.host.sleep_until(spec.host.now() + RESOLUTION_TIMEOUT) => {}
    }
}

/// The QUIC endpoints of a lane.
struct LaneEndpoints {
    /// For peers that dial this gateway, and for probes; `None` for a lane that does not listen.
    listening: Option<quinn::Endpoint>,
    /// For peers that this gateway dials; `None` where there are none.
    dialling: Option<quinn::Endpoint>,
}

/// Binds the UDP sockets of a lane, and makes QUIC endpoints of them.
///
/// # Errors
/// The address is taken, or the credentials are invalid.
fn bind_lane_endpoints(
    spec: &LaneSpec,
    lane: u16,
    sizes: &PacketSizes,
) -> Result<LaneEndpoints, LaneError> {
    let (own, dials) = (spec.listen.of_lane(lane), spec.peers.values().any(|p| p.lane_terms.dials));
    let server = lane_endpoint_server_config(spec, sizes)?;
    let listen = |share| {
        let socket = format!("{own}, lane {lane}");
        bind_lane_endpoint(spec, (lane, own, share), &socket, sizes, Some(server))
    };
    let dial = || {
        let socket = format!("{own}, dialling lane {lane}");
        let free = (lane, SocketAddr::new(own.ip(), 0), PortShare::ALONE);
        bind_lane_endpoint(spec, free, &socket, sizes, None)
    };
    Ok(LaneEndpoints {
        listening: spec.port_share(lane).map(listen).transpose()?,
        dialling: dials.then(dial).transpose()?,
    })
}

/// Binds one UDP socket of a lane, and makes a QUIC endpoint of it, which accepts connections where
/// there is a `server`. `name` tells it from all other sockets of the gateway.
///
/// # Errors
/// The address is taken.
fn bind_lane_endpoint(
    spec: &LaneSpec,
    (lane, address, share): (u16, SocketAddr, PortShare),
    name: &str,
    sizes: &PacketSizes,
    server: Option<quinn::ServerConfig>,
) -> Result<quinn::Endpoint, LaneError> {
    let error = |source| LaneError::Bind { address, source };
    let socket = spec
        .host
        .bind_udp(address, share, SOCKET_BUFFER_BYTES, &spec.metrics.warnings)
        .map_err(error)?;
    let datagram = sizes.longest_packet_bytes();
    let runtime = spec.host.quic_runtime();
    let metrics = spec.metrics.lane_metrics(lane, spec.listen.of_lane(lane));
    let socket = make_gathering_socket(socket, &*runtime, datagram, spec.one_by_one, metrics);
    let mut config = quic_endpoint_config(&spec.credentials.borrow(), name, share.place);
    config.rng_seed(Some(spec.host.random_bytes()));
    let accepted = datagram.max(ACCEPTED_PACKET_BYTES_MIN);
    config.max_udp_payload_size(accepted).expect("at most 65,507");
    quinn::Endpoint::new_with_abstract_socket(config, server, socket, runtime).map_err(error)
}

/// Makes the QUIC settings of the connections that a lane accepts, with the present credentials.
fn lane_endpoint_server_config(
    spec: &LaneSpec,
    sizes: &PacketSizes,
) -> Result<quinn::ServerConfig, tls::CredentialsError> {
    let crypto = spec.credentials.borrow().server_config()?;
    let mut server = quinn::ServerConfig::with_crypto(crypto);
    server
        .max_incoming(PENDING_CONNECTIONS_MAX)
        .incoming_buffer_size(INCOMING_BUFFER_BYTES)
        .incoming_buffer_size_total(INCOMING_BUFFER_BYTES * PENDING_CONNECTIONS_MAX as u64)
        .migration(true);
    // A peer at an unknown address may be at the end of the longest link. Once its hello is checked,
    // windows and controller are those of its own link.
    if let Some(peer) = spec.peers.values().max_by_key(|peer| peer.link().bdp()) {
        server.transport_config(lane_endpoint_transport_config(spec, peer, sizes));
    }
    Ok(server)
}

/// Makes the transport settings of a lane to one peer, with the windows of its link.
fn lane_endpoint_transport_config(
    spec: &LaneSpec,
    peer: &PeerLink,
    sizes: &PacketSizes,
) -> Arc<quinn::TransportConfig> {
    let idle_timeout = peer.liveness.idle_timeout(peer.link().rtt);
    let (path, packets) = (spec.lane_path(peer), sizes.for_peer(peer));
    Arc::new(quic_transport_config(&path, peer.controller, packets, idle_timeout))
}

/// The connections that a lane has accepted and not identified yet.
struct PendingConnections {
    slots: Arc<AdmissionControl<Option<IpAddr>, IpAddr>>,
    /// Limits the log lines about refused connections.
    refusals: LogThrottle,
}

/// Runs a lane until shutdown: dials the peers that this gateway dials, and accepts connections of the
/// others.
async fn run_lane_endpoints(
    spec: Arc<LaneSpec>,
    lane: u16,
    endpoints: LaneEndpoints,
    sizes: PacketSizes,
) {
    let _shutdown_with_lane = spec.shutdown.clone().drop_guard();
    if let Some(endpoint) = &endpoints.dialling {
        start_lane_endpoint_diallers(&spec, lane, endpoint, &sizes);
    }
    match &endpoints.listening {
        Some(endpoint) => accept_until_lane_endpoint_ends(&spec, lane, endpoint, &sizes).await,
        None => spec.shutdown.cancelled().await,
    }
    let both = || [&endpoints.listening, &endpoints.dialling].into_iter().flatten();
    both().for_each(|endpoint| {
        endpoint.close(CONNECTION_CLOSING_CODE.into(), b"gateway shutting down");
    });
    for endpoint in both() {
        endpoint.wait_idle().await;
    }
}

/// Starts a task for each peer that this gateway dials.
fn start_lane_endpoint_diallers(
    spec: &Arc<LaneSpec>,
    lane: u16,
    endpoint: &quinn::Endpoint,
    sizes: &PacketSizes,
) {
    for peer in spec.peers.values().filter(|peer| peer.lane_terms.dials) {
        let dialler = Dialler {
            spec: Arc::clone(spec),
            lane,
            endpoint: endpoint.clone(),
            peer: Arc::clone(peer),
            packets: sizes.for_peer(peer),
        };
        spec.host.spawn(Box::pin(dialler.dial_until_shutdown()));
    }
}

/// Accepts the connections of a lane until shutdown, or until its socket fails.
async fn accept_until_lane_endpoint_ends(
    spec: &Arc<LaneSpec>,
    lane: u16,
    endpoint: &quinn::Endpoint,
    sizes: &PacketSizes,
) {
    let slots = AdmissionControl::new(PENDING_CONNECTIONS_MAX);
    let pending = Arc::new(PendingConnections { slots, refusals: LogThrottle::default() });
    let mut credentials = spec.credentials.clone();
    let Ok(mut config) = lane_endpoint_server_config(spec, sizes) else { return };
    loop {
        tokio::select! {
            biased;
            () = spec.shutdown.cancelled() => return,
            Ok(()) = credentials.changed() => match lane_endpoint_server_config(spec, sizes) {
                Ok(server) => {
                    config = server.clone();
                    endpoint.set_server_config(Some(server));
                }
                Err(error) => {
                    // One for all lanes.
                    let now = spec.host.now();
                    warn_if_due!(
                        spec.metrics.warnings.is_due(WarningCause::Certificate, "lanes", now),
                        lane,
                        "lane {lane}: keeps accepting with its old certificate: {error}; see \
                         `landbridge doctor`"
                    );
                }
            },
            incoming = endpoint.accept() => {
                let Some(incoming) = incoming else { return };
                let mut config = config.clone();
                // Before the hello, only the address tells of the peer. Several may be behind one NAT.
                let peers = spec.peers_at(incoming.remote_address().ip());
                if let Some(peer) = peers.max_by_key(|peer| peer.link().bdp()) {
                    config.transport_config(lane_endpoint_transport_config(spec, peer, sizes));
                }
                accept_at_lane_endpoint(spec, lane, incoming, Arc::new(config), &pending);
            }
        }
    }
}

/// Accepts an incoming connection. Once half of the slots are taken, asks an address that has not
/// proved itself to do so first (QUIC's Retry).
fn accept_at_lane_endpoint(
    spec: &Arc<LaneSpec>,
    lane: u16,
    incoming: quinn::Incoming,
    config: Arc<quinn::ServerConfig>,
    pending: &Arc<PendingConnections>,
) {
    let from = incoming.remote_address();
    // When half of the slots are taken, a spoofed address gets none.
    let validated = incoming.remote_address_validated() || !incoming.may_retry();
    if pending.slots.is_half_full() && !validated {
        if let Err(error) = incoming.retry() {
            debug!("lane {lane}: {from}: {error}");
        }
        return;
    }
    let (ip, is_peer) = (from.ip().to_canonical(), spec.peers_at(from.ip()).next().is_some());
    let slot = pending.slots.take_member_slot(is_peer.then_some(ip), stranger_network(ip));
    match incoming.accept_with(config) {
        Ok(connecting) => {
            let (spec, pending) = (Arc::clone(spec), Arc::clone(pending));
            let host = Arc::clone(&spec.host);
            host.spawn(Box::pin(serve_accepted_at_lane_endpoint(
                spec, lane, connecting, slot, pending,
            )));
        }
        Err(error) => debug!("lane {lane}: {from}: {error}"),
    }
}

/// Returns the address by which strangers share slots: their IPv4 address, or the /64 network of their
/// IPv6 address, which is what one host has at least.
fn stranger_network(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => ip,
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
    }
}

/// The reason why an accepted connection has not completed its handshake.
enum LaneEndpointFailure {
    /// The dialler closed it, as a gateway does that ends or that has another connection by then.
    Withdrawn,
    /// Either side refused the other, the connection lost its slot, or the handshake took too long.
    /// The text says why.
    Refused(String),
}

impl From<quinn::ConnectionError> for LaneEndpointFailure {
    /// Converts the error of a connection. A dialler that gave up by itself is told from every
    /// other error.
    fn from(error: quinn::ConnectionError) -> Self {
        if tls::is_close_without_alert(&error) {
            return Self::Withdrawn;
        }
        Self::Refused(tls::explain_connection_alert(&error))
    }
}

/// Completes the TLS handshake of an accepted connection within the handshake timeout, and serves
/// the connection to its end. Logs a refusal.
async fn serve_accepted_at_lane_endpoint(
    spec: Arc<LaneSpec>,
    lane: u16,
    connecting: quinn::Connecting,
    slot: PendingSlot,
    pending: Arc<PendingConnections>,
) {
    let from = connecting.remote_address();
    // Whose connection it is, is not known yet.
    let patience = handshake_timeout(spec.longest_rtt());
    let connected = tokio::select! {
        biased;
        connected = connecting => connected.map_err(LaneEndpointFailure::from),
        () = slot.wait_for_revocation() => Err(LaneEndpointFailure::Refused(
            "too many connections are in their handshake".to_owned(),
        )),
        () = spec.host.sleep_until(spec.host.now() + patience) => {
            Err(LaneEndpointFailure::Refused(format!("no handshake within {patience}")))
        }
    };
    match connected {
        Ok(connection) => {
            let origin = ConnectionOrigin::Accepted(slot);
            let established = EstablishedConnection { spec, lane, connection, origin };
            serve_lane_connection(established, &pending.refusals).await;
        }
        Err(LaneEndpointFailure::Withdrawn) => {
            debug!("lane {lane}: {from} gave up its connection during the handshake");
        }
        Err(LaneEndpointFailure::Refused(why)) => {
            if let Some(suppressed) = pending.refusals.permit(spec.host.now()) {
                // One of a gateway is a problem of its peer, which is warned of if it lasts.
                info!(
                    lane,
                    address = %from,
                    "lane {lane}: refused a connection from {from}: {why}{suppressed}"
                );
            }
            if let Some(peer) = spec.peer_at(from.ip()) {
                let _ = spec.events.try_send(Event::LaneRefused { peer, lane, why });
            }
        }
    }
}
