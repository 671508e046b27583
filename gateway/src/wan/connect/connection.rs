//! One connection of a lane: hellos, then control messages and segments until it ends.

use crate::admission::AdmissionSlot;
use crate::engine::Event;
use crate::log_throttle::LogThrottle;
use crate::wan::congestion::tuner;
use crate::wan::connect::endpoint::{HELLO_PATIENCE, LaneSpec, PeerLink};
use crate::wan::connect::liveness;
use crate::wan::connect::path_probe;
use crate::wan::connect::tls;
use crate::wan::link::capacity::Passed;
use crate::wan::link::message::{LINK_GROUP, Word};
use crate::wan::stream::send_queue::{Class, ConnectionId};
use crate::wan::stream::sender;
use crate::wan::{CLOSING, PROTOCOL, REFUSED};
use hier_collectives::codec::DecodeError;
use hier_collectives::ids::{BootId, GatewayId};
use hier_collectives::wire::{Envelope, Hello, MAX_MESSAGE_BYTES, Message, WIRE_VERSION};
use quinn::{Connection, RecvStream, SendStream};
use rustls::pki_types::CertificateDer;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc;
use tracing::{info, warn};
use units::Span;

/// Control messages that may wait for one lane. The peer reads them always, so that more mean that it
/// does not. What is repeated after a loss is, of all that is under way, a few for each tree, and one
/// for each rank that has posted what another has not.
const CONTROL_QUEUE_MAX: usize = 1 << 18;
/// Priority of control over segments.
const CONTROL_PRIORITY: i32 = 2;

static NEXT_CONNECTION: AtomicU64 = AtomicU64::new(1);

/// A connection whose TLS handshake is done.
pub(crate) struct Connected {
    pub spec: Arc<LaneSpec>,
    pub lane: u16,
    pub connection: Connection,
    /// How it came about.
    pub origin: Origin,
}

/// How a connection came about.
pub(crate) enum Origin {
    /// We dialled this peer: TLS has proved its name.
    Dialled(GatewayId),
    /// Somebody with a certificate of the CA dialled us, and has a seat until it has said who
    /// it is.
    Answered(Guest),
}

/// The seat of somebody who dialled us: that of a peer's address, or of all others together.
pub(crate) type Guest = AdmissionSlot<Option<IpAddr>>;

/// Who was met on a lane.
#[derive(Debug, Clone, Copy)]
pub struct PeerSeen {
    /// The peer.
    pub peer: GatewayId,
    /// Its boot id.
    pub boot: BootId,
    /// The lane.
    pub lane: u16,
}

/// The engine's hold on a lane.
#[derive(Debug, Clone)]
pub struct LaneHandle {
    /// Its connection.
    pub id: ConnectionId,
    control: mpsc::Sender<Vec<u8>>,
    connection: Connection,
}

/// A peer that is not who or what it should be.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("no hello: {0}")]
    NoHello(String),
    #[error("it speaks wire version {theirs}, this gateway {WIRE_VERSION}")]
    Version { theirs: u16 },
    #[error("its fabric differs from ours; the fabric files must agree on names, ranks and MTU")]
    Fabric,
    #[error("gateway `{0}` is not one of the fabric's peers")]
    Unknown(String),
    #[error("it says it is `{0}`, which is not whom we dialled")]
    NotDialled(String),
    #[error("its lane {theirs} met our lane {ours}; the ports in the fabric do not match")]
    Lane { theirs: u16, ours: u16 },
    #[error(transparent)]
    Identity(#[from] tls::IdentityError),
    #[error("too many connect at once and do not say who they are; try again")]
    Crowded,
}

impl LaneHandle {
    /// Queues a control message and says how long it is. A lane whose queue is full is closed: its peer reads nothing.
    pub fn send(&self, envelope: Envelope, message: &Message) -> u64 {
        let bytes = [&envelope.encode(), &*message.encode()].concat();
        let length = bytes.len() as u64;
        self.queue(bytes);
        length
    }

    /// Queues a word on a link or lane.
    pub fn say(&self, word: Word) {
        self.queue([&LINK_GROUP.0.to_be_bytes(), &*word.encode()].concat());
    }

    fn queue(&self, bytes: Vec<u8>) {
        if self.control.try_send(bytes).is_err() {
            self.close(PROTOCOL, "control messages are not read");
        }
    }

