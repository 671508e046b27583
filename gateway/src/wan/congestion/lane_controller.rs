//! The congestion controller that quinn calls: it counts into [`LaneTelemetry`] and delegates to the
//! controller of the lane's link.
//!
//! quinn makes one for each path of a connection through [`LaneControllerFactory`]. The tasks of a
//! lane reach its counters through [`lane_controller_telemetry`].

use super::in_flight::InFlight;
use super::lane_path::LanePath;
use super::lane_telemetry::LaneTelemetry;
use super::link_share_controller::{LinkShareController, WindowGate};
use super::shared_lane::SharedLane;
use crate::wan::link::controller_policy::ControllerPolicy;
use quinn::Connection;
use quinn_proto::RttEstimator;
use quinn_proto::congestion::{
    Controller, ControllerFactory, ControllerMetrics, CubicConfig, NewRenoConfig,
};
use std::any::Any;
use std::sync::Arc;
use std::time::Instant;
use tracing::trace;
/// The log target of a trace line for each packet sent, with bytes in flight and congestion window
/// of the packet's lane. A log filter that names the target at level trace switches the lines on.
const FLIGHT_LOG_TARGET: &str = "landbridge::flight";
/// 10 packets, or [`INITIAL_WINDOW_BYTES`] (14,720 bytes) if more: the initial congestion window of
/// CUBIC and NewReno, as in RFC 9002 but for any MTU. The default of quinn is less than one jumbo
/// packet, with which a connection stalls.
/// Tested by `quic_controllers_connect_with_packets_above_their_first_window`.
const INITIAL_WINDOW_PACKETS: u64 = 10;
/// 14,720 bytes: the initial congestion window of CUBIC and NewReno where 10 packets
/// ([`INITIAL_WINDOW_PACKETS`]) are shorter, as in RFC 9002.
const INITIAL_WINDOW_BYTES: u64 = 14_720;

/// Makes the controllers of one link's lanes.
pub(crate) struct LaneControllerFactory {
    path: LanePath,
    kind: ControllerPolicy,
}

/// The controller of one path, with its counters.
struct LaneController {
    inner: Box<dyn Controller>,
    telemetry: Arc<LaneTelemetry>,
}

/// Returns the counters of a connection's present path; `None` if its congestion controller is not
/// this gateway's.
pub(crate) fn lane_controller_telemetry(connection: &Connection) -> Option<Arc<LaneTelemetry>> {
    let state = connection.congestion_state().into_any();
    state.downcast::<LaneController>().ok().map(|controller| controller.telemetry)
}

/// Gives a lane the initial windows and the model of another link immediately, and the congestion
/// controller of that link from the next acknowledgement on.
pub(crate) fn change_lane_controller(
    telemetry: &LaneTelemetry,
    path: &LanePath,
    kind: ControllerPolicy,
    now: Instant,
) {
    telemetry.in_flight.set_windows(&path.initial_windows());
    telemetry.set_shared(lane_controller_model(kind, path, telemetry.mtu(), now));
    let next = make_lane_controller(
        kind,
        path,
        &telemetry.in_flight,
        ControllerStart { now, mtu: telemetry.mtu() },
    );
    telemetry.replace_controller(next);
}

impl LaneControllerFactory {
    /// Creates the factory for the lanes of one link.
    pub fn new(path: &LanePath, kind: ControllerPolicy) -> Self {
        Self { path: path.clone(), kind }
    }
}

impl ControllerFactory for LaneControllerFactory {
    /// Makes the controller and counters of a new path. quinn calls this for each path of a
    /// connection.
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        let telemetry = LaneTelemetry::new(mtu);
        telemetry.in_flight.set_windows(&self.path.initial_windows());
        telemetry.set_shared(lane_controller_model(self.kind, &self.path, mtu, now));
        let start = ControllerStart { now, mtu };
        let inner = make_lane_controller(self.kind, &self.path, &telemetry.in_flight, start);
        Box::new(LaneController { inner, telemetry: Arc::new(telemetry) })
    }
}

/// The arguments of quinn's own controller factories.
struct ControllerStart {
    now: Instant,
    mtu: u16,
}

