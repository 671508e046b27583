//! A collective ends: result ready, contribution free, or failed; memory given back.

use super::segment::PartState;
use super::*;

impl Session {
    /// Completes, frees or buries a collective when nothing touches its memory any more.
    pub(super) fn settle(&mut self, sequence: Sequence, now: TimeNs) {
        let Some(collective) = self.live.get_mut(&sequence) else {
            return;
        };
        let still = collective.busy == 0 && !collective.cancelling;
        if collective.phase == Phase::Leaving && still {
            return self.free_contributions(sequence);
        }
        if collective.phase == Phase::Failing && still {
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
            // Of a part that only hands up nothing is known, unless its results came.
            let sums = |part: &PartState| part.follows || part.phases.up && !part.only_hands_up();
            let parts = || collective.parts.iter().filter(|part| part.count() > 0);
            let followed = parts().any(|part| part.follows);
            let known = |part: &PartState| sums(part) || followed && part.only_hands_up();
            if parts().all(known) {
                // Everybody's part is in the result.
                collective.posted.extend(self.peers.keys());
                collective.complete.get_or_insert(now);
            }
            let timing = &mut collective.timing;
            timing.ready = now;
            timing.wan_end = timing.wan_end.max(timing.posted);
            if timing.wan_begin == TimeNs::default() {
                timing.wan_begin = timing.wan_end;
            }
            let timing = *timing;
            let descriptor = collective.descriptor;
            for rank in collective.posts.keys() {
                let event = RankEvent::ResultReady { sequence, timing };
                self.core.actions.push_back(Action::Notify { rank: *rank, event });
            }
            if let Some((_, descriptor)) = descriptor {
                let (op, bytes) = (descriptor.name(), descriptor.bytes());
                let took = timing.ready.since(timing.posted);
                self.core.actions.push_back(Action::Note(Note::Completed {
                    sequence,
                    op,
                    bytes,
                    took,
                }));
            }
            self.note_done(sequence);
            self.weigh_links();
        }
        let receipted = |c: &Collective| !c.receipts_due() || mutant::is(Mutant::ReuseSlot);
        let done = |c: &Collective| c.phase == Phase::Ready && receipted(c);
        if self.live.get(&sequence).is_some_and(done) {
            self.free_contributions(sequence);
        }
    }

    /// Stops what is being sent of a collective. Until the shell says that it has stopped,
    /// streams may read the slots: what they would send after that might be whole on the
    /// other side, and wrong.
    pub(super) fn cancel(&mut self, sequence: Sequence) {
        let Some(collective) = self.live.get_mut(&sequence) else { return };
        collective.cancelling = collective.sends_due();
        self.core.actions.push_back(Action::Cancel(sequence));
    }

    /// Nothing of a collective is being sent any more, as [`Action::Cancel`] asked.
    pub fn handle_cancelled(&mut self, sequence: Sequence, now: TimeNs) {
        if let Some(collective) = self.live.get_mut(&sequence) {
            collective.cancelling = false;
            if !mutant::is(Mutant::WakeNobody) {
                self.settle(sequence, now);
            }
        }
    }

    /// The last event of a good collective.
    pub(super) fn free_contributions(&mut self, sequence: Sequence) {
        self.release_memory(sequence);
        let Some(collective) = self.live.remove(&sequence) else {
            return;
        };
        if let Some((_, descriptor)) = collective.descriptor
            && self.is_current(collective.epoch)
        {
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
        let (several, class) = (collective.posts.len() > 1, collective.class());
        for segment in collective.parts.iter_mut().flat_map(|part| &mut part.segments) {
            let scratch = std::mem::take(&mut segment.scratch);
            if several && let Some(first) = scratch.first() {
                self.core.partial_bytes[class as usize] -= first.range.end;
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
        }
    }
}
