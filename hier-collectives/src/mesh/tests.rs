//! Tables of several gateways and the reports between them, in virtual time.

use super::*;
use crate::ids::{GatewayId, RegionId};
use crate::testing::{FabricBuilder, SplitMix64, lossless_link, mbit, symmetric_port};
use crate::topology::{Fabric, Patience};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use units::{Span, TimeNs};

/// Regions of one gateway with links between these pairs.
fn fabric_of(gateways: u16, pairs: &BTreeSet<(u16, u16)>) -> Arc<Fabric> {
    let wan = Some(symmetric_port(mbit(1)));
    let mut builder = FabricBuilder::default();
    for gateway in 0..gateways {
        builder = builder.region(&format!("r{gateway}"), [(1, wan)]);
    }
    for (one, other) in pairs {
        builder = builder.link(&format!("r{one}"), &format!("r{other}"), lossless_link(mbit(1), 2));
    }
    Arc::new(builder.build())
}

/// Regions of one gateway, all pairs linked.
fn full_fabric(gateways: u16) -> Arc<Fabric> {
    let pairs = (0..gateways).flat_map(|one| (one + 1..gateways).map(move |other| (one, other)));
    fabric_of(gateways, &pairs.collect())
}

/// The tables of all gateways, and the reports that are under way between them.
struct Tables {
    fabric: Arc<Fabric>,
    tables: Vec<MeshTable>,
    open: BTreeSet<GatewayPair>,
    under_way: BTreeMap<(GatewayId, GatewayId), VecDeque<MeshReport>>,
    now: TimeNs,
    random: SplitMix64,
}

impl Tables {
    fn new(fabric: Arc<Fabric>, seed: u64) -> Self {
        let table = |me| MeshTable::new(Arc::clone(&fabric), me);
        Self {
            tables: fabric.gateway_ids().map(table).collect(),
            fabric,
            open: BTreeSet::new(),
            under_way: BTreeMap::new(),
            now: TimeNs::from_ns(1),
            random: SplitMix64(seed),
        }
    }

    fn table(&mut self, of: GatewayId) -> &mut MeshTable {
        &mut self.tables[usize::from(of.0)]
    }

    /// Sends the reports that a gateway has made, over connections that are open.
    fn send(&mut self, from: GatewayId) {
        while let Some((to, report)) = self.table(from).poll_report() {
            if self.open.contains(&(from.min(to), from.max(to))) {
                self.under_way.entry((from, to)).or_default().push_back(report);
            }
        }
    }

    fn connect(&mut self, pair: GatewayPair) {
        self.open.insert(pair);
        for (me, peer) in [pair, (pair.1, pair.0)] {
            let now = self.now;
            self.table(me).handle_up(peer, now);
            self.send(me);
        }
    }

    /// Loses a connection and the reports on it.
    fn cut(&mut self, pair: GatewayPair, silent: bool) {
        self.open.remove(&pair);
        self.under_way.retain(|(from, to), _| (*from.min(to), *from.max(to)) != pair);
        for (me, peer) in [pair, (pair.1, pair.0)] {
            let now = self.now;
            self.table(me).handle_down(peer, silent, now);
            self.send(me);
        }
    }

    /// Loses messages that a gateway forwards.
    fn lose_messages(&mut self, at: GatewayId) {
        let now = self.now;
        self.table(at).handle_messages_lost(now);
        self.send(at);
    }

    /// Delivers one report; returns false if none is under way.
    fn step(&mut self) -> bool {
        let busy: Vec<_> = self.under_way.iter().filter(|(_, queue)| !queue.is_empty()).collect();
        let Some(last) = busy.len().checked_sub(1) else { return false };
        let chosen = self.random.range(0, last as u64) as usize;
        let (from, to) = *busy[chosen].0;
        let report = self.under_way.get_mut(&(from, to)).and_then(VecDeque::pop_front);
        let now = self.now;
        let taken = self.table(to).handle_report(from, report.expect("there"), now);
        assert_eq!(taken, Ok(()));
        self.send(to);
        true
    }

    /// Delivers all reports, and lets this much time pass. Tables are called at their deadlines
    /// alone.
    fn pass(&mut self, span: Span) {
        let end = self.now + span;
        while self.now < end {
            while self.step() {}
            let due = self.tables.iter().filter_map(MeshTable::poll_timeout).min();
            let now = due.map_or(end, |due| due.max(self.now).min(end));
            self.now = now;
            for id in self.fabric.gateway_ids() {
                let is_due = |at: TimeNs| at <= now;
                if self.table(id).poll_timeout().is_some_and(is_due) {
                    self.table(id).handle_time(now);
                    assert!(!self.table(id).poll_timeout().is_some_and(is_due), "due for ever");
                    self.send(id);
                }
            }
        }
        while self.step() {}
    }

