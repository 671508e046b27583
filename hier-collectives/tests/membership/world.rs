//! Gateways, a network between them, and a judge who sees all of them at once.

use super::world_parts::{Gateway, Tally};
use hier_collectives::ids::{BootId, GatewayId, RegionId};
use hier_collectives::membership::{
    FabricVersion, SignedFabric, Term, TermAction, TermAgreement, TermId, TermMessage, TermWitness,
};
use hier_collectives::mesh::{MeshConnectionState, MeshGraph};
use hier_collectives::testing::{FabricBuilder, SplitMix64, lossless_link, mbit, symmetric_port};
use hier_collectives::topology::{
    Fabric, FabricGatewaySpec, FabricLinkSpec, FabricRegionSpec, QuorumSpec, Region,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use units::{Span, TimeNs};

/// The time of a run in which faults happen.
pub(super) const FAULTS_MS: u64 = 60_000;
/// The time after the last fault within which all regions are in one term.
const CALM_MS: u64 = 20_000;

/// A fabric by the number of gateways of each region, and its quorum. Regions are called a, b, c.
#[derive(Debug, Clone)]
pub struct Shape {
    pub gateways: Vec<usize>,
    pub quorum: QuorumSpec,
    /// Whether there is a witness, too.
    pub witness: bool,
    /// The votes of the first regions; others have one.
    pub votes: Vec<u16>,
}

#[derive(Debug)]
pub(super) enum Event {
    Deliver {
        from: GatewayId,
        to: GatewayId,
        boot: BootId,
        message: TermMessage,
    },
    /// A gateway that has entered a term says so to the first of its gateways, with what it knows.
    Join {
        from: GatewayId,
        to: GatewayId,
        boot: BootId,
        term: TermId,
        history: u64,
    },
    /// The first gateway of a term begins its epoch, with what all its gateways know.
    EpochBegins {
        to: GatewayId,
        boot: BootId,
        term: TermId,
        history: u64,
    },
    /// A gateway learns which connections are up.
    Learn {
        gateway: usize,
    },
    /// All jobs of a gateway come to a boundary.
    Boundary {
        gateway: usize,
        boot: BootId,
    },
    /// The paths between gateways change.
    Fault,
    /// Every region that has left joins again.
    JoinAll,
    /// A gateway has checked a signed fabric.
    FabricChecked {
        gateway: usize,
        boot: BootId,
        fabric: SignedFabric,
        within: Span,
    },
    Start {
        gateway: usize,
    },
    Heal,
}

/// Adds a witness to a fabric.
fn with_witness(fabric: Fabric) -> Fabric {
    let state = lossless_link(mbit(1), 100);
    let link = |region: &Region| FabricLinkSpec {
        between: (region.name.clone(), "w".to_owned()),
        rate: state.rate,
        rtt: state.rtt,
        loss: state.loss,
    };
    let links = fabric.regions().iter().map(link).collect();
    let wan = Some(symmetric_port(mbit(1)));
    let gateways = vec![FabricGatewaySpec::new("w-0", 0, wan)];
    let region = FabricRegionSpec { name: "w".to_owned(), speeds: vec![], gateways };
    fabric.with_witness(region, links).expect("a valid witness")
}

/// A run.
pub struct World {
    pub(super) fabric: Arc<Fabric>,
    pub(super) random: SplitMix64,
    pub(super) now_ms: u64,
    events: BTreeMap<(u64, u64), Event>,
    scheduled: u64,
    pub(super) gateways: Vec<Gateway>,
    /// Paths from a gateway to another on which nothing passes.
    cut: BTreeSet<(GatewayId, GatewayId)>,
    /// The regions of each term that a gateway has entered.
    terms: BTreeMap<TermId, BTreeSet<RegionId>>,
    /// The fabric of each term that a gateway has entered.
    fabrics: BTreeMap<TermId, FabricVersion>,
    /// The number of the last fabric that was signed.
    pub(super) signed: u64,
    /// The gateways that refuse a fabric, until all faults end.
    pub(super) refusing: BTreeSet<(FabricVersion, usize)>,
    /// The last term that went on, and its number in the judge's order.
    last: (TermId, u64),
    pub tally: Tally,
    pub wrong: Vec<String>,
    pub trace: Vec<String>,
    /// Whether the trace has messages and actions, too, which takes most of the time of a run.
    pub has_messages_traced: bool,
}

impl World {
    /// Makes a run of a shape, in which nobody has started yet.
    pub fn new(shape: &Shape, seed: u64) -> Self {
        let wan = Some(symmetric_port(mbit(1)));
        let mut builder = FabricBuilder::default();
        for (name, gateways) in ["a", "b", "c", "d", "e", "f"].iter().zip(&shape.gateways) {
            builder = builder.region(name, vec![(1, wan); *gateways]);
        }
        let mut fabric = builder.all_pairs(lossless_link(mbit(1), 100)).build();
        if shape.witness {
            fabric = with_witness(fabric);
        }
        let names = fabric.regions().iter().map(|region| region.name.clone());
        let votes = names.zip(shape.votes.iter().copied()).collect();
        let fabric = fabric.with_weighted_quorum(&shape.quorum, &votes);
        let fabric = Arc::new(fabric.expect("a valid quorum"));
        let none = || Gateway::started(BootId(0), None, None);
        let gateways = fabric.gateway_ids().map(|_| none()).collect();
        let mut world = Self {
            fabric,
            random: SplitMix64(seed),
            now_ms: 0,
            events: BTreeMap::new(),
            scheduled: 0,
            gateways,
            cut: BTreeSet::new(),
            terms: BTreeMap::new(),
            fabrics: BTreeMap::new(),
            signed: 0,
            refusing: BTreeSet::new(),
            last: (TermId::default(), 0),
            tally: Tally::default(),
            wrong: Vec::new(),
            trace: Vec::new(),
            has_messages_traced: false,
        };
        for gateway in 0..world.gateways.len() {
            let delay = world.random.range(0, 3_000);
            world.schedule(delay, Event::Start { gateway });
        }
        let pace = world.random.range(300, 8_000);
        let mut at = 5_000;
        while at < FAULTS_MS {
            world.schedule(at, Event::Fault);
            at += world.random.range(1, 2 * pace);
        }
        world.schedule(FAULTS_MS, Event::Heal);
        world
    }

    /// Runs until everything has been calm for a while, and judges the end. Then a gateway is started with
    /// a fabric of its own, and with the common one again, in one of three runs.
    pub fn run(&mut self) {
        self.run_until(FAULTS_MS + CALM_MS);
        self.judge_whole("in the end");
        if self.random.chance(34) {
            self.run_with_another_fabric();
        }
    }

    /// Runs until a time, or until something is wrong.
    pub(super) fn run_until(&mut self, end_ms: u64) {
        while self.wrong.is_empty() {
            let timeouts = self.gateways.iter().enumerate().filter_map(|(index, gateway)| {
                Some((gateway.agreement.as_ref()?.poll_timeout()?, index))
            });
            let due = timeouts.min().map(|(at, index)| (at.ns().div_ceil(1_000_000), index));
            let next = self.events.keys().next().map(|(at, _)| *at);
            let (at, woken) = match (due, next) {
                (Some((at, index)), next) if next.is_none_or(|next| at <= next) => {
                    (at, Some(index))
                }
                (_, Some(next)) => (next, None),
                _ => break,
            };
            if at > end_ms {
                break;
            }
            self.now_ms = self.now_ms.max(at);
            match woken {
                Some(index) => self.with(index, |agreement, now| agreement.handle_timeout(now)),
                None => {
                    let (_, event) = self.events.pop_first().expect("an event");
                    self.handle(event);
                }
            }
        }
        self.now_ms = self.now_ms.max(end_ms);
    }

    /// Judges whether all gateways are in one term of all regions.
    pub(super) fn judge_whole(&mut self, when: &str) {
        let ranked = self.gateways.iter().filter(|gateway| gateway.witness.is_none());
        let (all, terms) = (self.fabric.ranked_region_count(), ranked.map(|g| &g.term));
        let terms: BTreeSet<_> = terms.map(|term| term.as_ref().map(|term| term.id)).collect();
        let is_whole = |term: &Option<Term>| term.as_ref().is_some_and(|t| t.regions.len() == all);
        if self.wrong.is_empty() && (terms.len() != 1 || !is_whole(&self.gateways[0].term)) {
            self.wrong.push(format!("not all are in one term {when}: {terms:?}"));
        }
    }

    /// Adds an event after a delay.
    pub(super) fn schedule(&mut self, delay_ms: u64, event: Event) {
        self.scheduled += 1;
        self.events.insert((self.now_ms + delay_ms, self.scheduled), event);
    }

    fn handle(&mut self, event: Event) {
        self.trace_delivery(&event);
        match event {
            Event::Deliver { from, to, boot, message } => {
                let gateway = &mut self.gateways[usize::from(to.0)];
                // A connection ends with the gateway that it was made to.
                if gateway.boot == boot && gateway.runs() {
                    if let Some(witness) = &mut gateway.witness {
                        let answer = witness.handle_message(from, message).expect("no violation");
                        if let Some(answer) = answer {
                            let is_vote = matches!(answer, TermMessage::Vote { .. });
                            self.tally.witnessed_terms += u64::from(is_vote);
                            self.send(to, from, answer);
                        }
                        return;
                    }
                    self.with(usize::from(to.0), |agreement, now| {
                        agreement.handle_message(from, message, now).expect("no violation");
                    });
                }
            }
            Event::Join { from, to, boot, term, history } => {
                let gateway = &mut self.gateways[usize::from(to.0)];
                if gateway.boot == boot && gateway.agreement.is_some() {
                    gateway.joined.insert((term, from), history);
                    self.begin_epoch(to);
                }
            }
            Event::EpochBegins { to, boot, term, history } => {
                let gateway = &mut self.gateways[usize::from(to.0)];
                let is_in_it = gateway.term.as_ref().is_some_and(|own| own.id == term);
                if gateway.boot == boot && is_in_it {
                    gateway.history = gateway.history.max(history);
                    gateway.is_in_epoch = true;
                    self.with(usize::from(to.0), |agreement, now| agreement.handle_epoch(now));
                }
            }
            Event::Learn { gateway } => {
                let graph = self.graph();
                if let Some(witness) = &mut self.gateways[gateway].witness {
                    let reached = witness.handle_connections(&graph);
                    let (me, standing) = (GatewayId(gateway as u16), witness.standing());
                    reached.into_iter().for_each(|to| self.send(me, to, standing.clone()));
                }
                self.with(gateway, |agreement, now| {
                    agreement.handle_connections(&graph, "for this test", now);
                });
            }
            Event::Boundary { gateway, boot } => {
                if self.gateways[gateway].boot == boot {
                    self.with(gateway, |agreement, now| {
                        if agreement.awaits_boundary() {
                            agreement.handle_boundary(now);
                        }
                    });
                }
            }
            Event::Fault => self.fault(),
            Event::JoinAll => {
                for (index, id) in self.fabric.gateway_ids().enumerate() {
                    let region = self.fabric.gateway(id).region;
                    self.request(index, region, false);
                }
            }
            Event::FabricChecked { gateway, boot, fabric, within } => {
                if self.gateways[gateway].boot == boot {
                    self.judge_fabric(gateway, fabric, within);
                }
            }
            Event::Start { gateway } => self.start(gateway),
            Event::Heal => self.heal(),
        }
    }

    /// Traces a message that arrives, if messages are traced.
    fn trace_delivery(&mut self, event: &Event) {
        if let Event::Deliver { from, to, boot, message } = event
            && self.has_messages_traced
            && self.gateways[usize::from(to.0)].boot == *boot
        {
            self.trace.push(format!("{} {from}>{to} {message:?}", self.now_ms));
        }
    }

    /// Ends all faults, and lets all regions join once all gateways have learned of all connections.
    fn heal(&mut self) {
        self.trace.push(format!("{} heal", self.now_ms));
        self.cut.clear();
        self.mend_fabrics();
        for index in 0..self.gateways.len() {
            if !self.gateways[index].runs() {
                self.start(index);
            }
        }
        self.tell_connections();
        self.schedule(3_500, Event::JoinAll);
    }

    /// Lets an operator ask a gateway to take a region out or in. The gateway may refuse.
    fn request(&mut self, index: usize, region: RegionId, leaves: bool) {
        let within = Span::from_secs(self.random.range(1, 6));
        let mut is_accepted = false;
        self.with(index, |agreement, now| {
            let left = &agreement.left_regions() | &agreement.leaving_regions();
            let before = left.contains(&region);
            let asked = agreement.request_change(region, leaves, within, now);
            is_accepted = asked.is_ok() && before != leaves;
        });
        if is_accepted {
            self.trace.push(format!("{} {region:?} leaves: {leaves}, at {index}", self.now_ms));
            let count = if leaves { &mut self.tally.leaves } else { &mut self.tally.joins };
            *count += 1;
        }
    }

    /// Returns the gateways of a term, the first of which begins its epoch.
    fn gateways_of(&self, term: TermId) -> Vec<GatewayId> {
        let regions = self.terms[&term].iter();
        regions.flat_map(|id| self.fabric.region(*id).gateways.clone()).map(GatewayId).collect()
    }

    /// Begins the epoch of a term at its first gateway, which is in it, once all its gateways are.
    fn begin_epoch(&mut self, first: GatewayId) {
        let gateway = &self.gateways[usize::from(first.0)];
        let Some(term) = gateway.term.as_ref().map(|term| term.id) else { return };
        let members = self.gateways_of(term);
        let joined = members.iter().map(|id| gateway.joined.get(&(term, *id)).copied());
        let Some(known) = joined.collect::<Option<Vec<u64>>>() else { return };
        let history = known.into_iter().max().unwrap_or(0);
        for to in members {
            let boot = self.gateways[usize::from(to.0)].boot;
            let delay = if to == first { 0 } else { self.random.range(1, 200) };
            if !self.cut.contains(&(first, to)) {
                self.schedule(delay, Event::EpochBegins { to, boot, term, history });
            }
        }
    }

    /// Cuts or mends some paths, or ends a gateway.
    fn fault(&mut self) {
        let count = self.gateways.len() as u64;
        let ids: Vec<GatewayId> = self.fabric.gateway_ids().collect();
        match self.random.range(0, 15) {
            14 | 15 => return self.sign_fabric(),
            // A partition into two or three parts.
            0..=2 => {
                let parts: Vec<u64> = ids.iter().map(|_| self.random.range(0, 2)).collect();
                self.cut.clear();
                for (one, of_one) in ids.iter().zip(&parts) {
                    for (other, of_other) in ids.iter().zip(&parts) {
                        if of_one != of_other {
                            self.cut.insert((*one, *other));
                        }
                    }
                }
                self.tally.cuts += 1;
            }
            // One path, one way: both ends see the connection as down.
            3 | 4 => {
                let (one, other) =
                    (self.random.range(0, count - 1), self.random.range(0, count - 1));
                self.cut.insert((ids[one as usize], ids[other as usize]));
                self.tally.cuts += 1;
            }
            5..=7 => {
                let gateway = self.random.range(0, count - 1) as usize;
                self.tally.restarts += 1;
                self.stop(gateway);
                let away = if self.random.chance(50) { 10 } else { self.random.range(100, 15_000) };
                self.schedule(away, Event::Start { gateway });
            }
            8 | 9 => self.cut.clear(),
            kind => {
                let regions = self.fabric.ranked_region_count() as u64 - 1;
                let region = RegionId(self.random.range(0, regions) as u16);
                let gateway = self.random.range(0, count - 1) as usize;
                return self.request(gateway, region, kind < 12);
            }
        }
        self.trace.push(format!("{} cut {:?}", self.now_ms, self.cut));
        self.tell_connections();
    }

    /// Ends a gateway, which forgets everything.
    pub(super) fn stop(&mut self, index: usize) {
        self.trace.push(format!("{} end of {index}", self.now_ms));
        self.gateways[index] = Gateway::started(BootId(0), None, None);
    }

    /// Starts a gateway that does not run, without any memory.
    pub(super) fn start(&mut self, index: usize) {
        let version = self.version_at_start();
        self.start_with(index, version);
    }

    /// Starts a gateway that does not run with a file of this version.
    pub(super) fn start_with(&mut self, index: usize, version: FabricVersion) {
        if self.gateways[index].runs() {
            return;
        }
        let boot = BootId(self.random.next_u64() | 1);
        let me = GatewayId(u16::try_from(index).expect("few"));
        self.trace.push(format!("{} start of {index} as {boot}, {version:?}", self.now_ms));
        let fabric = Arc::clone(&self.fabric);
        self.gateways[index] = match self.fabric.witness() == Some(me) {
            true => Gateway::started(boot, None, Some(TermWitness::new(fabric, me, boot))),
            false => {
                Gateway::started(boot, Some(TermAgreement::new(fabric, version, me, boot)), None)
            }
        };
        self.gateways[index].checked.insert(version);
        self.gateways[index].of_file = version;
        self.tell_connections();
    }

    /// Lets each gateway learn the connections as they are then, each at its own time.
    fn tell_connections(&mut self) {
        for gateway in 0..self.gateways.len() {
            let delay = self.random.range(0, 3_000);
            self.schedule(delay, Event::Learn { gateway });
        }
    }

    /// Returns the connections that are up: both ends run, and bytes pass both ways.
    fn graph(&self) -> MeshGraph {
        let runs = |id: GatewayId| self.gateways[usize::from(id.0)].runs();
        MeshGraph::new(&self.fabric, |one, other| {
            let is_cut = self.cut.contains(&(one, other)) || self.cut.contains(&(other, one));
            if !is_cut && runs(one) && runs(other) {
                MeshConnectionState::Up
            } else {
                MeshConnectionState::Down
            }
        })
    }

    /// Calls a gateway that runs, performs its actions, and judges all gateways.
    pub(super) fn with(&mut self, index: usize, call: impl FnOnce(&mut TermAgreement, TimeNs)) {
        let now = TimeNs::from_ns(1) + Span::from_ms(self.now_ms);
        let Some(mut agreement) = self.gateways[index].agreement.take() else { return };
        call(&mut agreement, now);
        let me = GatewayId(u16::try_from(index).expect("few"));
        while let Some(action) = agreement.poll_action() {
            if self.has_messages_traced {
                self.trace.push(format!("{} {me}: {action:?}", self.now_ms));
            }
            match action {
                TermAction::Message { to, message } => {
                    if let TermMessage::Propose { term, .. } = &message
                        && !agreement.left_regions().is_disjoint(&term.regions)
                    {
                        self.wrong.push(format!("{me} proposes a term of a region that has left"));
                    }
                    self.send(me, to, message);
                }
                TermAction::Leave(_) => {
                    self.gateways[index].left += 1;
                    self.gateways[index].term = None;
                    self.gateways[index].is_in_epoch = false;
                }
                TermAction::Pause(_) => {
                    let boot = self.gateways[index].boot;
                    let delay = self.random.range(0, 4_000);
                    self.schedule(delay, Event::Boundary { gateway: index, boot });
                }
                TermAction::CheckFabric { fabric, within } => {
                    let (boot, gateway) = (self.gateways[index].boot, index);
                    let delay = self.random.range(1, 1_500);
                    self.schedule(delay, Event::FabricChecked { gateway, boot, fabric, within });
                }
                TermAction::Enter(term) => {
                    let known = *self.fabrics.entry(term.id).or_insert(term.fabric);
                    if known != term.fabric || agreement.fabric_in_force() != term.fabric {
                        self.wrong.push(format!("{:?} has two fabrics", term.id));
                    }
                    if !self.gateways[index].checked.contains(&term.fabric) {
                        self.wrong.push(format!("{me} enters a term with a fabric that it lacks"));
                    }
                    self.tally.adopted += u64::from(term.fabric.number > 0);
                    let is_called_off = !agreement.called_off_leaves().is_empty();
                    self.tally.called_off += u64::from(is_called_off);
                    let regions = term.regions.clone();
                    let known = self.terms.entry(term.id).or_insert_with(|| regions.clone());
                    if *known != regions {
                        self.wrong.push(format!("{:?} has two sets of members", term.id));
                    }
                    let id = term.id;
                    let to = self.gateways_of(id)[0];
                    let boot = self.gateways[usize::from(to.0)].boot;
                    let history = self.gateways[index].history;
                    if !self.cut.contains(&(me, to)) {
                        let join = Event::Join { from: me, to, boot, term: id, history };
                        let delay = if me == to { 0 } else { self.random.range(1, 200) };
                        self.schedule(delay, join);
                    }
                    if self.gateways[index].term.replace(term).is_some() {
                        self.wrong.push(format!("{me} is in two terms"));
                    }
                }
            }
        }
        if agreement.term() != self.gateways[index].term.as_ref() {
            self.wrong.push(format!("{me} says that it is in {:?}", agreement.term()));
        }
        self.gateways[index].agreement = Some(agreement);
        self.judge();
    }

    /// Sends a message, which arrives once, twice or never; mostly in order.
    fn send(&mut self, from: GatewayId, to: GatewayId, message: TermMessage) {
        let copies = match self.random.range(0, 99) {
            0 => 0,
            1 | 2 => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let delay = if self.random.chance(95) { 50 } else { self.random.range(1, 2_000) };
            let boot = self.gateways[usize::from(to.0)].boot;
            if !self.cut.contains(&(from, to)) {
                let message = message.clone();
                self.schedule(delay, Event::Deliver { from, to, boot, message });
            }
        }
    }

    /// Finds the terms that go on, since all their gateways are in an epoch of them, and judges them.
    fn judge(&mut self) {
        let mut members: BTreeMap<TermId, BTreeSet<GatewayId>> = BTreeMap::new();
        for (id, gateway) in self.fabric.gateway_ids().zip(&self.gateways) {
            if let Some(term) = gateway.term.as_ref().filter(|_| gateway.is_in_epoch) {
                members.entry(term.id).or_default().insert(id);
            }
        }
        let is_whole = |(id, of_term): &(&TermId, &BTreeSet<GatewayId>)| {
            self.gateways_of(**id).iter().eq(of_term.iter())
        };
        let going_on: Vec<TermId> = members.iter().filter(is_whole).map(|(id, _)| *id).collect();
        let [term] = going_on[..] else {
            if going_on.len() > 1 {
                self.wrong.push(format!("several go on: {going_on:?}"));
            }
            return;
        };
        if term == self.last.0 {
            return;
        }
        let of_term = &members[&term];
        let known = of_term.iter().map(|id| self.gateways[usize::from(id.0)].history).max();
        let is_all = self.terms[&term].len() == self.fabric.ranked_region_count();
        // What everybody has forgotten cannot come back.
        let most = self.gateways.iter().map(|gateway| gateway.history).max();
        if !is_all && known != most {
            self.wrong.push(format!("{term:?} knows {known:?}, and another gateway {most:?}"));
        }
        if known == Some(self.last.1) && term.number <= self.last.0.number {
            self.wrong.push(format!("{term:?} follows {:?}", self.last));
        }
        self.tally.terms += 1;
        self.tally.partial_terms += u64::from(!is_all);
        let first = usize::from(of_term.first().expect("a gateway").0);
        let has_left = |agreement: &TermAgreement| !agreement.left_regions().is_empty();
        let is_smaller = self.gateways[first].agreement.as_ref().is_some_and(has_left);
        self.tally.terms_after_leave += u64::from(is_smaller);
        self.last = (term, self.last.1 + 1);
        for id in of_term {
            self.gateways[usize::from(id.0)].history = self.last.1;
        }
    }
}
