//! Segments over a connection, one unidirectional stream each.

use crate::engine::{Event, Placement, trace_segment};
use crate::wan::congestion::tuner;
use crate::wan::connect::endpoint::{LaneSpec, PeerLink};
use crate::wan::connect::liveness::{self, Watch};
use crate::wan::pacing::pacer::{FIRST, LAST};
use crate::wan::stream::fec::{self, Arrived};
use crate::wan::stream::preamble::{self, AHEAD_BYTES, Ahead, Piece, Unheaded};
use crate::wan::stream::reassembly::Assembler;
use crate::wan::stream::send_queue::{Class, ConnectionId, Outgoing};
use crate::wan::{CANCELLED, DISCARDED, PROTOCOL};
use bytes::Bytes;
use hier_collectives::ids::{GatewayId, GroupId};
use hier_collectives::plan::SEGMENT_BYTES_MAX;
use hier_collectives::session::{LeaseId, MOVING_EVERY};
use hier_collectives::wire::SegmentHeader;
use quinn::{Connection, RecvStream, SendStream};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::oneshot;
use units::Span;

/// Pulls segments of a class and sends them until the connection ends; returns why.
pub(crate) async fn send_all(
    spec: &LaneSpec,
    peer: &PeerLink,
    id: ConnectionId,
    connection: &Connection,
    class: Class,
) -> String {
    loop {
        // A segment is pulled when its first bytes may leave, behind all that is under way: until
        // then one that should go before it may still come.
        peer.outbox.ready(class).await;
        let order = if class == Class::Small { FIRST } else { LAST };
        let limit = peer.rate.limit();
        limit.take((AHEAD_BYTES as u64).min(limit.cell_bytes()), order).await;
        let Some(outgoing) = peer.outbox.pull(class, id) else { continue };
        let bytes = outgoing.payload.len();
        let counters = &peer.metrics;
        if outgoing.again { &counters.resent_bytes } else { &counters.sent_bytes }.inc_by(bytes);
        let cancel = outgoing.cancel.clone();
        let _released = outgoing.released.clone().drop_guard();
        let key = (outgoing.group, outgoing.header.key);
        if outgoing.again {
            trace_segment("again", (key.0, peer.id), key.1, bytes);
        }
        let mut stream = tokio::select! {
            biased;
            () = cancel.cancelled() => continue,
            stream = connection.open_uni() => match stream {
                Ok(stream) => stream,
                Err(error) => return error.to_string(),
            },
            () = spec.shutdown.cancelled() => return "shutting down".to_owned(),
        };
        let Some(watch) = liveness::watch(connection) else {
            return "no congestion controller of ours".to_owned();
        };
        let mut lane = Writer { spec, peer, connection, watch };
        let sent = tokio::select! {
            biased;
            () = cancel.cancelled() => {
                let _ = stream.reset(CANCELLED.into());
                continue;
            }
            sent = lane.write(&mut stream, outgoing, class) => sent,
        };
        match sent {
            Ok(()) => peer.outbox.written(key, id, stream, &cancel),
            // The peer does not want it; the receipt or the failure that says why is on its
            // way.
            Err(quinn::WriteError::Stopped(_)) => {}
            Err(error) => return error.to_string(),
        }
    }
}

/// Who waits for room asks so often whether it is that of the path of now.
const WATCH_AGE_MAX: Span = Span::from_ms(250);

/// What writes a segment to its stream.
struct Writer<'w> {
    spec: &'w LaneSpec,
    peer: &'w PeerLink,
    connection: &'w Connection,
    watch: Arc<Watch>,
}

