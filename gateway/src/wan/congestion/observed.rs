//! The congestion controller that quinn calls: it counts into [`LaneTelemetry`] and delegates to the
//! controller of the lane's link.
//!
//! quinn makes one for each path of a connection through [`LaneControllerFactory`]. The tasks of a
//! lane reach its counters through [`telemetry`].

use super::controller::LinkShareController;
use super::in_flight::InFlight;
use super::telemetry::LaneTelemetry;
use super::window::LanePath;
use crate::wan::link::policy::ControllerKind;
use quinn::Connection;
use quinn_proto::RttEstimator;
use quinn_proto::congestion::{
    Controller, ControllerFactory, ControllerMetrics, CubicConfig, NewRenoConfig,
};
use std::any::Any;
use std::sync::Arc;
use std::time::Instant;
use tracing::trace;
use units::Span;

/// The log target of a trace for each packet sent: bytes in flight and congestion window of its lane.
const FLIGHT: &str = "landbridge::flight";
/// 10 packets: the initial window of CUBIC and NewReno, as in RFC 9002 but for any MTU. The one
/// of quinn is less than one jumbo packet, and such a connection would never send its second one.
/// Tested by `quic_controllers_connect_with_packets_above_their_first_window`.
const INITIAL_WINDOW_PACKETS: u64 = 10;
/// 14,720 bytes: the least initial window of CUBIC and NewReno, as in RFC 9002.
const INITIAL_WINDOW_BYTES: u64 = 14_720;

/// Makes the controllers of one link's lanes.
pub(crate) struct LaneControllerFactory {
    path: LanePath,
    kind: ControllerKind,
}

/// The controller of one path, with its counters.
struct ObservedController {
    inner: Box<dyn Controller>,
    telemetry: Arc<LaneTelemetry>,
}

/// The counters of a connection's present path; `None` if the connection has no controller of ours.
pub(crate) fn telemetry(connection: &Connection) -> Option<Arc<LaneTelemetry>> {
    let state = connection.congestion_state().into_any();
    state.downcast::<ObservedController>().ok().map(|observed| observed.telemetry)
}

/// The smoothed RTT of a connection.
pub(crate) fn smoothed_rtt(connection: &Connection) -> Span {
    Span::from_ns(u64::try_from(connection.rtt().as_nanos()).unwrap_or(u64::MAX))
}

/// Changes a lane to the controller and the initial windows of another link.
pub(crate) fn change_link(
    telemetry: &LaneTelemetry,
    path: &LanePath,
    kind: ControllerKind,
    now: Instant,
) {
    telemetry.in_flight.set_windows(&path.initial_windows());
    let next =
        make_controller(kind, path, &telemetry.in_flight, Start { now, mtu: telemetry.mtu() });
    telemetry.replace_controller(next);
}

impl LaneControllerFactory {
    /// A factory for the lanes of one link.
    pub fn new(path: &LanePath, kind: ControllerKind) -> Self {
        Self { path: path.clone(), kind }
    }
}

impl ControllerFactory for LaneControllerFactory {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        let telemetry = LaneTelemetry::new(mtu);
        telemetry.in_flight.set_windows(&self.path.initial_windows());
        let start = Start { now, mtu };
        let inner = make_controller(self.kind, &self.path, &telemetry.in_flight, start);
        Box::new(ObservedController { inner, telemetry: Arc::new(telemetry) })
    }
}

/// The arguments of quinn's own controller factories.
struct Start {
    now: Instant,
    mtu: u16,
}

fn make_controller(
    kind: ControllerKind,
    path: &LanePath,
    in_flight: &Arc<InFlight>,
    Start { now, mtu }: Start,
) -> Box<dyn Controller> {
    let initial = (INITIAL_WINDOW_PACKETS * u64::from(mtu)).max(INITIAL_WINDOW_BYTES);
    match kind {
        ControllerKind::LinkShare => {
            let loss = path.link.loss.as_f64();
            Box::new(LinkShareController::new(Arc::clone(in_flight), loss, mtu))
        }
        ControllerKind::Cubic => {
            let mut config = CubicConfig::default();
            config.initial_window(initial);
            Arc::new(config).build(now, mtu)
        }
        ControllerKind::NewReno => {
            let mut config = NewRenoConfig::default();
            config.initial_window(initial);
            Arc::new(config).build(now, mtu)
        }
    }
}

impl Controller for ObservedController {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        let in_flight = self.telemetry.in_flight.note_sent(bytes);
        trace!(target: FLIGHT, in_flight, window = self.telemetry.in_flight.congestion_window());
        self.telemetry.use_probe_allowance(bytes);
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
        let sample = u64::try_from(now.saturating_duration_since(sent).as_nanos());
        self.telemetry.note_ack(bytes, sample.unwrap_or(u64::MAX));
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        self.telemetry.in_flight.note_acked(in_flight, app_limited);
        self.telemetry.end_probe_allowance();
        if let Some(next) = self.telemetry.take_next_controller() {
            self.inner = next;
        }
        self.inner.on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        self.telemetry.in_flight.note_lost(lost_bytes);
        self.inner.on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.telemetry.set_mtu(new_mtu);
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.inner.window().max(self.telemetry.probe_window())
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        let (inner, telemetry) = (self.inner.clone_box(), Arc::clone(&self.telemetry));
        Box::new(Self { inner, telemetry })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
