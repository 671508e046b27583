//! A probe of the path to a peer: handshake time, RTT, MTU, and the rate of some meaningless bytes.
//!
//! `landbridge doctor` calls [`measure_path_by_probe`]. The peer's lane answers with [`answer_path_probe`]
//! (`lane_connection.rs`). The connection has an ALPN protocol of its own and carries no collective.
//! [`path_check`] needs no connection, and finds out why there is none.

mod mtu_search;
pub mod path_check;
mod version_probe;

use super::packet_headers::packet_headers_bytes;
use crate::wan::connect::tls::{
    Credentials, CredentialsError, PROBE_ALPN, explain_connection_alert,
};
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

/// The configured values of the path that a probe measures.
#[derive(Debug, Clone, Copy)]
pub struct ExpectedPath {
    /// The lowest of the rates of the link and both ports.
    pub rate: BitRate,
    /// The link's round-trip time.
    pub rtt: Span,
    /// The fabric's IP MTU in bytes.
    pub mtu: u16,
}

/// The peer that a path probe dials.
#[derive(Debug, Clone, Copy)]
pub struct ProbeTarget<'t> {
    /// The UDP address of its lane 0.
    pub address: SocketAddr,
    /// The DNS name that its certificate proves.
    pub dns_name: &'t str,
}

/// The measurements of a path probe.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PathMeasurement {
    /// Time from the first datagram until both ends had authenticated.
    pub handshake: Duration,
    /// The smoothed round-trip time, before the payload.
    pub rtt: Duration,
    /// The largest IP packet that passed, in bytes. None above the configured MTU is tried.
    pub mtu: u16,
    /// Bytes of payload sent to measure the rate.
    pub sent: ByteCount,
    /// The payload rate; `None` if the peer did not take all bytes in time.
    pub rate: Option<BitRate>,
}

/// The reason why a path could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum PathProbeError {
    /// No datagram came back, or too few.
    #[error("no answer within {} s", .0.as_secs())]
    NoAnswer(Duration),
    /// The peer answered, and one side refused the other, for this reason. Its end names the action
    /// to take, if it is known.
    #[error("refused: {0}")]
    Refused(String),
    /// This side cannot try.
    #[error("cannot connect: {0}")]
    Local(String),
}

impl From<CredentialsError> for PathProbeError {
    /// Converts an error of this gateway's own credentials into [`PathProbeError::Local`] with its
    /// text.
    fn from(error: CredentialsError) -> Self {
        Self::Local(error.to_string())
    }
}

/// Returns whether an accepted connection is a path probe, to be served by [`answer_path_probe`].
pub fn is_path_probe(connection: &Connection) -> bool {
    let data = connection.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
    data.is_some_and(|data| data.protocol.as_deref() == Some(PROBE_ALPN))
}

/// Reads and discards the bytes of a peer's path probe, for 15 seconds and 22 round trips at most,
/// and closes the connection. A round trip counts as 60 s at most.
pub async fn answer_path_probe(connection: Connection) {
    connection.set_receive_window(VarInt::from_u32(PROBE_BYTES_MAX));
    let budget = Arc::new(AtomicU64::new(u64::from(PROBE_BYTES_MAX)));
    let take_all = async {
        // All streams are read at the same time, as they are written; else the windows would fill.
        let mut readers = tokio::task::JoinSet::new();
        for _ in 0..PROBE_STREAMS {
            let Ok(stream) = connection.accept_uni().await else {
                return;
            };
            readers.spawn(discard_path_probe_stream(stream, Arc::clone(&budget)));
        }
        while readers.join_next().await.is_some() {}
        connection.closed().await;
    };
    // A probe closes the connection itself.
    // A probe searches for the MTU for 12 round trips before it sends. Nobody prolongs a link.
    let rtt = connection.rtt().min(PROBE_RTT_MAX);
    let _ = timeout(PROBE_TRANSFER_TIMEOUT + rtt * (12 + PROBE_ROUND_TRIPS), take_all).await;
    connection.close(VarInt::from_u32(0), b"probe over");
}

/// Reads a stream of a path probe to its end, or until the connection's budget of bytes is spent.
async fn discard_path_probe_stream(mut stream: quinn::RecvStream, budget: Arc<AtomicU64>) {
    while let Ok(Some(chunk)) = stream.read_chunk(usize::MAX, false).await {
        let length = u64::try_from(chunk.bytes.len()).unwrap_or(u64::MAX);
        let spend = |rest: u64| rest.checked_sub(length);
        if budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend).is_err() {
            return;
        }
    }
}

