//! Dialling: of two gateways the first by name dials the other's lanes, again after each failure.
//!
//! One task for each lane that the two may have, on the lane's thread, until shutdown. It waits without
//! cost while its lane is not in use.

use super::connection::{ConnectionOrigin, EstablishedConnection, serve_connection};
use super::handshake::handshake_timeout;
use super::packet_size::PacketSize;
use super::quic_config::lane_transport_config;
use super::tls;
use crate::events::Event;
use crate::log_throttle::LogThrottle;
use crate::wan::lane_spec::LaneSpec;
use crate::wan::peer_link::PeerLink;
use std::net::SocketAddr;
use std::sync::Arc;
use units::Span;

/// 2 s: the first attempt to connect a lane without any answer is given up after this time, or the
/// longer [`DIAL_ANSWER_ROUNDS`]. QUIC doubles the time between its packets, so a new attempt
/// reaches a peer that starts meanwhile sooner. Each next attempt takes twice as long, since a busy
/// peer answers late. Tested by `dials_without_answer_take_longer_each_time`.
const DIAL_ANSWER_TIMEOUT_MIN: Span = Span::from_secs(2);
/// 8 round trips of the link: the least time that an attempt to connect a lane waits for the peer's
/// first answer, enough for retries on long links.
const DIAL_ANSWER_ROUNDS: u64 = 8;
/// 100 ms: the first pause between attempts to connect a lane to a peer; each next pause is twice
/// as long.
/// Tested by `only_a_lane_that_stood_resets_the_backoff`.
const DIAL_BACKOFF_MIN: Span = Span::from_ms(100);
/// 5 s: the longest pause between attempts to connect a lane to a peer. A connection with an
/// accepted hello that lasted longer resets the pause.
const DIAL_BACKOFF_MAX: Span = Span::from_secs(5);

/// A lane's connection to one peer, to be dialled while the lane is in use.
pub(super) struct Dialler {
    pub spec: Arc<LaneSpec>,
    pub lane: u16,
    pub endpoint: quinn::Endpoint,
    pub peer: Arc<PeerLink>,
    pub packets: PacketSize,
}

impl Dialler {
    /// Dials the peer and serves the connection, again and again until shutdown, while the lane is
    /// in use.
    pub async fn dial_until_shutdown(self) {
        let Self { spec, lane, peer, .. } = &self;
        let mut lanes = peer.lanes.subscribe();
        let mut backoff = DialBackoff::default();
        let mut patience = AnswerPatience::new(peer.link.rtt);
        let refusals = LogThrottle::default();
        loop {
            let needed = async { lanes.wait_for(|in_use| lane < in_use).await.map(|_| ()) };
            tokio::select! {
                biased;
                () = spec.shutdown.cancelled() => return,
                _ = needed => {}
            }
            let began = spec.host.now();
            let met = match self.dial_once(patience.current).await {
                Ok(connection) => {
                    patience = AnswerPatience::new(peer.link.rtt);
                    let (spec, lane) = (Arc::clone(spec), *lane);
                    let origin = ConnectionOrigin::Dialled(peer.id);
                    let established = EstablishedConnection { spec, lane, connection, origin };
                    serve_connection(established, &refusals).await
                }
                Err(DialError { why, is_unanswered }) => {
                    if is_unanswered {
                        patience.grow();
                    }
                    let (peer, lane) = (peer.id, *lane);
                    let event = Event::DialFailed { peer, lane, why, is_unanswered };
                    if spec.events.send(event).await.is_err() {
                        return;
                    }
                    false
                }
            };
            let pause = backoff.next_pause(met, spec.host.now().since(began));
            tokio::select! {
                biased;
                () = spec.shutdown.cancelled() => return,
                () = spec.host.sleep_until(spec.host.now() + pause) => {}
            }
        }
    }

