//! The receiver of a connection: one task accepts streams, and one task for each stream receives a
//! segment, all on the lane's thread.
//!
//! A stream's task asks the engine for the segment's destination (`Event::Arrival`), and puts the payload
//! there as it arrives. It restores lost packets from parity if it can, and reports the end
//! (`Event::ArrivalEnd`). The number of open streams is bounded by the stream window of the lane.

use super::chunk_reader::ChunkReader;
use super::fec_shards::FecShards;
use super::packet_train::train_message::TrainMessage;
use super::packet_train::train_receiver::receive_train_message;
use super::preamble::{self, BytesWithoutPreamble, PayloadChunk};
use super::reassembly::Reassembly;
use crate::events::{ConnectionId, Event, SegmentPlacement};
use crate::wan::congestion::lane_windows::lane_window_of_stream;
use crate::wan::error_code::{
    PROTOCOL_VIOLATION_CODE, SEGMENT_CANCELLED_CODE, SEGMENT_DISCARDED_CODE,
};
use crate::wan::lane_spec::LaneSpec;
use hier_collectives::ids::{GatewayId, GroupId};
use hier_collectives::plan::SEGMENT_BYTES_MAX;
use hier_collectives::session::{LeaseId, PROGRESS_REPORT_INTERVAL};
use hier_collectives::wire::SegmentHeader;
use quinn::{Connection, RecvStream};
use std::sync::Arc;
use tokio::sync::oneshot;

/// The connection that a segment arrives on.
#[derive(Debug, Clone, Copy)]
struct SegmentSource {
    peer: GatewayId,
    connection: ConnectionId,
}

/// A segment with its permission to be written.
struct AdmittedSegment<'s> {
    group: GroupId,
    lease: LeaseId,
    header: &'s SegmentHeader,
}

/// The end of a segment's stream.
enum ReceivedPayload {
    /// All of the payload is in place.
    Complete {
        /// Whether some of it was restored from parity.
        restored: bool,
    },
    /// The missing part can be restored from parity.
    Restorable(FecShards),
    /// The stream was reset or cancelled, or the lane was lost.
    CutOff,
}

/// Accepts the streams of a connection, and starts a task to receive each, until the connection
/// ends; returns the reason.
pub(crate) async fn receive_segments(
    spec: &Arc<LaneSpec>,
    peer: GatewayId,
    id: ConnectionId,
    connection: &Connection,
) -> String {
    let longest_stream = lane_window_of_stream(spec.segment_bytes.max(SEGMENT_BYTES_MAX));
    let without_preamble = Arc::new(BytesWithoutPreamble::new(longest_stream));
    let source = SegmentSource { peer, connection: id };
    loop {
        match connection.accept_uni().await {
            Ok(stream) => {
                let (task_spec, connection) = (Arc::clone(spec), connection.clone());
                let without_preamble = Arc::clone(&without_preamble);
                let task = async move {
                    if let Err(why) = receive_segment(
                        &task_spec,
                        (source, &connection),
                        stream,
                        &without_preamble,
                    )
                    .await
                    {
                        connection.close(PROTOCOL_VIOLATION_CODE.into(), why.as_bytes());
                    }
                };
                spec.host.spawn(Box::pin(task));
            }
            Err(error) => return error.to_string(),
        }
    }
}

/// Receives the segment of one stream into the memory that the engine gives, and reports its end to
/// the engine.
///
/// # Errors
/// The peer has violated the protocol.
async fn receive_segment(
    spec: &LaneSpec,
    (source, connection): (SegmentSource, &Connection),
    stream: RecvStream,
    without_preamble: &BytesWithoutPreamble,
) -> Result<(), String> {
    // Without a preamble the stream was reset or the lane was lost: the segment is requeued.
    let mut reader = ChunkReader::new(stream);
    let Some((preamble, early)) = preamble::read_preamble(&mut reader, without_preamble).await?
    else {
        return Ok(());
    };
    if let Some(message) = TrainMessage::decode(&preamble).map_err(|error| error.to_string())? {
        let from = (source.peer, connection);
        receive_train_message(spec, from, reader.into_stream(), (message, early)).await;
        return Ok(());
    }
    let (group, header) =
        preamble::decode_preamble(&preamble).map_err(|error| error.to_string())?;
    let (reply, placement) = oneshot::channel();
    let SegmentSource { peer: from, connection: id } = source;
    let event = Event::Arrival { from, id, group, header, reply };
    if spec.events.send(event).await.is_err() {
        return Ok(());
    }
    let Ok(placement) = placement.await else { return Ok(()) };
    let (lease, cancel) = match &placement {
        SegmentPlacement::Combine { lease, cancel, .. }
        | SegmentPlacement::Land { lease, cancel, .. } => (*lease, cancel.clone()),
        SegmentPlacement::Discard(_) => {
            reader.stop(SEGMENT_DISCARDED_CODE.into());
            return Ok(());
        }
    };
    let Some(mut reassembly) = Reassembly::new(placement) else { return Ok(()) };
    let admitted = AdmittedSegment { group, lease, header: &header };
    let received = tokio::select! {
        biased;
        () = cancel.cancelled() => {
            reader.stop(SEGMENT_CANCELLED_CODE.into());
            Ok(ReceivedPayload::CutOff)
        }
        received = receive_segment_payload(
            spec, &mut reader, early, &mut reassembly, &admitted,
        ) => received,
    };
    let received = match received {
        Ok(ReceivedPayload::Restorable(shards)) => {
            let restored = restore_received_segment(spec, reassembly, shards).await;
            Ok(if restored {
                ReceivedPayload::Complete { restored }
            } else {
                ReceivedPayload::CutOff
            })
        }
        received => {
            drop(reassembly);
            received
        }
    };
    let whole = matches!(received, Ok(ReceivedPayload::Complete { .. }));
    if header.parity > 0 && whole {
        // The rest of the stream is parity that is not needed, or bytes that were restored.
        reader.stop(SEGMENT_DISCARDED_CODE.into());
    }
    if whole && let Some(peer) = spec.peers.get(&from) {
        peer.metrics.received_bytes.inc_by(u64::from(header.bytes));
        if matches!(received, Ok(ReceivedPayload::Complete { restored: true })) {
            peer.metrics.restored_segments.inc();
        }
    }
    let _ = spec.events.send(Event::ArrivalEnd { group, lease, whole }).await;
    received.map(|_| ())
}

