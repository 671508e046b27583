//! Dialling: of two gateways the first by name dials the other's lanes, again after each failure. A
//! gateway that no other can dial dials all.
//!
//! Each lane that the two may have gets a task, on the lane's thread, until shutdown. The task waits
//! without cost while its lane is not in use. Attempts of which nothing is heard go on without a pause, however
//! long a peer is away, so that it is met about a second after its return. A peer with a host name is
//! dialled at the addresses that the name has at each attempt.

use super::handshake::handshake_timeout;
use super::lane_connection::{ConnectionOrigin, EstablishedConnection, serve_lane_connection};
use super::lane_connection_ids::initial_lane_connection_id;
use super::packet_size::PacketSize;
use super::peer_addresses::PeerLocation;
use super::quic_config::quic_transport_config;
use super::tls;
use crate::events::Event;
use crate::log_throttle::LogThrottle;
use crate::wan::lane_spec::LaneSpec;
use crate::wan::peer_link::PeerLink;
use std::pin::Pin;
use std::sync::Arc;
use units::Span;

/// 1 s, or [`DIAL_REPEAT_ROUNDS`] (2 round trips) if longer: a lane begins a new attempt to reach
/// its peer after each such time without any answer. QUIC doubles the time between the packets of
/// one attempt. So an attempt alone finds a peer that starts again after up to half of its own age.
/// Tested by `gateways_are_back_soon_after_ten_minutes`.
const DIAL_REPEAT_MIN: Span = Span::from_secs(1);
/// 2 round trips of the link, or 1 s if longer: after this time without an answer a lane begins the
/// next attempt to reach its peer. The answer to an attempt comes within two round trips.
const DIAL_REPEAT_ROUNDS: u64 = 2;
/// 2 s without any answer of a peer: from then on a lane tells the engine of no answer at each new
/// attempt, for status and log. Gateways that are started one after the other are connected sooner.
const NO_ANSWER_REPORT_AFTER: Span = Span::from_secs(2);
/// 100 ms: the first pause between attempts to connect a lane to a peer, after a refusal or a lost
/// connection; a chosen value. Each next pause is twice as long, up to [`DIAL_BACKOFF_MAX`] (5 s).
/// Tested by `only_a_lane_that_stood_resets_the_backoff`.
const DIAL_BACKOFF_MIN: Span = Span::from_ms(100);
/// 5 s: the longest pause between attempts to connect a lane to a peer, a chosen value. The pause
/// begins again at 100 ms after a connection that lasted longer than 5 s with an accepted hello.
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
        let refusals = LogThrottle::default();
        loop {
            let needed = async { lanes.wait_for(|in_use| lane < in_use).await.map(|_| ()) };
            tokio::select! {
                biased;
                () = spec.shutdown.cancelled() => return,
                _ = needed => {}
            }
            let began = spec.host.now();
            let answer = self.dial_until_answered().await;
            let answered = spec.host.now();
            if answered.since(began) > DIAL_BACKOFF_MAX {
                // The peer was away, and may be another by now.
                backoff = DialBackoff::default();
            }
            let connected = match answer {
                Ok(answered) => self.complete_handshake(answered).await,
                Err(why) => Err(why),
            };
            let met = match connected {
                Ok(connection) => {
                    let (spec, lane) = (Arc::clone(spec), *lane);
                    let origin = ConnectionOrigin::Dialled(peer.id);
                    let established = EstablishedConnection { spec, lane, connection, origin };
                    serve_lane_connection(established, &refusals).await
                }
                Err(why) => {
                    if !self.report_failure(why, false).await {
                        return;
                    }
                    false
                }
            };
            let pause = backoff.next_pause(met, spec.host.now().since(answered));
            tokio::select! {
                biased;
                () = spec.shutdown.cancelled() => return,
                () = spec.host.sleep_until(spec.host.now() + pause) => {}
            }
        }
    }

    /// Dials the peer until one of its packets comes, which may refuse the connection. Two attempts
    /// are under way at most: a short one and a long one. The short one meets a peer soon after its
    /// start, the long one leaves a busy peer time. Host names are resolved again meanwhile.
    ///
    /// # Errors
    /// This side cannot dial, or need not.
    async fn dial_until_answered(&self) -> Result<Answered, String> {
        let Self { spec, lane, peer, .. } = self;
        let mut lanes = peer.lanes.subscribe();
        let needless = async { lanes.wait_for(|in_use| lane >= in_use).await.map(|_| ()) };
        tokio::select! {
            biased;
            answered = self.attempt_until_answered() => answered,
            _ = needless => Err("the lane is not in use".to_owned()),
            () = spec.shutdown.cancelled() => Err("shutting down".to_owned()),
        }
    }

    /// Makes attempts until the peer answers one, as [`Self::dial_until_answered`] says.
    ///
    /// # Errors
    /// This side cannot dial.
    async fn attempt_until_answered(&self) -> Result<Answered, String> {
        let Self { spec, lane, peer, .. } = self;
        let location = peer.addresses.as_ref().ok_or("the fabric has no address for it")?;
        let own = spec.listen.of_lane(*lane).ip();
        let refresh = || Box::pin(location.refresh(&*spec.host, own));
        let (repeat, patience) =
            (dial_repeat_interval(peer.link().rtt), handshake_timeout(peer.link().rtt));
        let mut turn = location.turn();
        if location.of_lane(*lane, turn).is_none() {
            refresh().await;
        }
        let mut refreshing = Some(refresh());
        let mut long = self.begin_attempt(location, turn)?;
        let began = spec.host.now();
        let (mut long_since, mut next) = (began, began + repeat);
        let mut short: Option<Attempt> = None;
        loop {
            tokio::select! {
                biased;
                answered = &mut long => return Ok(answered),
                answered = wait_for_part(&mut short) => return Ok(answered),
                has_moved = wait_for_part(&mut refreshing) => {
                    refreshing = None;
                    if has_moved {
                        (turn, short) = (location.turn(), None);
                        (long, long_since) = (self.begin_attempt(location, turn)?, spec.host.now());
                    }
                    continue;
                }
                () = spec.host.sleep_until(next) => {}
            }
            let now = spec.host.now();
            if now.since(began) >= NO_ANSWER_REPORT_AFTER
                && let Some(address) = location.of_lane(*lane, turn)
            {
                self.report_failure(format!("{address}: no answer"), true).await;
            }
            if now.since(long_since) >= patience {
                (long, long_since) = (self.begin_attempt(location, turn)?, now);
            }
            turn += 1;
            short = Some(self.begin_attempt(location, turn)?);
            next = now + repeat;
            if refreshing.is_none() && location.has_names() {
                refreshing = Some(refresh());
            }
        }
    }

    /// Sends the first packet to the address of the peer whose turn it is. The attempt ends with the
    /// first packet of the peer. Dropping it gives the attempt up.
    ///
    /// # Errors
    /// The reason: this side cannot dial.
    fn begin_attempt(&self, location: &PeerLocation, turn: usize) -> Result<Attempt, String> {
        let Self { spec, lane, peer, .. } = self;
        let unresolved = || location.problem().unwrap_or_else(|| "has no address yet".to_owned());
        let address = location.of_lane(*lane, turn).ok_or_else(unresolved)?;
        let credentials = Arc::clone(&spec.credentials.borrow());
        let crypto = credentials.client_config().map_err(|error| error.to_string())?;
        let mut config = quinn::ClientConfig::new(crypto);
        let transport = quic_transport_config(
            &spec.lane_path(peer),
            peer.controller,
            self.packets,
            peer.liveness.idle_timeout(peer.link().rtt),
        );
        config.transport_config(Arc::new(transport));
        let place = lane / location.count();
        let first_id = initial_lane_connection_id(place, spec.host.random_bytes());
        config.initial_dst_cid_provider(Arc::new(move || first_id));
        let server_name =
            tls::gateway_identity_dns_name(&spec.fabric.gateway(peer.id).name, spec.fabric.name());
        let mut connecting = self
            .endpoint
            .connect_with(config, address, &server_name)
            .map_err(|error| format!("{address}: {error}"))?;
        let peer = Arc::clone(peer);
        Ok(Box::pin(async move {
            // An attempt that is refused has its reason in the handshake's result.
            if connecting.handshake_data().await.is_ok()
                && let Some(location) = &peer.addresses
            {
                location.note_answer(turn);
            }
            Answered(connecting)
        }))
    }

    /// Completes the TLS handshake of a dial attempt that the peer has answered.
    ///
    /// # Errors
    /// The reason, with the address, at most [`handshake_timeout`] after the call.
    async fn complete_handshake(
        &self,
        Answered(connecting): Answered,
    ) -> Result<quinn::Connection, String> {
        let (spec, address) = (&self.spec, connecting.remote_address());
        let patience = handshake_timeout(self.peer.link().rtt);
        tokio::select! {
            biased;
            result = connecting => result
                .map_err(|error| format!("{address}: {}", tls::explain_connection_alert(&error))),
            () = spec.host.sleep_until(spec.host.now() + patience) => {
                Err(format!("{address}: no handshake within {patience}"))
            }
            () = spec.shutdown.cancelled() => Err("shutting down".to_owned()),
        }
    }

    /// Tells the engine why the lane is not up. `is_unanswered` means that nothing was heard of the
    /// peer. Returns whether there is an engine.
    async fn report_failure(&self, why: String, is_unanswered: bool) -> bool {
        let event = Event::DialFailed { peer: self.peer.id, lane: self.lane, why, is_unanswered };
        self.spec.events.send(event).await.is_ok()
    }
}

