//! A job leaves and enters terms: the ranks that it goes on with.
//!
//! In a term of all regions the world is the job's own session. In a smaller term it is a session
//! over the part of the fabric with the ranks of the term's regions, like that of a group. One
//! world is in force at a time; those before finish what is under way, and enter no epoch.

use super::Job;
use super::engine_shared::EngineShared;
use super::group_plans::GroupPlans;
use super::group_session::GroupSession;
use hier_collectives::ids::{GatewayId, GroupId, RankId};
use hier_collectives::membership::Term;
use hier_collectives::mesh::MeshGraph;
use hier_collectives::plan::Plan;
use hier_collectives::post::{Failure, FailureCode};
use hier_collectives::session::{InDoubtCommits, SessionConfig};
use hier_collectives::topology::{Fabric, GroupFabric};
use ring::digest;
use std::sync::Arc;
use tracing::error;
use units::{ByteCount, TimeNs};

impl Job {
    /// Suspends the job's own session before the first term.
    pub fn await_first_term(&mut self) {
        self.world.session.suspend_before_start();
    }

    /// Leaves the world in force: collectives under way fail with `failure`.
    pub fn leave_term(&mut self, failure: &Failure, now: TimeNs) {
        let id = self.current_world().id;
        self.touched.insert(id);
        if let Some(world) = self.untouched_group(id) {
            world.session.handle_suspend(failure.clone(), now);
        }
    }

    /// Takes over a fabric with other rates, round trips or losses while no epoch of the job's ranks is
    /// under way. Groups that exist keep theirs; those that are made later have this one.
    pub fn replace_fabric(&mut self, fabric: &Arc<Fabric>, plan: &Plan, partials: ByteCount) {
        self.world.session.replace_fabric(Arc::clone(fabric), plan.clone());
        self.plans = GroupPlans::default();
        self.stragglers.replace_fabric(Arc::clone(fabric));
        self.settings.partials.set_total(partials);
    }

    /// Enters epochs of all ranks again, after the job was out of the region file.
    pub fn go_on_with_all_ranks(&mut self, graph: &Arc<MeshGraph>, now: TimeNs) {
        let session = &mut self.world.session;
        let (progress, in_doubt) = (session.progress(), session.take_commits_in_doubt());
        session.handle_resume(0, progress, in_doubt, graph, now);
    }

    /// Puts the world of a term in force, which goes on where those before have ended. Attached
    /// ranks hear of it before its first epoch. Nothing changes while the job drains, or if the
    /// term's world cannot be made.
    pub fn enter_term(
        &mut self,
        term: &Term,
        graph: &Arc<MeshGraph>,
        shared: &EngineShared,
        now: TimeNs,
    ) {
        if self.world.session.is_draining() {
            return;
        }
        let before = self.current_world().id;
        let sessions = self.terms.parts.values().chain([&self.world]);
        let ended = std::mem::take(&mut self.terms.progress);
        let progress = sessions.map(|world| world.session.progress()).fold(ended, |a, b| a.max(b));
        self.terms.progress = progress.clone();
        let fabric = self.world.session.fabric();
        let id = if term.regions.len() == fabric.regions().len() {
            self.terms.current = None;
            self.world.id
        } else {
            let id = term_world_id(self.world.id, term);
            // A job that was out of the region file for a while goes on in the world that it has.
            if !self.terms.parts.contains_key(&id) {
                let Some(part) = self.make_term_world(term, shared) else { return };
                self.terms.parts.insert(id, part);
            }
            self.terms.current = Some(id);
            id
        };
        self.ranks.set_world(id);
        if id != before {
            for rank in self.ranks.ids().collect::<Vec<_>>() {
                self.tell_world(rank);
            }
        }
        let attached: Vec<RankId> = self.ranks.ids().collect();
        self.touched.insert(id);
        let is_part = id != self.world.id;
        let worlds = self.terms.parts.values_mut().chain([&mut self.world]);
        let in_doubt = worlds.map(|world| world.session.take_commits_in_doubt());
        let in_doubt = in_doubt.fold(InDoubtCommits::default(), InDoubtCommits::later_of);
        let Some(world) = self.untouched_group(id) else { return };
        for rank in attached.into_iter().filter(|_| is_part) {
            if let Some(rank) = world.rank_in_session(rank) {
                world.session.handle_attach(rank, now);
            }
        }
        world.session.handle_resume(term.id.number, progress, in_doubt, graph, now);
    }

