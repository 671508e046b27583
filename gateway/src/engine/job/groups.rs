//! The groups of a job that its ranks make at run time.
//!
//! The event loop hands a job what its ranks and other gateways say about groups. A group is a session
//! over the part of the fabric that has its ranks (`group`). It begins its epoch once all gateways of
//! it know of it, whether or not their ranks have made it: one round trip.

use super::Job;
use super::group::Group;
use super::group_plans::{PlanLimits, UNSOLICITED_BYTES_MAX};
use super::membership::{
    GroupMaking, GroupMembership, Leaving, PeerChange, PeerMember, group_id_of_facts,
};
use super::shared::EngineShared;
use crate::events::{Event, GROUPS_MAX, GroupNumber};
use hier_collectives::ids::{BootId, GatewayId, GroupId, RankId};
use hier_collectives::plan::{Plan, PlanError};
use hier_collectives::post::{Failure, FailureCode, RankEvent};
use hier_collectives::session::{PeerError, SessionConfig, SessionShare};
use hier_collectives::size_class::SizeClass;
use hier_collectives::topology::GroupFabric;
use hier_collectives::wire::{GroupFacts, Message};
use std::sync::Arc;
use tokio::sync::oneshot;
use units::{ByteCount, TimeNs};

/// 1,024 groups: the most that a job remembers as left by a rank, so that a late message of a gateway
/// that has not heard of it contradicts no new group. The oldest is forgotten first.
const RECENTLY_LEFT_GROUPS_MAX: usize = 1024;

/// 16 ranks: the most that a text about a group names.
const NAMED_RANKS_MAX: usize = 16;

/// 256 groups: the most that a job keeps though all have left them. The oldest is freed first.
const LEFT_GROUPS_MAX: usize = 256;

impl Job {
    /// Puts a rank of this gateway into the group that it makes, which is new here or known already.
    /// A group that cannot be made is over for the rank at once.
    pub fn make_group(&mut self, making: GroupMaking, shared: &EngineShared, now: TimeNs) {
        let GroupMaking { rank, number, parent, place, ranks } = making;
        let Some(parent) = self.ranks.group(rank, parent) else { return };
        let facts = GroupFacts { job: self.world.id, parent, place, ranks };
        let id = group_id_of_facts(&facts);
        let failure = if self.ranks.is_in_group(rank, id) {
            let text = format!(
                "rank {rank} made {} twice; leave it first, or give another tag",
                group_text(&facts)
            );
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
        self.begin_or_tell(id, began, shared, now);
        self.disband_if_contradicted(id, shared, now);
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
            self.remove_from_group((rank, Leaving::ByItself), id, shared, now);
        }
    }

    /// Removes a rank of this gateway from a group.
    pub fn remove_from_group(
        &mut self,
        (rank, leaving): (RankId, Leaving),
        id: GroupId,
        shared: &EngineShared,
        now: TimeNs,
    ) {
        let Some(group) = self.group_mut(id) else { return };
        let Some(membership) = &mut group.membership else { return };
        let ended = membership.leave(rank);
        self.lately_left.push_back((rank, id));
        if self.lately_left.len() > RECENTLY_LEFT_GROUPS_MAX {
            self.lately_left.pop_front();
        }
        let Some(group) = self.group_mut(id) else { return };
        if let Some(rank) = group.rank_in_session(rank) {
            match leaving {
                Leaving::ByItself => group.session.handle_leave(rank),
                Leaving::Gone => group.session.handle_detach(rank, now),
            }
        }
        if ended {
            self.tell_group(id, shared);
        }
    }

    /// Notes what another gateway says about a group. A group in which it takes part is made here,
    /// unless there are too many.
    ///
    /// # Errors
    /// [`PeerError::NotYours`]: the group has no rank of that gateway.
    pub fn handle_peer_member(
        &mut self,
        from: GatewayId,
        (id, facts): (GroupId, GroupFacts),
        said: PeerMember,
        shared: &EngineShared,
        now: TimeNs,
    ) -> Result<(), PeerError> {
        let theirs = &self.world.session.fabric().gateway(from).ranks;
        if !facts.ranks.iter().any(|rank| theirs.contains(&rank.0)) {
            return Err(PeerError::NotYours("the facts of a group"));
        }
        if self.groups.contains_key(&id) {
            self.note_peer_member(from, id, said, now);
        } else if said.takes_part {
            self.join_peer_group(from, (id, facts), said, shared, now);
        }
        Ok(())
    }

