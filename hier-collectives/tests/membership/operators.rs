//! Regions that leave and join at an operator's request: nobody leaves a term before all jobs are at a
//! boundary, or the time is over.

use hier_collectives::ids::{BootId, GatewayId, RegionId};
use hier_collectives::membership::{
    FabricVersion, RegionIntent, SignedFabric, Term, TermAction, TermAgreement, TermMessage,
};
use hier_collectives::mesh::{MeshConnectionState, MeshGraph};
use hier_collectives::testing::{FabricBuilder, lossless_link, mbit, symmetric_port};
use hier_collectives::topology::{Fabric, QuorumSpec};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use units::{Span, TimeNs};

const WEST: RegionId = RegionId(2);

/// Returns the version of a fabric with this number.
fn version_of(number: u64) -> FabricVersion {
    FabricVersion { number, digest: [number as u8; 32] }
}

/// Three regions of one gateway, whose messages arrive at once.
struct Trio {
    fabric: Arc<Fabric>,
    members: Vec<TermAgreement>,
    now: TimeNs,
    /// The terms that each gateway is in, and the number of those that it has left.
    terms: Vec<Option<Term>>,
    left: Vec<usize>,
    /// The number of proposals that each gateway has sent.
    proposed: Vec<usize>,
    /// The failures that each gateway's ranks are to hear at a boundary.
    paused: Vec<BTreeSet<String>>,
    /// The gateways that cannot put signed fabrics in force.
    refusing: BTreeSet<usize>,
}

impl Trio {
    /// Starts three gateways that reach each other, and lets them enter a term.
    fn started() -> Self {
        let wan = Some(symmetric_port(mbit(1)));
        let names = ["east", "mid", "west"].into_iter();
        let builder =
            names.fold(FabricBuilder::default(), |to, name| to.region(name, vec![(1, wan)]));
        let fabric = builder.all_pairs(lossless_link(mbit(1), 100)).build();
        let fabric = Arc::new(fabric.with_quorum(&QuorumSpec::Majority).expect("valid"));
        let member = |index| {
            TermAgreement::new(
                Arc::clone(&fabric),
                FabricVersion::default(),
                GatewayId(index),
                BootId(1 + u64::from(index)),
            )
        };
        let members = (0..3).map(member).collect();
        let (terms, left, paused) = (vec![None; 3], vec![0; 3], vec![BTreeSet::new(); 3]);
        let (now, proposed) = (TimeNs::from_ns(1), vec![0; 3]);
        let refusing = BTreeSet::new();
        let mut trio = Self { fabric, members, now, terms, left, proposed, paused, refusing };
        trio.connect();
        trio.pass(Span::from_secs(3));
        assert_eq!(trio.sizes(), [3, 3, 3]);
        trio
    }

    /// Lets all gateways learn that all of them are reached.
    fn connect(&mut self) {
        self.connect_but(&[]);
    }

    /// Lets all gateways learn that all connections are up but these.
    fn connect_but(&mut self, down: &[(u16, u16)]) {
        let graph = MeshGraph::new(&self.fabric, |one, other| {
            match down.contains(&(one.0, other.0)) || down.contains(&(other.0, one.0)) {
                true => MeshConnectionState::Down,
                false => MeshConnectionState::Up,
            }
        });
        for index in 0..3 {
            self.members[index].handle_connections(&graph, "a test", self.now);
            self.settle();
        }
    }

    /// Starts a gateway again, which then knows nothing and reaches nobody.
    fn restart(&mut self, index: u16, boot: u64) {
        self.restart_with(index, boot, FabricVersion::default());
    }

    /// Starts a gateway again, with a file of this version.
    fn restart_with(&mut self, index: u16, boot: u64, version: FabricVersion) {
        let fabric = Arc::clone(&self.fabric);
        let at = usize::from(index);
        self.members[at] = TermAgreement::new(fabric, version, GatewayId(index), BootId(boot));
        self.terms[at] = None;
    }

    /// Lets an operator apply a fabric at a gateway.
    fn apply(&mut self, at: usize, number: u64) {
        let version = version_of(number);
        let (fabric, within) = (SignedFabric { version, bytes: [1].into() }, Span::from_secs(60));
        self.members[at].offer_fabric(fabric, within, self.now).expect("newer");
        self.settle();
    }