    /// The peer broke the protocol.
    pub fn accuse(&self, why: &str) {
        self.close(PROTOCOL, why);
    }

    /// The connection is superseded.
    pub fn retire(&self, why: &str) {
        self.close(CLOSING, why);
    }

    /// Smoothed round-trip time.
    pub fn rtt(&self) -> Span {
        liveness::round_trip(&self.connection)
    }

    /// What has passed over it, and the least round trip since this was last asked.
    pub fn passed(&self) -> (Passed, Option<Span>) {
        let path = self.connection.stats().path;
        let headers = if self.connection.remote_address().is_ipv4() { 28 } else { 48 };
        let watch = liveness::watch(&self.connection);
        let (packets, bytes) = watch.as_ref().map_or((0, 0), |watch| watch.acked());
        let passed = Passed {
            sent: path.sent_packets,
            lost: path.lost_packets,
            delivered_bytes: bytes + headers * packets,
        };
        (passed, watch.and_then(|watch| watch.take_least_rtt_seen()))
    }

    fn close(&self, code: u32, why: &str) {
        self.connection.close(code.into(), why.as_bytes());
    }
}

/// Serves a connection to its end, and says whether a peer was met on it; `refused` says whether to
/// log a refusal.
pub(crate) async fn serve(connected: Connected, refused: &LogThrottle) -> bool {
    let Connected { spec, lane, connection, origin } = connected;
    let from = connection.remote_address();
    let met = match &origin {
        Origin::Dialled(peer) => meet_in_time(&spec, lane, &connection, Some(*peer)).await,
        Origin::Answered(seat) => {
            let met = async {
                if path_probe::is_probe(&connection) {
                    path_probe::answer(connection.clone()).await;
                    return None;
                }
                Some(meet_in_time(&spec, lane, &connection, None).await)
            };
            let met = tokio::select! {
                biased;
                met = met => met,
                () = seat.revoked() => Some(Err(Refusal::Crowded)),
            };
            let Some(met) = met else { return false };
            met
        }
    };
    let (seen, control_in, control_out) = match met {
        Ok(met) => met,
        Err(refusal) => {
            let why = refusal.to_string();
            connection.close(REFUSED.into(), why.as_bytes());
            if let Some(unsaid) = refused.permit(spec.host.now()) {
                warn!("lane {lane}: refused {from}: {why}{unsaid}");
            }
            if let Origin::Dialled(peer) = origin {
                let _ = spec.events.send(Event::DialFailed { peer, lane, why }).await;
            }
            return false;
        }
    };
    drop(origin);
    let Some(peer) = spec.peers.get(&seen.peer).cloned() else { return false };
    let (control, queue) = mpsc::channel(CONTROL_QUEUE_MAX);
    let id = NEXT_CONNECTION.fetch_add(1, Ordering::Relaxed);
    let handle = LaneHandle { id, control, connection: connection.clone() };
    info!("lane {lane}: gateway {} is up at {from}", spec.fabric.gateway(seen.peer).name);
    if spec.events.send(Event::LaneUp { seen, handle }).await.is_err() {
        return true;
    }
    let why = tokio::select! {
        biased;
        why = connection.closed() => why.to_string(),
        why = read_control(&spec, seen.peer, id, control_in) => why,
        why = write_control(control_out, queue) => why,
        why = liveness::probe(&*spec.host, &connection, &peer.heard) => why,
        why = tuner::follow(&spec, &peer, &connection) => why,
        why = sender::receive_all(&spec, seen.peer, id, &connection) => why,
        why = sender::send_all(&spec, &peer, id, &connection, Class::Small) => why,
        why = sender::send_all(&spec, &peer, id, &connection, Class::Bulk) => why,
    };
    connection.close(CLOSING.into(), why.as_bytes());
    let _ = spec.events.send(Event::LaneDown { peer: seen.peer, lane, id, why }).await;
    true
}

type Met = (PeerSeen, RecvStream, SendStream);

async fn meet_in_time(
    spec: &LaneSpec,
    lane: u16,
    connection: &Connection,
    dialled: Option<GatewayId>,
) -> Result<Met, Refusal> {
    tokio::select! {
        biased;
        met = meet(spec, lane, connection, dialled) => met,
        () = spec.host.sleep_until(spec.host.now() + HELLO_PATIENCE) => {
            Err(Refusal::NoHello("timed out".to_owned()))
        }
    }
}

