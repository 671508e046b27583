//! Links as they are, as their gateways find them, and the plan that follows from it.
//!
//! Each gateway tells the first one of the links of its region. That one plans anew when what
//! it hears differs much from what the plan was made for, and has done so for some collectives:
//! a plan that follows every breath of a link would only cost.

use super::membership::FIRST;
use super::*;
use crate::ids::RegionId;
use crate::topology::{Link, LinkState};
use std::fmt::Write;

/// Links that have changed by less than this part are planned for as they were.
const CHANGE: f64 = 0.15;
/// So many collectives must be complete while links stay changed,
const PATIENCE: u32 = 3;
/// and among themselves they may differ by this part.
const STEADY: f64 = 0.1;
/// A plan must be sooner by this part than the one in force to take its place.
const GAIN: f64 = 0.05;
/// The buffer that plans are compared for.
const NOMINAL: ByteCount = ByteCount::new(256 << 20);
/// Links that a plan's reason names.
const NAMED_MAX: usize = 4;

/// What this gateway knows of links.
#[derive(Debug)]
pub(super) struct Links {
    /// By who says so, and the region at the other end: our own, and on the first gateway all.
    found: BTreeMap<(GatewayId, RegionId), LinkState>,
    /// What the plan in force was made for.
    planned_for: Vec<Link>,
    /// What a plan may be made for, and how many collectives it has stayed like that.
    candidate: Option<(Vec<Link>, u32)>,
    /// A plan is being made.
    planning: bool,
}

impl Links {
    pub fn new(fabric: &Fabric) -> Self {
        let planned_for = fabric.links().to_vec();
        Self { found: BTreeMap::new(), planned_for, candidate: None, planning: false }
    }

    /// An epoch begins: members tell of their links anew.
    pub fn forget_others(&mut self, me: GatewayId) {
        self.found.retain(|(from, _), _| *from == me);
    }

    /// A link by what its gateways find: the worst of it.
    fn now(&self, fabric: &Fabric, link: &Link) -> Link {
        let of_it = |(from, to): &(GatewayId, RegionId)| {
            let here = fabric.gateway(*from).region;
            (here.min(*to), here.max(*to)) == (link.a, link.b)
        };
        let found: Vec<&LinkState> =
            self.found.iter().filter(|(key, _)| of_it(key)).map(|(_, state)| state).collect();
        let rate = found.iter().map(|state| state.rate).min().unwrap_or(link.rate);
        Link {
            rate: rate.min(link.rate),
            rtt: found.iter().map(|state| state.rtt).max().unwrap_or(link.rtt),
            loss: found.iter().map(|state| state.loss).max().unwrap_or(link.loss),
            ..link.clone()
        }
    }
}

impl Session {
    /// What the link between our region and another is found to be. Say so when that has changed
    /// noticeably.
    pub fn handle_link(&mut self, to: RegionId, state: LinkState) {
        let me = self.config.me;
        if self.links.found.insert((me, to), state) == Some(state) || me == FIRST {
            return;
        }
        if self.active.is_some() {
            let message = Message::Link { epoch: self.epoch, to, state };
            self.core.actions.push_back(Action::Message { to: FIRST, message });
        }
    }

    pub(super) fn on_link(
        &mut self,
        from: GatewayId,
        to: RegionId,
        state: LinkState,
    ) -> Result<(), PeerError> {
        let fabric = &self.config.fabric;
        let linked = fabric.link(fabric.gateway(from).region, to).is_some();
        if self.config.me != FIRST || !linked {
            return Err(PeerError::NotYours("word of a link"));
        }
        self.links.found.insert((from, to), state);
        Ok(())
    }

    /// What a peer should know of our links.
    pub(super) fn link_facts_for(&self, peer: GatewayId) -> Vec<Message> {
        let (me, epoch) = (self.config.me, self.epoch);
        let ours = self.links.found.iter().filter(|((from, _), _)| *from == me && peer == FIRST);
        ours.map(|((_, to), state)| Message::Link { epoch, to: *to, state: *state }).collect()
    }

    /// On the first gateway: a collective is complete. Has a plan made if links have been other
    /// than planned for long enough.
    pub(super) fn weigh_links(&mut self) {
        let fabric = &self.config.fabric;
        let Some(active) = &self.active else { return };
        let leaving = self.draining.is_some() || active.closed.is_some();
        let busy = active.changing.is_some() || self.links.planning;
        if self.config.me != FIRST || busy || leaving {
            return;
        }
        let found: Vec<Link> = fabric.links().iter().map(|l| self.links.now(fabric, l)).collect();
        if !differ(&self.links.planned_for, &found, CHANGE) {
            self.links.candidate = None;
            return;
        }
        match &mut self.links.candidate {
            Some((seen, count)) if !differ(seen, &found, STEADY) => {
                *count += 1;
                if *count < PATIENCE {
                    return;
                }
            }
            other => {
                *other = Some((found, 1));
                return;
            }
        }
        let as_found = Arc::new(fabric.with_links(found));
        self.links.candidate = None;
        self.links.planning = true;
        self.core.actions.push_back(Action::Plan(as_found));
    }

    /// The answer to [`Action::Plan`]: takes the plan up, if it is sooner over links as they are
    /// than the one in force. `None` if there is none.
    pub fn handle_planned(&mut self, as_found: &Fabric, plan: Option<Plan>, now: TimeNs) {
        self.links.planning = false;
        let Some(active) = &self.active else { return };
        let before = std::mem::replace(&mut self.links.planned_for, as_found.links().to_vec());
        let Some(mut plan) = plan else { return };
        plan =
            Plan { segment: active.plan.segment, ..plan }.with_express_limit(&self.config.fabric);
        let seconds = |plan: &Plan| {
            plan.forecast(as_found, plan::Operation::AllReduce, NOMINAL).predicted.as_secs_f64()
        };
        if seconds(&plan) > (1.0 - GAIN) * seconds(&active.plan) {
            return;
        }
        let changed =
            before.iter().zip(as_found.links()).filter(|(was, is)| differs(was, is, CHANGE));
        for (_, link) in changed.take(NAMED_MAX) {
            let [a, b] = [link.a, link.b].map(|region| &as_found.region(region).name);
            let _ = write!(plan.reason, "; link {a}-{b} now carries {} at {}", link.rate, link.rtt);
        }
        self.handle_plan(plan, now);
    }
}

fn differ(one: &[Link], other: &[Link], part: f64) -> bool {
    one.iter().zip(other).any(|(one, other)| differs(one, other, part))
}

/// Whether a link would be planned for in another way.
fn differs(one: &Link, other: &Link, part: f64) -> bool {
    let carries = |link: &Link| link.rate.bits_per_second() as f64 * (1.0 - link.loss.as_f64());
    let far = |one: f64, other: f64| (one - other).abs() > part * one.max(other);
    far(carries(one), carries(other)) || far(one.rtt.as_secs_f64(), other.rtt.as_secs_f64())
}