/// A connection that waits for the first packet of the peer.
type Attempt = Pin<Box<dyn Future<Output = Answered> + Send>>;

/// A connection whose handshake goes on, since the peer has answered, or has failed.
struct Answered(quinn::Connecting);

/// Waits for a part of a select expression that may be absent, which never ends then.
async fn wait_for_part<F: Future + Unpin>(part: &mut Option<F>) -> F::Output {
    match part {
        Some(part) => part.await,
        None => std::future::pending().await,
    }
}

/// Returns how often a lane dials a peer of which nothing is heard, over a link with this round trip.
fn dial_repeat_interval(rtt: Span) -> Span {
    Span::from_ns(rtt.ns().saturating_mul(DIAL_REPEAT_ROUNDS)).max(DIAL_REPEAT_MIN)
}

/// The pauses between dials: each twice as long as the one before, until a lane has stood for a while.
#[derive(Debug, Default)]
struct DialBackoff {
    last: Span,
}

impl DialBackoff {
    /// Returns the pause before the next dial. It doubles from [`DIAL_BACKOFF_MIN`] to
    /// [`DIAL_BACKOFF_MAX`], and begins again after a connection that stood for longer than the
    /// latter. The last connection took `lived` since the peer's first packet; `met` says whether
    /// the peer's hello was accepted.
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
    fn dials_without_answer_follow_the_round_trip() {
        let seconds = |rtt: Span| dial_repeat_interval(rtt).ns() / 1_000_000_000;
        assert_eq!([80, 400, 12_000].map(|ms| seconds(Span::from_ms(ms))), [1, 1, 24]);
    }

    #[test]
    fn only_a_lane_that_stood_resets_the_backoff() {
        let mut backoff = DialBackoff::default();
        let pauses = |backoff: &mut DialBackoff, met, lived, count: usize| -> Vec<u64> {
            (0..count).map(|_| backoff.next_pause(met, lived).ns() / 1_000_000).collect()
        };
        let dial_timeout = handshake_timeout(Span::from_ms(80));
        let growing = [100, 200, 400, 800, 1600, 3200, 5000, 5000];
        // A handshake that never ends.
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
