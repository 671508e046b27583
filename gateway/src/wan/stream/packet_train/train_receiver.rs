//! Reads a peer's packet train, and reports when its bytes arrived.

use super::TrainArrival;
use super::train_message::TrainMessage;
use crate::wan::lane_spec::LaneSpec;
use crate::wan::stream::preamble::{PayloadChunk, chunks_without_preamble};
use hier_collectives::ids::GatewayId;
use quinn::{Connection, RecvStream};
use units::{Span, TimeNs};

/// 1 ms: the shortest gap in the arrivals of a packet train that ends it. Hosts may be late by less.
const TRAIN_GAP_MIN: Span = Span::from_ms(1);
/// 3/4 of a round trip without a byte of a packet train ends the train. Bytes that come later were
/// retransmitted.
const TRAIN_GAP_RTT_FRACTION: f64 = 0.75;

/// The arrivals of a train so far.
struct TrainArrivals {
    first: TimeNs,
    last: TimeNs,
    /// Bytes that arrived after the first moment.
    behind: u64,
    /// All bytes of the train that arrived.
    total: u64,
    /// The end in the stream of the bytes that arrived.
    end: u64,
}

/// Takes what a peer's stream without a segment has: a train, which it reports, or a report.
pub(in crate::wan::stream) async fn receive_train_message(
    spec: &LaneSpec,
    (from, connection): (GatewayId, &Connection),
    stream: RecvStream,
    (message, early): (TrainMessage, Vec<PayloadChunk>),
) {
    match message {
        TrainMessage::Train { number, bytes } => {
            let arrival = receive_train(spec, connection, stream, (bytes, early)).await;
            let report = TrainMessage::Report {
                number,
                bytes: u32::try_from(arrival.bytes).unwrap_or(u32::MAX).min(bytes),
                span_ns: arrival.span.ns(),
            };
            if let Ok(mut stream) = connection.open_uni().await {
                let _ = stream.write_all(&report.encode()).await;
                let _ = stream.finish();
                // The stream lives until the peer has it.
                let _ = stream.stopped().await;
            }
        }
        TrainMessage::Report { number, bytes, span_ns } => {
            if let Some(peer) = spec.peers.get(&from) {
                let arrival = TrainArrival { bytes: bytes.into(), span: Span::from_ns(span_ns) };
                peer.trains.deliver_report(number, arrival);
            }
        }
    }
}

/// Reads a train of `bytes` bytes, of which `early` came with the preamble, to its end or up to a gap.
async fn receive_train(
    spec: &LaneSpec,
    connection: &Connection,
    mut stream: RecvStream,
    (bytes, early): (u32, Vec<PayloadChunk>),
) -> TrainArrival {
    let now = spec.host.now();
    let total = early.iter().map(|chunk| chunk.bytes.len() as u64).sum();
    let mut arrivals = TrainArrivals { first: now, last: now, behind: 0, total, end: 0 };
    let rtt = connection.rtt().as_nanos() as f64;
    let gap = Span::from_ns((TRAIN_GAP_RTT_FRACTION * rtt) as u64).max(TRAIN_GAP_MIN);
    while arrivals.total < bytes.into() {
        let next = tokio::select! {
            biased;
            next = stream.read_chunk(usize::MAX, false) => next,
            () = spec.host.sleep_until(arrivals.last + gap) => break,
        };
        let (Ok(Some(chunk)), now) = (next, spec.host.now()) else { break };
        if now.since(arrivals.last) > gap {
            break;
        }
        let (offset, end) = (chunk.offset, chunk.offset + chunk.bytes.len() as u64);
        let pieces = chunks_without_preamble(chunk);
        let here: u64 = pieces.map(|piece| piece.bytes.len() as u64).sum();
        arrivals.total += here;
        // What was retransmitted came later than the link took for it.
        if offset >= arrivals.end {
            arrivals.behind += if now > arrivals.first { here } else { 0 };
            (arrivals.last, arrivals.end) = (now, end);
        }
    }
    TrainArrival { bytes: arrivals.behind, span: arrivals.last.since(arrivals.first) }
}
