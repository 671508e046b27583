//! The rank of a trainer at this gateway, and the numbers of what it posts next.

use crate::ids::Sequence;
use crate::sequence::SendSeries;
use std::collections::BTreeMap;

/// 1,024 tags: a rank sends with at most so many, and receives with as many, in one group of two
/// ranks and one epoch. With one more, the epoch ends. A gateway remembers the place in each
/// series, so the limit is chosen.
/// Tested by `ranks_with_too_many_tags_end_the_epoch`.
pub(in crate::session) const TAGS_MAX: usize = 1024;

/// A rank of this gateway.
#[derive(Debug, Default)]
pub(in crate::session) struct LocalRank {
    pub attached: bool,
    /// Whether the rank posted in this epoch.
    pub posted: bool,
    /// Whether the rank's process ended after it was expected in this group, and no other is
    /// expected yet.
    pub lost: bool,
    /// The sequence that the rank posts next, apart from sends.
    pub next: Sequence,
    /// The first sequence of the epoch, whose place is also the first of each series.
    first: Sequence,
    /// The sequence that the rank posts next in each series, once it has posted one.
    next_by_series: BTreeMap<SendSeries, Sequence>,
}

impl LocalRank {
    /// Makes the state of a rank that has posted nothing in an epoch whose first collective is
    /// `first`.
    pub fn in_epoch(attached: bool, first: Sequence) -> Self {
        let next_by_series = BTreeMap::new();
        Self { attached, posted: false, lost: false, next: first, first, next_by_series }
    }

    /// Begins an epoch whose first collective is `first`: the rank has posted nothing in it.
    pub fn begin_epoch(&mut self, first: Sequence) {
        *self = Self { lost: self.lost, ..Self::in_epoch(self.attached, first) };
    }

    /// Returns the sequence that the rank posts next in the series of `sequence`, or among all
    /// other collectives if that is no send.
    pub fn next_like(&self, sequence: Sequence) -> Sequence {
        let Some(series) = sequence.series() else { return self.next };
        let first = || series.sequence_at(self.first.0);
        self.next_by_series.get(&series).copied().unwrap_or_else(first)
    }

    /// Notes that the rank has posted a collective.
    pub fn note_posted(&mut self, sequence: Sequence) {
        self.posted = true;
        match sequence.series() {
            None => self.next = sequence.following(),
            Some(series) => {
                self.next_by_series.insert(series, sequence.following());
            }
        }
    }

    /// Whether `sequence` is a send of a series that would be one more than [`TAGS_MAX`] with its
    /// sender that the rank uses in this epoch.
    pub fn has_no_room_for_series_of(&self, sequence: Sequence) -> bool {
        let Some(series) = sequence.series() else { return false };
        let alike = self.next_by_series.keys().filter(|known| known.from == series.from).count();
        alike >= TAGS_MAX && !self.next_by_series.contains_key(&series)
    }
}
