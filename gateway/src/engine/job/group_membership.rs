//! Which gateways know of a group made at run time, and which take part in it.
//!
//! A gateway takes part while one of its ranks has made the group and not left it. It knows of a
//! group as soon as another gateway takes part, so that nobody waits for ranks that make it later. A
//! gateway that passes on the sends of two ranks knows of their group so, and never takes part.
//! The group is freed once nobody takes part.

use crate::events::{GroupNumber, GroupPlace};
use hier_collectives::ids::{BootId, GatewayId, GroupId, RankId};
use hier_collectives::mutant::{self, Mutant};
use hier_collectives::post::Failure;
use hier_collectives::wire::{GroupFacts, Message};
use ring::digest;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The members of a group made at run time, as one gateway knows them.
#[derive(Debug)]
pub(in crate::engine) struct GroupMembership {
    /// The facts from which the group's id follows.
    pub facts: GroupFacts,
    /// A random number that this gateway drew when it made the group.
    boot: BootId,
    /// Ranks of this gateway that have made the group and not left it.
    local: BTreeSet<RankId>,
    /// Ranks of this gateway that have made the group and left it.
    left: BTreeSet<RankId>,
    /// The other gateways that know of the group.
    peers: BTreeMap<GatewayId, PeerMember>,
    /// Why the group is over, once it is.
    disbanded: Option<Failure>,
}

/// A group that a rank of this gateway makes.
#[derive(Debug)]
pub(in crate::engine) struct GroupMaking {
    pub rank: RankId,
    pub number: GroupNumber,
    pub parent: GroupNumber,
    pub place: u64,
    pub ranks: Vec<RankId>,
}

/// Another gateway that knows of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct PeerMember {
    /// The random number that it drew when it made the group.
    pub boot: BootId,
    /// Whether one of its ranks has made the group and not left it.
    pub takes_part: bool,
}

/// The news in a word of another gateway about a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum PeerChange {
    /// It is the first word: what was said to it before may have met nobody.
    First,
    /// It has left the group and made it again since its last word.
    MadeAgain,
    /// It goes on.
    Same,
}

impl GroupMembership {
    /// Makes the membership of a group in which nobody takes part yet. `left` are the ranks of this
    /// gateway that left an earlier making of the same group.
    pub fn new(facts: GroupFacts, boot: BootId, left: BTreeSet<RankId>) -> Self {
        let (local, peers) = (BTreeSet::new(), BTreeMap::new());
        Self { facts, boot, local, left, peers, disbanded: None }
    }

    /// Returns the messages that tell another gateway of the group: whether this gateway takes
    /// part, and why the group is over, if it is.
    pub fn introduction(&self) -> Vec<Message> {
        let disband = self.disbanded.clone().map(|failure| Message::Disband { failure });
        [self.member_message()].into_iter().chain(disband).collect()
    }

    /// Returns the message that tells another gateway whether this one takes part.
    pub fn member_message(&self) -> Message {
        let (boot, facts, takes_part) = (self.boot, self.facts.clone(), self.takes_part());
        Message::Member { boot, facts, takes_part }
    }

    /// Returns whether a rank of this gateway has made the group and not left it.
    pub fn takes_part(&self) -> bool {
        !self.local.is_empty()
    }

    /// Returns whether no gateway that can be reached takes part.
    pub fn is_left(&self) -> bool {
        !self.takes_part() && !self.peers.values().any(|peer| peer.takes_part)
    }

    /// Adds a rank of this gateway; returns whether the gateway did not take part before.
    pub fn enter(&mut self, rank: RankId) -> bool {
        let began = !self.takes_part();
        self.local.insert(rank);
        self.left.remove(&rank);
        began
    }

    /// Returns whether a rank of this gateway has made the group and not left it.
    pub fn has_made(&self, rank: RankId) -> bool {
        self.local.contains(&rank)
    }

    /// Removes a rank of this gateway; returns whether the gateway takes part no more since then. A
    /// rank that is not in the group changes nothing.
    pub fn leave(&mut self, rank: RankId) -> bool {
        let was_in = self.local.remove(&rank);
        self.left.extend(was_in.then_some(rank));
        was_in && !self.takes_part()
    }

    /// Returns whether a rank is one of the group's, and has not left it. The rank may not have
    /// made the group yet.
    pub fn awaits(&self, rank: RankId) -> bool {
        self.facts.ranks.binary_search(&rank).is_ok() && !self.left.contains(&rank)
    }

