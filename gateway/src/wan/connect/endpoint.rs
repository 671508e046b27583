//! One lane of a gateway: an endpoint with its own socket, port and executor, shared by all
//! peers. Of two gateways the first by name dials; both authenticate.

use crate::admission::AdmissionControl;
use crate::engine::{Event, EventSender};
use crate::host::{BoxFuture, Host, LaneThread};
use crate::log_throttle::LogThrottle;
use crate::observe::metrics::PeerMetrics;
use crate::wan::congestion::tuner::Path;
use crate::wan::connect::addresses::LaneAddresses;
use crate::wan::connect::connection::{Connected, Guest, Origin, serve};
use crate::wan::connect::gso_limit;
use crate::wan::connect::liveness::Heard;
use crate::wan::connect::packet_size::{Lengths, Packets, TAKEN_MIN};
use crate::wan::connect::quic_config;
use crate::wan::connect::tls::{self, Credentials};
use crate::wan::link::policy::ControllerKind;
use crate::wan::pacing::pacer::HeldRate;
use crate::wan::stream::send_queue::Outbox;
use hier_collectives::ids::{BootId, GatewayId};
use hier_collectives::plan;
use hier_collectives::topology::{Fabric, Link};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};
use units::{BitRate, ByteCount, Span};

/// Socket buffers asked for, each way.
const SOCKET_BYTES: usize = 16 << 20;
/// What QUIC holds for a busy lane: datagrams as they come, and what it remembers of packets each
/// way.
pub const LANE_BYTES: ByteCount = ByteCount::new(8 << 20);
/// Connections of a lane that were answered and have not said hello. One more, and the oldest
/// gives way: of the strangers together, or of the peer's address that has more.
const HANDSHAKES_MAX: usize = 64;
/// An answered handshake that has not succeeded by then is given up.
const HANDSHAKE_PATIENCE: Span = Span::from_secs(10);
/// What is kept of a connection that has not been answered yet.
const UNANSWERED_BYTES: u64 = 64 << 10;
/// A dial that has not succeeded by then is given up and tried again.
const DIAL_PATIENCE: Span = Span::from_secs(10);
/// Pauses between dials: from this, doubling,
const BACKOFF_MIN: Span = Span::from_ms(100);
/// to this.
const BACKOFF_MAX: Span = Span::from_secs(5);

/// One peer, as all lanes see it.
pub struct PeerLink {
    /// The peer.
    pub id: GatewayId,
    /// Where its lanes listen.
    pub addresses: LaneAddresses,
    /// The link to its region, with what the pair alone could send over it.
    pub link: Link,
    /// What is to go to it.
    pub outbox: Outbox,
    /// What it is held to.
    pub rate: HeldRate,
    /// What decides how much is in flight.
    pub controller: ControllerKind,
    /// When it was last heard.
    pub heard: Heard,
    /// What is counted of it.
    pub metrics: PeerMetrics,
}

/// What every lane of a gateway knows.
pub struct LaneSpec {
    /// The seam to the system.
    pub host: Arc<dyn Host>,
    /// The deployment.
    pub fabric: Arc<Fabric>,
    /// Digest of the fabric's identity.
    pub identity: [u8; 32],
    /// This gateway.
    pub me: GatewayId,
    /// Drawn at this start.
    pub boot: BootId,
    /// Where lanes listen.
    pub listen: LaneAddresses,
    /// Their threads.
    pub threads: Threads,
    /// Whether each packet is handed to the system by itself.
    pub one_by_one: bool,
    /// Whether the fabric says the MTU of every path; otherwise it is what is looked for.
    pub mtu_pinned: bool,
    /// The plan's segments.
    pub segment_bytes: u64,
    /// Who we are and whom we believe, from the next handshake on.
    pub credentials: watch::Receiver<Arc<Credentials>>,
    /// Everybody else with a port.
    pub peers: BTreeMap<GatewayId, Arc<PeerLink>>,
    /// The engine.
    pub events: EventSender,
    /// Ends the lanes; a lane that ends of itself ends everything.
    pub shutdown: CancellationToken,
}

/// The threads of lanes; see [`LaneThread`].
#[derive(Debug, Clone, Copy)]
pub struct Threads {
    /// The number of the first.
    pub first: usize,
    /// How many all lanes of this gateway have.
    pub of: usize,
}