/// Makes the model of a lane that begins at `now`; `None` unless its link is shared.
fn lane_controller_model(
    kind: ControllerPolicy,
    path: &LanePath,
    mtu: u16,
    now: Instant,
) -> Option<SharedLane> {
    (kind == ControllerPolicy::Shared).then(|| SharedLane::new(path, mtu, now))
}

/// Makes a congestion controller of the given kind for a lane of the link of `path`.
fn make_lane_controller(
    kind: ControllerPolicy,
    path: &LanePath,
    in_flight: &Arc<InFlight>,
    ControllerStart { now, mtu }: ControllerStart,
) -> Box<dyn Controller> {
    let initial = (INITIAL_WINDOW_PACKETS * u64::from(mtu)).max(INITIAL_WINDOW_BYTES);
    match kind {
        ControllerPolicy::Dedicated => {
            let (in_flight, gate) = (Arc::clone(in_flight), WindowGate::Shut);
            Box::new(LinkShareController::new(in_flight, &path.link, mtu, gate))
        }
        ControllerPolicy::Shared => {
            let (in_flight, gate) = (Arc::clone(in_flight), WindowGate::Open);
            Box::new(LinkShareController::new(in_flight, &path.link, mtu, gate))
        }
        ControllerPolicy::Cubic => {
            let mut config = CubicConfig::default();
            config.initial_window(initial);
            Arc::new(config).build(now, mtu)
        }
        ControllerPolicy::NewReno => {
            let mut config = NewRenoConfig::default();
            config.initial_window(initial);
            Arc::new(config).build(now, mtu)
        }
    }
}

impl Controller for LaneController {
    /// Counts a sent packet as bytes in flight, traces it, and takes it off the allowance for
    /// liveness probes.
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        let in_flight = self.telemetry.in_flight.note_sent(bytes);
        trace!(
            target: FLIGHT_LOG_TARGET,
            in_flight,
            window = self.telemetry.in_flight.congestion_window()
        );
        self.telemetry.use_probe_allowance(bytes);
        self.telemetry.update_model(|lane| lane.note_sent(now, bytes));
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    /// Counts an acknowledged packet and its RTT, and passes the event to the link's controller.
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
        self.telemetry.update_model(|lane| lane.note_acked(now, sent, bytes));
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    /// Sets the bytes in flight after an acknowledgement, and changes to the next controller if
    /// there is one.
    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        self.telemetry.in_flight.note_acked(in_flight, app_limited);
        self.telemetry.end_probe_allowance();
        let is_held = self.telemetry.is_sender_held();
        self.telemetry.update_model(|lane| lane.end_acks(now, in_flight, is_held));
        if let Some(next) = self.telemetry.take_next_controller() {
            self.inner = next;
        }
        self.inner.on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
    }

    /// Counts lost bytes, and passes the event to the link's controller. On a shared link it also
    /// delays the lane's next packets by the time of the lost bytes, and tells the lane's model. An
    /// event with 0 lost bytes is an ECN CE mark.
    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        self.telemetry.in_flight.note_lost(lost_bytes);
        if self.telemetry.is_shared() {
            self.telemetry.charge_pace(lost_bytes);
            self.telemetry.update_model(|lane| lane.note_congestion(now, lost_bytes));
        }
        self.inner.on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    /// Changes the packet size in the counters and in the link's controller.
    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.telemetry.set_mtu(new_mtu);
        self.telemetry.update_model(|lane| lane.set_mtu(new_mtu));
        self.inner.on_mtu_update(new_mtu);
    }

    /// Returns the window of the link's controller in bytes, or more while a liveness probe may
    /// pass.
    fn window(&self) -> u64 {
        self.inner.window().max(self.telemetry.probe_window())
    }

    /// Returns the metrics of the link's controller.
    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    /// Copies the controller; the copy shares its counters.
    fn clone_box(&self) -> Box<dyn Controller> {
        let (inner, telemetry) = (self.inner.clone_box(), Arc::clone(&self.telemetry));
        Box::new(Self { inner, telemetry })
    }

    /// Returns the initial window of the link's controller in bytes.
    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    /// Gives the controller as `Any`, so that the tasks of a lane can reach its counters.
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