    /// Returns whether the group awaits a rank, or another process of it, whichever process left the
    /// group before. Of a group that was counted no rank makes it again that has left it.
    pub fn may_await(&self, rank: RankId) -> bool {
        let is_over = GroupPlace(self.facts.place).is_counted() && self.left.contains(&rank);
        self.facts.ranks.binary_search(&rank).is_ok() && !is_over
    }

    /// Returns whether all ranks of the group that lie in a range have made it, though some may
    /// have left it.
    pub fn is_made_by(&self, ranks: &Range<u32>) -> bool {
        let mut own = self.facts.ranks.iter().filter(|rank| ranks.contains(&rank.0));
        own.all(|rank| self.local.contains(rank) || self.left.contains(rank))
    }

    /// Whether another gateway has made the group since it last spoke of it.
    pub fn is_news(&self, from: GatewayId, said: PeerMember) -> bool {
        self.peers.get(&from).is_none_or(|before| before.boot != said.boot)
    }

    /// Records that another gateway knows the group, and whether it takes part. Returns whether
    /// this is its first word, it has made the group again, or neither.
    pub fn note_peer(&mut self, from: GatewayId, said: PeerMember) -> PeerChange {
        match self.peers.insert(from, said) {
            None => PeerChange::First,
            Some(before) if before.boot != said.boot => PeerChange::MadeAgain,
            Some(_) => PeerChange::Same,
        }
    }

    /// Forgets the gateways that cannot be reached. They speak of the group again once they can.
    pub fn keep_reachable(&mut self, is_reachable: impl Fn(GatewayId) -> bool) {
        self.peers.retain(|id, _| is_reachable(*id));
    }

    /// Returns why the group is over; `None` while it is not.
    pub fn disbanded(&self) -> Option<&Failure> {
        self.disbanded.as_ref()
    }

    /// Ends the group for good; returns whether it was not over before.
    pub fn disband(&mut self, failure: &Failure) -> bool {
        let is_first = self.disbanded.is_none();
        self.disbanded.get_or_insert_with(|| failure.clone());
        is_first
    }
}

/// Returns the id of a group: 64 bits of the SHA-256 of its facts, so that nobody finds a group
/// with the id of another, or of a job.
pub(in crate::engine) fn membership_group_id(facts: &GroupFacts) -> GroupId {
    let mut text = Vec::new();
    if mutant::is_mutant_active(Mutant::MixGroups) {
        GroupFacts { place: 0, ..facts.clone() }.write_to(&mut text);
    } else {
        facts.write_to(&mut text);
    }
    let digest = digest::digest(&digest::SHA256, &text);
    let mut id = [0; GroupId::BYTES];
    id.copy_from_slice(&digest.as_ref()[..GroupId::BYTES]);
    // 0 marks messages of no job.
    GroupId(u64::from_be_bytes(id).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(place: u64, ranks: &[u32]) -> GroupFacts {
        let ranks = ranks.iter().copied().map(RankId).collect();
        GroupFacts { job: GroupId(7), parent: GroupId(7), place, ranks }
    }

    #[test]
    fn groups_that_differ_in_a_fact_have_other_ids() {
        let id = |facts: &GroupFacts| membership_group_id(facts);
        let one = facts(1, &[0, 2]);
        assert_eq!(id(&one), id(&facts(1, &[0, 2])));
        let nested = GroupFacts { parent: GroupId(9), ..one.clone() };
        let of_other = GroupFacts { job: GroupId(8), ..one.clone() };
        for other in [facts(2, &[0, 2]), facts(1, &[0, 3]), nested, of_other] {
            assert_ne!(id(&one), id(&other), "{other:?}");
        }
    }

    #[test]
    fn a_group_is_left_once_nobody_takes_part() {
        let mut members = GroupMembership::new(facts(1, &[0, 1, 2]), BootId(1), BTreeSet::new());
        let peer = |boot, takes_part| PeerMember { boot: BootId(boot), takes_part };
        assert!(members.enter(RankId(0)) && !members.enter(RankId(1)));
        assert_eq!(members.note_peer(GatewayId(1), peer(5, true)), PeerChange::First);
        assert!(!members.leave(RankId(0)) && members.leave(RankId(1)) && !members.is_left());
        assert_eq!(members.note_peer(GatewayId(1), peer(5, false)), PeerChange::Same);
        assert!(members.is_left());
        assert_eq!(members.note_peer(GatewayId(1), peer(6, true)), PeerChange::MadeAgain);
        assert!(!members.is_left());
        members.keep_reachable(|_| false);
        assert!(members.is_left());
    }
}
