//! Segments coming in: where their bytes go, and what follows once they are whole.

use super::outbound::Room;
use super::segment::{Incoming, PartState};
use super::*;
use std::collections::btree_map::Entry;

/// What the shortest segment costs: memory comes in pages.
const PAGE_BYTES: u64 = 4096;

/// How far a peer may go with what it sends unasked.
pub(super) struct Bounds {
    room: Room,
    /// What a segment is charged at least, however short.
    least: u64,
    trees: u64,
}

impl Bounds {
    /// What a peer that keeps the rules never uses up. A failed collective's room is given back
    /// by both sides at different times, so up to twice what is agreed may be in use for a
    /// moment; and each tree of each collective may end with a short segment.
    fn limit(&self) -> u64 {
        2 * (self.room.early + self.room.tail) + MAX_AHEAD * self.trees * self.least
    }
}

impl Session {
    /// A segment's header arrived: where do its bytes go?
    ///
    /// # Errors
    /// [`PeerError`]: end the job's epoch, or close the connection; see [`PeerError::is_of_ranks`].
    pub fn handle_arrival(
        &mut self,
        from: GatewayId,
        header: &SegmentHeader,
    ) -> Result<Arrival, PeerError> {
        let key = header.key;
        let Some(active) = &self.active else {
            return Ok(Arrival::Discard(Discard::Epoch));
        };
        if !self.is_current(header.epoch) {
            return Ok(Arrival::Discard(Discard::Epoch));
        }
        let no_such = PeerError::NoSuchSegment { key, bytes: header.bytes };
        let (plan, _) = active.plan_of(key.sequence);
        if !self.may_have(key.sequence, key.tree) || !self.peers.contains_key(&from) {
            return Err(no_such);
        }
        if u64::from(header.bytes) > plan.segment.get() {
            return Err(no_such);
        }
        if !self.admits(header.epoch, key.sequence)? {
            self.send_receipt(from, key);
            return Ok(Arrival::Discard(Discard::Duplicate));
        }
        let me = self.config.me;
        let bounds = Bounds {
            room: self.room_for(from),
            least: PAGE_BYTES.min(active.plan.segment.get()),
            trees: active.roles.len() as u64,
        };
        let collective = self.collective(key.sequence);
        if collective.failure.is_some() {
            return Ok(Arrival::Discard(Discard::Failed));
        }
        if collective.descriptor.is_some_and(|(_, d)| d.digest() != header.digest) {
            return Ok(Arrival::Discard(Discard::Disagreement));
        }
        if let Some(part) = collective.parts.get(usize::from(key.tree.0)) {
            let range = part.part.segment(key.segment.0);
            let fits = key.segment.0 < part.count() && part.expects_from(from, me);
            if !fits || range.end - range.start != u64::from(header.bytes) {
                return Err(no_such);
            }
        }
        let shape = (header.bytes, header.digest, header.parity > 0);
        let (bytes, digest, parity) = shape;
        let incoming = match collective.incoming.entry((from, key.tree, key.segment)) {
            Entry::Vacant(entry) => {
                entry.insert(Incoming { bytes, digest, parity, ..Incoming::default() })
            }
            // Memory may have been set aside for it by what its header said first, and where it goes
            // depends on whether there is parity.
            Entry::Occupied(entry) if entry.get().shape() != shape => {
                return Err(no_such);
            }
            Entry::Occupied(entry) => entry.into_mut(),
        };
        if incoming.landed {
            let receipted = incoming.receipted;
            if receipted {
                self.send_receipt(from, key);
            }
            return Ok(Arrival::Discard(Discard::Duplicate));
        }
        incoming.weight = header.weight;
        self.place(from, key, &bounds)
    }

