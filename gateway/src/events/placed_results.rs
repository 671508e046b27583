//! The parts of results that are in place and not yet sent to a trainer without shared memory.
//!
//! The engine adds them and never waits. The trainer's task takes them while later parts are still
//! exchanged. Collectives under way bound their number.

use super::ids::GroupNumber;
use crate::lock::lock_ignoring_poison;
use hier_collectives::ids::Sequence;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Mutex;
use tokio::sync::Notify;

/// The parts of a trainer's results that are in place and not sent, oldest first.
#[derive(Debug, Default)]
pub struct PlacedResults {
    parts: Mutex<VecDeque<PlacedResult>>,
    added: Notify,
}

/// Bytes of a result that are in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedResult {
    /// The group of the collective, by the trainer's number.
    pub number: GroupNumber,
    /// The collective.
    pub sequence: Sequence,
    /// The bytes, counted from the first of the result.
    pub range: Range<u64>,
}

impl PlacedResults {
    /// Adds a part, which joins the last one if it is the next of the same result.
    pub fn add_placed_result(&self, added: PlacedResult) {
        let mut parts = lock_ignoring_poison(&self.parts);
        match parts.back_mut() {
            Some(last)
                if (last.number, last.sequence) == (added.number, added.sequence)
                    && last.range.end == added.range.start =>
            {
                last.range.end = added.range.end;
            }
            _ => parts.push_back(added),
        }
        drop(parts);
        self.added.notify_one();
    }

    /// Waits until some part is in place. Only one task may wait.
    pub async fn wait_for_placed_result(&self) {
        while lock_ignoring_poison(&self.parts).is_empty() {
            self.added.notified().await;
        }
    }

    /// Takes at most `bytes_max` bytes of the oldest part, or of the oldest part of one collective;
    /// `None` if there is no such part.
    pub fn take_placed_result(
        &self,
        of: Option<(GroupNumber, Sequence)>,
        bytes_max: u64,
    ) -> Option<PlacedResult> {
        let mut parts = lock_ignoring_poison(&self.parts);
        let is_of = |part: &PlacedResult| of.is_none_or(|of| of == (part.number, part.sequence));
        let at = parts.iter().position(is_of)?;
        let part = parts.get_mut(at)?;
        let end = part.range.start.saturating_add(bytes_max);
        if part.range.end <= end {
            return parts.remove(at);
        }
        let taken = PlacedResult { range: part.range.start..end, ..part.clone() };
        part.range.start = end;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(sequence: u64, range: Range<u64>) -> PlacedResult {
        PlacedResult { number: GroupNumber::JOB, sequence: Sequence(sequence), range }
    }

    #[tokio::test]
    async fn parts_are_taken_once_each_in_pieces() {
        let placed = PlacedResults::default();
        for added in [part(1, 0..60), part(1, 60..100), part(2, 0..10), part(1, 200..210)] {
            placed.add_placed_result(added);
        }
        placed.wait_for_placed_result().await;
        let second = Some((GroupNumber::JOB, Sequence(2)));
        assert_eq!(placed.take_placed_result(None, 64), Some(part(1, 0..64)));
        assert_eq!(placed.take_placed_result(second, 64), Some(part(2, 0..10)));
        assert_eq!(placed.take_placed_result(second, 64), None);
        assert_eq!(placed.take_placed_result(None, 64), Some(part(1, 64..100)));
        assert_eq!(placed.take_placed_result(None, 64), Some(part(1, 200..210)));
        assert_eq!(placed.take_placed_result(None, 64), None);
    }
}
