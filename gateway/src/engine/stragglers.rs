//! Tells the group's [`Pace`] what happens, and people who holds the others up.

use crate::observe::status::StragglerStatus;
use hier_collectives::ids::{GatewayId, RankId, RegionId, Sequence};
use hier_collectives::pace::{Pace, Party, Straggler};
use hier_collectives::plan::{Operation, Plan};
use hier_collectives::routes;
use hier_collectives::topology::Fabric;
use hier_collectives::wire::Message;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use tracing::{info, warn};
use units::{BitRate, ByteCount, Span, TimeNs};

/// Watches one group.
pub(super) struct StragglerMonitor {
    pub pace: Pace,
    fabric: Arc<Fabric>,
    me: GatewayId,
    /// How long messages of each gateway take.
    delays: Vec<Span>,
    /// This gateway's links that are not what they should be, by the region at the other end.
    slow: BTreeMap<RegionId, SlowLink>,
    /// By size, which of them make a collective much longer, and by how much.
    slowed: BTreeMap<u64, BTreeMap<RegionId, Span>>,
    told: Option<Party>,
}

/// A link that carries less than it is held to, or is longer than the fabric says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlowLink {
    pub due: LinkCondition,
    pub found: LinkCondition,
}

/// What a link carries, and over what distance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LinkCondition {
    pub rate: BitRate,
    pub rtt: Span,
}

impl StragglerMonitor {
    pub fn new(fabric: Arc<Fabric>, me: GatewayId) -> Self {
        let here = fabric.gateway(me).region;
        let party = |(region, ranks): (RegionId, &Range<u32>)| -> Vec<Party> {
            let of = |rank| {
                if region == here { Party::Rank(RankId(rank)) } else { Party::Region(region) }
            };
            ranks.clone().map(of).collect()
        };
        let ranks = fabric.regions().iter().map(|region| &region.ranks);
        let parties = (0..).map(RegionId).zip(ranks).flat_map(party).collect();
        let (pace, delays) = (Pace::new(parties), routes::delays_to(&fabric, me));
        let (slow, slowed) = (BTreeMap::new(), BTreeMap::new());
        Self { pace, fabric, me, delays, slow, slowed, told: None }
    }

    /// A peer spoke.
    pub fn heard(&mut self, from: GatewayId, message: &Message, now: TimeNs) {
        if let Message::Announce { sequence, rank, .. } = message
            && self.fabric.gateway(from).ranks.contains(&rank.0)
        {
            let delay = self.delays[usize::from(from.0)];
            let at = TimeNs::from_ns(now.ns().saturating_sub(delay.ns()));
            self.pace.handle_far_post(*rank, *sequence, at);
        }
    }

    pub fn epoch_began(&mut self, next: Sequence) {
        self.plan_changed();
        self.pace.handle_epoch(next);
    }

    /// What was reckoned was of another plan.
    pub fn plan_changed(&mut self) {
        self.slowed.clear();
    }

    /// These links of the gateway's are slow, and no others.
    pub fn links_are(&mut self, slow: &BTreeMap<RegionId, SlowLink>) {
        if self.slow != *slow {
            self.slow.clone_from(slow);
            self.slowed.clear();
            let found = slow.iter().map(|(to, link)| (*to, link.found));
            self.delays = routes::delays_to(&self.fabric_with(found), self.me);
        }
        if slow.is_empty() {
            // Also where nothing large enough to show it follows.
            self.pace.handle_slowed(&BTreeMap::new());
        }
    }

    /// A collective that followed this plan is over.
    pub fn completed(&mut self, sequence: Sequence, plan: Option<&Plan>, bytes: u64, now: TimeNs) {
        self.pace.handle_result(sequence, now);
        if let Some(plan) = plan.filter(|_| bytes >= JUDGED_BYTES_MIN) {
            let slowed = self.slowed(plan, bytes);
            self.pace.handle_slowed(&slowed);
        }
    }

    /// The links that add much to a collective.
    fn slowed(&mut self, plan: &Plan, bytes: u64) -> BTreeMap<RegionId, Span> {
        if let Some(known) = self.slowed.get(&bytes) {
            return known.clone();
        }
        let adds = self.slow.iter().filter_map(|(to, link)| {
            let added = self.adds(plan, *to, link, bytes)?;
            Some((*to, added))
        });
        let slowed: BTreeMap<RegionId, Span> = adds.collect();
        if self.slowed.len() >= SIZES_MAX {
            self.slowed.clear();
        }
        self.slowed.insert(bytes, slowed.clone());
        slowed
    }

    /// What a link adds to a collective, if that is much.
    fn adds(&self, plan: &Plan, to: RegionId, link: &SlowLink, bytes: u64) -> Option<Span> {
        let over = |carries: LinkCondition| {
            let fabric = self.fabric_with(std::iter::once((to, carries)));
            plan.forecast(&fabric, Operation::AllReduce, ByteCount::new(bytes)).predicted.ns()
        };
        let (due, takes) = (over(link.due), over(link.found));
        let added = takes.saturating_sub(due);
        (added as f64 >= SLOWED * due as f64).then_some(Span::from_ns(added))
    }

    /// The fabric, but for these links of the gateway's, by the region at the other end.
    fn fabric_with(&self, found: impl Iterator<Item = (RegionId, LinkCondition)>) -> Fabric {
        let here = self.region(self.me);
        let mut links = self.fabric.links().to_vec();
        for (to, LinkCondition { rate, rtt }) in found {
            let ends = (here.min(to), here.max(to));
            let of_it = links.iter_mut().filter(|link| (link.a, link.b) == ends);
            of_it.for_each(|link| (link.rate, link.rtt) = (rate, rtt));
        }
        self.fabric.with_links(links)
    }

    /// Who holds the others up; said aloud when that changes.
    pub fn tell(&mut self, job: &str) -> Option<StragglerStatus> {
        let seen = self.pace.straggler();
        let party = seen.map(|straggler| straggler.party);
        let status = seen.map(|straggler| self.status(straggler));
        if party != self.told {
            match &status {
                Some(StragglerStatus { kind, name, behind_seconds, collectives }) => warn!(
                    "job {job}: {kind} {name} holds the others up, by {behind_seconds:.3} s in \
                     the last of {collectives} collectives"
                ),
                None => info!("job {job}: nobody holds the others up any more"),
            }
            self.told = party;
        }
        status
    }

    pub fn status(&self, straggler: Straggler) -> StragglerStatus {
        let region = |id: RegionId| self.fabric.region(id).name.clone();
        let (kind, name) = match straggler.party {
            Party::Rank(rank) => ("rank", rank.0.to_string()),
            Party::Region(there) => ("region", region(there)),
            Party::Link(there) => {
                let mut ends = [region(self.region(self.me)), region(there)];
                ends.sort();
                ("link", ends.join("-"))
            }
        };
        StragglerStatus {
            kind: kind.to_owned(),
            name,
            behind_seconds: straggler.behind.as_secs_f64(),
            collectives: straggler.collectives,
        }
    }

    fn region(&self, gateway: GatewayId) -> RegionId {
        self.fabric.gateway(gateway).region
    }
}

/// Smaller buffers take as long as distance and timers have it.
const JUDGED_BYTES_MIN: u64 = 1 << 20;
/// A link holds the others up that adds this part to what a collective takes.
const SLOWED: f64 = 0.15;
/// Sizes for which that is remembered.
const SIZES_MAX: usize = 64;
