//! One probe per round trip on silence.
//!
//! QUIC doubles its pause before each tail probe that nobody answers, so after a cut of some
//! seconds it may wait for as long again before it finds that the path is back. What is under
//! way has a deadline, so a lane that has bytes in flight and hears no acknowledgement for a
//! round trip sends a datagram of one byte, and one more each round trip until it hears. The
//! acknowledgement of any of them lets QUIC see all that was lost at once.

use crate::host::Host;
use bytes::Bytes;
use quinn::Connection;
use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use units::Span;

/// Acknowledgements may come this much later than a round trip (QUIC's `max_ack_delay`).
const ACK_DELAY: Span = Span::from_ms(25);
/// Room for probes on either side, quinn's bookkeeping of them included. Nobody reads them:
/// the oldest goes when the room is full.
pub(super) const DATAGRAM_BYTES: usize = 1024;

/// Probes a connection until it ends; returns why.
pub(super) async fn probe(host: &dyn Host, connection: &Connection) -> String {
    let mut acked_before = 0;
    loop {
        let rtt = Span::from_ns(u64::try_from(connection.rtt().as_nanos()).unwrap_or(u64::MAX));
        host.sleep_until(host.now() + rtt + ACK_DELAY).await;
        // Asked for each time: a connection that moves to another path has a new one.
        let state = connection.congestion_state().into_any();
        let Ok(watched) = state.downcast::<Watched>() else {
            return "no congestion controller of ours".to_owned();
        };
        let watch = watched.watch;
        let acked = watch.acked.load(Ordering::Relaxed);
        let silent = acked == acked_before && watch.in_flight.load(Ordering::Relaxed) > 0;
        acked_before = acked;
        if silent {
            watch.slack.store(2 * u64::from(watched.mtu), Ordering::Relaxed);
            if let Err(error) = connection.send_datagram(Bytes::from_static(&[0])) {
                return error.to_string();
            }
        }
    }
}

/// Makes controllers that tell of silence, and let a probe pass when the window is shut.
pub(super) struct Watching<F>(pub Arc<F>);

struct Watched {
    inner: Box<dyn Controller>,
    mtu: u16,
    watch: Arc<Watch>,
}

/// What the prober and the controller share.
#[derive(Debug, Default)]
struct Watch {
    in_flight: AtomicU64,
    /// Packets acknowledged so far.
    acked: AtomicU64,
    /// Bytes that may leave beyond the window.
    slack: AtomicU64,
}

impl<F: ControllerFactory + Send + Sync + 'static> ControllerFactory for Watching<F> {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        let inner = Arc::clone(&self.0).build(now, mtu);
        Box::new(Watched { inner, mtu, watch: Arc::default() })
    }
}

impl Controller for Watched {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.watch.in_flight.fetch_add(bytes, Ordering::Relaxed);
        let slack = self.watch.slack.load(Ordering::Relaxed);
        self.watch.slack.store(slack.saturating_sub(bytes), Ordering::Relaxed);
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.watch.acked.fetch_add(1, Ordering::Relaxed);
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        self.watch.in_flight.store(in_flight, Ordering::Relaxed);
        self.watch.slack.store(0, Ordering::Relaxed);
        self.inner.on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        let in_flight = self.watch.in_flight.load(Ordering::Relaxed).saturating_sub(lost_bytes);
        self.watch.in_flight.store(in_flight, Ordering::Relaxed);
        self.inner.on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = new_mtu;
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        let slack = self.watch.slack.load(Ordering::Relaxed);
        let probe =
            if slack == 0 { 0 } else { self.watch.in_flight.load(Ordering::Relaxed) + slack };
        self.inner.window().max(probe)
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        let (inner, watch) = (self.inner.clone_box(), Arc::clone(&self.watch));
        Box::new(Self { inner, mtu: self.mtu, watch })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
