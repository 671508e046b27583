//! The endpoint of a lane: a UDP socket with its own thread, shared by the connections to all peers.
//!
//! The daemon calls [`start`]. Each lane's thread runs an accept loop, and tasks for dialling
//! (`dial.rs`) and for each connection (`connection.rs`). Both ends of a connection authenticate.
//! A connection without a checked hello holds a slot of a bounded admission control. When all slots are
//! taken, the oldest of the source with most slots is evicted.

use super::connection::{EstablishedConnection, Origin, PendingSlot, serve};
use super::dial::Dial;
use super::gso_limit;
use super::packet_size::{ACCEPTED_BYTES_MIN, PacketSizes};
use super::quic_config::transport_config;
use super::tls;
use crate::admission::AdmissionControl;
use crate::host::{BoxFuture, LaneThread};
use crate::log_throttle::LogThrottle;
use crate::wan::error_code::CLOSING;
use crate::wan::spec::{LaneSpec, LaneThreads, PeerLink};
use hier_collectives::plan;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tracing::{debug, warn};
use units::{ByteCount, Span};

/// 16 MiB of socket buffer each way, for a burst of a fast link while a core is busy. The kernel may give
/// less, which is logged.
const SOCKET_BUFFER_BYTES: usize = 16 << 20;
/// 8 MiB: the memory of QUIC for a busy lane, datagrams and packet records each way.
pub const LANE_BYTES: ByteCount = ByteCount::new(8 << 20);
/// 64 connections of a lane without a checked hello, path probes included: bounds their cost.
/// Tested by `half_open_handshakes_keep_no_peer_out`.
const PENDING_CONNECTIONS_MAX: usize = 64;
/// 10 s for the TLS handshake of an accepted connection.
const TLS_HANDSHAKE_TIMEOUT: Span = Span::from_secs(10);
/// 64 KiB for a connection that is not accepted yet: several first flights; quinn's default is 10 MiB.
const INCOMING_BUFFER_BYTES: u64 = 64 << 10;