/// Says hello on the first stream each way, and checks who is there.
async fn meet(
    spec: &LaneSpec,
    lane: u16,
    connection: &Connection,
    dialled: Option<GatewayId>,
) -> Result<Met, Refusal> {
    let no_hello = |error: String| Refusal::NoHello(error);
    let mut out = connection.open_uni().await.map_err(|error| no_hello(error.to_string()))?;
    let _ = out.set_priority(CONTROL_PRIORITY);
    let hello = Hello {
        version: WIRE_VERSION,
        fabric: spec.identity,
        gateway: spec.fabric.gateway(spec.me).name.clone(),
        boot: spec.boot,
        lane,
    };
    let framed = frame(&hello.encode());
    out.write_all(&framed).await.map_err(|error| no_hello(error.to_string()))?;
    let mut control = connection.accept_uni().await.map_err(|error| no_hello(error.to_string()))?;
    let bytes = read_frame(&mut control, Hello::MAX_BYTES).await.map_err(no_hello)?;
    let hello = Hello::decode(&bytes).map_err(|error| no_hello(error.to_string()))?;
    let peer = check(spec, lane, &hello, dialled)?;
    let chain = connection.peer_identity().and_then(|any| any.downcast().ok());
    let chain: Box<Vec<CertificateDer<'static>>> = chain.unwrap_or_default();
    tls::proves(&chain, &hello.gateway, spec.fabric.name())?;
    Ok((PeerSeen { peer, boot: hello.boot, lane }, control, out))
}

fn check(
    spec: &LaneSpec,
    lane: u16,
    hello: &Hello,
    dialled: Option<GatewayId>,
) -> Result<GatewayId, Refusal> {
    if hello.version != WIRE_VERSION {
        return Err(Refusal::Version { theirs: hello.version });
    }
    if hello.fabric != spec.identity {
        return Err(Refusal::Fabric);
    }
    let known = spec.fabric.gateway_named(&hello.gateway).filter(|id| spec.peers.contains_key(id));
    let peer = known.ok_or_else(|| Refusal::Unknown(hello.gateway.clone()))?;
    if dialled.is_some_and(|dialled| dialled != peer) {
        return Err(Refusal::NotDialled(hello.gateway.clone()));
    }
    if hello.lane != lane {
        return Err(Refusal::Lane { theirs: hello.lane, ours: lane });
    }
    Ok(peer)
}

fn frame(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes(), message].concat()
}

async fn read_frame(stream: &mut RecvStream, max_bytes: usize) -> Result<Vec<u8>, String> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).await.map_err(|error| error.to_string())?;
    let length = u32::from_be_bytes(length) as usize;
    if length > max_bytes {
        return Err(format!("a frame of {length} bytes where {max_bytes} are allowed"));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await.map_err(|error| error.to_string())?;
    Ok(bytes)
}

async fn read_control(
    spec: &LaneSpec,
    from: GatewayId,
    id: ConnectionId,
    mut stream: RecvStream,
) -> String {
    loop {
        let bytes = match read_frame(&mut stream, MAX_MESSAGE_BYTES).await {
            Ok(bytes) => bytes,
            Err(why) => return why,
        };
        let event = match read_event(&bytes, from, id) {
            Ok(event) => event,
            Err(error) => return format!("a control message that is none: {error}"),
        };
        if spec.events.send(event).await.is_err() {
            return "engine gone".to_owned();
        }
    }
}

/// A word, or an envelope with its message.
fn read_event(bytes: &[u8], from: GatewayId, id: ConnectionId) -> Result<Event, DecodeError> {
    if let Some(word) = bytes.strip_prefix(&LINK_GROUP.0.to_be_bytes()) {
        return Ok(Event::Word { from, id, word: Word::decode(word)? });
    }
    let (envelope, message) = Envelope::decode(bytes)?;
    Ok(Event::Message { from, id, envelope, message: Message::decode(message)? })
}

async fn write_control(mut stream: SendStream, mut queue: mpsc::Receiver<Vec<u8>>) -> String {
    while let Some(message) = queue.recv().await {
        if let Err(error) = stream.write_all(&frame(&message)).await {
            return error.to_string();
        }
    }
    "retired by the engine".to_owned()
}

impl std::fmt::Debug for PeerLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeerLink").field("id", &self.id).finish_non_exhaustive()
    }
}
