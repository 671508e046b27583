//! Changes of a link at stated times, and drops of stated packets.

use super::link_spec::LinkSpec;
use std::collections::VecDeque;
use units::{BitRate, TimeNs};

/// Changes at stated times, and stated packets to drop.
///
/// A packet meets the loss and the delay of the time it is offered, and the rate of the
/// time it is sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Script {
    changes: VecDeque<(TimeNs, Change)>,
    drops: VecDeque<u64>,
}

/// A change of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The link has these properties from now on.
    Spec(LinkSpec),
    /// The link drops every packet offered.
    Cut,
    /// The link passes packets again.
    Join,
}

impl Script {
    /// Makes a script of `changes` that drops the packets numbered `drops`. Packets are numbered
    /// from 0, in the order they are offered.
    pub fn new(
        changes: impl IntoIterator<Item = (TimeNs, Change)>,
        drops: impl IntoIterator<Item = u64>,
    ) -> Self {
        let mut changes: Vec<_> = changes.into_iter().collect();
        // Stable: of changes at one time, the later listed one counts.
        changes.sort_by_key(|(at, _)| *at);
        let mut drops: Vec<_> = drops.into_iter().collect();
        drops.sort_unstable();
        drops.dedup();
        Self { changes: changes.into(), drops: drops.into() }
    }

    /// Returns whether the script has neither changes nor drops.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.drops.is_empty()
    }

    /// Returns the changes to come, in order of time.
    pub fn changes(&self) -> impl Iterator<Item = (TimeNs, Change)> {
        self.changes.iter().copied()
    }

    /// Returns the numbers of the packets still to be dropped, in ascending order.
    pub fn dropped(&self) -> impl Iterator<Item = u64> {
        self.drops.iter().copied()
    }

    /// Returns when the next change is due; `None` when there is none.
    pub(super) fn next_change(&self) -> Option<TimeNs> {
        self.changes.front().map(|(at, _)| *at)
    }

    /// Removes and returns the next change that is due at `now`; `None` when there is none.
    pub(super) fn pop_change(&mut self, now: TimeNs) -> Option<Change> {
        self.changes.front().filter(|(at, _)| *at <= now)?;
        self.changes.pop_front().map(|(_, change)| change)
    }

    /// Returns the changes of the rate to come, in order of time; a rate of `None` is no limit.
    pub(super) fn rate_changes(&self) -> impl Iterator<Item = (TimeNs, Option<BitRate>)> {
        self.changes.iter().filter_map(|(at, change)| match change {
            Change::Spec(spec) => Some((*at, spec.rate())),
            Change::Cut | Change::Join => None,
        })
    }

    /// Returns whether the script drops the next packet, numbered `index`, and removes that drop.
    pub(super) fn take_drop(&mut self, index: u64) -> bool {
        let drops = self.drops.front() == Some(&index);
        if drops {
            self.drops.pop_front();
        }
        drops
    }
}