/// A lane that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum LaneError {
    /// The socket.
    #[error("cannot listen on {address} (UDP): {source}; is another gateway running?")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The reason.
        source: std::io::Error,
    },
    /// The thread.
    #[error("cannot start a lane's thread: {0}")]
    Thread(std::io::Error),
    /// Our own credentials.
    #[error(transparent)]
    Credentials(#[from] tls::CredentialsError),
    /// The lane ended before it was up.
    #[error("lane {0} did not start")]
    Lost(u16),
}

/// Starts all lanes; returns once each listens.
///
/// # Errors
/// [`LaneError`]: none is running then.
pub async fn start(spec: Arc<LaneSpec>) -> Result<(), LaneError> {
    // A gateway that exchanges with nobody needs no port.
    let lanes = if spec.peers.is_empty() { 0 } else { plan::lanes(&spec.fabric) };
    for lane in 0..lanes {
        let (up, is_up) = tokio::sync::oneshot::channel();
        let lane_spec = Arc::clone(&spec);
        let body = move || -> BoxFuture<()> {
            Box::pin(async move {
                let lengths = Lengths::of(&lane_spec, lane);
                match endpoint(&lane_spec, lane, &lengths) {
                    Ok(endpoint) => {
                        let _ = up.send(Ok(()));
                        run(lane_spec, lane, endpoint, lengths).await;
                    }
                    Err(error) => {
                        let _ = up.send(Err(error));
                    }
                }
            })
        };
        let Threads { first, of } = spec.threads;
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

fn endpoint(spec: &LaneSpec, lane: u16, lengths: &Lengths) -> Result<quinn::Endpoint, LaneError> {
    let address = spec.listen.of(lane);
    let bind = |source| LaneError::Bind { address, source };
    let socket = spec.host.bind(address, SOCKET_BYTES).map_err(bind)?;
    let datagram = lengths.longest();
    let socket = gso_limit::cap(socket, datagram, spec.one_by_one);
    let mut config = quinn::EndpointConfig::default();
    config.rng_seed(Some(spec.host.random()));
    config.max_udp_payload_size(datagram.max(TAKEN_MIN)).expect("at most 65,507");
    let server = server_config(spec, lengths)?;
    let runtime = spec.host.quic_runtime();
    quinn::Endpoint::new_with_abstract_socket(config, Some(server), socket, runtime).map_err(bind)
}

/// How connections are answered, with the credentials of now.
fn server_config(
    spec: &LaneSpec,
    lengths: &Lengths,
) -> Result<quinn::ServerConfig, tls::CredentialsError> {
    let crypto = spec.credentials.borrow().server()?;
    let mut server = quinn::ServerConfig::with_crypto(crypto);
    server
        .max_incoming(HANDSHAKES_MAX)
        .incoming_buffer_size(UNANSWERED_BYTES)
        .incoming_buffer_size_total(UNANSWERED_BYTES * HANDSHAKES_MAX as u64)
        .migration(true);
    // Who dials from an unknown address may be at the end of the longest link; once it has said
    // who it is, windows and controller are its own.
    if let Some(peer) = spec.peers.values().max_by_key(|peer| peer.link.bdp()) {
        server.transport_config(Arc::new(settings(spec, peer, lengths.to(peer))));
    }
    Ok(server)
}

fn settings(spec: &LaneSpec, peer: &PeerLink, packets: Packets) -> quinn::TransportConfig {
    quic_config::settings(&peer.path(spec), peer.controller, packets)
}

impl PeerLink {
    /// What windows follow from before anything is measured.
    pub(crate) fn path(&self, spec: &LaneSpec) -> Path {
        Path {
            link: Link { rate: self.rate_now(), ..self.link.clone() },
            inbound: self.link.rate,
            lanes: u64::from(plan::lanes(&spec.fabric)),
            segment_bytes: spec.segment_bytes,
        }
    }

    /// What the pair alone could send over its link, as far as that is held to.
    pub(crate) fn rate_now(&self) -> BitRate {
        self.link.rate.min(self.rate.held_to())
    }
}

/// Those who dial a lane.
struct Guests {
    seats: Arc<AdmissionControl<Option<IpAddr>>>,
    refused: LogThrottle,
}

async fn run(spec: Arc<LaneSpec>, lane: u16, endpoint: quinn::Endpoint, lengths: Lengths) {
    let _all_end_with_it = spec.shutdown.clone().drop_guard();
    for peer in spec.peers.values().filter(|peer| spec.me < peer.id) {
        let to = (Arc::clone(peer), lengths.to(peer));
        let dialler = dial(Arc::clone(&spec), lane, endpoint.clone(), to);
        spec.host.spawn(Box::pin(dialler));
    }
    let guests =
        Guests { seats: AdmissionControl::new(HANDSHAKES_MAX), refused: LogThrottle::default() };
    let guests = Arc::new(guests);
    let mut credentials = spec.credentials.clone();
    let Ok(mut answers) = server_config(&spec, &lengths) else { return };
    loop {
        tokio::select! {
            biased;
            () = spec.shutdown.cancelled() => break,
            Ok(()) = credentials.changed() => match server_config(&spec, &lengths) {
                Ok(server) => {
                    answers = server.clone();
                    endpoint.set_server_config(Some(server));
                }
                Err(error) => warn!("lane {lane}: still answers with its old certificate: {error}"),
            },
            incoming = endpoint.accept() => {
                let Some(incoming) = incoming else { break };
                let from = incoming.remote_address();
                let answer = answer_to(&spec, (from, lane), &lengths, &answers);
                welcome(&spec, lane, (incoming, answer), &guests);
            }
        }
    }
    endpoint.close(crate::wan::CLOSING.into(), b"gateway shutting down");
    endpoint.wait_idle().await;
}

/// How a peer is answered: as its link asks for, which only its address can say so early.
fn answer_to(
    spec: &LaneSpec,
    (from, lane): (SocketAddr, u16),
    lengths: &Lengths,
    answers: &quinn::ServerConfig,
) -> Arc<quinn::ServerConfig> {
    let mut answer = answers.clone();
    if let Some(peer) = spec.peers.values().find(|peer| peer.addresses.of(lane) == from) {
        answer.transport_config(Arc::new(settings(spec, peer, lengths.to(peer))));
    }
    Arc::new(answer)
}

fn welcome(
    spec: &Arc<LaneSpec>,
    lane: u16,
    (incoming, answer_with): (quinn::Incoming, Arc<quinn::ServerConfig>),
    guests: &Arc<Guests>,
) {
    let from = incoming.remote_address();
    // In a crowd a seat is for those who are heard at the address that they send from.
    let proved = incoming.remote_address_validated() || !incoming.may_retry();
    if guests.seats.is_half_full() && !proved {
        if let Err(error) = incoming.retry() {
            debug!("lane {lane}: {from}: {error}");
        }
        return;
    }
    let is_peer = spec.peers.values().any(|peer| peer.addresses.has(from.ip()));
    let seat = guests.seats.take(is_peer.then_some(from.ip()));
    match incoming.accept_with(answer_with) {
        Ok(connecting) => {
            let answer = answer(Arc::clone(spec), lane, connecting, seat, Arc::clone(guests));
            spec.host.spawn(Box::pin(answer));
        }
        Err(error) => debug!("lane {lane}: {from}: {error}"),
    }
}

async fn answer(
    spec: Arc<LaneSpec>,
    lane: u16,
    connecting: quinn::Connecting,
    seat: Guest,
    guests: Arc<Guests>,
) {
    let from = connecting.remote_address();
    let connected = tokio::select! {
        biased;
        connected = connecting => connected.map_err(|error| error.to_string()),
        () = seat.revoked() => Err("it made room for others".to_owned()),
        () = spec.host.sleep_until(spec.host.now() + HANDSHAKE_PATIENCE) => {
            Err(format!("no handshake within {HANDSHAKE_PATIENCE}"))
        }
    };
    match connected {
        Ok(connection) => {
            let origin = Origin::Answered(seat);
            serve(Connected { spec, lane, connection, origin }, &guests.refused).await;
        }
        Err(why) => {
            if let Some(unsaid) = guests.refused.permit(spec.host.now()) {
                warn!("lane {lane}: refused a connection from {from}: {why}{unsaid}");
            }
        }
    }
}

async fn dial(
    spec: Arc<LaneSpec>,
    lane: u16,
    endpoint: quinn::Endpoint,
    (peer, packets): (Arc<PeerLink>, Packets),
) {
    let name = spec.fabric.gateway(peer.id).name.clone();
    let address = peer.addresses.of(lane);
    let mut backoff = Backoff::default();
    let refused = LogThrottle::default();
    while !spec.shutdown.is_cancelled() {
        let began = spec.host.now();
        let met = match connect(&spec, &endpoint, (&peer, packets), &name, address).await {
            Ok(connection) => {
                let spec = Arc::clone(&spec);
                let origin = Origin::Dialled(peer.id);
                serve(Connected { spec, lane, connection, origin }, &refused).await
            }
            Err(why) => {
                let event = Event::DialFailed { peer: peer.id, lane, why };
                if spec.events.send(event).await.is_err() {
                    return;
                }
                false
            }
        };
        let pause = backoff.after(met, spec.host.now().since(began));
        tokio::select! {
            biased;
            () = spec.shutdown.cancelled() => return,
            () = spec.host.sleep_until(spec.host.now() + pause) => {}
        }
    }
}

/// Pauses between dials: each twice as long as the one before, until a lane has stood for a while.
#[derive(Debug, Default)]
struct Backoff {
    last: Span,
}

impl Backoff {
    /// The pause after a dial that ended after so long, and did or did not meet the peer.
    fn after(&mut self, met: bool, lived: Span) -> Span {
        let stood = met && lived > BACKOFF_MAX;
        let next = if stood { BACKOFF_MIN } else { self.last + self.last };
        self.last = next.max(BACKOFF_MIN).min(BACKOFF_MAX);
        self.last
    }
}

async fn connect(
    spec: &LaneSpec,
    endpoint: &quinn::Endpoint,
    (peer, packets): (&PeerLink, Packets),
    name: &str,
    address: SocketAddr,
) -> Result<quinn::Connection, String> {
    let credentials = Arc::clone(&spec.credentials.borrow());
    let crypto = credentials.client().map_err(|error| error.to_string())?;
    let mut config = quinn::ClientConfig::new(crypto);
    config.transport_config(Arc::new(settings(spec, peer, packets)));
    let server_name = tls::dns_name(name, spec.fabric.name());
    let connecting = endpoint
        .connect_with(config, address, &server_name)
        .map_err(|error| format!("{address}: {error}"))?;
    tokio::select! {
        biased;
        result = connecting => result.map_err(|error| format!("{address}: {error}")),
        () = spec.host.sleep_until(spec.host.now() + DIAL_PATIENCE) => {
            Err(format!("{address}: no answer within {DIAL_PATIENCE}"))
        }
        () = spec.shutdown.cancelled() => Err("shutting down".to_owned()),
    }
}

/// How long a peer may take to say hello once it is connected.
pub(crate) const HELLO_PATIENCE: Span = Span::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lane_that_stood_makes_dials_quick_again() {
        let mut backoff = Backoff::default();
        let pauses = |backoff: &mut Backoff, met, lived, count: usize| -> Vec<u64> {
            (0..count).map(|_| backoff.after(met, lived).ns() / 1_000_000).collect()
        };
        let growing = [100, 200, 400, 800, 1600, 3200, 5000, 5000];
        // Nobody answers: each dial takes all of its patience.
        assert_eq!(pauses(&mut backoff, false, DIAL_PATIENCE, 8), growing);
        // Somebody answers who never says hello, or refuses us at once.
        assert_eq!(pauses(&mut backoff, false, HELLO_PATIENCE, 1), [5000]);
        assert_eq!(pauses(&mut backoff, false, Span::from_ms(40), 1), [5000]);
        // A peer that dies as soon as it is met.
        assert_eq!(pauses(&mut backoff, true, Span::from_ms(40), 1), [5000]);
        assert_eq!(pauses(&mut backoff, true, Span::from_secs(3600), 1), [100]);
        assert_eq!(pauses(&mut backoff, false, DIAL_PATIENCE, 2), [200, 400]);
    }
}