    /// A stream ended: whole, or cut off.
    pub fn handle_arrival_end(&mut self, lease: LeaseId, whole: bool, now: TimeNs) {
        let Some((from, key)) = self.core.leases.remove(&lease) else {
            return;
        };
        let Some(collective) = self.live.get_mut(&key.sequence) else {
            return;
        };
        collective.busy -= 1;
        let healthy = collective.failure.is_none();
        if let Some(incoming) = collective.incoming.get_mut(&(from, key.tree, key.segment)) {
            // One that it does not know was of another shape, and wrote elsewhere.
            let known = incoming.leases.remove(&lease);
            if known && whole && healthy && !incoming.landed {
                incoming.landed = true;
                for other in &incoming.leases {
                    self.core.actions.push_back(Action::CancelLease(*other));
                }
                collective.timing.wan_end = now;
                self.core.progress = now;
                // It has posted; and so has everybody, if this is a result.
                collective.posted.insert(from);
                let part = collective.parts.get(usize::from(key.tree.0));
                let sums = |part: &PartState| part.phases.up || part.follows;
                if part.is_some_and(|part| sums(part) && part.comes_down_from(from)) {
                    collective.posted.extend(self.peers.keys());
                }
                self.note_if_complete(key.sequence, now);
                self.landed(from, key, now);
            }
        }
        self.tell_if_moving(now);
        self.settle(key.sequence, now);
    }

    /// Decides where an arriving segment goes, and registers the lease.
    pub(super) fn place(
        &mut self,
        from: GatewayId,
        key: SegmentKey,
        bounds: &Bounds,
    ) -> Result<Arrival, PeerError> {
        let me = self.config.me;
        let lease = LeaseId(self.core.id());
        let Some(collective) = self.live.get_mut(&key.sequence) else {
            return Ok(Arrival::Discard(Discard::Epoch));
        };
        let granted = collective.granted.get(&(from, key.tree)).copied().unwrap_or(0);
        let slot = collective.result_slot(key.sequence);
        let Some(incoming) = collective.incoming.get_mut(&(from, key.tree, key.segment)) else {
            return Ok(Arrival::Discard(Discard::Epoch));
        };
        let part = collective.parts.get(usize::from(key.tree.0));
        let result = |part: &PartState| part.view(key.segment.0, slot);
        let local = part
            .filter(|part| part.streams_from(me) == Some(from))
            .and_then(|part| part.streaming_operand(key.segment.0));
        let arrival = match (part, local, collective.descriptor) {
            // A stream that began while the operand was missing goes on into scratch.
            (Some(part), Some(local), Some((_, descriptor)))
                if incoming.landed_in.is_none() && !incoming.parity =>
            {
                #[cfg(feature = "mutants")]
                let sum = Input { view: result(part), weight: local.weight };
                #[cfg(feature = "mutants")]
                let again = std::mem::replace(&mut incoming.tried, true);
                #[cfg(feature = "mutants")]
                let local = if again && mutant::is(Mutant::Accumulate) { &sum } else { local };
                Arrival::Combine {
                    lease,
                    op: descriptor.op,
                    dtype: descriptor.dtype,
                    local: local.clone(),
                    net_weight: incoming.weight,
                    net_first: from < me,
                    out: result(part),
                }
            }
            (Some(part), _, _) if part.comes_down_from(from) => {
                // What came before the post goes on where it began.
                let into = incoming.landed_in.get_or_insert_with(|| result(part)).clone();
                Arrival::Land { lease, into }
            }
            _ => {
                let into = match incoming.landed_in.clone() {
                    Some(view) => view,
                    None => self.core.landing(u64::from(incoming.bytes)),
                };
                let new = incoming.landed_in.replace(into.clone()).is_none();
                let early = key.segment.0 >= granted || incoming.parity;
                if new
                    && early
                    && let Some(peer) = self.peers.get_mut(&from)
                {
                    incoming.early_bytes = u64::from(incoming.bytes).max(bounds.least);
                    peer.early_in += incoming.early_bytes;
                    if peer.early_in > bounds.limit() {
                        let (used, room) = (peer.early_in, bounds.limit());
                        return Err(PeerError::EarlyOverrun { used, room });
                    }
                }
                Arrival::Land { lease, into }
            }
        };
        incoming.leases.insert(lease);
        collective.busy += 1;
        self.core.leases.insert(lease, (from, key));
        Ok(arrival)
    }

    /// A segment is here whole.
    pub(super) fn landed(&mut self, from: GatewayId, key: SegmentKey, now: TimeNs) {
        let Some(collective) = self.live.get_mut(&key.sequence) else {
            return;
        };
        let Some(incoming) = collective.incoming.get_mut(&(from, key.tree, key.segment)) else {
            return;
        };
        // Bytes held beyond the grants keep their room until a reduction consumes them, and
        // so does the receipt that gives the room back.
        if incoming.early_bytes == 0 && !incoming.receipted {
            incoming.receipted = true;
            self.send_receipt(from, key);
        }
        self.advance(key, now);
    }
}
