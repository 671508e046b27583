//! The groups of a job that its ranks make at run time.
//!
//! The event loop hands a job what its ranks and other gateways say about groups. A group is a
//! session over the part of the fabric that has its ranks (`group_session`). It begins its epoch
//! once all gateways of it know of it, whether or not their ranks have made it: one round trip. Where
//! two ranks send to each other, gateways on the way pass data on, and take no part themselves.

use super::Job;
use super::engine_shared::EngineShared;
use super::group_membership::{
    GroupMaking, GroupMembership, PeerChange, PeerMember, membership_group_id,
};
use super::group_session::GroupSession;
use super::send_pairs::SEND_PAIRS_MAX;
use crate::events::{AttachmentId, GROUPS_MAX, GroupNumber, GroupPlace};
use hier_collectives::ids::{BootId, GatewayId, GroupId, RankId};
use hier_collectives::plan::{self, Plan};
use hier_collectives::post::{Failure, FailureCode, RankEvent};
use hier_collectives::session::{PeerError, SessionConfig};
use hier_collectives::topology::{GroupFabric, GroupFabricError};
use hier_collectives::wire::{GroupFacts, Message};
use std::num::NonZeroU64;
use std::sync::Arc;
use units::{ByteCount, TimeNs};

/// 64 KiB: the most bytes that a peer may send to a group before its ranks have posted; then the
/// peer waits for a grant. While all 4,096 groups of a job wait, they hold at most 256 MiB of each
/// peer; all 32,768 pairs that send hold at most 2 GiB. A peer that exceeds the bound of docs/protocol.md section 3 ends the group's epoch.
const UNSOLICITED_BYTES_MAX: ByteCount = ByteCount::new(64 << 10);

/// 1,024 departures of a rank from a group: the most that a job remembers; at one more the oldest
/// is forgotten. A late message about a group whose departure is forgotten may end a new group, as
/// if ranks disagreed on the new one's ranks.
const RECENTLY_LEFT_GROUPS_MAX: usize = 1024;

/// 16 ranks: the most that an error or a log line about a group names, so that the text stays
/// readable. Of further ranks the text says how many there are, and not which.
const NAMED_RANKS_MAX: usize = 16;

impl Job {
    /// Puts a rank of this gateway into the group that it makes, which is new here or known
    /// already. If the group cannot be made, or is over, the rank is told that it is disbanded.
    pub fn make_group(&mut self, making: GroupMaking, shared: &EngineShared, now: TimeNs) {
        let GroupMaking { rank, number, parent, place, ranks } = making;
        let Some(parent) = self.ranks.group(rank, parent) else { return };
        let facts = GroupFacts { job: self.world.id, parent, place, ranks };
        let id = membership_group_id(&facts);
        self.remove_group_that_lost_a_gateway(id);
        let failure = if self.ranks.is_in_group(rank, id) {
            let text = format!(
                "rank {rank} made {} twice; leave it first, or give another tag",
                group_text(&facts)
            );
            Some(Failure::new(FailureCode::BadPost, text))
        } else if self.ranks.group_count(rank) > GROUPS_MAX {
            let text = format!("rank {rank} is in {GROUPS_MAX} groups already; leave some");
            Some(Failure::new(FailureCode::BadPost, text))
        } else if let Some(failure) = self.counted_group_failure(&facts) {
            Some(failure)
        } else {
            self.add_group(id, facts, shared).err()
        };
        if let Some(failure) = failure {
            return self.ranks.notify_number(rank, number, RankEvent::Disbanded { failure });
        }
        self.ranks.enter_group(rank, number, id);
        self.lately_left.retain(|left| *left != (rank, id));
        let Some(group) = self.group_mut(id) else { return };
        let Some(membership) = &mut group.membership else { return };
        let began = membership.enter(rank);
        let disbanded = membership.disbanded().cloned();
        if let Some(failure) = disbanded {
            return self.ranks.notify(rank, id, RankEvent::Disbanded { failure });
        }
        if let Some(rank) = group.rank_in_session(rank) {
            group.session.handle_attach(rank, now);
        }
        self.begin_or_tell_group(id, began, shared, now);
        self.disband_contradicted_groups(id, shared, now);
    }

