//! The tuner of a lane: once a round trip it measures the lane and sets its windows.
//!
//! It is one of the tasks of a connection, on the lane's thread (`wan/connect/lane_connection.rs`). It
//! owns the lane's [`DeliveryRate`] and [`MinRttFilter`], and charges
//! excess loss to the pacer as soon as the controller reports it. After a round in which nothing
//! was acknowledged and nothing is in flight it rests: it sets no timer until the lane sends again.

use super::delivery_rate::{DeliveryCounters, DeliveryRate};
use super::lane_controller;
use super::lane_telemetry::LaneTelemetry;
use super::lane_telemetry::telemetry_smoothed_rtt;
use super::lane_windows::lane_windows_rtt_max;
use super::min_rtt_filter::MinRttFilter;
use crate::wan::lane_spec::LaneSpec;
use crate::wan::link::controller_policy::ControllerPolicy;
use crate::wan::link_trace::TraceLane;
use crate::wan::peer_link::PeerLink;
use quinn::Connection;
use std::pin::pin;
use std::sync::Arc;
use units::{Span, TimeNs};

/// 10 ms, or the smoothed RTT if longer: the time between two changes of a lane's windows, also
/// called a round. On short paths, changes after each RTT would cost much processor time.
const TUNER_ROUND_MIN: Span = Span::from_ms(10);

/// Sets the windows of a connection after each round trip with traffic, for as long as the task
/// runs. Returns a reason only if the connection's congestion controller is not this gateway's.
pub(crate) async fn tune_lane(
    spec: &LaneSpec,
    (peer, lane): (&PeerLink, u16),
    connection: &Connection,
) -> String {
    let trace = peer.trace.of_lane(lane);
    let mut path = spec.lane_path(peer);
    let mut windows_set = None;
    let mut tuned: Option<Arc<LaneTelemetry>> = None;
    let can_drain = peer.controller == ControllerPolicy::Dedicated;
    let is_shared = peer.controller == ControllerPolicy::Shared;
    let mut min_rtt = MinRttFilter::new(path.link.rtt, lane_windows_rtt_max(&path.link), can_drain);
    let mut delivery = path.initial_delivery_rate();
    let mut acked_packets = None;
    loop {
        let Some(telemetry) = lane_controller::lane_controller_telemetry(connection) else {
            return "the connection has no congestion controller of this gateway".to_owned();
        };
        let windows = path.windows(&delivery, &min_rtt);
        if !is_shared {
            telemetry.set_pace(delivery.pace().filter(|_| can_drain));
        }
        if windows_set.replace(windows) != Some(windows) {
            connection.set_max_concurrent_uni_streams(windows.streams);
            connection.set_receive_window(windows.receive);
            connection.set_send_window(windows.send);
            if !is_shared {
                telemetry.in_flight.set_windows(&windows);
            }
        }
        // An accepted connection, or one that has moved to another path, may have another link's.
        if !tuned.as_ref().is_some_and(|before| Arc::ptr_eq(before, &telemetry)) {
            let now = spec.host.quic_runtime().now();
            lane_controller::change_lane_controller(&telemetry, &path, peer.controller, now);
            telemetry.update_model(|lane| lane.trace_to(trace.clone()));
            tuned = Some(Arc::clone(&telemetry));
            delivery = path.initial_delivery_rate();
        }
        let round = telemetry_smoothed_rtt(connection).max(TUNER_ROUND_MIN);
        let round_end = spec.host.sleep_until(spec.host.now() + round);
        charge_lane_tuner_losses(peer, &telemetry, round_end).await;
        let counters = read_lane_tuner_counters(spec.host.now(), connection, &telemetry);
        delivery.end_round(counters);
        min_rtt.end_round(telemetry.take_min_rtt_for_tuner(), delivery.is_window_limited());
        telemetry.note_thread_time(&*spec.host);
        if !is_shared {
            trace.record_round(spec.host.quic_runtime().now(), peer.controller.name(), |record| {
                fill_tuner_record(record, (&delivery, &min_rtt), &telemetry, counters);
                record.rtt_seconds = telemetry_smoothed_rtt(connection).as_secs_f64();
            });
        }
        let acked_before = acked_packets.replace(counters.acked_packets);
        if acked_before == Some(counters.acked_packets) && counters.in_flight_bytes == 0 {
            if !is_shared {
                telemetry.set_pace(None);
            }
            charge_lane_tuner_losses(peer, &telemetry, telemetry.in_flight.wait_for_traffic())
                .await;
            let now = spec.host.now();
            let idle_rounds = now.since(counters.at).ns() / round.ns();
            delivery.end_rest(read_lane_tuner_counters(now, connection, &telemetry), idle_rounds);
            // The RTTs of liveness probes may be those of a path of long ago.
            telemetry.take_min_rtt_for_tuner();
            min_rtt.end_rest(idle_rounds);
        }
        // The rate limit and the number of lanes may have changed, also while the tuner rested.
        let before = std::mem::replace(&mut path, spec.lane_path(peer));
        if path.has_other_terms_than(&before) {
            min_rtt = MinRttFilter::new(path.link.rtt, lane_windows_rtt_max(&path.link), can_drain);
            // Only there windows follow from the link as the fabric has it.
            tuned = tuned.filter(|_| !can_drain);
        }
        delivery.set_assumed_rate(path.lane_rate());
        telemetry.update_model(|lane| lane.set_path(&path));
    }
}

/// Adds the measurements of a round on a link that is not shared to its record of the trace.
fn fill_tuner_record(
    record: &mut TraceLane,
    (delivery, min_rtt): (&DeliveryRate, &MinRttFilter),
    telemetry: &LaneTelemetry,
    counters: DeliveryCounters,
) {
    let bits = |bytes: f64| (8.0 * bytes) as u64;
    record.rate_bits_per_second = bits(delivery.rate());
    record.round_bits_per_second = bits(delivery.round_rate());
    record.pace_bits_per_second = delivery.pace().map(bits);
    record.window_bytes = telemetry.in_flight.congestion_window();
    record.in_flight_bytes = counters.in_flight_bytes;
    record.min_rtt_seconds = min_rtt.rtt().as_secs_f64();
    record.is_held = delivery.is_window_limited();
    record.lost_packets = Some(counters.lost_packets);
}

/// Charges the pacer with excess loss as it comes, until `end`. The charge does not wait for the
/// end of the round, because the retransmission leaves before new payload.
async fn charge_lane_tuner_losses(
    peer: &PeerLink,
    telemetry: &LaneTelemetry,
    end: impl Future<Output = ()>,
) {
    let mut end = pin!(end);
    loop {
        tokio::select! {
            biased;
            lost = telemetry.in_flight.wait_for_excess_loss() => {
                peer.pair_pacer.pacer().charge_debt(lost);
            }
            () = &mut end => return,
        }
    }
}

/// Reads the counters of a lane at the end of a round, and clears its marks of ECN and loss.
fn read_lane_tuner_counters(
    at: TimeNs,
    connection: &Connection,
    telemetry: &LaneTelemetry,
) -> DeliveryCounters {
    let (acked_packets, acked_bytes) = telemetry.acked_packets_and_bytes();
    DeliveryCounters {
        at,
        waited: telemetry.window_wait(at),
        acked_packets,
        acked_bytes,
        lost_packets: connection.stats().path.lost_packets,
        in_flight_bytes: telemetry.in_flight.bytes(),
        ecn_marked: telemetry.in_flight.take_ecn_marked(),
        most_lost: telemetry.in_flight.take_most_lost(),
    }
}