    /// Dials the peer once and completes the TLS handshake. `patience` is how long to wait for its
    /// first answer.
    ///
    /// # Errors
    /// The reason, with the address unless this side gave up; at most [`handshake_timeout`] after
    /// the first answer.
    async fn dial_once(&self, patience: Span) -> Result<quinn::Connection, DialError> {
        let Self { spec, peer, .. } = self;
        let address: SocketAddr = peer.addresses.of_lane(self.lane);
        let credentials = Arc::clone(&spec.credentials.borrow());
        let answered = |why: String| DialError { why, is_unanswered: false };
        let crypto = credentials.client_config().map_err(|error| answered(error.to_string()))?;
        let mut config = quinn::ClientConfig::new(crypto);
        let transport = lane_transport_config(&spec.lane_path(peer), peer.controller, self.packets);
        config.transport_config(Arc::new(transport));
        let server_name =
            tls::gateway_dns_name(&spec.fabric.gateway(peer.id).name, spec.fabric.name());
        let mut connecting = self
            .endpoint
            .connect_with(config, address, &server_name)
            .map_err(|error| answered(format!("{address}: {error}")))?;
        let mut lanes = peer.lanes.subscribe();
        let needless = async { lanes.wait_for(|in_use| self.lane >= *in_use).await.map(|_| ()) };
        // A dial that is refused has its reason in the result below.
        let first_answer = async { connecting.handshake_data().await.is_ok() };
        tokio::select! {
            biased;
            _ = first_answer => {}
            () = spec.host.sleep_until(spec.host.now() + patience) => {
                let why = format!("{address}: no answer");
                return Err(DialError { why, is_unanswered: true });
            }
            _ = needless => return Err(answered("the lane is not in use".to_owned())),
            () = spec.shutdown.cancelled() => return Err(answered("shutting down".to_owned())),
        }
        let handshake_time = handshake_timeout(peer.link.rtt);
        tokio::select! {
            biased;
            result = connecting => result.map_err(|error| {
                answered(format!("{address}: {}", tls::explain_connection_error(&error)))
            }),
            () = spec.host.sleep_until(spec.host.now() + handshake_time) => {
                Err(answered(format!("{address}: no handshake within {handshake_time}")))
            }
            () = spec.shutdown.cancelled() => Err(answered("shutting down".to_owned())),
        }
    }
}

/// The reason why a dial gave no connection.
#[derive(Debug)]
struct DialError {
    /// The text for logs and status.
    why: String,
    /// Whether no packet of the peer has come: it does not run, or nothing reaches it.
    is_unanswered: bool,
}

/// The time that a dial waits for the peer's first answer.
#[derive(Debug)]
struct AnswerPatience {
    current: Span,
    /// The longest time, after dials without an answer.
    longest: Span,
}

impl AnswerPatience {
    /// Makes the time of a first dial over a link with this round-trip time.
    fn new(rtt: Span) -> Self {
        let rounds = Span::from_ns(rtt.ns().saturating_mul(DIAL_ANSWER_ROUNDS));
        Self { current: rounds.max(DIAL_ANSWER_TIMEOUT_MIN), longest: handshake_timeout(rtt) }
    }

    /// Doubles the time after a dial without an answer, up to [`handshake_timeout`].
    fn grow(&mut self) {
        self.current = (self.current + self.current).min(self.longest);
    }
}

/// The pauses between dials: each twice as long as the one before, until a lane has stood for a while.
#[derive(Debug, Default)]
struct DialBackoff {
    last: Span,
}

impl DialBackoff {
    /// Returns the pause before the next dial. The last dial and its connection took `lived`
    /// together; `met` says whether the peer's hello was accepted.
    fn next_pause(&mut self, met: bool, lived: Span) -> Span {
        let stood = met && lived > DIAL_BACKOFF_MAX;
        let next = if stood { DIAL_BACKOFF_MIN } else { self.last + self.last };
        self.last = next.max(DIAL_BACKOFF_MIN).min(DIAL_BACKOFF_MAX);
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dials_without_answer_take_longer_each_time() {
        let seconds = |rtt: Span| -> Vec<u64> {
            let mut patience = AnswerPatience::new(rtt);
            let mut next = || {
                let current = patience.current.ns() / 1_000_000_000;
                patience.grow();
                current
            };
            (0..4).map(|_| next()).collect()
        };
        assert_eq!(seconds(Span::from_ms(80)), [2, 4, 8, 10]);
        assert_eq!(seconds(Span::from_ms(500)), [4, 8, 10, 10]);
        assert_eq!(seconds(Span::from_secs(12)), [96, 120, 120, 120]);
    }

    #[test]
    fn only_a_lane_that_stood_resets_the_backoff() {
        let mut backoff = DialBackoff::default();
        let pauses = |backoff: &mut DialBackoff, met, lived, count: usize| -> Vec<u64> {
            (0..count).map(|_| backoff.next_pause(met, lived).ns() / 1_000_000).collect()
        };
        let dial_timeout = handshake_timeout(Span::from_ms(80));
        let growing = [100, 200, 400, 800, 1600, 3200, 5000, 5000];
        // Nobody answers: each dial takes until its timeout.
        assert_eq!(pauses(&mut backoff, false, dial_timeout, 8), growing);
        // A peer that answers and never sends a hello, or that refuses us at once.
        assert_eq!(pauses(&mut backoff, false, dial_timeout, 1), [5000]);
        assert_eq!(pauses(&mut backoff, false, Span::from_ms(40), 1), [5000]);
        // A peer that dies as soon as it is met.
        assert_eq!(pauses(&mut backoff, true, Span::from_ms(40), 1), [5000]);
        assert_eq!(pauses(&mut backoff, true, Span::from_secs(3600), 1), [100]);
        assert_eq!(pauses(&mut backoff, false, dial_timeout, 2), [200, 400]);
    }
}
