//! A run under way: its gateways and ranks, and the events that happen to them.

use super::event_schedule::{EventSchedule, MembersEvent, Weather};
use super::members_deployment::MembersDeployment;
use super::members_judge::MembersJudge;
use super::step_history::RankState;
use super::stepping_rank::SteppingRank;
use crate::collectives::data::SplitMix64;
use crate::faults::timeline::Timeline;
use crate::lab::mesh::Mesh;
use gateway::events::MembershipChange;
use gateway::host::Host;
use hier_collectives::ids::{GatewayId, RegionId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use units::{Span, TimeNs};

/// 10 s: within it each rank that takes part in the end does a step, and the last change that was
/// asked for is made. A step takes 1.2 s.
pub(super) const HEADWAY: Span = Span::from_secs(10);
/// 20 s: gateways that were just started meet, and their ranks do a step, within this time.
const BEGUN_WITHIN: Span = Span::from_secs(20);
/// 20 s: others have heard within this time of a gateway that was killed, which is silent for 15 s at most.
const HEARD_WITHIN: Span = Span::from_secs(20);

/// A run under way.
pub(super) struct MembersRun {
    pub world: MembersDeployment,
    pub judge: Arc<MembersJudge>,
    pub timeline: Timeline,
    /// Whether the last request for each region that was accepted says that it leaves.
    pub wishes: BTreeMap<RegionId, bool>,
    /// The fabric in the beginning, and the version of the last one that was accepted.
    pub mesh: Mesh,
    pub fabric_version: u64,
    /// The gateways that are cut off, or at the end of a link that is cut: others may not hear what an operator
    /// asks there.
    cut: BTreeSet<GatewayId>,
    /// The gateways that are killed, each with the time at which it starts again.
    away: BTreeSet<(TimeNs, GatewayId)>,
}

impl MembersRun {
    /// Makes the run of a seed, in which nothing runs yet.
    pub fn new(schedule: &EventSchedule, seed: u64, timeline: Timeline) -> Self {
        Self {
            world: MembersDeployment::new(&schedule.mesh, seed, timeline.clone()),
            judge: Arc::new(MembersJudge::new(schedule.weather == Weather::Calm)),
            timeline,
            wishes: BTreeMap::new(),
            mesh: schedule.mesh.clone(),
            fabric_version: 0,
            cut: BTreeSet::new(),
            away: BTreeSet::new(),
        }
    }

    /// Starts all gateways, then all ranks, and waits until every rank has done a step.
    pub async fn start(&mut self, schedule: &EventSchedule, seed: u64) {
        let fabric = Arc::clone(&self.world.fabric);
        for id in fabric.gateway_ids() {
            self.world.start(id).await;
        }
        for id in fabric.gateway_ids() {
            for number in fabric.gateway(id).ranks.clone() {
                let rank = SteppingRank {
                    number,
                    gateway: id,
                    doors: self.world.doors.clone(),
                    host: Arc::clone(&self.world.host),
                    judge: Arc::clone(&self.judge),
                    dice: SplitMix64(seed ^ u64::from(number + 1) << 40),
                    slips: schedule.slips,
                    state: RankState::default(),
                };
                self.world.host.spawn(Box::pin(rank.run()));
            }
        }
        let until = self.world.host.now() + BEGUN_WITHIN;
        let idle =
            |run: &Self| (0..fabric.world_size()).find(|rank| run.judge.steps_done(*rank) == 0);
        while self.world.host.now() < until && idle(self).is_some() {
            self.pass(Span::from_ms(100)).await;
        }
        if let Some(rank) = idle(self) {
            self.judge.wrong(format!("rank {rank} has not begun within {BEGUN_WITHIN}"));
        }
    }

    /// Lets time pass, in which killed gateways start again.
    pub async fn pass(&mut self, time: Span) {
        let until = self.world.host.now() + time;
        while let Some((at, id)) = self.away.first().copied().filter(|(at, _)| *at <= until) {
            self.away.pop_first();
            self.world.host.sleep_until(at).await;
            self.world.start(id).await;
        }
        self.world.host.sleep_until(until).await;
    }

    /// Lets an event happen.
    pub async fn happen(&mut self, event: MembersEvent, weather: Weather) {
        self.timeline.say("EVENT", || format!("{event:?}"));
        let gateway = |number: u64| GatewayId(number as u16);
        match event {
            MembersEvent::Ask { at, region, leaves, within } => {
                let at = gateway(at);
                if weather == Weather::Storm || !self.cut.contains(&at) {
                    self.ask(at, RegionId(region as u16), leaves, within).await;
                }
            }
            MembersEvent::CutOff(number) => {
                self.mend();
                self.cut.insert(gateway(number));
                self.cut_all(|from, to| from == gateway(number) || to == gateway(number));
                self.judge.happened("gateway cut off");
            }
            MembersEvent::CutLink(one, other) if one != other => {
                self.cut.extend([gateway(one), gateway(other)]);
                self.cut_pair(gateway(one), gateway(other), true);
                self.judge.happened("link cut");
            }
            MembersEvent::CutLink(..) => {}
            MembersEvent::CutOneWay(one, other) => {
                self.world.cut(gateway(one), gateway(other), true);
                self.judge.happened("link cut one way");
            }
            MembersEvent::Mute(number) => {
                self.cut_all(|from, _| from == gateway(number));
                self.judge.happened("gateway muted");
            }
            MembersEvent::Deafen(number) => {
                self.cut_all(|_, to| to == gateway(number));
                self.judge.happened("gateway deafened");
            }
            MembersEvent::Part(parts) => {
                let part = |id: GatewayId| parts >> (2 * id.0) & 3;
                self.mend();
                self.cut_all(|from, to| part(from) != part(to));
                self.judge.happened("gateways parted");
            }
            MembersEvent::PartButLast(parts) => {
                let last = self.world.fabric.gateway_ids().last();
                let part = |id: GatewayId| parts >> id.0 & 1;
                self.mend();
                self.cut_all(|from, to| {
                    part(from) != part(to) && ![Some(from), Some(to)].contains(&last)
                });
                self.judge.happened("gateways parted but for one");
            }
            MembersEvent::Flap { one, other, times, pause } => {
                self.flap(gateway(one), gateway(other), times, pause).await;
            }
            MembersEvent::Kill { gateway: number, away } => self.kill(gateway(number), away),
            MembersEvent::KillLeader { away } => self.kill_leader(away),
            MembersEvent::KillAsTermForms { gateway: number, after, away } => {
                self.kill_as_term_forms(gateway(number), after, away).await;
            }
            MembersEvent::StrandLeader(stranding) => self.strand_leader(stranding).await,
            MembersEvent::ChangeFabric(event) => self.change_fabric(event).await,
            MembersEvent::Mend => self.mend(),
        }
    }

    /// Ends all outages, and starts all gateways that are killed.
    pub async fn mend_all(&mut self) {
        self.timeline.say("EVENT", || "all is mended");
        self.mend();
        for (_, id) in std::mem::take(&mut self.away) {
            self.world.start(id).await;
        }
    }

    /// Ends all outages.
    pub fn mend(&mut self) {
        self.cut.clear();
        self.cut_or_mend_all(|_, _| true, false);
    }

    /// Cuts what the first of two gateways sends the second, for all that `is_cut` chooses.
    pub fn cut_all(&self, is_cut: impl Fn(GatewayId, GatewayId) -> bool) {
        self.cut_or_mend_all(is_cut, true);
    }

    fn cut_or_mend_all(&self, chosen: impl Fn(GatewayId, GatewayId) -> bool, cut: bool) {
        let ids: Vec<GatewayId> = self.world.fabric.gateway_ids().collect();
        for from in &ids {
            let others = ids.iter().filter(|to| *to != from && chosen(*from, **to));
            others.for_each(|to| self.world.cut(*from, *to, cut));
        }
    }

    /// Cuts the link between two gateways both ways, or mends it.
    fn cut_pair(&self, one: GatewayId, other: GatewayId, cut: bool) {
        self.world.cut(one, other, cut);
        self.world.cut(other, one, cut);
    }

    /// Lets a link go and come.
    async fn flap(&mut self, one: GatewayId, other: GatewayId, times: u64, pause: Span) {
        self.judge.happened("link flaps");
        for _ in 0..times {
            self.cut_pair(one, other, true);
            self.pass(pause).await;
            self.cut_pair(one, other, false);
            self.pass(pause).await;
        }
    }

    /// Kills a gateway, which starts again after some time.
    fn kill(&mut self, id: GatewayId, away: Span) {
        if self.world.kill(id) {
            self.judge.killed(id);
            self.judge.happened("gateway killed");
            self.away.insert((self.world.host.now() + away, id));
        }
    }

    /// Kills the first gateway that runs.
    fn kill_leader(&mut self, away: Span) {
        if let Some(leader) = self.world.first() {
            self.judge.happened("leader killed");
            self.kill(leader, away);
        }
    }

    /// Kills a gateway for a minute, and the one that leads the others so long after they have heard of it.
    async fn kill_as_term_forms(&mut self, id: GatewayId, after: Span, away: Span) {
        let before = self.judge.changes();
        self.kill(id, Span::from_secs(60));
        let until = self.world.host.now() + HEARD_WITHIN;
        while self.judge.changes() == before && self.world.host.now() < until {
            self.pass(Span::from_ms(10)).await;
        }
        if self.judge.changes() > before {
            self.pass(after).await;
            self.judge.happened("leader killed as a term forms");
            self.kill_leader(away);
        }
    }

    /// Lets an operator ask for a change, which the gateway may refuse, at a gateway that runs.
    pub async fn ask(&mut self, at: GatewayId, region: RegionId, leaves: bool, within: Span) {
        let Some(gateway) = self.world.gateway(at) else { return };
        let name = self.world.fabric.region(region).name.clone();
        let change = MembershipChange { region: name, leaves, within };
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
}