/// Measures handshake time, RTT, MTU and rate of the path to a peer. It sends one second of the
/// configured rate, from 256 KiB to 32 MiB.
///
/// # Errors
/// [`PathProbeError`]: the connection failed.
pub async fn measure_path_by_probe(
    endpoint: &Endpoint,
    credentials: &Credentials,
    target: ProbeTarget<'_>,
    want: ExpectedPath,
) -> Result<PathMeasurement, PathProbeError> {
    let window = Arc::new(AtomicU64::new(PROBE_INITIAL_WINDOW_BYTES));
    let ProbeTarget { address, dns_name } = target;
    let headers = packet_headers_bytes(address.ip());
    let mut config = ClientConfig::new(credentials.probe_client_config()?);
    config.transport_config(path_probe_transport_config(&window, want, headers));
    let ten_round_trips = want.rtt.duration() * PROBE_ROUND_TRIPS;
    let patience = PROBE_HANDSHAKE_TIMEOUT_MIN.max(ten_round_trips);
    let started = Instant::now();
    let connecting = endpoint
        .connect_with(config, address, dns_name)
        .map_err(|error| PathProbeError::Local(error.to_string()))?;
    let connection = match timeout(patience, connecting).await {
        Ok(Ok(connection)) => connection,
        Err(_) | Ok(Err(ConnectionError::TimedOut)) => {
            return Err(PathProbeError::NoAnswer(patience));
        }
        Ok(Err(error)) => return Err(PathProbeError::Refused(explain_connection_alert(&error))),
    };
    let handshake = started.elapsed();
    let mtu = wait_for_path_probe_mtu(&connection, want.mtu - headers).await + headers;
    if let Some(error) = connection.close_reason() {
        return Err(PathProbeError::Refused(explain_connection_alert(&error)));
    }
    let rtt = connection.rtt();
    let bytes_per_second = want.rate.bytes_per_second();
    let in_flight = (bytes_per_second * rtt.as_secs_f64() * PROBE_WINDOW_GAIN) as u64;
    window.store(in_flight.max(PROBE_INITIAL_WINDOW_BYTES), Ordering::Relaxed);
    let size = (bytes_per_second as u64).clamp(PROBE_BYTES_MIN, u64::from(PROBE_BYTES_MAX));
    let rate = match timeout(
        PROBE_TRANSFER_TIMEOUT + ten_round_trips,
        send_path_probe_bytes(&connection, size),
    )
    .await
    {
        Ok(Ok(took)) => {
            // The last acknowledgement takes a round trip in which nothing is sent.
            let seconds = took.saturating_sub(rtt).as_secs_f64().max(1e-6);
            Some(BitRate::from_bits_per_second((size as f64 * 8.0 / seconds) as u64))
        }
        Ok(Err(error)) => return Err(PathProbeError::Refused(explain_connection_alert(&error))),
        Err(_) => None,
    };
    connection.close(VarInt::from_u32(0), b"probe over");
    Ok(PathMeasurement { handshake, rtt, mtu, sent: ByteCount::new(size), rate })
}

/// Makes the transport settings of a path probe. `window` is its congestion window in bytes;
/// `headers` counts the bytes of IP and UDP headers.
fn path_probe_transport_config(
    window: &Arc<AtomicU64>,
    want: ExpectedPath,
    headers: u16,
) -> Arc<quinn::TransportConfig> {
    let mut mtu = MtuDiscoveryConfig::default();
    mtu.upper_bound(want.mtu - headers);
    let mut transport = quinn::TransportConfig::default();
    transport
        .mtu_discovery_config(Some(mtu))
        .initial_rtt(want.rtt.duration().max(Duration::from_millis(1)))
        .keep_alive_interval(Some(PROBE_KEEP_ALIVE_INTERVAL))
        .send_window(u64::from(PROBE_BYTES_MAX))
        .congestion_controller_factory(Arc::new(PathProbeWindowFactory(Arc::clone(window))));
    Arc::new(transport)
}

/// Waits until MTU discovery has found the wanted datagram size, or no larger one for a while.
/// Returns the size found in bytes.
async fn wait_for_path_probe_mtu(connection: &Connection, wanted: u16) -> u16 {
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
        tokio::time::sleep(PROBE_KEEP_ALIVE_INTERVAL).await;
    }
}