    /// Makes a group in which another gateway takes part, or tells it that this cannot be done.
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
        self.begin_or_tell(id, false, shared, now);
        self.disband_if_contradicted(id, shared, now);
    }

    /// Notes what another gateway says about a group that is known here.
    fn note_peer_member(&mut self, from: GatewayId, id: GroupId, said: PeerMember, now: TimeNs) {
        let Some(group) = self.group_mut(id) else { return };
        let Some(member) = group.member(from) else { return };
        let Some(membership) = &mut group.membership else { return };
        let change = membership.note_peer(from, said);
        match change {
            // Messages to it may have come before it knew of the group.
            PeerChange::First => group.session.handle_lane_lost(member),
            PeerChange::MadeAgain => group.session.handle_peer_made_again(member, now),
            PeerChange::Same => {}
        }
    }

    /// Ends a group for good, as another gateway says. A job is never ended so.
    ///
    /// # Errors
    /// [`PeerError::NotYours`]: the group has no rank of that gateway.
    pub fn handle_peer_disband(
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

    /// Ends a group for good.
    pub(super) fn disband_group(&mut self, id: GroupId, failure: &Failure, now: TimeNs) {
        let Some(group) = self.group_mut(id) else { return };
        if group.membership.as_mut().is_some_and(|membership| membership.disband(failure)) {
            group.session.handle_disband(failure, now);
        }
    }

    /// Removes a group that nobody takes part in, once nothing uses its memory and no rank is likely to
    /// make it again.
    pub(super) fn free_if_left(&mut self, id: GroupId, now: TimeNs) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Some(membership) = &mut group.membership else { return };
        if !membership.is_left() {
            if let Some(since) = group.left_since.take() {
                self.left_groups.remove(&(since, id));
            }
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
        let is_in_epoch = group.session.plan().is_some() && membership.disbanded().is_none();
        let since = *group.left_since.get_or_insert(now);
        self.left_groups.insert((since, id));
        let is_over = group.kept_until().is_none_or(|until| now >= until);
        if !is_in_epoch || is_over {
            self.free_group(id);
        } else if self.left_groups.len() > LEFT_GROUPS_MAX
            && let Some((_, oldest)) = self.left_groups.first().copied()
        {
            self.free_group(oldest);
        }
    }

    /// Removes a group that nobody takes part in, and of which nothing is under way.
    fn free_group(&mut self, id: GroupId) {
        let Some(group) = self.groups.remove(&id) else { return };
        self.last_epoch = self.last_epoch.max(group.session.epoch_number());
        self.scratch_bytes -= group.counted_scratch_bytes;
        if let Some(deadline) = group.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        if let Some(since) = group.left_since {
            self.left_groups.remove(&(since, id));
        }
    }

    /// Makes the session of a group, unless it is known.
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
        if self.group_count() >= GROUPS_MAX {
            let text = format!("job {} has {GROUPS_MAX} groups already; leave some", self.name);
            return Err(bad(text));
        }
        let whole = self.world.session.fabric();
        let part = GroupFabric::of_ranks(whole, &facts.ranks)
            .map_err(|error| bad(format!("{}: {error}", group_text(&facts))))?;
        let Ok(index) = part.gateways.binary_search(&self.settings.me) else {
            return Err(bad(format!("{} has no rank of this gateway", group_text(&facts))));
        };
        // The first gateway of the group makes its plan, which may take a while.
        let plan = self.plans.plan(&part.gateways).filter(|_| index == 0).cloned();
        let is_plan_due = index == 0 && plan.is_none();
        let random = shared.host.random_bytes();
        let boot = BootId(u64::from_le_bytes(random[..8].try_into().expect("8 of 32 bytes")));
        let config = SessionConfig {
            fabric: Arc::new(part.fabric),
            me: GatewayId(u16::try_from(index).unwrap_or(u16::MAX)),
            gateways: part.gateways,
            boot,
            plan,
            partials: ByteCount::default(),
            one_in: self.settings.one_in,
            last_epoch: self.last_epoch,
            unsolicited_max: UNSOLICITED_BYTES_MAX,
        };
        let left = self.lately_left.iter().filter(|(_, group)| *group == id);
        let left = left.map(|(rank, _)| *rank).collect();
        let membership = Some(GroupMembership::new(facts, boot, left));
        let mapped = self.metrics.mapped.clone();
        let group = Group::of_session(self.world.id, id, config, membership, mapped);
        self.groups.insert(id, group);
        self.touched.insert(id);
        if is_plan_due {
            self.plan_group(id, shared);
        }
        Ok(())
    }

    /// Lets the session of a new group meet the gateways that can be reached, or tells them that
    /// this gateway takes part now.
    fn begin_or_tell(&mut self, id: GroupId, began: bool, shared: &EngineShared, now: TimeNs) {
        let graph = Arc::clone(shared.peers.graph());
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

    /// Tells the other gateways of a group whether this one takes part.
    pub(super) fn tell_group(&self, id: GroupId, shared: &EngineShared) {
        let Some(group) = self.groups.get(&id) else { return };
        for to in group.other_gateways(self.settings.me) {
            self.introduce_group(id, to, shared);
        }
    }

    /// Ends groups of one place that contradict each other: a rank of this gateway makes one group at
    /// each place, so some ranks name other ranks than it does. The group that the rank is in goes on
    /// here; gateways of ranks that made the other one end it. So a rank that is late by many groups
    /// ends nothing for others.
    fn disband_if_contradicted(&mut self, id: GroupId, shared: &EngineShared, now: TimeNs) {
        let own = self.world.session.fabric().gateway(self.settings.me).ranks.clone();
        let Some(new) = self.groups.get(&id).and_then(|group| group.membership.as_ref()) else {
            return;
        };
        let facts = new.facts.clone();
        let contradicted = |(other_id, other): (&GroupId, &GroupMembership)| {
            let is_same_place = (other.facts.parent, other.facts.place)
                == (facts.parent, facts.place)
                && other.facts.ranks != facts.ranks;
            let is_over = other.disbanded().is_some() || other.is_left();
            let awaited = |rank: &&RankId| {
                own.contains(&rank.0) && new.awaits(**rank) && other.awaits(**rank)
            };
            let awaited = || facts.ranks.iter().filter(awaited);
            if !is_same_place || is_over {
                return None;
            }
            let ended = [
                awaited().any(|rank| new.has_entered(*rank)).then_some(*other_id),
                awaited().any(|rank| other.has_entered(*rank)).then_some(id),
            ];
            Some((ended, contradiction_failure(&facts, &other.facts)))
        };
        let others = self.groups.iter();
        let others = others.filter_map(|(id, group)| Some((id, group.membership.as_ref()?)));
        let contradicted: Vec<_> = others.filter_map(contradicted).collect();
        for (ended, failure) in contradicted {
            for id in ended.into_iter().flatten() {
                self.disband_group(id, &failure, now);
                self.tell_group(id, shared);
            }
        }
    }
}