impl Writer<'_> {
    async fn write(
        &mut self,
        stream: &mut SendStream,
        outgoing: Outgoing,
        class: Class,
    ) -> Result<(), quinn::WriteError> {
        let _ = stream.set_priority(i32::from(class == Class::Small));
        let Outgoing { group, header, payload, order, .. } = outgoing;
        let ahead = preamble::encode(group, &header);
        stream.write_all(&ahead).await?;
        let payload = payload.into_bytes();
        let end = payload.len() as u64;
        if header.parity == 0 {
            self.write_at_rate(stream, (0, payload), &ahead, order).await?;
        } else {
            let (made, parity) = oneshot::channel();
            let of = payload.clone();
            let work = move || drop(made.send(fec::make(&of, header.parity)));
            let making = self.spec.host.compute(Box::new(work));
            self.write_at_rate(stream, (0, payload), &ahead, order).await?;
            // A segment without its parity is as good, while nothing is lost.
            let _ = making.await;
            let parity = parity.await.unwrap_or_default();
            self.peer.metrics.parity_bytes.inc_by(parity.len() as u64);
            self.write_at_rate(stream, (end, parity.into()), &ahead, order).await?;
        }
        let _ = stream.finish();
        Ok(())
    }

    /// Bytes of payload and parity from an offset on, and where it is due what stands ahead again.
    async fn write_at_rate(
        &mut self,
        stream: &mut SendStream,
        (mut offset, mut rest): (u64, Bytes),
        again: &Ahead,
        order: u64,
    ) -> Result<(), quinn::WriteError> {
        let limit = self.peer.rate.limit();
        while !rest.is_empty() {
            let cell = usize::try_from(limit.cell_bytes()).unwrap_or(usize::MAX);
            let cell = rest.split_to(cell.min(rest.len()));
            limit.take(cell.len() as u64, order).await;
            let end = offset + cell.len() as u64;
            // One cell all the same: a bucket with room for no other would be emptied by a part. The few
            // bytes between the parts are not bought.
            let (before, after) = preamble::around(offset, cell);
            self.write_cell(stream, before, order).await?;
            if let Some(after) = after {
                stream.write_all(again).await?;
                self.write_cell(stream, after, order).await?;
            }
            offset = end;
        }
        Ok(())
    }

    async fn write_cell(
        &mut self,
        stream: &mut SendStream,
        mut cell: Bytes,
        order: u64,
    ) -> Result<(), quinn::WriteError> {
        if order == FIRST {
            let bytes = cell.len() as u64;
            stream.write_chunk(cell).await?;
            self.watch.limits.hand(bytes);
            return Ok(());
        }
        while !cell.is_empty() {
            let room = self.room(cell.len()).await;
            // Small segments do not say what a lane can carry.
            let _waiting = self.watch.waiting(&*self.spec.host);
            stream.write_chunk(cell.split_to(room)).await?;
            self.watch.limits.hand(room as u64);
        }
        Ok(())
    }

    /// Waits until some of `bytes` bytes have room, and says how many.
    async fn room(&mut self, bytes: usize) -> usize {
        loop {
            let host = &*self.spec.host;
            // Mostly there is some, and no timer is needed.
            if let Some(room) = self.watch.limits.room_now(bytes) {
                return room;
            }
            let watch = Arc::clone(&self.watch);
            let _waiting = watch.waiting(host);
            tokio::select! {
                biased;
                room = watch.limits.room(bytes) => return room,
                () = host.sleep_until(host.now() + WATCH_AGE_MAX) => {}
            }
            // The connection may have moved to another path, and nothing comes on the old one.
            if let Some(watch) = liveness::watch(self.connection) {
                self.watch = watch;
            }
        }
    }
}

/// Accepts streams until the connection ends; returns why.
pub(crate) async fn receive_all(
    spec: &Arc<LaneSpec>,
    from: GatewayId,
    id: ConnectionId,
    connection: &Connection,
) -> String {
    let longest = tuner::stream_bytes(spec.segment_bytes.max(SEGMENT_BYTES_MAX));
    let unheaded = Arc::new(Unheaded::new(longest));
    loop {
        match connection.accept_uni().await {
            Ok(stream) => {
                let (task_spec, connection) = (Arc::clone(spec), connection.clone());
                let unheaded = Arc::clone(&unheaded);
                let task = async move {
                    if let Err(why) = receive(&task_spec, (from, id), stream, &unheaded).await {
                        connection.close(PROTOCOL.into(), why.as_bytes());
                    }
                };
                spec.host.spawn(Box::pin(task));
            }
            Err(error) => return error.to_string(),
        }
    }
}