/// Sends `size` bytes of a path probe and waits until all have arrived; returns the time taken.
/// Several streams carry them, so that no stream's window limits the rate.
async fn send_path_probe_bytes(
    connection: &Connection,
    size: u64,
) -> Result<Duration, ConnectionError> {
    let started = Instant::now();
    let part = usize::try_from(size / PROBE_STREAMS).unwrap_or(0);
    let mut streams = Vec::new();
    for _ in 0..PROBE_STREAMS {
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

/// A congestion window that fills the configured link whatever is lost: the probe measures the
/// link, and not a congestion controller.
#[derive(Debug, Clone)]
struct PathProbeWindow(Arc<AtomicU64>);

/// Makes the congestion controllers of a path probe, with a shared window in bytes.
struct PathProbeWindowFactory(Arc<AtomicU64>);

impl ControllerFactory for PathProbeWindowFactory {
    /// Makes the congestion controller of a path probe, with the window that all its paths share.
    fn build(self: Arc<Self>, _now: Instant, _mtu: u16) -> Box<dyn Controller> {
        Box::new(PathProbeWindow(Arc::clone(&self.0)))
    }
}

impl Controller for PathProbeWindow {
    /// Does nothing: a path probe keeps its window whatever is lost.
    fn on_congestion_event(
        &mut self,
        _now: Instant,
        _sent: Instant,
        _persistent: bool,
        _lost: u64,
    ) {
    }

    /// Does nothing: the window of a path probe is in bytes.
    fn on_mtu_update(&mut self, _mtu: u16) {}

    /// Returns the congestion window of the path probe in bytes.
    fn window(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Copies the controller; the copy shares the window.
    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    /// Returns the window of a path probe before its RTT is known, in bytes.
    fn initial_window(&self) -> u64 {
        PROBE_INITIAL_WINDOW_BYTES
    }

    /// Gives the controller as `Any`, as quinn requires.
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// 5 s, or [`PROBE_ROUND_TRIPS`] (10 round trips) if longer: if the handshake of a path probe takes
/// longer, the probe ends and the peer is reported as without an answer. A busy peer answers in
/// this time.
const PROBE_HANDSHAKE_TIMEOUT_MIN: Duration = Duration::from_secs(5);

/// 10 round trips, or 5 s if longer: the longest handshake of a path probe, after which it is given
/// up. As many round trips are added to [`PROBE_TRANSFER_TIMEOUT`] (15 s).
const PROBE_ROUND_TRIPS: u32 = 10;

/// 15 s, plus [`PROBE_ROUND_TRIPS`] (10 round trips): if the bytes of a path probe take longer, the
/// probe reports no rate. A peer reads for 12 round trips more, in which the probe searches for the
/// MTU, and then closes.
const PROBE_TRANSFER_TIMEOUT: Duration = Duration::from_secs(15);

/// 60 s: the longest round trip of a fabric. The gateway that answers a path probe reads for a time
/// that grows with the measured RTT; a longer RTT counts as 60 s there.
const PROBE_RTT_MAX: Duration = Duration::from_secs(60);

/// 20 ms: interval between keep-alive packets of a path probe, so that MTU discovery goes on while
/// no data is sent. The size found so far is read at the same interval.
const PROBE_KEEP_ALIVE_INTERVAL: Duration = Duration::from_millis(20);

/// 64 KiB, seven jumbo packets: the congestion window of a path probe during its handshake. While
/// the probe sends, its window is no smaller, however low rate and RTT.
const PROBE_INITIAL_WINDOW_BYTES: u64 = 64 << 10;

/// 1.05 times the BDP (expected rate times measured RTT): the congestion window of a path probe
/// while the rate is measured. The link is full, with a queue of 0.05 BDP.
const PROBE_WINDOW_GAIN: f64 = 1.05;

/// 256 KiB: the least payload that a path probe sends, a chosen size. Between it and
/// [`PROBE_BYTES_MAX`] (32 MiB) a probe sends for one second at the expected rate.
const PROBE_BYTES_MIN: u64 = 256 << 10;
/// 32 MiB: the most payload that a path probe sends, however high the expected rate, so that a
/// probe hardly delays a running job. A peer stops reading a stream whose bytes exceed it.
/// Tested by `a_sound_deployment_passes_every_check`.
const PROBE_BYTES_MAX: u32 = 32 << 20;

/// 16 QUIC streams carry the payload of a path probe in equal parts, so that no stream's receive
/// window limits the rate. The peer reads 16 streams and no more.
const PROBE_STREAMS: u64 = 16;
