//! The receiver of a connection: one task accepts streams, and one task for each stream receives a
//! segment, all on the lane's thread.
//!
//! A stream's task asks the engine for the segment's destination (`Event::Arrival`), and puts the payload
//! there as it arrives. It restores lost packets from parity if it can, and reports the end
//! (`Event::ArrivalEnd`). The number of open streams is bounded by the stream window of the lane.

use super::fec::ReceivedShards;
use super::preamble::{self, HeaderlessBytes, PayloadPiece};
use super::reassembly::Reassembly;
use crate::events::{ConnectionId, Event, Placement};
use crate::wan::congestion::window::stream_bytes;
use crate::wan::error_code::{CANCELLED, DISCARDED, PROTOCOL_VIOLATION};
use crate::wan::spec::LaneSpec;
use hier_collectives::ids::{GatewayId, GroupId};
use hier_collectives::plan::SEGMENT_BYTES_MAX;
use hier_collectives::session::{LeaseId, MOVING_EVERY};
use hier_collectives::wire::SegmentHeader;
use quinn::{Connection, RecvStream};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::oneshot;

/// The connection that a segment arrives on.
#[derive(Debug, Clone, Copy)]
struct Source {
    peer: GatewayId,
    connection: ConnectionId,
}

/// A segment with its permission to be written.
struct Admitted<'s> {
    group: GroupId,
    lease: LeaseId,
    header: &'s SegmentHeader,
}

/// The end of a segment's stream.
enum Received {
    /// All of the payload is in place.
    Complete {
        /// Whether some of it was restored from parity.
        restored: bool,
    },
    /// The missing part can be restored from parity.
    Restorable(ReceivedShards),
    /// The stream was reset or cancelled, or the lane was lost.
    CutOff,
}

/// Accepts streams until the connection ends; returns the reason.
pub(crate) async fn receive_all(
    spec: &Arc<LaneSpec>,
    peer: GatewayId,
    id: ConnectionId,
    connection: &Connection,
) -> String {
    let longest_stream = stream_bytes(spec.segment_bytes.max(SEGMENT_BYTES_MAX));
    let headerless = Arc::new(HeaderlessBytes::new(longest_stream));
    let source = Source { peer, connection: id };
    loop {
        match connection.accept_uni().await {
            Ok(stream) => {
                let (task_spec, connection) = (Arc::clone(spec), connection.clone());
                let headerless = Arc::clone(&headerless);
                let task = async move {
                    if let Err(why) = receive(&task_spec, source, stream, &headerless).await {
                        connection.close(PROTOCOL_VIOLATION.into(), why.as_bytes());
                    }
                };
                spec.host.spawn(Box::pin(task));
            }
            Err(error) => return error.to_string(),
        }
    }
}

/// Receives one segment.
///
/// # Errors
/// The peer has violated the protocol.
async fn receive(
    spec: &LaneSpec,
    source: Source,
    mut stream: RecvStream,
    headerless: &HeaderlessBytes,
) -> Result<(), String> {
    // Without a preamble the stream was reset or the lane was lost: the segment is requeued.
    let Some((preamble, early)) = preamble::read(&mut stream, headerless).await? else {
        return Ok(());
    };
    let (group, header) = preamble::decode(&preamble).map_err(|error| error.to_string())?;
    let (reply, placement) = oneshot::channel();
    let Source { peer: from, connection: id } = source;
    let event = Event::Arrival { from, id, group, header, reply };
    if spec.events.send(event).await.is_err() {
        return Ok(());
    }
    let Ok(placement) = placement.await else { return Ok(()) };
    let (lease, cancel) = match &placement {
        Placement::Combine { lease, cancel, .. } | Placement::Land { lease, cancel, .. } => {
            (*lease, cancel.clone())
        }
        Placement::Discard(_) => {
            let _ = stream.stop(DISCARDED.into());
            return Ok(());
        }
    };
    let Some(mut reassembly) = Reassembly::new(placement) else { return Ok(()) };
    let admitted = Admitted { group, lease, header: &header };
    let received = tokio::select! {
        biased;
        () = cancel.cancelled() => {
            let _ = stream.stop(CANCELLED.into());
            Ok(Received::CutOff)
        }
        received = read_payload(spec, &mut stream, early, &mut reassembly, &admitted) => received,
    };
    let received = match received {
        Ok(Received::Restorable(shards)) => {
            let restored = restore(spec, reassembly, shards).await;
            Ok(if restored { Received::Complete { restored } } else { Received::CutOff })
        }
        received => {
            drop(reassembly);
            received
        }
    };
    let whole = matches!(received, Ok(Received::Complete { .. }));
    if header.parity > 0 && whole {
        // The rest of the stream is parity that is not needed, or bytes that were restored.
        let _ = stream.stop(DISCARDED.into());
    }
    if whole && let Some(peer) = spec.peers.get(&from) {
        peer.metrics.received_bytes.inc_by(u64::from(header.bytes));
        if matches!(received, Ok(Received::Complete { restored: true })) {
            peer.metrics.restored_segments.inc();
        }
    }
    let _ = spec.events.send(Event::ArrivalEnd { group, lease, whole }).await;
    received.map(|_| ())
}

