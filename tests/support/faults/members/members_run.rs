//! One run from beginning to end.

use super::event_schedule::{EventSchedule, MembersEvent};
use super::members_judge::MembersJudge;
use super::stepping_rank::SteppingRank;
use crate::Lab;
use crate::collectives::data::SplitMix64;
use crate::faults::judge::outcomes::RunSummary;
use crate::faults::spec::limits::Limits;
use crate::faults::timeline::Timeline;
use gateway::events::MembershipChange;
use hier_collectives::ids::{GatewayId, RankId};
use std::collections::BTreeMap;
use std::sync::Arc;
use units::Span;

/// 1 MiB: the arena of each rank.
const ARENA: u64 = 1 << 20;
/// 10 s: ranks that take part in the end have done a step within this time, which takes 1.2 s, and a change
/// that was asked for at last is made.
const HEADWAY: Span = Span::from_secs(10);

/// Plays the run of a seed; returns its summary and its events.
pub async fn play_members(seed: u64, timeline: Timeline, recording: bool) -> (RunSummary, String) {
    let _logs = recording.then(|| timeline.listen());
    let schedule = EventSchedule::draw(seed);
    let lab = schedule.mesh.start(seed).await;
    let judge = Arc::new(MembersJudge::new(!schedule.cuts));
    start_ranks(&lab, &schedule, seed, &judge).await;
    let mut run = MembersRun { lab, judge, timeline, wishes: BTreeMap::new(), cut: None };
    for (gap, event) in &schedule.events {
        run.lab.sleep(*gap).await;
        run.happen(*event).await;
    }
    run.lab.sleep(Span::from_secs(2)).await;
    run.happen(MembersEvent::Mend).await;
    let recovery = if schedule.cuts { Limits::of_the_page().recovery } else { HEADWAY };
    run.lab.sleep(recovery).await;
    run.judge_end(schedule.ranked).await;
    (run.judge.summary(), run.timeline.text())
}

/// Attaches all ranks and lets them run steps.
async fn start_ranks(lab: &Lab, schedule: &EventSchedule, seed: u64, judge: &Arc<MembersJudge>) {
    for (number, client) in (0..).zip(lab.clients(ARENA).await) {
        let rank = SteppingRank {
            number,
            client,
            host: Arc::clone(&lab.host),
            judge: Arc::clone(judge),
            dice: SplitMix64(seed ^ u64::from(number + 1) << 40),
            slips: schedule.slips,
        };
        lab.host.spawn(Box::pin(rank.run()));
    }
}

/// A run under way.
struct MembersRun {
    lab: Lab,
    judge: Arc<MembersJudge>,
    timeline: Timeline,
    /// Whether the last request for each region says that it leaves.
    wishes: BTreeMap<String, bool>,
    /// The gateway that is cut off.
    cut: Option<GatewayId>,
}

impl MembersRun {
    /// Lets an event happen.
    async fn happen(&mut self, event: MembersEvent) {
        self.timeline.say("EVENT", || format!("{event:?}"));
        let gateway = |number: u64| GatewayId(number as u16);
        match event {
            MembersEvent::Ask { at, region, leaves, within } => {
                let at = gateway(at);
                if self.cut != Some(at) {
                    self.ask(at, gateway(region), leaves, within).await;
                }
            }
            MembersEvent::CutOff(number) => {
                self.mend();
                self.cut = Some(gateway(number));
                let others = self.lab.fabric.gateway_ids().filter(|id| *id != gateway(number));
                others.for_each(|id| self.lab.set_outage_between(gateway(number), id, true));
                self.judge.happened("gateway cut off");
            }
            MembersEvent::CutLink(one, other) if one != other => {
                self.lab.set_outage_between(gateway(one), gateway(other), true);
                self.judge.happened("link cut");
            }
            MembersEvent::CutLink(..) => {}
            MembersEvent::Mend => self.mend(),
        }
    }

    /// Ends all outages.
    fn mend(&mut self) {
        self.cut = None;
        let ids: Vec<GatewayId> = self.lab.fabric.gateway_ids().collect();
        for one in &ids {
            let others = ids.iter().filter(|other| one < *other);
            others.for_each(|other| self.lab.set_outage_between(*one, *other, false));
        }
    }

    /// Lets an operator ask for a change, which the gateway may refuse.
    async fn ask(&mut self, at: GatewayId, of: GatewayId, leaves: bool, within: Span) {
        let region = self.lab.fabric.region(self.lab.fabric.gateway(of).region).name.clone();
        let change = MembershipChange { region: region.clone(), leaves, within };
        let gateway = &self.lab.gateways[usize::from(at.0)];
        match gateway.change_membership(Some(change)).await.expect("it runs") {
            Ok(_) => {
                self.judge.happened(if leaves { "leave accepted" } else { "join accepted" });
                self.wishes.insert(region, leaves);
            }
            Err(error) => {
                self.judge.happened("change refused");
                self.timeline.say("EVENT", || error.to_string());
            }
        }
    }

    /// Checks who takes part in the end, at every gateway with ranks, and that their ranks make headway.
    async fn judge_end(&mut self, ranked: u64) {
        let mut off = Vec::new();
        for id in self.lab.fabric.gateway_ids().take(ranked as usize) {
            let report = self.lab.status(id).await.membership.expect("a membership");
            off.extend(report.called_off.into_iter().map(|leave| leave.region));
        }
        let fabric = Arc::clone(&self.lab.fabric);
        let stays = |region: &String| !self.wishes.get(region).is_some_and(|leaves| *leaves);
        let ids: Vec<GatewayId> = fabric.gateway_ids().take(ranked as usize).collect();
        let name = |id: GatewayId| fabric.region(fabric.gateway(id).region).name.clone();
        let members: Vec<GatewayId> =
            ids.into_iter().filter(|id| stays(&name(*id)) || off.contains(&name(*id))).collect();
        let expected: Vec<String> = members.iter().map(|id| name(*id)).collect();
        for id in &members {
            let report = self.lab.status(*id).await.membership.expect("a membership");
            if report.members != expected {
                self.judge.wrong(format!("{id}: {expected:?} take part in the end: {report:?}"));
            }
        }
        let of_members = members.iter().flat_map(|id| fabric.gateway(*id).ranks.clone());
        let ranks: Vec<RankId> = of_members.map(RankId).collect();
        let before: Vec<u64> = ranks.iter().map(|rank| self.judge.steps_done(rank.0)).collect();
        self.lab.sleep(HEADWAY).await;
        for (rank, before) in ranks.into_iter().zip(before) {
            if self.judge.steps_done(rank.0) == before {
                self.judge.wrong(format!("{rank} makes no headway"));
            }
        }
    }
}
