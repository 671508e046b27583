//! Feeds the job's straggler detection, reports the straggler, and warns of one that costs much.
//!
//! The job hands over posts, results and plans, `engine_links` the slow links. The detection itself
//! is in `hier-collectives`.

use super::lost_time::{LOST_TIME_WINDOW, LostTime};
use crate::observe::status::StragglerReport;
use crate::warn_if_due;
use crate::warnings::{WarningCause, Warnings};
use hier_collectives::ids::{GatewayId, RankId, RegionId, Sequence};
use hier_collectives::mesh::{MeshConnectionState, MeshGraph, route_delays_to};
use hier_collectives::plan::{Operation, Plan};
use hier_collectives::stragglers::{Straggler, StragglerParty, Stragglers};
use hier_collectives::topology::Fabric;
use hier_collectives::wire::Message;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use tracing::debug;
use units::{BitRate, ByteCount, Span, TimeNs};

/// 1 MiB: the smallest buffer whose collective may show that a link is slow. A collective of a
/// smaller buffer is not judged, since round trips and timers dominate its time.
/// Tested by `a_link_that_becomes_slow_is_named_though_buckets_overlap`.
const JUDGED_BYTES_MIN: u64 = 1 << 20;
/// 0.15 of the time that a collective is predicted to take over the link as promised. A slow link
/// that adds as much time or more is a straggler. A change of a link by the same fraction starts a
/// new plan.
/// Tested by `a_halved_link_gets_a_new_plan_within_ten_collectives`.
const ADDED_TIME_FRACTION_MIN: f64 = 0.15;
/// 64 buffer sizes: the most for which the time that slow links add to a collective is cached. At
/// one more the whole cache is emptied. Trainers use few sizes.
const CACHED_SIZES_MAX: usize = 64;

/// 60 s: a job's straggler is no longer reported once no collective completed for 60 s and for 10
/// times the last interval between two. The time is chosen.
const STRAGGLER_STALE_AFTER_MIN: Span = Span::from_secs(60);
/// 10 times the interval between the last two completed collectives: a straggler is no longer
/// reported after both this time and 60 s without another. So a job of long steps keeps its
/// straggler for longer than 60 s.
const STRAGGLER_STALE_INTERVALS: u64 = 10;

/// The straggler detection of one job.
pub(super) struct StragglerMonitor {
    pub detection: Stragglers,
    fabric: Arc<Fabric>,
    me: GatewayId,
    /// The connections over which control messages go.
    graph: Arc<MeshGraph>,
    /// Time that a control message of each gateway takes to arrive here.
    delays: Vec<Span>,
    /// This gateway's slow links, by the region at the other end.
    slow_links: BTreeMap<RegionId, StragglerLink>,
    /// By buffer size: the slow links that make a collective much longer, and the time they add.
    added: BTreeMap<u64, BTreeMap<RegionId, Span>>,
    /// The straggler in the last log line.
    logged: Option<StragglerParty>,
    /// The straggler after the last completed collective, and since when it is the one.
    named: Option<(StragglerParty, TimeNs)>,
    /// Time of the last completed collective, and between it and the one before.
    completed: Option<(TimeNs, Span)>,
    lost_time: LostTime,
    warnings: Warnings,
}

/// A link whose capacity is below its limit, or whose round trip is above the fabric's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StragglerLink {
    pub expected: MonitoredLink,
    pub measured: MonitoredLink,
}

/// The rate and the round trip of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MonitoredLink {
    pub rate: BitRate,
    pub rtt: Span,
}

impl StragglerMonitor {
    /// Makes the straggler detection of a job on gateway `me`. It judges ranks of the own region
    /// one by one, and other regions as a whole.
    pub fn new(fabric: Arc<Fabric>, me: GatewayId, warnings: Warnings) -> Self {
        let here = fabric.gateway(me).region;
        let party = |(region, ranks): (RegionId, &Range<u32>)| -> Vec<StragglerParty> {
            let of = |rank| {
                if region == here {
                    StragglerParty::Rank(RankId(rank))
                } else {
                    StragglerParty::Region(region)
                }
            };
            ranks.clone().map(of).collect()
        };
        let ranks = fabric.regions().iter().map(|region| &region.ranks);
        let parties = (0..).map(RegionId).zip(ranks).flat_map(party).collect();
        let graph = Arc::new(MeshGraph::uniform(&fabric, MeshConnectionState::Up));
        let delays = route_delays_to(&fabric, &graph, me);
        let detection = Stragglers::new(parties);
        let (slow_links, added) = (BTreeMap::new(), BTreeMap::new());
        let lost_time = LostTime::default();
        let (logged, named, completed) = (None, None, None);
        Self {
            detection,
            fabric,
            me,
            graph,
            delays,
            slow_links,
            added,
            logged,
            named,
            completed,
            lost_time,
            warnings,
        }
    }

