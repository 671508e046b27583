//! A probe of the path to a peer, on a connection of its own protocol that carries no
//! collective: handshake, RTT, MTU, and how fast some bytes that mean nothing get through.

use crate::wan::connect::tls::{Credentials, CredentialsError, PROBE_ALPN};
use quinn::congestion::{Controller, ControllerFactory};
use quinn::crypto::rustls::HandshakeData;
use quinn::{ClientConfig, Connection, ConnectionError, Endpoint, MtuDiscoveryConfig, VarInt};
use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::time::timeout;
use units::{BitRate, ByteCount, Span};

/// What the fabric says about the path.
#[derive(Debug, Clone, Copy)]
pub struct Want {
    /// The least of the link's rate and both ports.
    pub rate: BitRate,
    /// The link's round-trip time.
    pub rtt: Span,
    /// The fabric's IP MTU in bytes.
    pub mtu: u16,
}

/// What a probe found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// From the first datagram until both ends knew each other.
    pub handshake: Duration,
    /// Least round-trip time.
    pub rtt: Duration,
    /// The largest IP packet that passed, in bytes; not more than was wanted is tried.
    pub mtu: u16,
    /// Payload sent to measure the rate.
    pub sent: ByteCount,
    /// Payload rate; `None` when the peer did not take all in time.
    pub rate: Option<BitRate>,
}

/// Why a path could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// Not one datagram came back, or not enough of them.
    #[error("no answer within {} s", ANSWER_WITHIN.as_secs())]
    NoAnswer,
    /// The peer answered and one side refused the other.
    #[error("refused: {0}")]
    Refused(ConnectionError),
    /// This side cannot even try.
    #[error("cannot connect: {0}")]
    Local(String),
}

impl From<CredentialsError> for ProbeError {
    fn from(error: CredentialsError) -> Self {
        Self::Local(error.to_string())
    }
}

/// Whether an accepted connection is a probe: then [`answer`] it.
pub fn is_probe(connection: &Connection) -> bool {
    let data = connection.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
    data.is_some_and(|data| data.protocol.as_deref() == Some(PROBE_ALPN))
}

/// Takes what a peer's probe sends and throws it away, for a few seconds at most.
pub async fn answer(connection: Connection) {
    connection.set_receive_window(VarInt::from_u32(PROBE_MAX_BYTES));
    let budget = Arc::new(AtomicU64::new(u64::from(PROBE_MAX_BYTES)));
    let take_all = async {
        // Read side by side, as they are written: else the windows of those that wait would fill.
        let mut readers = tokio::task::JoinSet::new();
        for _ in 0..STREAMS {
            let Ok(stream) = connection.accept_uni().await else {
                return;
            };
            readers.spawn(discard(stream, Arc::clone(&budget)));
        }
        while readers.join_next().await.is_some() {}
        connection.closed().await;
    };
    // A probe closes the connection itself; what stays longer is no probe.
    let _ = timeout(ANSWERED_WITHIN, take_all).await;
    connection.close(VarInt::from_u32(0), b"probe over");
}

/// Reads to the end, or until the connection's budget is spent: then the stream is refused.
async fn discard(mut stream: quinn::RecvStream, budget: Arc<AtomicU64>) {
    while let Ok(Some(chunk)) = stream.read_chunk(usize::MAX, false).await {
        let length = u64::try_from(chunk.bytes.len()).unwrap_or(u64::MAX);
        let spend = |rest: u64| rest.checked_sub(length);
        if budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend).is_err() {
            return;
        }
    }
}

/// Measures the path to the peer of that address and DNS name. Sends one second's worth of the
/// wanted rate, at most 32 MiB.
///
/// # Errors
/// No connection came about.
pub async fn measure(
    endpoint: &Endpoint,
    credentials: &Credentials,
    (address, name): (SocketAddr, &str),
    want: Want,
) -> Result<Measured, ProbeError> {
    let window = Arc::new(AtomicU64::new(FIRST_WINDOW_BYTES));
    let headers: u16 = if address.is_ipv4() { 28 } else { 48 };
    let mut config = ClientConfig::new(credentials.probe_client()?);
    config.transport_config(transport(&window, want, headers));
    let started = Instant::now();
    let connecting = endpoint
        .connect_with(config, address, name)
        .map_err(|error| ProbeError::Local(error.to_string()))?;
    let connection = match timeout(ANSWER_WITHIN, connecting).await {
        Ok(Ok(connection)) => connection,
        Err(_) | Ok(Err(ConnectionError::TimedOut)) => return Err(ProbeError::NoAnswer),
        Ok(Err(error)) => return Err(ProbeError::Refused(error)),
    };
    let handshake = started.elapsed();
    let mtu = settle_mtu(&connection, want.mtu - headers).await + headers;
    if let Some(error) = connection.close_reason() {
        return Err(ProbeError::Refused(error));
    }
    let rtt = connection.rtt();
    let bytes_per_second = want.rate.bytes_per_second();
    let in_flight = (bytes_per_second * rtt.as_secs_f64() * WINDOW_BDPS) as u64;
    window.store(in_flight.max(FIRST_WINDOW_BYTES), Ordering::Relaxed);
    let size = (bytes_per_second as u64).clamp(PROBE_MIN_BYTES, u64::from(PROBE_MAX_BYTES));
    let rate = match timeout(ANSWERED_WITHIN, send(&connection, size)).await {
        Ok(Ok(took)) => {
            // The last acknowledgement takes one round trip that no byte waited for.
            let seconds = took.saturating_sub(rtt).as_secs_f64().max(1e-6);
            Some(BitRate::from_bits_per_second((size as f64 * 8.0 / seconds) as u64))
        }
        Ok(Err(error)) => return Err(ProbeError::Refused(error)),
        Err(_) => None,
    };
    connection.close(VarInt::from_u32(0), b"probe over");
    Ok(Measured { handshake, rtt, mtu, sent: ByteCount::new(size), rate })
}