    /// Removes a rank of this gateway from a group that it knows by `number`.
    pub fn leave_group(
        &mut self,
        rank: RankId,
        number: GroupNumber,
        shared: &EngineShared,
        now: TimeNs,
    ) {
        if let Some(id) = self.ranks.leave_group(rank, number) {
            self.remove_from_group(rank, id, shared, now);
        }
    }

    /// Removes a rank of this gateway whose process has ended from all groups that may await it,
    /// whether or not the process had made them.
    pub fn remove_lost_rank(&mut self, rank: RankId, shared: &EngineShared, now: TimeNs) {
        for id in self.groups_with_membership(|membership| membership.may_await(rank)) {
            if let Some(group) = self.group_mut(id)
                && let Some(rank) = group.rank_in_session(rank)
            {
                group.session.handle_rank_loss(rank, now);
            }
            self.remove_from_group(rank, id, shared, now);
        }
    }

    /// Lets groups expect a rank of this gateway again, of which another process has attached.
    pub fn expect_rank_in_groups(&mut self, rank: RankId, now: TimeNs) {
        for id in self.groups_with_membership(|membership| membership.may_await(rank)) {
            if let Some(group) = self.group_mut(id)
                && let Some(rank) = group.rank_in_session(rank)
            {
                group.session.handle_rank_return(rank, now);
            }
        }
    }

    /// Returns the groups that ranks make at run time and whose membership satisfies `fits`.
    fn groups_with_membership(&self, fits: impl Fn(&GroupMembership) -> bool) -> Vec<GroupId> {
        let groups = self.groups.iter();
        let fitting = groups.filter(|(_, group)| group.membership.as_ref().is_some_and(&fits));
        fitting.map(|(id, _)| *id).collect()
    }

    /// Removes a rank of this gateway from a group made at run time, which it has left or is gone
    /// from. Tells the other gateways if this one takes part no more.
    fn remove_from_group(&mut self, rank: RankId, id: GroupId, shared: &EngineShared, now: TimeNs) {
        let Some(group) = self.group_mut(id) else { return };
        let Some(membership) = &mut group.membership else { return };
        if !membership.has_made(rank) {
            return;
        }
        let ended = membership.leave(rank);
        self.lately_left.push_back((rank, id));
        if self.lately_left.len() > RECENTLY_LEFT_GROUPS_MAX {
            self.lately_left.pop_front();
        }
        let Some(group) = self.group_mut(id) else { return };
        if let Some(rank) = group.rank_in_session(rank) {
            group.session.handle_detach(rank, now);
        }
        if ended {
            self.tell_group_that_all_left(id, shared);
        }
    }

    /// Tells all other gateways of a group that this one takes part in it no more. If it is over, they
    /// have heard why; ranks elsewhere may have made it again since.
    fn tell_group_that_all_left(&self, id: GroupId, shared: &EngineShared) {
        let Some(group) = self.groups.get(&id) else { return };
        let Some(membership) = &group.membership else { return };
        for to in group.other_gateways(self.settings.me) {
            shared.peers.send_group_message(to, (self.world.id, id), &membership.member_message());
        }
    }

    /// Notes what another gateway says about a group. A group in which it takes part is made here,
    /// if that is possible.
    ///
    /// # Errors
    /// [`PeerError::NotYours`]: the group has no rank of that gateway, and is not of two ranks whose
    /// sends it may pass on.
    pub fn handle_group_member(
        &mut self,
        from: GatewayId,
        (id, facts): (GroupId, GroupFacts),
        said: PeerMember,
        shared: &EngineShared,
        now: TimeNs,
    ) -> Result<(), PeerError> {
        let theirs = &self.world.session.fabric().gateway(from).ranks;
        let may_pass_on = GroupPlace(facts.place).is_pair() && !said.takes_part;
        if !may_pass_on && !facts.ranks.iter().any(|rank| theirs.contains(&rank.0)) {
            return Err(PeerError::NotYours("the facts of a group"));
        }
        let membership = self.groups.get(&id).and_then(|group| group.membership.as_ref());
        if said.takes_part && membership.is_some_and(|membership| membership.is_news(from, said)) {
            self.remove_group_that_lost_a_gateway(id);
        }
        if self.groups.contains_key(&id) {
            self.note_peer_in_group(from, id, said, now);
        } else if said.takes_part {
            self.join_peer_group(from, (id, facts), said, shared, now);
        }
        Ok(())
    }