    /// Records when a rank elsewhere posted: the arrival time of a peer's announcement, less the
    /// time that the message took.
    pub fn handle_message(&mut self, from: GatewayId, message: &Message, now: TimeNs) {
        if let Message::Announce { sequence, rank, .. } = message
            && self.fabric.gateway(from).ranks.contains(&rank.0)
        {
            let delay = self.delays[usize::from(from.0)];
            let at = TimeNs::from_ns(now.ns().saturating_sub(delay.ns()));
            self.detection.handle_far_post(*rank, *sequence, at);
        }
    }

    /// Takes over the links of another fabric, which has the same ranks.
    pub fn replace_fabric(&mut self, fabric: Arc<Fabric>) {
        self.fabric = fabric;
        self.slow_links.clear();
        self.added.clear();
        self.update_delays();
    }

    /// Starts over for a new epoch, whose first collective is `next`.
    pub fn handle_epoch(&mut self, next: Sequence) {
        self.handle_plan_changed();
        self.detection.handle_epoch(next);
    }

    /// Forgets the cached delays of slow links, which belong to the old plan.
    pub fn handle_plan_changed(&mut self) {
        self.added.clear();
    }

    /// Sets this gateway's slow links, each under the region at its other end. Earlier ones are
    /// dropped.
    pub fn set_slow_links(&mut self, slow: &BTreeMap<RegionId, StragglerLink>) {
        if self.slow_links != *slow {
            self.slow_links.clone_from(slow);
            self.added.clear();
            self.update_delays();
        }
        if slow.is_empty() {
            // Ends a link's alarm even if no large collective follows.
            self.detection.handle_slowed(&BTreeMap::new());
        }
    }

    /// Takes over the connections over which control messages go, and computes their delays anew.
    pub fn set_connections(&mut self, graph: &Arc<MeshGraph>) {
        if self.graph != *graph {
            self.graph = Arc::clone(graph);
            self.update_delays();
        }
    }

    /// Computes anew how long control messages take from each gateway, over the present routes and
    /// links.
    fn update_delays(&mut self) {
        let measured = self.slow_links.iter().map(|(to, link)| (*to, link.measured));
        let fabric = self.fabric_with_conditions(measured);
        self.delays = route_delays_to(&fabric, &self.graph, self.me);
    }

    /// Records that a collective of `bytes` bytes, which followed `plan`, completed. Returns the
    /// straggler and the time that it cost, if one is named.
    pub fn handle_completed(
        &mut self,
        sequence: Sequence,
        plan: Option<&Plan>,
        bytes: u64,
        now: TimeNs,
    ) -> Option<(StragglerReport, Span)> {
        self.detection.handle_result(sequence, now);
        if let Some(plan) = plan.filter(|_| bytes >= JUDGED_BYTES_MIN) {
            let added = self.delays_of_slow_links(plan, bytes);
            self.detection.handle_slowed(&added);
        }
        let interval = self.completed.map_or(Span::ZERO, |(before, _)| now.since(before));
        self.completed = Some((now, interval));
        let straggler = self.detection.straggler();
        let party = straggler.map(|straggler| straggler.party);
        if party != self.named.map(|(party, _)| party) {
            self.named = party.map(|party| (party, now));
        }
        let lost = self.lost_time.add_collective(straggler, now);
        straggler.map(|straggler| (self.straggler_report(straggler, now), lost))
    }

    /// Returns the seconds since the last completed collective; `None` before the first.
    pub fn seconds_since_completed(&self, now: TimeNs) -> Option<f64> {
        self.completed.map(|(at, _)| now.since(at).as_secs_f64())
    }

    /// Returns the straggler that the last collectives showed. `None` when none has completed for
    /// [`STRAGGLER_STALE_AFTER_MIN`] and [`STRAGGLER_STALE_INTERVALS`] intervals, as when the job has paused or ended.
    pub fn current_straggler(&self, now: TimeNs) -> Option<StragglerReport> {
        let (at, interval) = self.completed?;
        let stale = STRAGGLER_STALE_AFTER_MIN
            .max(Span::from_ns(interval.ns().saturating_mul(STRAGGLER_STALE_INTERVALS)));
        let straggler = self.detection.straggler().filter(|_| now.since(at) <= stale)?;
        Some(self.straggler_report(straggler, now))
    }

    /// Returns the slow links that add much to a collective of `bytes` bytes, and the time they
    /// add.
    fn delays_of_slow_links(&mut self, plan: &Plan, bytes: u64) -> BTreeMap<RegionId, Span> {
        if let Some(known) = self.added.get(&bytes) {
            return known.clone();
        }
        let added = self.slow_links.iter().filter_map(|(to, link)| {
            let added = self.delay_of_slow_link(plan, *to, link, bytes)?;
            Some((*to, added))
        });
        let added: BTreeMap<RegionId, Span> = added.collect();
        if self.added.len() >= CACHED_SIZES_MAX {
            self.added.clear();
        }
        self.added.insert(bytes, added.clone());
        added
    }

