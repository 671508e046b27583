//! Posts of ranks without shared memory: bytes of contributions come later, those of results are
//! reported.

use super::*;

impl World {
    /// Draws the way of a post's bytes. Takes the contribution away again where it comes later.
    pub(super) fn post_transport(
        &mut self,
        rank: RankId,
        sequence: Sequence,
        pattern: Pattern,
    ) -> PostTransport {
        if self.streamed_of_three == 0 {
            return PostTransport::default();
        }
        let is_read = !matches!(pattern, Pattern::Broadcast { from } if from != rank);
        let is_streamed = self.dice.roll(3) < self.streamed_of_three;
        let gateway = self.gateway_of(rank);
        let memory = &mut self.memory[usize::from(gateway.0)];
        let data = memory.get_mut(&Buffer::Contribution(sequence, rank)).expect("posted");
        let comes_later = is_streamed && is_read && !data.is_empty();
        if comes_later {
            // What is read too early spoils the sum.
            data.fill(1 << 40);
            self.arriving.insert((rank, sequence), 0);
        }
        let reports_result = self.dice.roll(3) > 0;
        if reports_result {
            self.reported.insert((rank, sequence), vec![]);
        }
        let missing_from = comes_later.then_some(0);
        PostTransport { missing_from, reports_result, ..PostTransport::default() }
    }

    /// Lets some more elements of a contribution come.
    pub(in super::super) fn arrive(&mut self, rank: RankId, sequence: Sequence) {
        let (gateway, now) = (self.gateway_of(rank), self.now);
        let slot = Buffer::Contribution(sequence, rank);
        let memory = self.memory[usize::from(gateway.0)].get_mut(&slot).expect("posted");
        let here = self.arriving[&(rank, sequence)];
        let more = here + 1 + self.dice.roll((memory.len() - here).min(40));
        let whole = contribution(rank, sequence.0, memory.len() as u64);
        memory[here..more].copy_from_slice(&whole[here..more]);
        let missing_from = (more < memory.len()).then_some(more as u64 * 8);
        match missing_from {
            Some(_) => drop(self.arriving.insert((rank, sequence), more)),
            None => drop(self.arriving.remove(&(rank, sequence))),
        }
        self.session(gateway).handle_contribution_bytes(rank, sequence, missing_from, now);
        self.collect(gateway);
    }

    /// Asserts that each byte of a result was reported once, and was right then, if the rank asked.
    pub(super) fn assert_reported(&mut self, rank: RankId, sequence: Sequence, result: &[i64]) {
        let Some(mut parts) = self.reported.remove(&(rank, sequence)) else { return };
        parts.sort_by_key(|(range, _)| range.start);
        let all: Vec<i64> = parts.iter().flat_map(|(_, data)| data.clone()).collect();
        let pattern = self.patterns.get(&sequence.0).copied().unwrap_or_default();
        let is_read = !matches!(pattern, Pattern::Reduce { to } if to != rank);
        assert!(all == result || !is_read, "{rank} {sequence}: {parts:?}, not {result:?}");
    }
}