/// Reads the payload in any order, after the pieces that came before the preamble.
async fn read_payload(
    spec: &LaneSpec,
    stream: &mut RecvStream,
    mut pieces: Vec<PayloadPiece>,
    reassembly: &mut Reassembly,
    segment: &Admitted<'_>,
) -> Result<Received, String> {
    let Admitted { group, lease, header } = *segment;
    let bytes = u64::from(header.bytes);
    let mut report_at = spec.host.now() + MOVING_EVERY;
    let mut shards = (header.parity > 0).then(|| ReceivedShards::new(bytes, header.parity));
    let mut received = 0;
    loop {
        for piece in pieces.drain(..) {
            if !put(reassembly, shards.as_mut(), bytes, &piece) {
                return Err(format!("a segment has more than the {bytes} bytes of its header"));
            }
            received += piece.bytes.len() as u64;
        }
        match shards.take() {
            Some(now) if now.is_complete() => return Ok(Received::Complete { restored: false }),
            Some(now) if now.can_restore() => return Ok(Received::Restorable(now)),
            now => shards = now,
        }
        let (next, waited) = noting_wait(stream.read_chunk(usize::MAX, false)).await;
        match next {
            Ok(Some(chunk)) => pieces.extend(preamble::payload_pieces(chunk)),
            Ok(None) if received == bytes => return Ok(Received::Complete { restored: false }),
            Ok(None) => {
                return Err(format!("a segment ends after {received} of {bytes} bytes"));
            }
            // The stream was reset, or the lane was lost.
            Err(_) => return Ok(Received::CutOff),
        }
        // Bytes that are here come without a wait, so the clock is not read for each packet.
        if waited && spec.host.now() >= report_at {
            report_at = spec.host.now() + MOVING_EVERY;
            let _ = spec.events.send(Event::ArrivalProgress { group, lease }).await;
        }
    }
}

/// Puts a piece of a segment with `bytes` bytes of payload into place. Returns false if it reaches beyond
/// the payload and its parity.
fn put(
    reassembly: &mut Reassembly,
    shards: Option<&mut ReceivedShards>,
    bytes: u64,
    piece: &PayloadPiece,
) -> bool {
    let PayloadPiece { offset, bytes: here } = piece;
    let Some(shards) = shards else { return reassembly.put(*offset, here) };
    let payload = &here[..bytes.saturating_sub(*offset).min(here.len() as u64) as usize];
    (payload.is_empty() || reassembly.put(*offset, payload)) && shards.put(*offset, here)
}

/// Awaits a future; returns its output, and whether it had to wait.
async fn noting_wait<T>(future: impl Future<Output = T>) -> (T, bool) {
    let (mut future, mut waited) = (pin!(future), false);
    let output = poll_fn(|context| {
        let polled = future.as_mut().poll(context);
        waited |= polled.is_pending();
        polled
    });
    let output = output.await;
    (output, waited)
}

/// Restores the missing part of a payload whose rest has landed; returns whether that worked.
async fn restore(spec: &LaneSpec, reassembly: Reassembly, shards: ReceivedShards) -> bool {
    match reassembly {
        Reassembly::Land(into) => {
            let restored = spec.host.compute(Box::new(move || shards.restore(&into)));
            restored.await.is_ok()
        }
        // A sum with holes cannot be restored; segments with parity always land.
        Reassembly::Combine(_) => false,
    }
}