/// Receives one segment. An error is the peer's breach of protocol.
async fn receive(
    spec: &LaneSpec,
    (from, id): (GatewayId, ConnectionId),
    mut stream: RecvStream,
    unheaded: &Unheaded,
) -> Result<(), String> {
    // Reset, or the lane died: the segment comes again.
    let Some((ahead, early)) = preamble::read(&mut stream, unheaded).await? else { return Ok(()) };
    let (group, header) = preamble::decode(&ahead).map_err(|error| error.to_string())?;
    let (reply, placement) = oneshot::channel();
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
    let Some(mut assembler) = Assembler::new(placement) else { return Ok(()) };
    let received = tokio::select! {
        biased;
        () = cancel.cancelled() => {
            let _ = stream.stop(CANCELLED.into());
            Ok(Received::CutOff)
        }
        received = pump(spec, (&mut stream, early), &mut assembler, (group, lease, &header)) => {
            received
        }
    };
    let received = match received {
        Ok(Received::Restorable(arrived)) => {
            let restored = restore(spec, assembler, arrived).await;
            Ok(if restored { Received::Whole { restored } } else { Received::CutOff })
        }
        received => {
            drop(assembler);
            received
        }
    };
    let whole = matches!(received, Ok(Received::Whole { .. }));
    if header.parity > 0 && whole {
        // The rest is parity that is not needed, or what was restored.
        let _ = stream.stop(DISCARDED.into());
    }
    if whole && let Some(peer) = spec.peers.get(&from) {
        peer.metrics.received_bytes.inc_by(u64::from(header.bytes));
        if matches!(received, Ok(Received::Whole { restored: true })) {
            peer.metrics.restored_segments.inc();
        }
    }
    let _ = spec.events.send(Event::ArrivalEnd { group, lease, whole }).await;
    received.map(|_| ())
}

/// How a segment's stream ended for the receiver.
enum Received {
    /// All of it is in place.
    Whole {
        /// With bytes restored from parity.
        restored: bool,
    },
    /// All but what can be restored is in place.
    Restorable(Arrived),
    /// Reset, cancelled, or the lane died.
    CutOff,
}

/// Reads the payload as it comes, in any order, after what came early.
async fn pump(
    spec: &LaneSpec,
    (stream, mut pieces): (&mut RecvStream, Vec<Piece>),
    assembler: &mut Assembler,
    (group, lease, header): (GroupId, LeaseId, &SegmentHeader),
) -> Result<Received, String> {
    let bytes = u64::from(header.bytes);
    let mut tell_at = spec.host.now() + MOVING_EVERY;
    let mut arrived = (header.parity > 0).then(|| Arrived::new(bytes, header.parity));
    let mut received = 0;
    loop {
        for piece in pieces.drain(..) {
            if !put(assembler, arrived.as_mut(), bytes, &piece) {
                return Err("a segment longer than its header says".to_owned());
            }
            received += piece.bytes.len() as u64;
        }
        match arrived.take() {
            Some(seen) if seen.is_whole() => return Ok(Received::Whole { restored: false }),
            Some(seen) if seen.can_restore() => return Ok(Received::Restorable(seen)),
            seen => arrived = seen,
        }
        let (next, waited) = noting_waits(stream.read_chunk(usize::MAX, false)).await;
        match next {
            Ok(Some(chunk)) => pieces.extend(preamble::pieces(chunk)),
            Ok(None) if received == bytes => return Ok(Received::Whole { restored: false }),
            Ok(None) => return Err("a segment shorter than its header says".to_owned()),
            // Reset, or the lane died.
            Err(_) => return Ok(Received::CutOff),
        }
        // What is here comes without waits, and the clock need not be asked for each packet.
        if waited && spec.host.now() >= tell_at {
            tell_at = spec.host.now() + MOVING_EVERY;
            let _ = spec.events.send(Event::Moving { group, lease }).await;
        }
    }
}

/// Puts bytes of a segment of `bytes` bytes of payload where they belong. False when they reach beyond
/// it and its parity.
fn put(
    assembler: &mut Assembler,
    arrived: Option<&mut Arrived>,
    bytes: u64,
    piece: &Piece,
) -> bool {
    let Piece { offset, bytes: here } = piece;
    let Some(arrived) = arrived else { return assembler.put(*offset, here) };
    let payload = &here[..bytes.saturating_sub(*offset).min(here.len() as u64) as usize];
    (payload.is_empty() || assembler.put(*offset, payload)) && arrived.put(*offset, here)
}

/// What comes of it, and whether that had to be waited for.
async fn noting_waits<T>(future: impl Future<Output = T>) -> (T, bool) {
    let (mut future, mut waited) = (pin!(future), false);
    let output = poll_fn(|context| {
        let polled = future.as_mut().poll(context);
        waited |= polled.is_pending();
        polled
    });
    let output = output.await;
    (output, waited)
}

/// Restores what is missing where the rest has landed; false where it cannot be.
async fn restore(spec: &LaneSpec, assembler: Assembler, arrived: Arrived) -> bool {
    match assembler {
        Assembler::Land(into) => {
            let restored = spec.host.compute(Box::new(move || arrived.restore(&into)));
            restored.await.is_ok()
        }
        // Added with holes it is nothing that the code could restore; such segments land.
        Assembler::Combine(_) => false,
    }
}