    /// Lets all jobs come to a boundary where they are asked to.
    fn reach_boundaries(&mut self) {
        for index in 0..3 {
            if self.members[index].awaits_boundary() {
                self.reach_boundary(index);
            }
        }
    }

    /// Performs all actions, and those that follow.
    fn settle(&mut self) {
        let mut messages: VecDeque<(usize, GatewayId, TermMessage)> = VecDeque::new();
        loop {
            for index in 0..3 {
                while let Some(action) = self.members[index].poll_action() {
                    match action {
                        TermAction::Message { to, message } => {
                            let is_proposal = matches!(message, TermMessage::Propose { .. });
                            self.proposed[index] += usize::from(is_proposal);
                            messages.push_back((index, to, message))
                        }
                        TermAction::Leave(_) => {
                            self.left[index] += 1;
                            self.terms[index] = None;
                        }
                        TermAction::Enter(term) => {
                            self.terms[index] = Some(term);
                            self.members[index].handle_epoch(self.now);
                        }
                        TermAction::Pause(failure) => drop(self.paused[index].insert(failure.text)),
                        TermAction::CheckFabric { fabric, .. }
                            if self.refusing.contains(&index) =>
                        {
                            self.members[index].refuse_fabric(fabric.version);
                        }
                        TermAction::CheckFabric { fabric, within } => {
                            let _ = self.members[index].offer_fabric(fabric, within, self.now);
                        }
                    }
                }
            }
            let Some((from, to, message)) = messages.pop_front() else { return };
            let from = GatewayId(from as u16);
            let to = &mut self.members[usize::from(to.0)];
            to.handle_message(from, message, self.now).expect("no violation");
        }
    }

    /// Lets time pass.
    fn pass(&mut self, time: Span) {
        let until = self.now + time;
        while self.now < until {
            self.now = self.now + Span::from_ms(100);
            for index in 0..3 {
                if self.members[index].poll_timeout().is_some_and(|due| due <= self.now) {
                    self.members[index].handle_timeout(self.now);
                }
                self.settle();
            }
        }
    }

    /// Lets an operator ask at a gateway for a change that waits for 60 s.
    fn ask(&mut self, at: usize, leaves: bool) {
        let within = Span::from_secs(60);
        self.members[at].request_change(WEST, leaves, within, self.now).expect("accepted");
        self.settle();
    }

    /// Lets all jobs of a gateway come to a boundary.
    fn reach_boundary(&mut self, index: usize) {
        assert!(self.members[index].awaits_boundary(), "{index} was asked");
        self.members[index].handle_boundary(self.now);
        self.settle();
    }

    /// Returns the number of regions of the term of each gateway.
    fn sizes(&self) -> [usize; 3] {
        [0, 1, 2].map(|index| self.terms[index].as_ref().map_or(0, |term| term.regions.len()))
    }
}

#[test]
fn a_term_ends_once_all_jobs_reach_a_boundary() {
    for (at, order) in [(0, [0, 1, 2]), (1, [2, 1, 0]), (2, [1, 2, 0])] {
        let mut trio = Trio::started();
        trio.ask(at, true);
        trio.pass(Span::from_secs(30));
        for index in order {
            assert_eq!((trio.sizes(), trio.left.as_slice()), ([3, 3, 3], &[0, 0, 0][..]));
            trio.reach_boundary(index);
        }
        assert_eq!((trio.sizes(), trio.left.as_slice()), ([2, 2, 0], &[1, 1, 1][..]));
        assert!(trio.paused.iter().all(|texts| texts == &trio.paused[0] && texts.len() == 1));
        let text = trio.paused[0].first().expect("one");
        assert!(
            text.starts_with(
                "region west leaves, as an operator asked: regions east, mid go on with 2 ranks"
            ),
            "{text}"
        );
        // It stays out, also when it is started again.
        trio.restart(2, 77);
        trio.connect();
        trio.pass(Span::from_secs(60));
        assert_eq!(trio.sizes(), [2, 2, 0]);
        assert_eq!(trio.members[2].left_regions(), [WEST].into());
        trio.ask(at, false);
        trio.pass(Span::from_secs(30));
        assert_eq!(trio.sizes(), [2, 2, 0]);
        trio.reach_boundary(1);
        assert_eq!(trio.sizes(), [2, 2, 0]);
        trio.reach_boundary(0);
        assert_eq!(trio.sizes(), [3, 3, 3]);
        assert!(trio.members.iter().all(|member| member.joining_regions().is_empty()));
    }
}