/// The reason why a lane cannot start.
#[derive(Debug, thiserror::Error)]
pub enum LaneError {
    /// The socket cannot be bound.
    #[error("cannot listen on {address} (UDP): {source}; is another gateway running?")]
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

/// Starts all lanes; returns once each of them listens.
///
/// # Errors
/// [`LaneError`]: no lane is running then.
pub async fn start(spec: Arc<LaneSpec>) -> Result<(), LaneError> {
    // A gateway without peers needs no port.
    let lanes = if spec.peers.is_empty() { 0 } else { plan::lanes(&spec.fabric) };
    for lane in 0..lanes {
        let (up, is_up) = tokio::sync::oneshot::channel();
        let lane_spec = Arc::clone(&spec);
        let body = move || -> BoxFuture<()> {
            Box::pin(async move {
                let sizes = PacketSizes::of(&lane_spec, lane);
                match bind(&lane_spec, lane, &sizes) {
                    Ok(endpoint) => {
                        let _ = up.send(Ok(()));
                        run(lane_spec, lane, endpoint, sizes).await;
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

fn bind(spec: &LaneSpec, lane: u16, sizes: &PacketSizes) -> Result<quinn::Endpoint, LaneError> {
    let address = spec.listen.of(lane);
    let error = |source| LaneError::Bind { address, source };
    let socket = spec.host.bind(address, SOCKET_BUFFER_BYTES).map_err(error)?;
    let datagram = sizes.longest();
    let socket = gso_limit::limit_gso(socket, datagram, spec.one_by_one);
    let mut config = quinn::EndpointConfig::default();
    config.rng_seed(Some(spec.host.random()));
    let accepted = datagram.max(ACCEPTED_BYTES_MIN);
    config.max_udp_payload_size(accepted).expect("at most 65,507");
    let server = server_config(spec, sizes)?;
    let runtime = spec.host.quic_runtime();
    quinn::Endpoint::new_with_abstract_socket(config, Some(server), socket, runtime).map_err(error)
}

/// The settings of accepted connections, with the credentials of now.
fn server_config(
    spec: &LaneSpec,
    sizes: &PacketSizes,
) -> Result<quinn::ServerConfig, tls::CredentialsError> {
    let crypto = spec.credentials.borrow().server()?;
    let mut server = quinn::ServerConfig::with_crypto(crypto);
    server
        .max_incoming(PENDING_CONNECTIONS_MAX)
        .incoming_buffer_size(INCOMING_BUFFER_BYTES)
        .incoming_buffer_size_total(INCOMING_BUFFER_BYTES * PENDING_CONNECTIONS_MAX as u64)
        .migration(true);
    // A peer at an unknown address may be at the end of the longest link. Once its hello is checked,
    // windows and controller are those of its own link.
    if let Some(peer) = spec.peers.values().max_by_key(|peer| peer.link.bdp()) {
        server.transport_config(peer_transport(spec, peer, sizes));
    }
    Ok(server)
}

fn peer_transport(
    spec: &LaneSpec,
    peer: &PeerLink,
    sizes: &PacketSizes,
) -> Arc<quinn::TransportConfig> {
    Arc::new(transport_config(&peer.path(spec), peer.controller, sizes.to(peer)))
}

/// The connections that a lane has accepted and not identified yet.
struct Pending {
    slots: Arc<AdmissionControl<Option<IpAddr>>>,
    /// Limits the log lines about refused connections.
    refusals: LogThrottle,
}

async fn run(spec: Arc<LaneSpec>, lane: u16, endpoint: quinn::Endpoint, sizes: PacketSizes) {
    let _shutdown_with_lane = spec.shutdown.clone().drop_guard();
    for peer in spec.peers.values().filter(|peer| spec.me < peer.id) {
        let dial = Dial {
            spec: Arc::clone(&spec),
            lane,
            endpoint: endpoint.clone(),
            peer: Arc::clone(peer),
            packets: sizes.to(peer),
        };
        spec.host.spawn(Box::pin(dial.run()));
    }
    let slots = AdmissionControl::new(PENDING_CONNECTIONS_MAX);
    let pending = Arc::new(Pending { slots, refusals: LogThrottle::default() });
    let mut credentials = spec.credentials.clone();
    let Ok(mut config) = server_config(&spec, &sizes) else { return };
    loop {
        tokio::select! {
            biased;
            () = spec.shutdown.cancelled() => break,
            Ok(()) = credentials.changed() => match server_config(&spec, &sizes) {
                Ok(server) => {
                    config = server.clone();
                    endpoint.set_server_config(Some(server));
                }
                Err(error) => {
                    warn!("lane {lane}: keeps accepting with its old certificate: {error}");
                }
            },
            incoming = endpoint.accept() => {
                let Some(incoming) = incoming else { break };
                let from = incoming.remote_address();
                let mut config = config.clone();
                if let Some(transport) = known_transport(&spec, lane, from, &sizes) {
                    config.transport_config(transport);
                }
                accept(&spec, lane, incoming, Arc::new(config), &pending);
            }
        }
    }
    endpoint.close(CLOSING.into(), b"gateway shutting down");
    endpoint.wait_idle().await;
}

/// The settings of the link to the peer at an address. Before the hello, only the address identifies the peer.
fn known_transport(
    spec: &LaneSpec,
    lane: u16,
    from: SocketAddr,
    sizes: &PacketSizes,
) -> Option<Arc<quinn::TransportConfig>> {
    let peer = spec.peers.values().find(|peer| peer.addresses.of(lane) == from)?;
    Some(peer_transport(spec, peer, sizes))
}

/// Accepts an incoming connection, or asks its address to prove itself first (QUIC's Retry).
fn accept(
    spec: &Arc<LaneSpec>,
    lane: u16,
    incoming: quinn::Incoming,
    config: Arc<quinn::ServerConfig>,
    pending: &Arc<Pending>,
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
    let is_peer = spec.peers.values().any(|peer| peer.addresses.has(from.ip()));
    let slot = pending.slots.take(is_peer.then_some(from.ip()));
    match incoming.accept_with(config) {
        Ok(connecting) => {
            let (spec, pending) = (Arc::clone(spec), Arc::clone(pending));
            let host = Arc::clone(&spec.host);
            host.spawn(Box::pin(complete_and_serve(spec, lane, connecting, slot, pending)));
        }
        Err(error) => debug!("lane {lane}: {from}: {error}"),
    }
}

/// Completes the TLS handshake of an accepted connection, and serves it.
async fn complete_and_serve(
    spec: Arc<LaneSpec>,
    lane: u16,
    connecting: quinn::Connecting,
    slot: PendingSlot,
    pending: Arc<Pending>,
) {
    let from = connecting.remote_address();
    let connected = tokio::select! {
        biased;
        connected = connecting => connected.map_err(|error| error.to_string()),
        () = slot.revoked() => Err("too many connections are in their handshake".to_owned()),
        () = spec.host.sleep_until(spec.host.now() + TLS_HANDSHAKE_TIMEOUT) => {
            Err(format!("no handshake within {TLS_HANDSHAKE_TIMEOUT}"))
        }
    };
    match connected {
        Ok(connection) => {
            let origin = Origin::Accepted(slot);
            let established = EstablishedConnection { spec, lane, connection, origin };
            serve(established, &pending.refusals).await;
        }
        Err(why) => {
            if let Some(suppressed) = pending.refusals.permit(spec.host.now()) {
                warn!("lane {lane}: refused a connection from {from}: {why}{suppressed}");
            }
        }
    }
}
