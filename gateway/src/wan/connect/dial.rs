//! Dialling: of two gateways the first by name dials the other's lanes, again after each failure.
//!
//! One task for each lane and peer, on the lane's thread, until shutdown.

use super::connection::{ConnectionOrigin, EstablishedConnection, serve_connection};
use super::handshake::handshake_timeout;
use super::packet_size::PacketSize;
use super::quic_config::lane_transport_config;
use super::tls;
use crate::events::Event;
use crate::log_throttle::LogThrottle;
use crate::wan::spec::{LaneSpec, PeerLink};
use std::net::SocketAddr;
use std::sync::Arc;
use units::Span;

/// 100 ms: the first pause between dials; each next one is twice as long.
/// Tested by `only_a_lane_that_stood_resets_the_backoff`.
const DIAL_BACKOFF_MIN: Span = Span::from_ms(100);
/// 5 s: the longest pause between dials. A lane that has lived longer resets the pause.
const DIAL_BACKOFF_MAX: Span = Span::from_secs(5);

/// A lane's connection to one peer, to be dialled.
pub(super) struct Dialler {
    pub spec: Arc<LaneSpec>,
    pub lane: u16,
    pub endpoint: quinn::Endpoint,
    pub peer: Arc<PeerLink>,
    pub packets: PacketSize,
}

impl Dialler {
    /// Dials the peer and serves the connection, again and again until shutdown.
    pub async fn dial_until_shutdown(self) {
        let Self { spec, lane, peer, .. } = &self;
        let mut backoff = DialBackoff::default();
        let refusals = LogThrottle::default();
        while !spec.shutdown.is_cancelled() {
            let began = spec.host.now();
            let met = match self.dial_once().await {
                Ok(connection) => {
                    let (spec, lane) = (Arc::clone(spec), *lane);
                    let origin = ConnectionOrigin::Dialled(peer.id);
                    let established = EstablishedConnection { spec, lane, connection, origin };
                    serve_connection(established, &refusals).await
                }
                Err(why) => {
                    let event = Event::DialFailed { peer: peer.id, lane: *lane, why };
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

    /// Dials the peer once and completes the TLS handshake.
    ///
    /// # Errors
    /// The reason, with the address, after [`handshake_timeout`] at the latest.
    async fn dial_once(&self) -> Result<quinn::Connection, String> {
        let Self { spec, peer, .. } = self;
        let address: SocketAddr = peer.addresses.of_lane(self.lane);
        let credentials = Arc::clone(&spec.credentials.borrow());
        let crypto = credentials.client_config().map_err(|error| error.to_string())?;
        let mut config = quinn::ClientConfig::new(crypto);
        let transport = lane_transport_config(&peer.lane_path(spec), peer.controller, self.packets);
        config.transport_config(Arc::new(transport));
        let server_name =
            tls::gateway_dns_name(&spec.fabric.gateway(peer.id).name, spec.fabric.name());
        let connecting = self
            .endpoint
            .connect_with(config, address, &server_name)
            .map_err(|error| format!("{address}: {error}"))?;
        let patience = handshake_timeout(peer.link.rtt);
        tokio::select! {
            biased;
            result = connecting => result.map_err(|error| format!("{address}: {error}")),
            () = spec.host.sleep_until(spec.host.now() + patience) => {
                Err(format!("{address}: no answer within {patience}"))
            }
            () = spec.shutdown.cancelled() => Err("shutting down".to_owned()),
        }
    }
}

/// The pauses between dials: each twice as long as the one before, until a lane has stood for a while.
#[derive(Debug, Default)]
struct DialBackoff {
    last: Span,
}

impl DialBackoff {
    /// Returns the pause before the next dial. The last one ended after `lived`; `met` says whether
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