    /// Makes a group in which another gateway takes part, or tells that gateway that the group is
    /// over, since it cannot be made here.
    fn join_peer_group(
        &mut self,
        from: GatewayId,
        (id, facts): (GroupId, GroupFacts),
        said: PeerMember,
        shared: &EngineShared,
        now: TimeNs,
    ) {
        let over = self.counted_group_failure(&facts).map_or(Ok(()), Err);
        if let Err(failure) = over.and_then(|()| self.add_group(id, facts, shared)) {
            let disband = Message::Disband { failure };
            return shared.peers.send_group_message(from, (self.world.id, id), &disband);
        }
        if let Some(membership) = self.group_mut(id).and_then(|group| group.membership.as_mut()) {
            membership.note_peer(from, said);
        }
        self.begin_or_tell_group(id, false, shared, now);
        self.disband_contradicted_groups(id, shared, now);
    }

    /// Notes what another gateway says about a group that is known here.
    fn note_peer_in_group(&mut self, from: GatewayId, id: GroupId, said: PeerMember, now: TimeNs) {
        let Some(group) = self.group_mut(id) else { return };
        let Some(member) = group.member(from) else { return };
        let Some(membership) = &mut group.membership else { return };
        let change = membership.note_peer(from, said);
        match change {
            // Messages to it may have come before it knew of the group.
            PeerChange::First => group.session.handle_connection_lane_lost(member),
            PeerChange::MadeAgain => group.session.handle_peer_made_again(member, now),
            PeerChange::Same => {}
        }
    }

    /// Ends a group for good, as another gateway says. A job is never ended so.
    ///
    /// # Errors
    /// [`PeerError::NotYours`]: the group has no rank of that gateway.
    pub fn handle_group_disband(
        &mut self,
        from: GatewayId,
        id: GroupId,
        failure: &Failure,
        now: TimeNs,
    ) -> Result<(), PeerError> {
        if self.groups.get(&id).is_some_and(|group| group.member(from).is_none()) {
            return Err(PeerError::NotYours("the end of a group"));
        }
        self.disband_group(id, failure, now);
        Ok(())
    }

    /// Ends a group for good: its work under way fails with `failure`, and no more can be posted.
    pub(super) fn disband_group(&mut self, id: GroupId, failure: &Failure, now: TimeNs) {
        let Some(group) = self.group_mut(id) else { return };
        if group.membership.as_mut().is_some_and(|membership| membership.disband(failure)) {
            group.session.handle_disband(failure, now);
        }
    }

