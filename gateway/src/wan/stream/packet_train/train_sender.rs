//! Sends packet trains to a peer, and waits for its reports.

use super::TrainArrival;
use super::train_lengths::TrainLengths;
use super::train_message::{TRAIN_BYTES_MAX, TrainMessage};
use crate::wan::congestion::lane_controller::lane_controller_telemetry;
use crate::wan::error_code::SEGMENT_CANCELLED_CODE;
use crate::wan::lane_spec::LaneSpec;
use crate::wan::peer_link::PeerLink;
use crate::wan::stream::preamble::split_at_second_preamble;
use bytes::Bytes;
use quinn::Connection;
use std::sync::atomic::Ordering;
use units::Span;

/// 1 MiB of zeros: the bytes of packet trains.
static ZEROS: [u8; TRAIN_BYTES_MAX as usize] = [0; TRAIN_BYTES_MAX as usize];
/// 3 round trips, plus [`REPORT_TIME_MARGIN`]: the longest wait for the report on a packet train. A
/// report takes one round trip and the train's own time.
const REPORT_ROUND_TRIPS_MAX: u64 = 3;
/// 200 ms, added to 3 round trips: the longest wait for the report on a packet train, since a busy host
/// may be late.
const REPORT_TIME_MARGIN: Span = Span::from_ms(200);

/// Measures the capacity of a shared link whose lanes have found none yet, and lets the lane cruise at
/// its part of it. Returns at once on other links, and where the capacity is known. Else it returns
/// after at most eight trains, each of which is answered within a round trip, or when the connection
/// ends.
pub(crate) async fn measure_capacity_by_trains(
    spec: &LaneSpec,
    peer: &PeerLink,
    connection: &Connection,
) {
    let Some(telemetry) = lane_controller_telemetry(connection) else { return };
    if telemetry.shared_view().is_none_or(|view| view.found.is_some()) {
        return;
    }
    telemetry.update_model(|lane| lane.begin_packet_trains(spec.host.quic_runtime().now()));
    let turn = peer.trains.turn.lock().await;
    let rate_max = peer.link().rate.bytes_per_second();
    let mut lengths = TrainLengths::new(peer.link().rtt, telemetry.mtu().into(), rate_max);
    // Another lane may have found it meanwhile.
    while !peer.memory.is_found()
        && let Some(bytes) = lengths.next_train()
    {
        match send_packet_train(spec, peer, connection, bytes).await {
            Ok(arrival) => lengths.note_report(arrival),
            Err(_) => break,
        }
    }
    let lanes = f64::from(peer.sharing.load(Ordering::Relaxed).max(1));
    let capacity = lengths.capacity().map(|capacity| capacity / lanes);
    telemetry.update_model(|lane| lane.end_packet_trains(spec.host.quic_runtime().now(), capacity));
    drop(turn);
}

/// Sends a packet train of `bytes` bytes, and returns the report; `None` if none comes in time.
///
/// # Errors
/// The connection has ended.
async fn send_packet_train(
    spec: &LaneSpec,
    peer: &PeerLink,
    connection: &Connection,
    bytes: u32,
) -> Result<Option<TrainArrival>, quinn::ConnectionError> {
    let (number, report) = peer.trains.begin_train();
    let mut stream = connection.open_uni().await?;
    let wait = Span::from_ns(peer.link().rtt.ns().saturating_mul(REPORT_ROUND_TRIPS_MAX));
    let end = spec.host.now() + wait + REPORT_TIME_MARGIN;
    let preamble = TrainMessage::Train { number, bytes }.encode();
    let zeros = Bytes::from_static(&ZEROS[..bytes as usize]);
    // The second preamble names the train where its first packet is lost.
    let (before, after) = split_at_second_preamble(0, zeros);
    let mut train = [&preamble[..], &before].concat();
    if let Some(after) = after {
        train.extend([&preamble[..], &after].concat());
    }
    let answered = async {
        // In one write, so that the packets leave back to back.
        stream.write_chunk(train.into()).await.ok()?;
        report.await.ok()
    };
    let arrival = tokio::select! {
        biased;
        arrival = answered => arrival,
        () = spec.host.sleep_until(end) => None,
    };
    // QUIC retransmits nothing of a stream that was reset.
    let _ = stream.reset(SEGMENT_CANCELLED_CODE.into());
    Ok(arrival)
}
