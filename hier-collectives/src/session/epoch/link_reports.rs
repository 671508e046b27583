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

/// 0.15. A link whose capacity or RTT changed by a smaller fraction keeps its plan.
/// Tested by `a_halved_link_gets_a_new_plan_within_ten_collectives`.
const CHANGE_FRACTION: f64 = 0.15;
/// 3 collectives must complete while the links stay changed, since links fluctuate.
const STEADY_COLLECTIVES: u32 = 3;
/// 0.1. Reports during these collectives may differ among themselves by this fraction.
const STEADY_FRACTION: f64 = 0.1;
/// 0.05. A new plan must be faster by this fraction, since capacities are known no better.
/// Tested by `a_plan_that_gains_nothing_is_not_taken_up`.
const GAIN_FRACTION: f64 = 0.05;
/// 256 MiB. Plans are compared for a buffer of this size.
const NOMINAL_BUFFER: ByteCount = ByteCount::new(256 << 20);
/// 4: a plan's reason names at most so many links, to stay readable.
const NAMED_LINKS_MAX: usize = 4;

/// The links as their gateways report them.
#[derive(Debug)]
pub(in crate::session) struct LinkReports {
    /// By reporter and the region at the other end: our own, and on the first gateway all.
    reported: BTreeMap<(GatewayId, RegionId), LinkState>,
    /// The links that the plan in force was made for.
    planned_for: Vec<Link>,
    candidate: Option<Candidate>,
    /// A plan is being made.
    planning: bool,
}

/// Links that a plan may be made for.
#[derive(Debug)]
struct Candidate {
    links: Vec<Link>,
    /// Collectives that completed while the links stayed like that.
    collectives: u32,
}

impl LinkReports {
    pub fn new(fabric: &Fabric) -> Self {
        let planned_for = fabric.links().to_vec();
        Self { reported: BTreeMap::new(), planned_for, candidate: None, planning: false }
    }

    /// An epoch begins: members report anew.
    pub fn forget_others(&mut self, me: GatewayId) {
        self.reported.retain(|(from, _), _| *from == me);
    }

    /// Records a report; true when it differs from the last one.
    pub fn record(&mut self, from: GatewayId, to: RegionId, state: LinkState) -> bool {
        self.reported.insert((from, to), state) != Some(state)
    }

    /// A gateway's own reports as messages.
    pub fn messages(&self, me: GatewayId, epoch: Epoch) -> impl Iterator<Item = Message> {
        let ours = self.reported.iter().filter(move |((from, _), _)| *from == me);
        ours.map(move |((_, to), state)| Message::Link { epoch, to: *to, state: *state })
    }

    /// A collective completed on the first gateway. Returns the fabric to plan for, if links have
    /// differed from the plan for long enough.
    pub fn weigh(&mut self, fabric: &Fabric) -> Option<Fabric> {
        if self.planning {
            return None;
        }
        let reported: Vec<Link> = fabric.links().iter().map(|l| self.worst(fabric, l)).collect();
        if !any_differs(&self.planned_for, &reported, CHANGE_FRACTION) {
            self.candidate = None;
            return None;
        }
        match &mut self.candidate {
            Some(seen) if !any_differs(&seen.links, &reported, STEADY_FRACTION) => {
                seen.collectives += 1;
                if seen.collectives < STEADY_COLLECTIVES {
                    return None;
                }
            }
            other => {
                *other = Some(Candidate { links: reported, collectives: 1 });
                return None;
            }
        }
        self.candidate = None;
        self.planning = true;
        Some(fabric.with_links(reported))
    }

    /// No plan is being made any more.
    pub fn end_planning(&mut self) {
        self.planning = false;
    }

    /// Records the links that a plan was made for; returns those of the plan before.
    pub fn planned_for(&mut self, links: &[Link]) -> Vec<Link> {
        std::mem::replace(&mut self.planned_for, links.to_vec())
    }

    /// A link as the gateways at its ends report it: the worst of each value.
    fn worst(&self, fabric: &Fabric, link: &Link) -> Link {
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

/// Whether a plan is faster than the one in force by [`GAIN_FRACTION`], over links as reported.
pub(in crate::session) fn is_faster(plan: &Plan, in_force: &Plan, reported: &Fabric) -> bool {
    let operation = plan::Operation::AllReduce;
    let seconds =
        |plan: &Plan| plan.forecast(reported, operation, NOMINAL_BUFFER).predicted.as_secs_f64();
    seconds(plan) <= (1.0 - GAIN_FRACTION) * seconds(in_force)
}

/// The links that changed since the plan before, as an addition to a plan's reason.
pub(in crate::session) fn changes_in_words(before: &[Link], reported: &Fabric) -> String {
    let changed =
        before.iter().zip(reported.links()).filter(|(was, is)| differs(was, is, CHANGE_FRACTION));
    let mut text = String::new();
    for (_, link) in changed.take(NAMED_LINKS_MAX) {
        let [a, b] = [link.a, link.b].map(|region| &reported.region(region).name);
        let _ = write!(text, "; link {a}-{b} now carries {} at {}", link.rate, link.rtt);
    }
    text
}

fn any_differs(before: &[Link], now: &[Link], fraction: f64) -> bool {
    before.iter().zip(now).any(|(before, now)| differs(before, now, fraction))
}

/// Whether capacity or RTT of two links differs by more than a fraction of the greater.
fn differs(one: &Link, other: &Link, fraction: f64) -> bool {
    let capacity = |link: &Link| link.rate.bits_per_second() as f64 * (1.0 - link.loss.as_f64());
    let far = |one: f64, other: f64| (one - other).abs() > fraction * one.max(other);
    far(capacity(one), capacity(other)) || far(one.rtt.as_secs_f64(), other.rtt.as_secs_f64())
}