/// The memory and the plans of groups.
impl Job {
    /// Takes up that a group has work under way, has more or less of it, or has none. Its collectives
    /// fail if there is no memory for them.
    pub(super) fn note_work(&mut self, id: GroupId, now: TimeNs) {
        let is_job = id == self.world.id;
        let class = self.untouched_group(id).and_then(|group| group.session.largest_class());
        match class {
            None if !self.memory.end_work(id) => return,
            None => {
                let share = SessionShare::without_work(self.settings.one_in);
                self.set_group_share(id, share, now);
            }
            Some(class) => {
                // The memory of the job's own windows includes its least one.
                let is_large = class > SizeClass::Small && !is_job;
                let group = self.untouched_group(id).filter(|_| is_large);
                let least = group.map_or(0, |group| group.least_memory().get());
                if !self.memory.begin_work(id, least) {
                    return self.refuse_work(id, now);
                }
                if self.memory.owes(id)
                    && let Some(held) = self.untouched_group(id).map(|of| of.session.held_bytes())
                {
                    self.memory.note_held(id, held);
                }
            }
        }
        self.share_memory(now);
    }

    /// Tells the sessions of groups with work under way their shares of memory and links, where these
    /// have changed.
    pub(super) fn share_memory(&mut self, now: TimeNs) {
        for (id, part) in self.memory.divide() {
            let has_partials = self.untouched_group(id).is_some_and(|group| group.has_partials());
            let share = self.memory.share(part, self.settings.one_in, has_partials);
            self.set_group_share(id, share, now);
        }
    }