    /// Removes a group that nobody takes part in. A group with work under way is first disbanded,
    /// which fails that work; a later call removes it.
    pub(super) fn free_group_if_left(&mut self, id: GroupId, now: TimeNs) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Some(membership) = &mut group.membership else { return };
        if !membership.is_left() {
            return;
        }
        if !group.session.is_idle() {
            let text =
                format!("all ranks have left {}; make it again", group_text(&membership.facts));
            let failure = Failure::new(FailureCode::EpochEnded, text);
            if membership.disband(&failure) {
                group.session.handle_disband(&failure, now);
                self.touched.insert(id);
            }
            return;
        }
        self.remove_group(id);
    }

    /// Removes a group in which nothing is under way.
    fn remove_group(&mut self, id: GroupId) {
        let Some(group) = self.groups.remove(&id) else { return };
        self.last_epoch = self.last_epoch.max(group.session.epoch_number());
        self.scratch_bytes -= group.counted_scratch_bytes;
        if let Some(deadline) = group.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        self.pairs.remove_pair(id);
        // What it moved last counts no more.
        self.touched.insert(id);
    }

    /// Removes a group that is over since a gateway of it shut down, or was lost before the group was
    /// made, so that its ranks can make it again. Those of the old one have been told, and make it
    /// again too.
    fn remove_group_that_lost_a_gateway(&mut self, id: GroupId) {
        let codes = [FailureCode::ShuttingDown, FailureCode::RegionLost];
        let lost_gateway = |failure: &Failure| codes.contains(&failure.code);
        let is_over = self.groups.get(&id).is_some_and(|group| {
            let membership = group.membership.as_ref();
            let disbanded = membership.and_then(GroupMembership::disbanded);
            disbanded.is_some_and(lost_gateway) && group.session.is_idle()
        });
        if is_over {
            self.remove_group(id);
        }
    }

    /// Returns the share of a link of the job and of each of its groups: equal parts, one `n`th.
    /// Idle groups count, too, since a share that changed with each collective would shorten the
    /// deadlines of those under way. Idle pairs of ranks that send do not.
    pub(super) fn link_share(&self) -> NonZeroU64 {
        let groups = self.groups.len() - self.pairs.pair_count() + self.pairs.busy_pairs();
        let parts = NonZeroU64::MIN.saturating_add(groups as u64);
        self.settings.one_in.saturating_mul(parts)
    }

    /// Makes the session of a group with these facts, unless this gateway knows it.
    ///
    /// # Errors
    /// [`Failure`]: the ranks make no group, or there are too many groups.
    fn add_group(
        &mut self,
        id: GroupId,
        facts: GroupFacts,
        shared: &EngineShared,
    ) -> Result<(), Failure> {
        if self.groups.contains_key(&id) {
            return Ok(());
        }
        let bad = |text: String| Failure::new(FailureCode::BadPost, text);
        if self.world.session.is_draining() {
            let text = format!("a gateway of {} is shutting down", group_text(&facts));
            return Err(Failure::new(FailureCode::ShuttingDown, text));
        }
        let is_pair = GroupPlace(facts.place).is_pair();
        self.check_group_room(is_pair).map_err(bad)?;
        if is_pair && facts.ranks.len() != 2 {
            return Err(bad(format!("{} is not one of two ranks", group_text(&facts))));
        }
        let whole = self.world.session.fabric();
        let part = match is_pair {
            true => GroupFabric::of_send(whole, &facts.ranks),
            false => GroupFabric::of_ranks(whole, &facts.ranks),
        };
        let part = part.map_err(|error| bad(impossible_group_text(&facts, &error)))?;
        let Ok(index) = part.gateways.binary_search(&self.settings.me) else {
            return Err(bad(format!("{} has no rank of this gateway", group_text(&facts))));
        };
        let plan = self.plan_of_group(&part).map_err(|error| bad(error.to_string()))?;
        let random = shared.host.random_bytes();
        let boot = BootId(u64::from_le_bytes(random[..8].try_into().expect("8 of 32 bytes")));
        let config = SessionConfig {
            leaves_doubt: false,
            fabric: Arc::new(part.fabric),
            me: GatewayId(u16::try_from(index).unwrap_or(u16::MAX)),
            gateways: part.gateways,
            boot,
            plan,
            partials: self.settings.partials.clone(),
            one_in: self.settings.one_in,
            last_epoch: self.last_epoch,
            unsolicited_max: UNSOLICITED_BYTES_MAX,
        };
        let left = self.lately_left.iter().filter(|(_, group)| *group == id);
        let left = left.map(|(rank, _)| *rank).collect();
        let membership = Some(GroupMembership::new(facts, boot, left));
        let mapped = self.metrics.mapped.clone();
        let group = GroupSession::of_session(self.world.id, id, config, membership, mapped);
        self.groups.insert(id, group);
        if is_pair {
            self.pairs.add_pair(id);
        }
        self.touched.insert(id);
        Ok(())
    }

    /// Checks that the job may have one more group, or one more pair of ranks that send.
    ///
    /// # Errors
    /// The text for the rank that asks for it.
    fn check_group_room(&self, is_pair: bool) -> Result<(), String> {
        let (name, pairs) = (&self.name, self.pairs.pair_count());
        if is_pair && pairs >= SEND_PAIRS_MAX {
            let text = format!("job {name} has {SEND_PAIRS_MAX} pairs of ranks that sent already");
            return Err(format!("{text}; send in a group of fewer ranks, and leave that"));
        }
        if !is_pair && self.groups.len() - pairs >= GROUPS_MAX {
            return Err(format!("job {name} has {GROUPS_MAX} groups already; leave some"));
        }
        Ok(())
    }

    /// Returns the plan of a group: that of an earlier group on the same gateways, or a new one. A
    /// new one is made in the engine's task, before this returns, and kept.
    pub(super) fn plan_of_group(&mut self, part: &GroupFabric) -> Result<Plan, plan::PlanError> {
        if let Some(plan) = self.plans.plan(&part.gateways) {
            return Ok(plan.clone());
        }
        let mut plan = plan::make_plan(&part.fabric)?;
        // Lanes hold streams of segments as long as those of the whole fabric.
        if plan.segment > self.settings.segment {
            plan = Plan { segment: self.settings.segment, ..plan }.with_express_limit(&part.fabric);
        }
        self.plans.add_plan(part.gateways.clone(), plan.clone());
        Ok(plan)
    }

    /// Begins the session of a new group with the gateways that can be reached. If the session has
    /// begun before, tells the group's gateways that this one takes part, where `began` says that
    /// it did not until now.
    fn begin_or_tell_group(
        &mut self,
        id: GroupId,
        began: bool,
        shared: &EngineShared,
        now: TimeNs,
    ) {
        let graph = Arc::clone(shared.peers.connection_graph());
        let Some(group) = self.group_mut(id) else { return };
        if group.has_begun {
            if began {
                self.tell_group(id, shared);
            }
            return;
        }
        group.has_begun = true;
        group.session.handle_connections(&graph, "", now);
        group.session.handle_start(now);
    }

    /// Sends all other gateways of a group whether this one takes part in it.
    pub fn tell_group(&self, id: GroupId, shared: &EngineShared) {
        let Some(group) = self.groups.get(&id) else { return };
        for to in group.other_gateways(self.settings.me) {
            self.introduce_group(id, to, shared);
        }
    }

    /// Ends a group, and others at its place, if a rank of this gateway belongs to two of them and
    /// has left neither. A rank makes one group at each place, so ranks disagree on the ranks of
    /// the group there. Groups of two ranks for sends are exempt.
    fn disband_contradicted_groups(&mut self, id: GroupId, shared: &EngineShared, now: TimeNs) {
        let own = self.world.session.fabric().gateway(self.settings.me).ranks.clone();
        let Some(new) = self.groups.get(&id).and_then(|group| group.membership.as_ref()) else {
            return;
        };
        let facts = new.facts.clone();
        if GroupPlace(facts.place).is_pair() {
            // A rank sends to many others, in a group with each.
            return;
        }
        let contradicts = |other: &GroupMembership| {
            let mut ours = facts.ranks.iter().filter(|rank| own.contains(&rank.0));
            (other.facts.parent, other.facts.place) == (facts.parent, facts.place)
                && other.facts.ranks != facts.ranks
                && ours.any(|rank| new.awaits(*rank) && other.awaits(*rank))
        };
        let others = self.groups.iter().filter_map(|(id, group)| {
            let membership = group.membership.as_ref()?;
            let is_over = membership.disbanded().is_some();
            (!is_over && contradicts(membership)).then(|| (*id, membership.facts.clone()))
        });
        let others: Vec<(GroupId, GroupFacts)> = others.collect();
        for (other, other_facts) in others {
            let failure = group_contradiction_failure(&facts, &other_facts);
            for id in [id, other] {
                self.disband_group(id, &failure, now);
                self.tell_group(id, shared);
            }
        }
    }

    /// Returns the number of groups that the job's ranks have made, without the job itself.
    pub fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// Returns whether this id is that of a world of the job, or of a group that its ranks have
    /// made.
    pub fn has_group(&self, id: GroupId) -> bool {
        self.is_world(id) || self.groups.contains_key(&id)
    }

    /// Returns a group or world of the job, and notes that actions of its session are to be
    /// performed; `None` for an unknown id.
    pub fn group_mut(&mut self, id: GroupId) -> Option<&mut GroupSession> {
        self.touched.insert(id);
        let share = self.link_share();
        let group = self.untouched_group(id)?;
        group.session.set_link_share(share);
        Some(group)
    }

    /// Returns a group or world of the job; `None` once it is gone.
    pub fn known_group(&self, id: GroupId) -> Option<&GroupSession> {
        if id == self.world.id {
            return Some(&self.world);
        }
        self.groups.get(&id).or_else(|| self.terms.parts.get(&id))
    }

    /// Returns a group or world of the job without noting that its session may have actions.
    pub(super) fn untouched_group(&mut self, id: GroupId) -> Option<&mut GroupSession> {
        if id == self.world.id {
            return Some(&mut self.world);
        }
        self.groups.get_mut(&id).or_else(|| self.terms.parts.get_mut(&id))
    }

    /// Calls `handle` with every world and group of the job, and notes that actions of their
    /// sessions are to be performed.
    pub fn for_each_group(&mut self, mut handle: impl FnMut(&mut GroupSession)) {
        self.touched.extend(self.groups.keys());
        self.touched.extend(self.terms.parts.values().map(|part| part.id));
        let share = self.link_share();
        let mut handle = |group: &mut GroupSession| {
            group.session.set_link_share(share);
            handle(group);
        };
        handle(&mut self.world);
        self.terms.parts.values_mut().for_each(&mut handle);
        self.groups.values_mut().for_each(handle);
    }

    /// Returns the group that a request of a rank is about; `None` if the attachment was replaced,
    /// or the rank knows no group by this number.
    pub(super) fn group_of_request(
        &self,
        rank: RankId,
        attachment: AttachmentId,
        number: GroupNumber,
    ) -> Option<GroupId> {
        let is_current = self.ranks.is_current_attachment(rank, attachment);
        self.ranks.group(rank, number).filter(|_| is_current)
    }

    /// Sends gateway `to` the messages by which it learns of a group of this job, or that this
    /// gateway serves the job.
    pub(super) fn introduce_group(&self, id: GroupId, to: GatewayId, shared: &EngineShared) {
        let membership = self.groups.get(&id).and_then(|group| group.membership.as_ref());
        let (of, messages) = match membership {
            Some(membership) => (id, membership.introduction()),
            None => (self.world.id, vec![self.introduction()]),
        };
        for message in messages {
            shared.peers.send_group_message(to, (self.world.id, of), &message);
        }
    }
}