    fn pairs(&self) -> Vec<GatewayPair> {
        let ids = || self.fabric.gateway_ids();
        let pairs = ids().flat_map(|one| ids().map(move |other| (one, other)));
        pairs.filter(|(one, other)| one < other && self.fabric.connects(*one, *other)).collect()
    }

    /// Connects all pairs of the fabric, and lets all reports arrive.
    fn connect_all(&mut self) {
        self.pairs().into_iter().for_each(|pair| self.connect(pair));
        self.pass(Span::from_ms(500));
    }

    fn states(&self, at: u16, pair: (u16, u16)) -> MeshConnectionState {
        let (one, other) = (GatewayId(pair.0), GatewayId(pair.1));
        let graph = self.tables[usize::from(at)].graph();
        match (graph.is_up(one, other), graph.pairs_down().any(|down| down == (one, other))) {
            (true, _) => MeshConnectionState::Up,
            (false, true) => MeshConnectionState::Down,
            (false, false) => MeshConnectionState::Awaited,
        }
    }
}

/// Connections come and go at random; then those that are open join all gateways.
#[test]
fn all_gateways_come_to_know_one_graph() {
    for seed in 0..300 {
        let mut random = SplitMix64(seed);
        let gateways = random.range(2, 7) as u16;
        let mut pairs: BTreeSet<(u16, u16)> = (1..gateways).map(|at| (at - 1, at)).collect();
        for one in 0..gateways {
            pairs.extend((one + 1..gateways).filter(|_| random.chance(60)).map(|to| (one, to)));
        }
        let mut tables = Tables::new(fabric_of(gateways, &pairs), seed);
        let known = tables.pairs();
        for _ in 0..random.range(0, 60) {
            let pair = known[random.range(0, known.len() as u64 - 1) as usize];
            match random.range(0, 5) {
                0 | 1 if !tables.open.contains(&pair) => tables.connect(pair),
                2 if tables.open.contains(&pair) => tables.cut(pair, random.chance(50)),
                3 => tables.pass(Span::from_ms(100)),
                _ => {
                    tables.step();
                }
            }
        }
        // A line through all gateways is open at last, and some connections beside it.
        for pair in known {
            let in_line = pair.1.0 == pair.0.0 + 1;
            match tables.open.contains(&pair) {
                true if !in_line && random.chance(30) => tables.cut(pair, true),
                false if in_line => tables.connect(pair),
                _ => {}
            }
        }
        tables.pass(Span::from_secs(11));
        let truth = MeshGraph::new(&tables.fabric, |one, other| {
            if tables.open.contains(&(one, other)) {
                MeshConnectionState::Up
            } else {
                MeshConnectionState::Down
            }
        });
        for table in &tables.tables {
            assert_eq!(**table.graph(), truth, "seed {seed}");
        }
    }
}

#[test]
fn a_silent_connection_is_gone_round_at_once() {
    let mut tables = Tables::new(full_fabric(3), 1);
    tables.connect_all();
    assert!(tables.tables.iter().all(|table| table.graph().is_complete()));
    let ways = [0, 2].map(RegionId);
    assert_eq!(tables.tables[1].regions_with_way_round(), BTreeSet::from(ways));
    tables.cut((GatewayId(1), GatewayId(2)), true);
    let relay = GatewayId(0);
    assert_eq!(tables.tables[1].routes().next_hop(GatewayId(2)), Some(relay));
    tables.pass(Span::from_ms(100));
    for at in 0..3 {
        assert_eq!(tables.states(at, (1, 2)), MeshConnectionState::Down, "on gateway {at}");
    }
    let ways = tables.tables[1].regions_with_way_round();
    assert!(!ways.contains(&RegionId(0)), "nothing is left to go round by");
    tables.connect((GatewayId(1), GatewayId(2)));
    tables.pass(Span::from_ms(200));
    assert!(tables.tables.iter().all(|table| table.graph().is_complete()));
}