    /// Removes a world of some ranks that is not in force and has finished its collectives under
    /// way.
    pub(super) fn free_term_world_if_over(&mut self, id: GroupId) {
        let is_current = self.terms.current == Some(id);
        let is_over = |part: &GroupSession| part.session.is_idle();
        if is_current || !self.terms.parts.get(&id).is_some_and(is_over) {
            return;
        }
        let Some(part) = self.terms.parts.remove(&id) else { return };
        let progress = std::mem::take(&mut self.terms.progress);
        self.terms.progress = progress.max(part.session.progress());
        self.scratch_bytes -= part.counted_scratch_bytes;
        if let Some(deadline) = part.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        self.ranks.forget_world(id);
    }

    /// Makes the world of a term without some regions; `None` if the regions left make none, or
    /// this gateway is in none of them.
    fn make_term_world(&mut self, term: &Term, shared: &EngineShared) -> Option<GroupSession> {
        let whole = self.world.session.fabric();
        let of_regions = term.regions.iter().flat_map(|id| whole.region(*id).ranks.clone());
        let ranks: Vec<RankId> = of_regions.map(RankId).collect();
        let part = GroupFabric::of_ranks(whole, &ranks);
        let planned = part.map_err(|error| error.to_string()).and_then(|part| {
            let plan = self.plan_of_group(&part).map_err(|error| error.to_string())?;
            Ok((part, plan))
        });
        let (part, plan) = match planned {
            Ok(planned) => planned,
            Err(why) => {
                error!(job = %self.name, "job {}: no world of term {}: {why}", self.name, term.id.number);
                return None;
            }
        };
        let index = part.gateways.binary_search(&self.settings.me).ok()?;
        let random = shared.host.random_bytes();
        let boot = u64::from_le_bytes(random[..8].try_into().expect("8 of 32 bytes"));
        let config = SessionConfig {
            fabric: Arc::new(part.fabric),
            me: GatewayId(u16::try_from(index).unwrap_or(u16::MAX)),
            gateways: part.gateways,
            boot: hier_collectives::ids::BootId(boot),
            plan,
            partials: self.settings.partials.clone(),
            one_in: self.settings.one_in,
            last_epoch: self.last_epoch,
            leaves_doubt: true,
            unsolicited_max: ByteCount::new(u64::MAX),
        };
        let id = term_world_id(self.world.id, term);
        Some(GroupSession::of_session(self.world.id, id, config, None, self.metrics.mapped.clone()))
    }
}

/// Makes the failure of collectives under way when the regions that can be reached are no quorum.
/// It serves where the session does not fail them itself, for a reason of its own.
pub(in crate::engine) fn lost_quorum_term_failure() -> Failure {
    let text = "the regions that can be reached are no quorum; contribution intact, the next epoch \
                begins when enough of them are back";
    Failure::new(FailureCode::RegionLost, text)
}

/// Returns the id of a job's world in a term: 64 bits of the SHA-256 of job and term.
fn term_world_id(job: GroupId, term: &Term) -> GroupId {
    let mut text = b"term".to_vec();
    text.extend(job.0.to_be_bytes());
    term.write_to(&mut text);
    let digest = digest::digest(&digest::SHA256, &text);
    let mut id = [0; GroupId::BYTES];
    id.copy_from_slice(&digest.as_ref()[..GroupId::BYTES]);
    // 0 marks messages of no job.
    GroupId(u64::from_be_bytes(id).max(1))
}
