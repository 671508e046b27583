//! A collective ends: result ready, contribution free, or failed; memory given back.

use super::*;

impl Session {
    /// Completes, frees or buries a collective when nothing touches its memory any more.
    pub(super) fn settle(&mut self, sequence: Sequence, now: TimeNs) {
        let Some(collective) = self.live.get_mut(&sequence) else {
            return;
        };
        if collective.phase == Phase::Failing && collective.busy == 0 {
            collective.phase = Phase::Failed;
            if let Some(failure) = collective.failure.clone() {
                for rank in collective.posts.keys() {
                    let event = RankEvent::Failed { sequence, failure: failure.clone() };
                    self.core.actions.push_back(Action::Notify { rank: *rank, event });
                }
            }
            return self.forget_if_told(sequence);
        }
        if collective.is_delivered() {
            collective.phase = Phase::Ready;
            let timing = &mut collective.timing;
            timing.ready = now;
            timing.wan_end = timing.wan_end.max(timing.posted);
            if timing.wan_begin == TimeNs::default() {
                timing.wan_begin = timing.wan_end;
            }
            let timing = *timing;
            for rank in collective.posts.keys() {
                let event = RankEvent::ResultReady { sequence, timing };
                self.core.actions.push_back(Action::Notify { rank: *rank, event });
            }
            if let Some((_, descriptor)) = collective.descriptor {
                let (op, bytes) = (descriptor.op, descriptor.bytes());
                let took = timing.ready.since(timing.posted);
                self.core.actions.push_back(Action::Note(Note::Completed {
                    sequence,
                    op,
                    bytes,
                    took,
                }));
            }
        }
        let receipted = !collective.receipts_due() || cfg!(mutant = "reuse_slot");
        if collective.phase == Phase::Ready && receipted {
            self.free_contributions(sequence);
        }
    }

    /// The last event of a good collective.
    pub(super) fn free_contributions(&mut self, sequence: Sequence) {
        self.release_memory(sequence);
        let Some(collective) = self.live.remove(&sequence) else {
            return;
        };
        if let Some((_, descriptor)) = collective.descriptor {
            self.finished.insert(sequence, descriptor);
            if self.finished.len() as u64 > MAX_AHEAD {
                self.finished.pop_first();
            }
        }
        for rank in collective.posts.keys() {
            let event = RankEvent::ContributionFree { sequence };
            self.core.actions.push_back(Action::Notify { rank: *rank, event });
        }
    }

    /// Gives back all gateway memory of a collective and all credit it holds.
    pub(super) fn release_memory(&mut self, sequence: Sequence) {
        let Some(collective) = self.live.get_mut(&sequence) else {
            return;
        };
        let several = collective.posts.len() > 1;
        for segment in collective.parts.iter_mut().flat_map(|part| &mut part.segments) {
            let scratch = std::mem::take(&mut segment.scratch);
            if several && let Some(first) = scratch.first() {
                self.core.partial_bytes -= first.range.end;
            }
            scratch.iter().for_each(|view| self.core.release(view));
        }
        for ((from, _, _), incoming) in &mut collective.incoming {
            if let Some(peer) = self.peers.get_mut(from) {
                peer.early_in = peer.early_in.saturating_sub(incoming.early_bytes);
            }
            incoming.early_bytes = 0;
            if let Some(view) = incoming.landed_in.take() {
                self.core.release(&view);
            }
        }
        for peer in self.peers.values_mut() {
            peer.early_out.retain(|key, _| key.sequence != sequence);
            peer.tail_out.retain(|key, _| key.sequence != sequence);
        }
    }
}
