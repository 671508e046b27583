//! The attached ranks of one job, and the groups that each has made.

use crate::events::{AttachmentId, GroupNumber, LocalRankEvents, PlacedResult};
use hier_collectives::ids::{GroupId, RankId, Sequence};
use hier_collectives::post::RankEvent;
use std::collections::BTreeMap;
use std::ops::Range;

/// The attachment of each rank that has one, the queue of its events, and its groups.
#[derive(Debug, Default)]
pub(super) struct AttachedRanks {
    attached: BTreeMap<RankId, AttachedRank>,
}

/// An attached rank.
#[derive(Debug)]
struct AttachedRank {
    attachment: AttachmentId,
    events: LocalRankEvents,
    /// The groups that it has made and not left, the job itself among them, by its own numbers.
    groups: BTreeMap<GroupNumber, GroupId>,
    /// Its own number of each of these groups.
    numbers: BTreeMap<GroupId, GroupNumber>,
}

impl AttachedRanks {
    /// Makes an attachment the current one of its rank of `job`; the rank's events go to `events`
    /// from now on. The rank's only group is the job: groups of an earlier attachment are
    /// forgotten.
    pub fn attach(
        &mut self,
        job: GroupId,
        rank: RankId,
        attachment: AttachmentId,
        events: LocalRankEvents,
    ) {
        let groups = BTreeMap::from([(GroupNumber::JOB, job)]);
        let numbers = BTreeMap::from([(job, GroupNumber::JOB)]);
        self.attached.insert(rank, AttachedRank { attachment, events, groups, numbers });
    }

    /// Returns whether an attachment is still the current one of its rank.
    pub fn is_current_attachment(&self, rank: RankId, attachment: AttachmentId) -> bool {
        self.attached.get(&rank).is_some_and(|current| current.attachment == attachment)
    }

    /// Removes the attachment of a rank with its groups, if `attachment` is the current one;
    /// returns whether it was.
    pub fn detach(&mut self, rank: RankId, attachment: AttachmentId) -> bool {
        let current = self.is_current_attachment(rank, attachment);
        if current {
            self.attached.remove(&rank);
        }
        current
    }

    /// Returns whether a rank has an attachment.
    pub fn is_attached(&self, rank: RankId) -> bool {
        self.attached.contains_key(&rank)
    }

    /// Iterates over the numbers in the job of the ranks that are attached.
    pub fn ids(&self) -> impl Iterator<Item = RankId> {
        self.attached.keys().copied()
    }

    /// Queues an event for the trainer of an attachment, if it is the current one of its rank. The
    /// event is of the job as a whole.
    pub fn notify_attachment(&self, attachment: AttachmentId, event: RankEvent) {
        let current = self.attached.values().find(|rank| rank.attachment == attachment);
        if let Some(rank) = current {
            rank.events.send(GroupNumber::JOB, event);
        }
    }

    /// Returns the id of the group that a rank knows by this number; `None` if the rank knows none,
    /// or is not attached.
    pub fn group(&self, rank: RankId, number: GroupNumber) -> Option<GroupId> {
        self.attached.get(&rank)?.groups.get(&number).copied()
    }

    /// Returns the number of groups that a rank is in, the job among them.
    pub fn group_count(&self, rank: RankId) -> usize {
        self.attached.get(&rank).map_or(0, |rank| rank.groups.len())
    }

    /// Returns whether a rank is attached to this gateway and in a group. Earlier worlds of the
    /// job, whose events still reach the rank, are such groups too.
    pub fn is_in_group(&self, rank: RankId, group: GroupId) -> bool {
        self.attached.get(&rank).is_some_and(|rank| rank.numbers.contains_key(&group))
    }

    /// Puts a rank into the group with the id `group`, which the rank knows by `number`.
    pub fn enter_group(&mut self, rank: RankId, number: GroupNumber, group: GroupId) {
        if let Some(rank) = self.attached.get_mut(&rank) {
            rank.groups.insert(number, group);
            rank.numbers.insert(group, number);
        }
    }

    /// Removes a rank from the group that it knows by this number. Returns the group; `None` if the
    /// rank knows none, or is not attached.
    pub fn leave_group(&mut self, rank: RankId, number: GroupNumber) -> Option<GroupId> {
        let rank = self.attached.get_mut(&rank)?;
        let group = rank.groups.remove(&number)?;
        rank.numbers.remove(&group);
        Some(group)
    }

    /// Makes a group the job's world, which all attached ranks know by the job's number from now
    /// on. Events of the worlds before still reach them, until [`AttachedRanks::forget_world`].
    pub fn set_world(&mut self, world: GroupId) {
        for rank in self.attached.values_mut() {
            rank.groups.insert(GroupNumber::JOB, world);
            rank.numbers.insert(world, GroupNumber::JOB);
        }
    }

    /// Forgets a world of the job, of which no event follows.
    pub fn forget_world(&mut self, world: GroupId) {
        for rank in self.attached.values_mut() {
            rank.numbers.remove(&world);
        }
    }

    /// Queues an event of a group for a rank's trainer, if the rank is attached and in the group.
    pub fn notify(&self, rank: RankId, group: GroupId, event: RankEvent) {
        if let Some(rank) = self.attached.get(&rank)
            && let Some(number) = rank.numbers.get(&group)
        {
            rank.events.send(*number, event);
        }
    }

    /// Tells a rank's trainer of bytes of a result that are in place, as [`AttachedRanks::notify`] does.
    pub fn place_result(
        &self,
        rank: RankId,
        group: GroupId,
        sequence: Sequence,
        range: Range<u64>,
    ) {
        if let Some(rank) = self.attached.get(&rank)
            && let Some(number) = rank.numbers.get(&group)
        {
            rank.events.place_result(PlacedResult { number: *number, sequence, range });
        }
    }

    /// Queues an event for a rank's trainer about a group number for which the rank has no group,
    /// such as one that could not be made.
    pub fn notify_number(&self, rank: RankId, number: GroupNumber, event: RankEvent) {
        if let Some(rank) = self.attached.get(&rank) {
            rank.events.send(number, event);
        }
    }
}
