//! Reports about links, and the decision to plan anew.
//!
//! Each gateway reports the links of its region to the first one. The first one has a plan made
//! when the reports differ much from the links that the plan in force was made for, and have done
//! so for some collectives: a plan that follows each fluctuation would only cost.

use crate::ids::{Epoch, GatewayId, RegionId};
use crate::plan::{self, Plan};
use crate::topology::{Fabric, Link, LinkState};
use crate::wire::Message;
use std::collections::BTreeMap;
use std::fmt::Write;
use units::ByteCount;

/// 0.15 of the greater value: a link whose capacity and RTT changed by less since the plan in force
/// was made causes no new plan.
/// Tested by `a_halved_link_gets_a_new_plan_within_ten_collectives`.
const LINK_CHANGE_FRACTION: f64 = 0.15;
/// 3 collectives: so many must complete while the values of changed links stay steady before a new
/// plan is made, since links fluctuate.
const STEADY_COLLECTIVES: u32 = 3;
/// 0.1 of the greater value: a link whose capacity and RTT vary by less counts as steady.
const STEADY_LINK_FRACTION: f64 = 0.1;
/// 0.05 of the predicted time of the plan in force: a new plan must save as much, since link
/// capacities are known no better.
/// Tested by `a_plan_that_gains_nothing_is_not_taken_up`.
const PLAN_GAIN_FRACTION: f64 = 0.05;
/// 256 MiB: the buffer for which the predicted times of a new plan and the plan in force are
/// compared.
const NOMINAL_BUFFER_SIZE: ByteCount = ByteCount::new(256 << 20);
/// 4 links: the most changed links that the reason of a new plan names, so that its text stays
/// short.
const NAMED_LINKS_MAX: usize = 4;

/// The links as their gateways report them.
#[derive(Debug)]
pub(in crate::session) struct LinkReports {
    /// By reporter and the region at the other end: our own, and on the first gateway all.
    reported: BTreeMap<(GatewayId, RegionId), LinkState>,
    /// The links that the plan in force was made for.
    planned_for: Vec<Link>,
    candidate: Option<PlanCandidate>,
    /// A plan is being made.
    planning: bool,
}

/// Links that a plan may be made for.
#[derive(Debug)]
struct PlanCandidate {
    links: Vec<Link>,
    /// Collectives that completed while the links stayed like that.
    collectives: u32,
}

impl LinkReports {
    /// Creates an empty set of reports, for a plan that was made for the fabric's own links.
    pub fn new(fabric: &Fabric) -> Self {
        let planned_for = fabric.links().to_vec();
        Self { reported: BTreeMap::new(), planned_for, candidate: None, planning: false }
    }

    /// Forgets the reports of other gateways, which report anew in each epoch.
    pub fn forget_others(&mut self, me: GatewayId) {
        self.reported.retain(|(from, _), _| *from == me);
    }

    /// Records a gateway's report of its link to region `to`. Returns whether it differs from the
    /// report before.
    pub fn record_report(&mut self, from: GatewayId, to: RegionId, state: LinkState) -> bool {
        self.reported.insert((from, to), state) != Some(state)
    }

    /// Builds Link messages of the reports that gateway `me` made itself.
    pub fn own_messages(&self, me: GatewayId, epoch: Epoch) -> impl Iterator<Item = Message> {
        let ours = self.reported.iter().filter(move |((from, _), _)| *from == me);
        ours.map(move |((_, to), state)| Message::Link { epoch, to: *to, state: *state })
    }

    /// Returns the fabric with links as reported, if a new plan should be made for them. Called
    /// after each collective: the links must differ from the planned ones, and stay so for several
    /// calls.
    pub fn fabric_to_plan_for(&mut self, fabric: &Fabric) -> Option<Fabric> {
        if self.planning {
            return None;
        }
        let reported: Vec<Link> =
            fabric.links().iter().map(|l| self.worst_report(fabric, l)).collect();
        if !any_link_differs(&self.planned_for, &reported, LINK_CHANGE_FRACTION) {
            self.candidate = None;
            return None;
        }
        match &mut self.candidate {
            Some(seen) if !any_link_differs(&seen.links, &reported, STEADY_LINK_FRACTION) => {
                seen.collectives += 1;
                if seen.collectives < STEADY_COLLECTIVES {
                    return None;
                }
            }
            other => {
                *other = Some(PlanCandidate { links: reported, collectives: 1 });
                return None;
            }
        }
        self.candidate = None;
        self.planning = true;
        Some(fabric.with_links(reported))
    }

    /// Records that no plan is being made any more.
    pub fn end_planning(&mut self) {
        self.planning = false;
    }

    /// Records the links that the newest plan was made for. Returns those of the plan before.
    pub fn replace_planned_links(&mut self, links: &[Link]) -> Vec<Link> {
        std::mem::replace(&mut self.planned_for, links.to_vec())
    }

    /// Returns a link with the worst rate, RTT and loss that the gateways at its ends report.
    fn worst_report(&self, fabric: &Fabric, link: &Link) -> Link {
        let of_it = |(from, to): &(GatewayId, RegionId)| {
            let here = fabric.gateway(*from).region;
            (here.min(*to), here.max(*to)) == (link.a, link.b)
        };
        let reports: Vec<&LinkState> =
            self.reported.iter().filter(|(key, _)| of_it(key)).map(|(_, state)| state).collect();
        let rate = reports.iter().map(|state| state.rate).min().unwrap_or(link.rate);
        Link {
            rate: rate.min(link.rate),
            rtt: reports.iter().map(|state| state.rtt).max().unwrap_or(link.rtt),
            loss: reports.iter().map(|state| state.loss).max().unwrap_or(link.loss),
            ..link.clone()
        }
    }
}

/// Whether a plan's predicted time is below that of the plan in force by [`PLAN_GAIN_FRACTION`],
/// over links as reported.
pub(in crate::session) fn is_plan_faster(plan: &Plan, in_force: &Plan, reported: &Fabric) -> bool {
    let operation = plan::Operation::AllReduce;
    let seconds = |plan: &Plan| {
        plan.forecast(reported, operation, NOMINAL_BUFFER_SIZE).predicted.as_secs_f64()
    };
    seconds(plan) <= (1.0 - PLAN_GAIN_FRACTION) * seconds(in_force)
}

/// Describes the links that changed since the plan before, as an addition to a plan's reason.
pub(in crate::session) fn link_changes_text(before: &[Link], reported: &Fabric) -> String {
    let changed = before
        .iter()
        .zip(reported.links())
        .filter(|(was, is)| link_differs(was, is, LINK_CHANGE_FRACTION));
    let mut text = String::new();
    for (_, link) in changed.take(NAMED_LINKS_MAX) {
        let [a, b] = [link.a, link.b].map(|region| &reported.region(region).name);
        let _ = write!(text, "; link {a}-{b} now carries {} at {}", link.rate, link.rtt);
    }
    text
}

/// Whether some link of two equal lists differs in capacity or RTT by more than a fraction.
fn any_link_differs(before: &[Link], now: &[Link], fraction: f64) -> bool {
    before.iter().zip(now).any(|(before, now)| link_differs(before, now, fraction))
}

/// Whether capacity or RTT of two links differs by more than a fraction of the greater value.
fn link_differs(one: &Link, other: &Link, fraction: f64) -> bool {
    let capacity = |link: &Link| link.rate.bits_per_second() as f64 * (1.0 - link.loss.as_f64());
    let far = |one: f64, other: f64| (one - other).abs() > fraction * one.max(other);
    far(capacity(one), capacity(other)) || far(one.rtt.as_secs_f64(), other.rtt.as_secs_f64())
}