#[test]
fn a_connection_is_awaited_before_it_is_gone_round() {
    let mut tables = Tables::new(full_fabric(3), 1);
    tables.connect((GatewayId(0), GatewayId(1)));
    tables.pass(Span::from_secs(60));
    assert_eq!(tables.states(0, (1, 2)), MeshConnectionState::Awaited, "gateway 2 is not there");
    tables.connect((GatewayId(0), GatewayId(2)));
    tables.pass(Span::from_secs(9));
    assert_eq!(tables.states(0, (1, 2)), MeshConnectionState::Awaited);
    tables.pass(Span::from_secs(2));
    assert_eq!(tables.states(0, (1, 2)), MeshConnectionState::Down);
    // Gateway 2 goes away and comes back, and gets its time again.
    tables.cut((GatewayId(0), GatewayId(2)), true);
    tables.pass(Span::from_secs(1));
    tables.connect((GatewayId(0), GatewayId(2)));
    tables.pass(Span::from_secs(9));
    assert_eq!(tables.states(1, (1, 2)), MeshConnectionState::Awaited);
}

#[test]
fn a_patience_sets_how_long_connections_are_awaited() {
    let patience = Patience::of_span(Span::from_secs(60)).expect("valid");
    let mut tables = Tables::new(Arc::new((*full_fabric(3)).clone().with_patience(patience)), 1);
    tables.connect((GatewayId(0), GatewayId(1)));
    tables.connect((GatewayId(0), GatewayId(2)));
    tables.pass(Span::from_secs(39));
    assert_eq!(tables.states(0, (1, 2)), MeshConnectionState::Awaited);
    tables.pass(Span::from_secs(2));
    assert_eq!(tables.states(0, (1, 2)), MeshConnectionState::Down);
}

#[test]
fn a_connection_that_was_closed_is_awaited() {
    let mut tables = Tables::new(full_fabric(3), 1);
    tables.connect_all();
    tables.cut((GatewayId(1), GatewayId(2)), false);
    tables.pass(Span::from_secs(9));
    assert_eq!(tables.states(0, (1, 2)), MeshConnectionState::Awaited);
    assert!(!tables.tables[0].graph().is_settled());
    tables.pass(Span::from_secs(2));
    assert_eq!(tables.states(0, (1, 2)), MeshConnectionState::Down);
}

/// A gateway that was started again begins to count at one, and its neighbours know higher numbers.
#[test]
fn a_restarted_gateway_counts_on() {
    let mut tables = Tables::new(full_fabric(3), 1);
    tables.connect_all();
    let restarted = GatewayId(1);
    for _ in 0..5 {
        tables.cut((restarted, GatewayId(2)), false);
        tables.connect((restarted, GatewayId(2)));
        tables.pass(Span::from_ms(200));
    }
    for peer in [GatewayId(0), GatewayId(2)] {
        tables.cut((restarted.min(peer), restarted.max(peer)), false);
    }
    let fabric = Arc::clone(&tables.fabric);
    *tables.table(restarted) = MeshTable::new(fabric, restarted);
    tables.connect((GatewayId(0), restarted));
    tables.pass(Span::from_ms(300));
    assert_eq!(tables.states(2, (0, 1)), MeshConnectionState::Up);
    assert_eq!(
        tables.states(2, (1, 2)),
        MeshConnectionState::Awaited,
        "not what it reported before"
    );
}

#[test]
fn lost_messages_are_told_where_gateways_forward() {
    let mut tables = Tables::new(full_fabric(3), 1);
    tables.connect_all();
    let forget = |tables: &mut Tables| {
        tables.tables.iter_mut().for_each(|table| drop(table.take_change()));
    };
    forget(&mut tables);
    tables.lose_messages(GatewayId(0));
    tables.pass(Span::from_ms(200));
    assert_eq!(tables.tables[2].take_change(), None, "nobody's messages go through others");
    tables.cut((GatewayId(1), GatewayId(2)), true);
    tables.pass(Span::from_ms(200));
    forget(&mut tables);
    tables.lose_messages(GatewayId(0));
    tables.pass(Span::from_ms(200));
    for at in 0..3 {
        assert!(tables.tables[at].take_change().is_some(), "on gateway {at}");
    }
}

#[test]
fn reports_of_unknown_connections_are_refused() {
    let mut tables = Tables::new(fabric_of(3, &[(0, 1), (1, 2)].into()), 1);
    let now = tables.now;
    let report = |gateway, up: &[u16]| MeshReport {
        gateway: GatewayId(gateway),
        number: 1,
        up: up.iter().copied().map(GatewayId).collect(),
        down: vec![],
    };
    for (gateway, up) in [(3, vec![]), (2, vec![0]), (2, vec![1, 9])] {
        let taken =
            tables.table(GatewayId(0)).handle_report(GatewayId(1), report(gateway, &up), now);
        assert_eq!(taken, Err(InvalidReport(GatewayId(gateway))));
    }
}