    /// Sets the share of one group, whose session may ask for actions then.
    fn set_group_share(&mut self, id: GroupId, share: SessionShare, now: TimeNs) {
        if let Some(group) = self.group_mut(id) {
            group.session.set_share(share, now);
        }
    }

    /// Fails the collectives of a group, since other groups need the memory.
    fn refuse_work(&mut self, id: GroupId, now: TimeNs) {
        let text = format!(
            "{} groups of job {} have operations under way, and the memory of gateway {} holds no \
             more; wait for some of them, or raise `memory` in its region file",
            self.memory.group_count(),
            self.name,
            self.world.session.fabric().gateway(self.settings.me).name
        );
        if let Some(group) = self.group_mut(id) {
            let failure = Failure::new(FailureCode::BadPost, text);
            group.session.handle_memory_shortage(failure, now);
        }
    }

    /// Makes the plan of a group whose first gateway this is, on a blocking thread, since a large group
    /// takes a while. The plan comes back as an event.
    pub(super) fn plan_group(&mut self, id: GroupId, shared: &EngineShared) {
        self.plans.waiting.push_back(id);
        self.plan_next_group(shared);
    }

    /// Takes the plan that was made for a group, and those that it serves, too. A group that has no plan
    /// is over.
    pub fn handle_group_planned(
        &mut self,
        id: GroupId,
        planned: Result<Plan, PlanError>,
        shared: &EngineShared,
        now: TimeNs,
    ) {
        self.plans.is_planning = false;
        let gateways = self.groups.get(&id).map(|group| group.gateways.clone());
        match (planned, gateways) {
            (Ok(plan), Some(gateways)) => {
                self.plans.add_plan(gateways, plan.clone());
                if let Some(group) = self.group_mut(id) {
                    group.session.handle_own_plan(plan, now);
                }
            }
            (Err(error), Some(_)) => {
                let failure = Failure::new(FailureCode::BadPost, error.to_string());
                self.disband_group(id, &failure, now);
                self.tell_group(id, shared);
            }
            (_, None) => {}
        }
        let waiting = std::mem::take(&mut self.plans.waiting);
        for id in waiting {
            let gateways = self.groups.get(&id).map(|group| &group.gateways);
            let Some(plan) = gateways.map(|gateways| self.plans.plan(gateways).cloned()) else {
                continue;
            };
            match (plan, self.group_mut(id)) {
                (Some(plan), Some(group)) => group.session.handle_own_plan(plan, now),
                _ => self.plans.waiting.push_back(id),
            }
        }
        self.plan_next_group(shared);
    }

    /// Makes the plan of the next group that waits for one, unless a plan is being made.
    fn plan_next_group(&mut self, shared: &EngineShared) {
        let limits =
            PlanLimits { segment: self.settings.segment, memory: self.memory.least_of_group() };
        while let Some(id) = self.plans.next_waiting() {
            let Some(group) = self.groups.get(&id) else { continue };
            self.plans.is_planning = true;
            let (part, job, events) = (group.shared_fabric(), self.world.id, shared.events.clone());
            let (done, planned) = oneshot::channel();
            let planning = shared.host.run_blocking(Box::new(move || {
                let _ = done.send(limits.make_plan(&part));
            }));
            shared.host.spawn(Box::pin(async move {
                let event = match (planning.await, planned.await) {
                    (Ok(()), Ok(plan)) => Event::GroupPlanned { job, group: id, plan },
                    _ => Event::TaskPanicked,
                };
                let _ = events.send(event).await;
            }));
            return;
        }
    }
}

/// Makes the failure of two groups at one place, with one text on all gateways.
fn contradiction_failure(one: &GroupFacts, other: &GroupFacts) -> Failure {
    let (one, other) = if one.ranks < other.ranks { (one, other) } else { (other, one) };
    let text = format!(
        "ranks disagree on a group: some made {}, others {}, at one place of its parent; let all \
         ranks of the parent make groups in one order, or give each group a tag",
        group_text(one),
        group_text(other)
    );
    Failure::new(FailureCode::Disagreement, text)
}

/// Returns a group in words.
pub(super) fn group_text(facts: &GroupFacts) -> String {
    let named: Vec<String> =
        facts.ranks.iter().take(NAMED_RANKS_MAX).map(RankId::to_string).collect();
    let more = facts.ranks.len().saturating_sub(NAMED_RANKS_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("the group of ranks {}{more}", named.join(", "))
}