fn transport(window: &Arc<AtomicU64>, want: Want, headers: u16) -> Arc<quinn::TransportConfig> {
    let mut mtu = MtuDiscoveryConfig::default();
    mtu.upper_bound(want.mtu - headers);
    let mut transport = quinn::TransportConfig::default();
    transport
        .mtu_discovery_config(Some(mtu))
        .initial_rtt(want.rtt.duration().max(Duration::from_millis(1)))
        .keep_alive_interval(Some(TICK))
        .send_window(u64::from(PROBE_MAX_BYTES))
        .congestion_controller_factory(Arc::new(FixedWindowFactory(Arc::clone(window))));
    Arc::new(transport)
}

/// Waits until discovery has found the wanted datagram size, or nothing new for a while.
async fn settle_mtu(connection: &Connection, wanted: u16) -> u16 {
    let patience = (connection.rtt() * 12).max(Duration::from_secs(1));
    let (mut found, mut since) = (0, Instant::now());
    loop {
        let current = connection.stats().path.current_mtu;
        if current != found {
            (found, since) = (current, Instant::now());
        }
        if found >= wanted || since.elapsed() > patience || connection.close_reason().is_some() {
            return found;
        }
        tokio::time::sleep(TICK).await;
    }
}

/// Sends `size` bytes over several streams, so that no stream's window is what is measured, and
/// waits until all have arrived.
async fn send(connection: &Connection, size: u64) -> Result<Duration, ConnectionError> {
    let started = Instant::now();
    let part = usize::try_from(size / STREAMS).unwrap_or(0);
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        streams.push(connection.open_uni().await?);
    }
    let zeros = vec![0; part];
    let mut tasks = tokio::task::JoinSet::new();
    for mut stream in streams {
        let zeros = zeros.clone();
        tasks.spawn(async move {
            // A peer that gives up closes the connection, which is reported below.
            let written = stream.write_all(&zeros).await.is_ok();
            written && stream.finish().is_ok() && stream.stopped().await.is_ok()
        });
    }
    let arrived = tasks.join_all().await.into_iter().all(|arrived| arrived);
    match connection.close_reason() {
        Some(reason) if !arrived => Err(reason),
        _ => Ok(started.elapsed()),
    }
}

/// As many bytes in flight as fill the configured link, whatever gets lost: the question is
/// what the link carries, not what a congestion controller makes of it.
#[derive(Debug, Clone)]
struct FixedWindow(Arc<AtomicU64>);

struct FixedWindowFactory(Arc<AtomicU64>);

impl ControllerFactory for FixedWindowFactory {
    fn build(self: Arc<Self>, _now: Instant, _mtu: u16) -> Box<dyn Controller> {
        Box::new(FixedWindow(Arc::clone(&self.0)))
    }
}

impl Controller for FixedWindow {
    fn on_congestion_event(
        &mut self,
        _now: Instant,
        _sent: Instant,
        _persistent: bool,
        _lost: u64,
    ) {
    }

    fn on_mtu_update(&mut self, _mtu: u16) {}

    fn window(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        FIRST_WINDOW_BYTES
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// How long a handshake may take: several retries on the longest of links.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// How long a probe's bytes may take.
const ANSWERED_WITHIN: Duration = Duration::from_secs(15);

/// Often enough to keep discovery going.
const TICK: Duration = Duration::from_millis(20);

/// Enough for a handshake.
const FIRST_WINDOW_BYTES: u64 = 64 << 10;

/// Fills the link and puts a twentieth of it into the queue.
const WINDOW_BDPS: f64 = 1.05;

const PROBE_MIN_BYTES: u64 = 256 << 10;
const PROBE_MAX_BYTES: u32 = 32 << 20;

/// Streams of one probe.
const STREAMS: u64 = 16;
