//! The members in the end, once everything has been whole for a while.

use super::event_schedule::{EventSchedule, Weather};
use super::members_run::{HEADWAY, MembersRun};
use gateway::observe::membership_report::MembershipReport;
use hier_collectives::ids::{GatewayId, RegionId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use units::Span;

/// 5 s: how long a region that joins in the end waits for a step's boundary.
const JOINS_WITHIN: Span = Span::from_secs(5);

/// Checks that all gateways agree on who takes part, that nobody is missing but regions that have left,
/// and that the ranks make headway. After a storm, in which requests may be forgotten or contradict each
/// other, the regions that have left join then, and all must take part.
pub(super) async fn judge_final_world(run: &mut MembersRun, schedule: &EventSchedule) {
    let found = FinalWorld::of_run(run, schedule.ranked).await;
    found.judge(run);
    if schedule.weather != Weather::Storm {
        found.judge_wishes(run);
    }
    found.judge_fabrics(run, schedule.weather).await;
    judge_headway(run, &found.members).await;
    if schedule.weather != Weather::Storm || found.members.len() == found.regions {
        return;
    }
    let first = found.reports.keys().find(|id| found.has(run, **id)).copied();
    for region in (0..found.regions as u16).map(RegionId) {
        if let Some(at) = first.filter(|_| !found.members.contains(&region)) {
            run.ask(at, region, false, JOINS_WITHIN).await;
        }
    }
    run.pass(JOINS_WITHIN + HEADWAY).await;
    let found = FinalWorld::of_run(run, schedule.ranked).await;
    found.judge(run);
    if found.members.len() < found.regions {
        run.judge.wrong(format!("not all take part after they joined: {found:?}"));
    }
    judge_headway(run, &found.members).await;
}

/// Checks that the ranks of these regions do steps.
async fn judge_headway(run: &mut MembersRun, members: &BTreeSet<RegionId>) {
    let fabric = Arc::clone(&run.world.fabric);
    let ranks = members.iter().flat_map(|region| fabric.region(*region).ranks.clone());
    let before: Vec<(u32, u64)> = ranks.map(|rank| (rank, run.judge.steps_done(rank))).collect();
    run.pass(HEADWAY).await;
    for (rank, before) in before {
        if run.judge.steps_done(rank) == before {
            run.judge.wrong(format!("rank {rank} makes no headway"));
        }
    }
}

/// The members, as the gateways with ranks see them.
#[derive(Debug)]
struct FinalWorld {
    reports: BTreeMap<GatewayId, MembershipReport>,
    /// The regions that go on together, as the first gateway says that goes on with others.
    members: BTreeSet<RegionId>,
    /// The number of regions with ranks.
    regions: usize,
}

impl FinalWorld {
    /// Asks the gateways with ranks, of which there are so many.
    async fn of_run(run: &MembersRun, ranked: u64) -> Self {
        let fabric = &run.world.fabric;
        let mut reports = BTreeMap::new();
        for id in fabric.gateway_ids().take(ranked as usize) {
            reports.insert(id, run.world.membership(id).await);
        }
        let number = |name: &String| {
            let place = fabric.regions().iter().position(|region| region.name == *name);
            RegionId(place.expect("a region") as u16)
        };
        let going_on = reports.values().find(|report| !report.members.is_empty());
        let members = going_on.map(|report| report.members.iter().map(number).collect());
        let regions = fabric.ranked_region_count();
        Self { members: members.unwrap_or_default(), reports, regions }
    }

    /// Whether a gateway's region goes on.
    fn has(&self, run: &MembersRun, id: GatewayId) -> bool {
        self.members.contains(&run.world.fabric.gateway(id).region)
    }

    /// Checks that the gateways agree, and that only regions which have left are missing.
    fn judge(&self, run: &MembersRun) {
        let name = |id: &RegionId| run.world.fabric.region(*id).name.clone();
        let members: Vec<String> = self.members.iter().map(name).collect();
        let all = (0..self.regions as u16).map(RegionId);
        let missing: Vec<String> =
            all.filter(|id| !self.members.contains(id)).map(|id| name(&id)).collect();
        for (id, report) in &self.reports {
            let is_right = match self.has(run, *id) {
                true => report.members == members && report.left == missing,
                false => report.members.is_empty(),
            };
            if !is_right || members.is_empty() {
                run.judge.wrong(format!("{id}: {members:?} take part in the end: {report:?}"));
            }
        }
    }

    /// Checks that the gateways that go on have one fabric, and none waits: but after a storm, in which the
    /// gateways that knew of it may have been killed, the last one that was accepted.
    async fn judge_fabrics(&self, run: &MembersRun, weather: Weather) {
        let mut fabrics = BTreeMap::new();
        for id in self.reports.keys().filter(|id| self.has(run, **id)) {
            fabrics.insert(*id, run.world.fabric_version(*id).await);
        }
        let first = fabrics.values().next().cloned().unwrap_or_default();
        let is_last = weather == Weather::Storm || first.version == run.fabric_version;
        if !is_last || fabrics.values().any(|other| *other != first || other.waiting.is_some()) {
            let last = run.fabric_version;
            run.judge.wrong(format!("not all have one fabric, the last is {last}: {fabrics:?}"));
        }
    }

    /// Checks that those take part whom the last requests say.
    fn judge_wishes(&self, run: &MembersRun) {
        let name = |id: &RegionId| run.world.fabric.region(*id).name.clone();
        let called_off = self.reports.values().flat_map(|report| &report.called_off);
        let called_off: BTreeSet<&String> = called_off.map(|leave| &leave.region).collect();
        let stays = |id: &RegionId| {
            let leaves = run.wishes.get(id).is_some_and(|leaves| *leaves);
            !leaves || called_off.contains(&name(id))
        };
        let all = (0..self.regions as u16).map(RegionId);
        let expected: BTreeSet<RegionId> = all.filter(stays).collect();
        if self.members != expected {
            run.judge.wrong(format!("{expected:?} take part in the end: {self:?}"));
        }
    }
}