#[test]
fn a_term_ends_without_a_boundary_when_time_is_over() {
    let mut trio = Trio::started();
    trio.ask(1, true);
    trio.reach_boundary(0);
    trio.pass(Span::from_secs(59));
    assert_eq!(trio.sizes(), [3, 3, 3]);
    trio.pass(Span::from_secs(3));
    assert_eq!(trio.sizes(), [2, 2, 0]);
}

#[test]
fn a_change_called_off_ends_in_a_new_term() {
    let mut trio = Trio::started();
    let before = trio.terms[0].clone().expect("a term").id;
    trio.ask(0, true);
    trio.reach_boundary(0);
    trio.ask(0, false);
    for index in 0..3 {
        trio.reach_boundary(index);
    }
    assert_eq!(trio.sizes(), [3, 3, 3]);
    assert!(trio.terms[0].clone().expect("a term").id > before, "ranks wait for it");
}

/// East and mid reach each other by way of west alone, so that they cannot go on without it.
#[test]
fn a_leave_is_called_off_when_others_part_meanwhile() {
    for (at, reached) in [(0, vec![0, 1]), (1, vec![0, 1, 2]), (2, vec![]), (0, vec![2])] {
        let mut trio = Trio::started();
        let before = trio.terms[0].clone().expect("a term").id;
        trio.ask(at, true);
        // The last job is not there yet.
        reached.iter().filter(|_| reached.len() < 3).for_each(|index| trio.reach_boundary(*index));
        trio.connect_but(&[(0, 1)]);
        reached.iter().filter(|_| reached.len() == 3).for_each(|index| trio.reach_boundary(*index));
        trio.pass(Span::from_secs(3));
        (0..3).for_each(|index| trio.reach_boundary(index));
        trio.pass(Span::from_secs(3));
        assert_eq!(trio.sizes(), [3, 3, 3], "asked at {at}");
        assert!(trio.terms[0].clone().expect("a term").id > before, "ranks wait for it");
        for member in &trio.members {
            assert_eq!(member.left_regions(), BTreeSet::new());
            let called_off = member.called_off_leaves();
            assert_eq!(called_off.len(), 1, "{called_off:?}");
            assert!(called_off[0].1.contains("east, mid have no way to each other"));
        }
        assert!(trio.paused[2].iter().any(|text| text.contains("is called off")));
        // It may be asked for again, and is then as new.
        trio.connect();
        trio.ask(at, true);
        (0..3).for_each(|index| trio.reach_boundary(index));
        assert_eq!(trio.sizes(), [2, 2, 0]);
        assert!(trio.members[0].called_off_leaves().is_empty());
    }
}

/// East leads again once its leave is called off, and mid has asked jobs to wait.
#[test]
fn jobs_go_on_when_the_first_region_stays() {
    let mut trio = Trio::started();
    let before = trio.terms[0].clone().expect("a term").id;
    let within = Span::from_secs(60);
    trio.members[0].request_change(RegionId(0), true, within, trio.now).expect("accepted");
    trio.settle();
    (0..2).for_each(|index| trio.reach_boundary(index));
    trio.connect_but(&[(1, 2)]);
    trio.pass(Span::from_secs(3));
    assert_eq!(trio.sizes(), [3, 3, 3]);
    assert!(trio.terms[0].clone().expect("a term").id > before, "ranks wait for it");
    assert_eq!(trio.members[0].called_off_leaves().len(), 1);
}