/// Makes the failure of two groups at one place, with one text on all gateways.
fn group_contradiction_failure(one: &GroupFacts, other: &GroupFacts) -> Failure {
    let (one, other) = if one.ranks < other.ranks { (one, other) } else { (other, one) };
    let text = format!(
        "ranks disagree on a group: some made {}, others {}, at one place of its parent; let all \
         ranks of the parent make groups in one order, or give each group a tag",
        group_text(one),
        group_text(other)
    );
    Failure::new(FailureCode::Disagreement, text)
}

/// Returns the text of the failure of ranks that make no group, with advice where they have no way to
/// each other.
fn impossible_group_text(facts: &GroupFacts, error: &GroupFabricError) -> String {
    let advice = match error {
        GroupFabricError::Divided(_) => "; add a rank of a gateway on the way",
        _ => "",
    };
    format!("{}: {error}{advice}", group_text(facts))
}

/// Returns a group in words for errors and logs, by its ranks in the job.
pub(super) fn group_text(facts: &GroupFacts) -> String {
    let named: Vec<String> =
        facts.ranks.iter().take(NAMED_RANKS_MAX).map(RankId::to_string).collect();
    let more = facts.ranks.len().saturating_sub(NAMED_RANKS_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("the group of ranks {}{more}", named.join(", "))
}
