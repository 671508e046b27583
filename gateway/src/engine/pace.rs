//! Tells the group's [`Pace`] what happens, and people who holds the others up.

use super::group::Group;
use crate::observe::status::StragglerStatus;
use hier_collectives::ids::{GatewayId, RankId, RegionId, Sequence};
use hier_collectives::pace::{Pace, Party, Straggler};
use hier_collectives::plan::Operation;
use hier_collectives::routes;
use hier_collectives::topology::Fabric;
use hier_collectives::wire::Message;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use tracing::{info, warn};
use units::{ByteCount, Span, TimeNs};

/// Watches one group.
pub(super) struct Watch {
    pub pace: Pace,
    fabric: Arc<Fabric>,
    me: GatewayId,
    /// How long messages of each gateway take.
    delays: Vec<Span>,
    /// Predicted times by size, in this epoch.
    predicted: BTreeMap<u64, Span>,
    told: Option<Party>,
}

impl Watch {
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
        Self { pace, fabric, me, delays, predicted: BTreeMap::new(), told: None }
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

    /// A segment comes.
    pub fn arrives(&mut self, from: GatewayId, sequence: Sequence) {
        let there = self.region(from);
        if there != self.region(self.me) {
            self.pace.handle_arrival(there, sequence);
        }
    }

    pub fn epoch_began(&mut self) {
        self.plan_changed();
        self.pace.handle_epoch();
    }

    /// What was predicted was of another plan.
    pub fn plan_changed(&mut self) {
        self.predicted.clear();
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

impl Group {
    /// A collective's result is in place.
    pub(super) fn completed(&mut self, sequence: Sequence, bytes: u64, now: TimeNs) {
        let predicted = (bytes >= JUDGED_BYTES_MIN).then(|| self.predicted(bytes)).flatten();
        self.watch.pace.handle_result(sequence, predicted, now);
    }

    fn predicted(&mut self, bytes: u64) -> Option<Span> {
        if let Some(known) = self.watch.predicted.get(&bytes) {
            return Some(*known);
        }
        let plan = self.session.status().plan?;
        let fabric = &self.watch.fabric;
        let forecast = plan.forecast(fabric, Operation::AllReduce, ByteCount::new(bytes));
        if self.watch.predicted.len() >= SIZES_MAX {
            self.watch.predicted.clear();
        }
        self.watch.predicted.insert(bytes, forecast.predicted);
        Some(forecast.predicted)
    }
}

/// Smaller buffers take as long as distance and timers have it.
const JUDGED_BYTES_MIN: u64 = 1 << 20;
/// Sizes whose predicted time is remembered.
const SIZES_MAX: usize = 64;