/// Mid has asked jobs to wait for a term without east, which leads again once it is to stay.
#[test]
fn a_leave_called_off_by_a_join_waits_for_boundaries() {
    let mut trio = Trio::started();
    let before = trio.terms[0].clone().expect("a term").id;
    for leaves in [true, false] {
        let within = Span::from_secs(60);
        trio.members[0].request_change(RegionId(0), leaves, within, trio.now).expect("accepted");
        trio.settle();
        trio.pass(Span::from_secs(5));
    }
    for index in 0..3 {
        assert_eq!((trio.sizes(), trio.left.as_slice()), ([3, 3, 3], &[0, 0, 0][..]));
        trio.reach_boundary(index);
    }
    assert_eq!(trio.sizes(), [3, 3, 3]);
    assert!(trio.terms[0].clone().expect("a term").id > before, "ranks wait for it");
}

#[test]
fn a_leave_goes_on_when_others_part_for_a_moment() {
    let mut trio = Trio::started();
    trio.ask(0, true);
    trio.connect_but(&[(0, 1)]);
    trio.pass(Span::from_ms(500));
    trio.connect();
    trio.pass(Span::from_secs(20));
    assert_eq!((trio.sizes(), trio.left.as_slice()), ([3, 3, 3], &[0, 0, 0][..]));
    (0..3).for_each(|index| trio.reach_boundary(index));
    assert_eq!(trio.sizes(), [2, 2, 0]);
}

#[test]
fn a_leave_ends_in_time_when_nobody_goes_on() {
    let mut trio = Trio::started();
    trio.ask(0, true);
    trio.connect_but(&[(0, 1), (1, 2)]);
    trio.pass(Span::from_secs(58));
    assert_eq!([trio.sizes()[0], trio.sizes()[2]], [0, 0], "east is no quorum");
    trio.pass(Span::from_secs(6));
    assert_eq!([trio.sizes()[0], trio.sizes()[2]], [2, 2]);
    trio.connect();
    trio.pass(Span::from_secs(6));
    assert_eq!((trio.sizes(), trio.members[1].left_regions()), ([3, 3, 3], BTreeSet::new()));
}

/// East is in no term, and proposes none with itself: the others would refuse it, and be held up.
#[test]
fn an_overdue_leave_without_a_term_holds_nobody_up() {
    let mut trio = Trio::started();
    let within = Span::from_secs(60);
    trio.members[0].request_change(RegionId(0), true, within, trio.now).expect("accepted");
    trio.settle();
    trio.connect_but(&[(0, 1), (0, 2), (1, 2)]);
    trio.pass(Span::from_secs(70));
    assert_eq!(trio.sizes(), [0, 0, 0]);
    let before = trio.proposed[0];
    trio.connect();
    trio.pass(Span::from_secs(6));
    assert_eq!((trio.sizes(), trio.proposed[0] - before), ([0, 2, 2], 0));
}

/// Mid was away as west joined again, and all others have forgotten that.
#[test]
fn an_old_leave_is_dropped_when_others_forgot_its_join() {
    for named_first in [true, false] {
        let mut trio = Trio::started();
        trio.ask(0, true);
        (0..3).for_each(|index| trio.reach_boundary(index));
        assert_eq!(trio.sizes(), [2, 2, 0]);
        trio.connect_but(&[(0, 1), (1, 2)]);
        trio.ask(0, false);
        trio.pass(Span::from_secs(70));
        assert_eq!([trio.sizes()[0], trio.sizes()[2]], [2, 2], "west has joined");
        let order = if named_first { [0, 2] } else { [2, 0] };
        order.iter().for_each(|index| trio.restart(*index, 70 + u64::from(*index)));
        trio.connect();
        trio.pass(Span::from_secs(6));
        assert_eq!(trio.sizes(), [3, 3, 3]);
        assert!(trio.members.iter().all(|member| member.left_regions().is_empty()));
    }
}

/// Those that went on without west remember that, as long as they are a quorum.
#[test]
fn a_leave_holds_while_a_quorum_remembers_it() {
    let mut trio = Trio::started();
    trio.ask(0, true);
    (0..3).for_each(|index| trio.reach_boundary(index));
    for (restarted, boot) in [(2, 70), (2, 71)] {
        trio.restart(restarted, boot);
        trio.connect();
        trio.pass(Span::from_secs(20));
        assert_eq!((trio.sizes(), trio.members[2].left_regions()), ([2, 2, 0], [WEST].into()));
    }
    // Mid alone is no quorum: only all regions together know what was done last.
    trio.restart(0, 72);
    trio.connect_but(&[(0, 1), (0, 2)]);
    trio.connect_but(&[(0, 2), (1, 2)]);
    trio.pass(Span::from_secs(20));
    assert_eq!([trio.sizes()[0], trio.sizes()[1]], [0, 0]);
    trio.connect();
    trio.pass(Span::from_secs(6));
    assert_eq!(trio.sizes(), [3, 3, 3]);
}