    /// Returns the time that a slow link adds to a collective, if its fraction of the predicted
    /// time is [`ADDED_TIME_FRACTION_MIN`] or more.
    fn delay_of_slow_link(
        &self,
        plan: &Plan,
        to: RegionId,
        link: &StragglerLink,
        bytes: u64,
    ) -> Option<Span> {
        let predicted_ns = |condition: MonitoredLink| {
            let fabric = self.fabric_with_conditions(std::iter::once((to, condition)));
            plan.forecast(&fabric, Operation::AllReduce, ByteCount::new(bytes)).predicted.ns()
        };
        let (expected, measured) = (predicted_ns(link.expected), predicted_ns(link.measured));
        let added = measured.saturating_sub(expected);
        let much = added as f64 >= ADDED_TIME_FRACTION_MIN * expected as f64;
        much.then_some(Span::from_ns(added))
    }

    /// Returns the fabric with other conditions of some of this gateway's links, by the region at
    /// the other end.
    fn fabric_with_conditions(
        &self,
        conditions: impl Iterator<Item = (RegionId, MonitoredLink)>,
    ) -> Fabric {
        let here = self.region_of(self.me);
        let mut links = self.fabric.links().to_vec();
        for (to, MonitoredLink { rate, rtt }) in conditions {
            let ends = (here.min(to), here.max(to));
            let of_it = links.iter_mut().filter(|link| (link.a, link.b) == ends);
            of_it.for_each(|link| (link.rate, link.rtt) = (rate, rtt));
        }
        self.fabric.with_links(links)
    }

    /// Returns the straggler for the metrics. Logs a change of it at level debug alone, since of
    /// two that are about equally late each is named at times. Warns of one that has cost much of
    /// ten minutes.
    pub fn log_straggler(&mut self, job: &str, now: TimeNs) -> Option<StragglerReport> {
        let straggler = self.current_straggler(now);
        let party = straggler.as_ref().and_then(|_| self.detection.straggler()).map(|s| s.party);
        if party != self.logged {
            match &straggler {
                Some(StragglerReport { kind, name, behind_seconds, collectives, .. }) => debug!(
                    job = %job,
                    kind = %kind,
                    straggler = %name,
                    "job {job}: straggler: {kind} {name} delays the others, by {} in the last of \
                     {collectives} collectives",
                    Span::from_secs_f64(*behind_seconds).rounded()
                ),
                None => debug!(job = %job, "job {job}: no straggler any more"),
            }
            self.logged = party;
        }
        if let Some((party, lost)) = self.lost_time.end_window(now) {
            let (kind, name) = self.describe_party(party);
            let (lost, window) = (lost.rounded(), LOST_TIME_WINDOW.rounded());
            warn_if_due!(
                self.warnings.is_due(WarningCause::Straggler, &format!("{job} {kind} {name}"), now),
                job = %job,
                kind = %kind,
                straggler = %name,
                "job {job}: straggler: {kind} {name} cost the others {lost} of the last {window}: \
                 look at the load of its host, give it a smaller share of the batch, or correct \
                 the link's `rate`"
            );
        }
        straggler
    }

    /// Describes a straggler, with its name and its delay, for the status and the log.
    fn straggler_report(&self, straggler: Straggler, now: TimeNs) -> StragglerReport {
        let (kind, name) = self.describe_party(straggler.party);
        let since = self.named.filter(|(party, _)| *party == straggler.party);
        StragglerReport {
            kind: kind.to_owned(),
            name,
            behind_seconds: straggler.behind.as_secs_f64(),
            collectives: straggler.collectives,
            since_seconds: since.map_or(0.0, |(_, since)| now.since(since).as_secs_f64()),
        }
    }

    /// Returns the kind and the name of a party that may be the straggler.
    fn describe_party(&self, party: StragglerParty) -> (&'static str, String) {
        let region = |id: RegionId| self.fabric.region(id).name.clone();
        match party {
            StragglerParty::Rank(rank) => ("rank", rank.0.to_string()),
            StragglerParty::Region(there) => ("region", region(there)),
            StragglerParty::Link(there) => {
                let mut ends = [region(self.region_of(self.me)), region(there)];
                ends.sort();
                ("link", ends.join("-"))
            }
        }
    }

    /// Returns the region in which a gateway is.
    fn region_of(&self, gateway: GatewayId) -> RegionId {
        self.fabric.gateway(gateway).region
    }
}
