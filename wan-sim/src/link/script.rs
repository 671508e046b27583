//! Changes of a link at stated times, and drops of stated packets.

use super::spec::LinkSpec;
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
    /// Makes `changes`, and drops the packets numbered `drops` in the order they are
    /// offered, from 0.
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

    /// Whether the script is empty.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.drops.is_empty()
    }

    /// The changes to come, by time.
    pub fn changes(&self) -> impl Iterator<Item = (TimeNs, Change)> {
        self.changes.iter().copied()
    }

    /// The packets still to be dropped, by number.
    pub fn dropped(&self) -> impl Iterator<Item = u64> {
        self.drops.iter().copied()
    }

    /// The next change that is due at `now`.
    pub(super) fn pop_change(&mut self, now: TimeNs) -> Option<Change> {
        self.changes.front().filter(|(at, _)| *at <= now)?;
        self.changes.pop_front().map(|(_, change)| change)
    }

    /// Changes of the rate to come.
    pub(super) fn rates(&self) -> impl Iterator<Item = (TimeNs, Option<BitRate>)> {
        self.changes.iter().filter_map(|(at, change)| match change {
            Change::Spec(spec) => Some((*at, spec.rate())),
            Change::Cut | Change::Join => None,
        })
    }

    /// Whether the packet numbered `index`, the next one, is to be dropped.
    pub(super) fn drops(&mut self, index: u64) -> bool {
        let drops = self.drops.front() == Some(&index);
        if drops {
            self.drops.pop_front();
        }
        drops
    }
}
