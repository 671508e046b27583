//! The sender tasks of a connection: they pull segments and write each as one unidirectional stream.
//!
//! Each connection has one task for small segments and one for bulk, on the lane's thread
//! (`wan/connect/lane_connection.rs`). Bulk passes two gates before QUIC has it:
//!
//! 1. the pacer (`wan/pacing/pacer.rs`): the rate limit of the pair, in order of the pulls;
//! 2. the congestion window (`wan/congestion/in_flight.rs`): bytes in flight on this lane. After
//!    congestion the lane's own pace (`wan/congestion/lane_telemetry.rs`) spreads what it lets through.
//!
//! Small segments pass only the first. A segment is pulled when its first bytes may leave, so that a
//! later one with higher priority can still precede it.

use super::fec_shards;
use super::preamble::{self, PREAMBLE_BYTES, Preamble};
use super::segment_queue::{QueuedSegment, QueuedSegmentClass};
use super::segment_trace::trace_segment;
use crate::events::ConnectionId;
use crate::host::INLINE_COMPUTE_BYTES_MAX;
use crate::wan::congestion::lane_controller;
use crate::wan::congestion::lane_telemetry::LaneTelemetry;
use crate::wan::error_code::SEGMENT_CANCELLED_CODE;
use crate::wan::lane_spec::LaneSpec;
use crate::wan::pacing::pacer::{RELEASE_ORDER_FIRST, RELEASE_ORDER_LAST};
use crate::wan::peer_link::PeerLink;
use bytes::Bytes;
use quinn::{Connection, SendStream};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Pulls segments of one class and writes each to a stream of the connection, until the connection
/// ends or the gateway shuts down. Returns the reason.
pub(crate) async fn send_segments(
    spec: &LaneSpec,
    peer: &PeerLink,
    id: ConnectionId,
    connection: &Connection,
    class: QueuedSegmentClass,
) -> String {
    loop {
        peer.send_queue.wait_until_ready(class, id).await;
        let order = if class == QueuedSegmentClass::Small {
            RELEASE_ORDER_FIRST
        } else {
            RELEASE_ORDER_LAST
        };
        let pacer = peer.pair_pacer.pacer();
        pacer.take_tokens(PREAMBLE_BYTES as u64, order).await;
        let Some(segment) = peer.send_queue.pull(class, id) else { continue };
        count_pulled_segment(peer, &segment);
        let cancel = segment.cancel.clone();
        let _released = segment.released.clone().drop_guard();
        let segment_id = (segment.group, segment.header.key);
        let mut stream = tokio::select! {
            biased;
            () = cancel.cancelled() => continue,
            stream = connection.open_uni() => match stream {
                Ok(stream) => stream,
                Err(error) => return error.to_string(),
            },
            () = spec.shutdown.cancelled() => return "shutting down".to_owned(),
        };
        let Some(telemetry) = lane_controller::lane_controller_telemetry(connection) else {
            return "the connection has no congestion controller of this gateway".to_owned();
        };
        let mut writer = SegmentSender { spec, peer, connection, telemetry };
        let sent = tokio::select! {
            biased;
            () = cancel.cancelled() => {
                let _ = stream.reset(SEGMENT_CANCELLED_CODE.into());
                continue;
            }
            sent = writer.write_segment(&mut stream, segment, class) => sent,
        };
        match sent {
            Ok(()) => peer.send_queue.keep_stream(segment_id, id, stream, &cancel),
            // The peer refuses it; its receipt, or the failure with the reason, follows.
            Err(quinn::WriteError::Stopped(_)) => {}
            Err(error) => return error.to_string(),
        }
    }
}

/// Counts the payload of a pulled segment in the metrics, as resent if a lost lane had it.
fn count_pulled_segment(peer: &PeerLink, segment: &QueuedSegment) {
    let (bytes, metrics) = (segment.payload.len(), &peer.metrics);
    if segment.requeued {
        metrics.resent_bytes.inc_by(bytes);
        trace_segment("again", segment.group, peer.id, segment.header.key, bytes);
    } else {
        metrics.sent_bytes.inc_by(bytes);
    }
}

/// Writes segments to their streams.
struct SegmentSender<'w> {
    spec: &'w LaneSpec,
    peer: &'w PeerLink,
    connection: &'w Connection,
    telemetry: Arc<LaneTelemetry>,
}

/// The constant arguments of all writes of one segment.
struct SendTerms<'t> {
    /// The preamble, for its second copy.
    preamble: &'t Preamble,
    /// The segment's order at the pacer.
    order: u64,
}

