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
use units::ByteCount;

/// 0.15 of the greater of two values: for a new plan, a link's capacity or RTT must differ by more
/// from the value that the last plan was made for. The fraction is chosen, above usual fluctuation.
/// Tested by `a_halved_link_gets_a_new_plan_within_ten_collectives`.
const LINK_CHANGE_FRACTION: f64 = 0.15;
/// 3 collectives: a new plan is made for changed links only after so many collectives have
/// completed while the links stayed steady, since links fluctuate.
const STEADY_COLLECTIVES: u32 = 3;
/// 0.1 of the greater of two values: changed links are steady while capacity and RTT of each differ
/// by no more from the first changed values. Otherwise collectives are counted anew. The fraction
/// is chosen, below 0.15, the change that leads to a new plan.
const STEADY_LINK_FRACTION: f64 = 0.1;
/// 0.05 of the predicted time of the plan in force: a new plan that saves less is dropped, since
/// link capacities are known no better. A plan that uses a link that is up again needs no gain.
/// Tested by `a_plan_that_gains_nothing_is_not_taken_up`.
const PLAN_GAIN_FRACTION: f64 = 0.05;
/// 256 MiB: a new plan and the plan in force are compared by their predicted times for a buffer of
/// this length. The size is chosen, as of large buffers, whose time rates decide.
const NOMINAL_BUFFER_SIZE: ByteCount = ByteCount::new(256 << 20);
/// 4 links: the reason of a new plan names at most 4 changed links and leaves out the others, so
/// that its text stays short.
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
    /// after each collective with the links that are `in_use`. They must differ from the planned
    /// ones, and stay so for [`STEADY_COLLECTIVES`] calls. `None` also while a plan is being made.
    pub fn fabric_to_plan_for(&mut self, in_use: &Fabric) -> Option<Fabric> {
        if self.planning {
            return None;
        }
        let reported = self.reported_links(in_use);
        if !any_link_report_differs(&self.planned_for, &reported, LINK_CHANGE_FRACTION) {
            self.candidate = None;
            return None;
        }
        match &mut self.candidate {
            Some(seen)
                if !any_link_report_differs(&seen.links, &reported, STEADY_LINK_FRACTION) =>
            {
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
        self.begin_planning(in_use)
    }

    /// Returns the fabric with the links `in_use` as reported, for a plan that is made from now on;
    /// none while another is being made.
    pub fn begin_planning(&mut self, in_use: &Fabric) -> Option<Fabric> {
        if self.planning {
            return None;
        }
        self.candidate = None;
        self.planning = true;
        Some(in_use.with_links(self.reported_links(in_use)))
    }

    /// Whether the newest plan was made for the links that are `in_use`, and for no others.
    pub fn is_planned_for(&self, in_use: &Fabric) -> bool {
        link_reports_join_regions(&self.planned_for, in_use.links())
    }

    /// Whether some link of a fabric is reported to differ much from it.
    pub fn differ_from(&self, fabric: &Fabric) -> bool {
        any_link_report_differs(fabric.links(), &self.reported_links(fabric), LINK_CHANGE_FRACTION)
    }

    /// Records that no plan is being made any more.
    pub fn end_planning(&mut self) {
        self.planning = false;
    }

    /// Records the links that the newest plan was made for. Returns those of the plan before.
    pub fn replace_planned_links(&mut self, links: &[Link]) -> Vec<Link> {
        std::mem::replace(&mut self.planned_for, links.to_vec())
    }

    /// Returns the links of a fabric as reported.
    fn reported_links(&self, fabric: &Fabric) -> Vec<Link> {
        fabric.links().iter().map(|link| self.link_at_worst_report(fabric, link)).collect()
    }

    /// Returns the link with the lowest rate, the longest RTT and the highest loss that the
    /// gateways at its ends report. A value that nobody has reported is that of `link`, and the
    /// rate is never above that of `link`.
    fn link_at_worst_report(&self, fabric: &Fabric, link: &Link) -> Link {
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
pub(in crate::session) fn link_reports_make_plan_faster(
    plan: &Plan,
    in_force: &Plan,
    reported: &Fabric,
) -> bool {
    let operation = plan::Operation::AllReduce;
    let seconds = |plan: &Plan| {
        plan.forecast(reported, operation, NOMINAL_BUFFER_SIZE).predicted.as_secs_f64()
    };
    seconds(plan) <= (1.0 - PLAN_GAIN_FRACTION) * seconds(in_force)
}

/// Whether two lists of links join the same regions.
pub(in crate::session) fn link_reports_join_regions(one: &[Link], other: &[Link]) -> bool {
    one.len() == other.len()
        && one.iter().zip(other).all(|(one, other)| link_report_ends_are_same(one, other))
}

/// Whether some link joins regions that no link of `before` joins.
pub(in crate::session) fn is_any_reported_link_back(before: &[Link], now: &[Link]) -> bool {
    now.iter().any(|link| !before.iter().any(|known| link_report_ends_are_same(known, link)))
}

/// Returns the links of a fabric, those that are reported with their reported values.
pub(in crate::session) fn fabric_of_link_reports(fabric: &Fabric, reported: &Fabric) -> Fabric {
    let links = fabric.links().iter();
    fabric.with_links(links.map(|l| reported.link(l.a, l.b).unwrap_or(l).clone()).collect())
}

/// Describes the links that changed since the plan before, and the links of `fabric` that the plan
/// goes round, as an addition to a plan's reason.
pub(in crate::session) fn link_report_changes_text(
    before: &[Link],
    reported: &Fabric,
    fabric: &Fabric,
) -> String {
    let texts = fabric.links().iter().filter_map(|link| {
        let [a, b] = [link.a, link.b].map(|region| &fabric.region(region).name);
        let Some(is) = reported.link(link.a, link.b) else {
            return Some(format!("; link {a}-{b} is down"));
        };
        let was = before.iter().find(|was| link_report_ends_are_same(was, is));
        match was {
            None => Some(format!("; link {a}-{b} is up again")),
            Some(was) if reported_link_differs(was, is, LINK_CHANGE_FRACTION) => {
                Some(format!("; link {a}-{b} now carries {} at {}", is.rate, is.rtt))
            }
            Some(_) => None,
        }
    });
    texts.take(NAMED_LINKS_MAX).collect()
}

/// Whether two lists of links join other regions, or some link differs in capacity or RTT by more
/// than a fraction.
fn any_link_report_differs(before: &[Link], now: &[Link], fraction: f64) -> bool {
    !link_reports_join_regions(before, now)
        || before.iter().zip(now).any(|(before, now)| reported_link_differs(before, now, fraction))
}

/// Whether two links join the same regions.
fn link_report_ends_are_same(one: &Link, other: &Link) -> bool {
    (one.a, one.b) == (other.a, other.b)
}

/// Whether capacity or RTT of two links differs by more than a fraction of the greater value.
fn reported_link_differs(one: &Link, other: &Link, fraction: f64) -> bool {
    let capacity = |link: &Link| link.rate.bits_per_second() as f64 * (1.0 - link.loss.as_f64());
    let far = |one: f64, other: f64| (one - other).abs() > fraction * one.max(other);
    far(capacity(one), capacity(other)) || far(one.rtt.as_secs_f64(), other.rtt.as_secs_f64())
}