#[test]
fn intents_for_unknown_regions_and_other_failures_are_refused() {
    let mut trio = Trio::started();
    let (east, now) = (GatewayId(0), trio.now);
    let intent = RegionIntent { region: RegionId(3), version: 1, leaves: true, within_s: 1 };
    trio.members[1]
        .handle_message(east, TermMessage::Intents(vec![intent]), now)
        .expect_err("unknown");
    let term = trio.terms[1].clone().expect("a term").id;
    let failure =
        hier_collectives::post::Failure::new(hier_collectives::post::FailureCode::BadPost, "x");
    trio.members[1]
        .handle_message(east, TermMessage::Pause { term, failure }, now)
        .expect_err("a change");
    assert!(!trio.members[1].awaits_boundary());
}

/// The others have a fabric that a gateway refuses, be it the first by name or the last.
#[test]
fn a_gateway_that_refuses_the_fabric_stops_nobody() {
    for (other, cut) in [(0, [(0, 1), (0, 2)]), (2, [(0, 2), (1, 2)])] {
        let mut trio = Trio::started();
        trio.connect_but(&cut);
        trio.pass(Span::from_secs(3));
        trio.refusing = [other].into();
        trio.apply(1, 1);
        trio.reach_boundaries();
        let mut wanted = [2; 3];
        wanted[other] = 0;
        assert_eq!((trio.sizes(), trio.members[1].fabric_in_force()), (wanted, version_of(1)));
        trio.connect();
        let left = trio.left.clone();
        trio.pass(Span::from_secs(20));
        assert_eq!((trio.sizes(), &trio.left), (wanted, &left), "nobody is disturbed");
        // The first of those that are left is lost, comes back, and still no term needs the other one.
        let first = if other == 0 { 1 } else { 0 };
        trio.restart(first, 71);
        trio.connect();
        trio.pass(Span::from_secs(20));
        assert_eq!(trio.sizes(), [0; 3], "too few remember");
        trio.refusing.clear();
        trio.members[other].reconsider_fabrics();
        trio.settle();
        trio.pass(Span::from_secs(20));
        assert_eq!((trio.sizes(), trio.members[other].fabric_in_force()), ([3; 3], version_of(1)));
    }
}

/// A gateway starts with a file that was never applied, and is taken in once it has that of the others.
#[test]
fn a_gateway_with_a_fabric_of_its_own_stops_nobody() {
    for (other, boot) in [(0, 70), (1, 71), (2, 72)] {
        let mut trio = Trio::started();
        trio.restart_with(other, boot, version_of(9));
        trio.connect();
        let mut wanted = [2; 3];
        wanted[usize::from(other)] = 0;
        trio.pass(Span::from_secs(3));
        let left = trio.left.clone();
        trio.pass(Span::from_secs(20));
        assert_eq!((trio.sizes(), &trio.left), (wanted, &left), "nobody is disturbed");
        trio.restart(other, boot + 10);
        trio.connect();
        trio.pass(Span::from_secs(6));
        assert_eq!(trio.sizes(), [3; 3]);
    }
}

/// A fabric waits for a gateway that refuses it, and the term goes on with the one in force.
#[test]
fn a_fabric_that_one_refuses_changes_nothing() {
    let mut trio = Trio::started();
    let term = trio.terms.clone();
    trio.refusing = [1].into();
    trio.apply(0, 1);
    trio.pass(Span::from_secs(20));
    trio.reach_boundaries();
    assert_eq!(trio.terms, term);
    assert_eq!(trio.members[0].gateways_without_newest_fabric(), [GatewayId(1)]);
    // A newer one replaces it.
    trio.refusing.clear();
    trio.apply(2, 2);
    trio.reach_boundaries();
    assert_eq!((trio.sizes(), trio.members[1].fabric_in_force()), ([3; 3], version_of(2)));
}