impl SegmentSender<'_> {
    /// Writes a segment to its stream: preamble, payload and parity. The parity of a long one is
    /// computed while the payload is written.
    async fn write_segment(
        &mut self,
        stream: &mut SendStream,
        segment: QueuedSegment,
        class: QueuedSegmentClass,
    ) -> Result<(), quinn::WriteError> {
        let _ = stream.set_priority(i32::from(class == QueuedSegmentClass::Small));
        let QueuedSegment { group, header, payload, order, .. } = segment;
        let preamble = preamble::encode_preamble(group, &header);
        let terms = SendTerms { preamble: &preamble, order };
        stream.write_all(&preamble).await?;
        let payload = payload.into_bytes();
        let end = payload.len() as u64;
        if header.parity == 0 {
            self.write_paced(stream, 0, payload, &terms).await?;
        } else if end <= INLINE_COMPUTE_BYTES_MAX {
            let parity = fec_shards::encode_fec_parity_shards(&payload, header.parity);
            self.peer.metrics.parity_bytes.inc_by(parity.len() as u64);
            self.write_paced(stream, 0, payload, &terms).await?;
            self.write_paced(stream, end, parity.into(), &terms).await?;
        } else {
            let (made, parity) = oneshot::channel();
            let of = payload.clone();
            let work =
                move || drop(made.send(fec_shards::encode_fec_parity_shards(&of, header.parity)));
            let making = self.spec.host.run_compute(Box::new(work));
            self.write_paced(stream, 0, payload, &terms).await?;
            // If the computation fails, the segment goes without parity, which only loss would need.
            let _ = making.await;
            let parity = parity.await.unwrap_or_default();
            self.peer.metrics.parity_bytes.inc_by(parity.len() as u64);
            self.write_paced(stream, end, parity.into(), &terms).await?;
        }
        let _ = stream.finish();
        Ok(())
    }

    /// Writes payload or parity that begins at `offset`, cell by cell, with the second copy of the
    /// preamble where it is due.
    async fn write_paced(
        &mut self,
        stream: &mut SendStream,
        mut offset: u64,
        mut rest: Bytes,
        terms: &SendTerms<'_>,
    ) -> Result<(), quinn::WriteError> {
        let pacer = self.peer.pair_pacer.pacer();
        while !rest.is_empty() {
            let granted = pacer.take_tokens(rest.len() as u64, terms.order).await;
            let cell = rest.split_to(usize::try_from(granted).unwrap_or(usize::MAX));
            let end = offset + cell.len() as u64;
            // Both parts are one cell: the preamble between them takes no tokens, and a bucket of one
            // cell would be emptied by a part.
            let (before, after) = preamble::split_at_second_preamble(offset, cell);
            self.write_windowed(stream, before, terms.order).await?;
            if let Some(after) = after {
                stream.write_all(terms.preamble).await?;
                self.write_windowed(stream, after, terms.order).await?;
            }
            offset = end;
        }
        Ok(())
    }

    /// Writes bytes to a stream as the congestion window has space for them. Small segments do not
    /// wait for the window; on a shared link they wait for the lane's pace.
    async fn write_windowed(
        &mut self,
        stream: &mut SendStream,
        mut bytes: Bytes,
        order: u64,
    ) -> Result<(), quinn::WriteError> {
        if order == RELEASE_ORDER_FIRST && !self.telemetry.is_shared() {
            let length = bytes.len() as u64;
            stream.write_chunk(bytes).await?;
            self.telemetry.in_flight.note_handed(length);
            return Ok(());
        }
        while !bytes.is_empty() {
            let piece = bytes.len().min(self.telemetry.paced_write_bytes());
            // One task at a time waits for the window, the one of bulk.
            let space = if order == RELEASE_ORDER_FIRST {
                piece
            } else {
                self.wait_for_window_space(piece).await
            };
            self.wait_for_lane_pace(space, order).await;
            // Only bulk counts as window-limited: small segments do not show the delivery rate.
            let _waiting = self.telemetry.begin_window_wait(&*self.spec.host);
            stream.write_chunk(bytes.split_to(space)).await?;
            self.telemetry.in_flight.note_handed(space as u64);
        }
        Ok(())
    }

    /// Waits for the lane's pace. The wait of bulk on a shared link counts as one for window space.
    async fn wait_for_lane_pace(&self, bytes: usize, order: u64) {
        let counts = self.telemetry.is_shared() && order != RELEASE_ORDER_FIRST;
        let _waiting = counts.then(|| self.telemetry.begin_window_wait(&*self.spec.host));
        self.telemetry.wait_for_pace(&*self.spec.host, bytes as u64).await;
    }

    /// Waits until the congestion window has space for some of `bytes` bytes; returns for how many.
    async fn wait_for_window_space(&mut self, bytes: usize) -> usize {
        loop {
            // There mostly is some.
            if let Some(space) = self.telemetry.in_flight.free_space(bytes) {
                return space;
            }
            let telemetry = Arc::clone(&self.telemetry);
            let _waiting = telemetry.begin_window_wait(&*self.spec.host);
            if let Some(space) = telemetry.in_flight.wait_for_space(bytes).await {
                return space;
            }
            // Another path has a window of its own, and no acknowledgement comes on the old one.
            let Some(present) = lane_controller::lane_controller_telemetry(self.connection) else {
                // The tuner ends the connection.
                return bytes;
            };
            present.in_flight.resume_path();
            self.telemetry = present;
        }
    }
}