/// Reads the payload of a segment, after the pieces that came before the preamble.
async fn receive_segment_payload(
    spec: &LaneSpec,
    reader: &mut ChunkReader,
    mut early: Vec<PayloadChunk>,
    reassembly: &mut Reassembly,
    segment: &AdmittedSegment<'_>,
) -> Result<ReceivedPayload, String> {
    let AdmittedSegment { group, lease, header } = *segment;
    let bytes = u64::from(header.bytes);
    let mut report_at = spec.host.now() + PROGRESS_REPORT_INTERVAL;
    let mut shards = (header.parity > 0).then(|| FecShards::new(bytes, header.parity));
    if shards.is_some() {
        // No packet waits for a missing one, which the others may restore.
        reader.leave_chunk_order();
    }
    let mut received = 0;
    loop {
        let read = std::iter::from_fn(|| reader.take_chunk());
        let pieces = early.drain(..).chain(read.flat_map(preamble::chunks_without_preamble));
        for piece in pieces {
            if !place_received_segment_chunk(reassembly, shards.as_mut(), bytes, &piece) {
                return Err(format!("a segment has more than the {bytes} bytes of its header"));
            }
            received += piece.bytes.len() as u64;
        }
        match shards.take() {
            Some(now) if now.is_complete() => {
                return Ok(ReceivedPayload::Complete { restored: false });
            }
            Some(now) if now.can_restore() => return Ok(ReceivedPayload::Restorable(now)),
            now => shards = now,
        }
        match reader.read_chunks().await {
            Ok(true) => {}
            Ok(false) if received == bytes => {
                return Ok(ReceivedPayload::Complete { restored: false });
            }
            Ok(false) => {
                return Err(format!("a segment ends after {received} of {bytes} bytes"));
            }
            // The stream was reset, or the lane was lost.
            Err(_) => return Ok(ReceivedPayload::CutOff),
        }
        // Bytes that are here come without a wait, so the clock is not read for each packet.
        if reader.has_waited() && spec.host.now() >= report_at {
            report_at = spec.host.now() + PROGRESS_REPORT_INTERVAL;
            let _ = spec.events.send(Event::ArrivalProgress { group, lease }).await;
        }
    }
}

/// Puts a piece of a segment with `bytes` bytes of payload into place. Returns false if it reaches
/// beyond the payload and its parity.
fn place_received_segment_chunk(
    reassembly: &mut Reassembly,
    shards: Option<&mut FecShards>,
    bytes: u64,
    piece: &PayloadChunk,
) -> bool {
    let PayloadChunk { offset, bytes: here } = piece;
    let Some(shards) = shards else { return reassembly.place_bytes(*offset, here) };
    let payload = &here[..bytes.saturating_sub(*offset).min(here.len() as u64) as usize];
    (payload.is_empty() || reassembly.place_bytes(*offset, payload))
        && shards.add_bytes(*offset, here)
}

/// Restores the missing part of a segment whose rest has landed; returns whether that worked.
async fn restore_received_segment(
    spec: &LaneSpec,
    reassembly: Reassembly,
    shards: FecShards,
) -> bool {
    match reassembly {
        Reassembly::Land(into) => {
            let restored = spec.host.run_compute(Box::new(move || shards.restore_payload(&into)));
            restored.await.is_ok()
        }
        // A sum with holes cannot be restored; segments with parity always land.
        Reassembly::Combine(_) => false,
    }
}
