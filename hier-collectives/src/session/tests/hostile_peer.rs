//! A peer that sends anything at any time to a session whose own ranks keep the rules.
use super::fabrics::*;
use super::world::*;
use crate::descriptor::*;
use crate::ids::*;
use crate::mesh::*;
use crate::plan::*;
use crate::post::*;
use crate::sequence::SendSeries;
use crate::session::collective::recent_collectives;
use crate::session::*;
use crate::topology::*;
use crate::wire::*;
use proptest::prelude::*;
use std::collections::*;
use std::num::NonZeroU64;
use std::sync::Arc;
use units::*;

/// One gateway of two, or one between two that have the ranks, with the tasks, leases and posts that its
/// engine would hold.
struct Victim {
    dice: Dice,
    me: GatewayId,
    /// The other gateways, all of which are hostile.
    peers: Vec<GatewayId>,
    session: Session,
    fabric: Arc<Fabric>,
    now: TimeNs,
    ranks: std::ops::Range<u32>,
    epoch: Epoch,
    next: BTreeMap<RankId, Sequence>,
    tasks: Vec<TaskId>,
    leases: Vec<LeaseId>,
    cancelled: Vec<Sequence>,
    /// Posts without an answer, by rank and sequence.
    waiting: BTreeMap<(RankId, Sequence), u32>,
}

impl Victim {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let is_relay = dice.roll(3) == 0;
        let fabric = if is_relay { relayed_pair(2) } else { fabric(&[2, 1]) };
        let me = GatewayId(u16::from(is_relay || dice.roll(2) == 1));
        let config = SessionConfig {
            leaves_doubt: true,
            fabric: Arc::clone(&fabric),
            me,
            gateways: fabric.gateway_ids().collect(),
            boot: BootId(100 + u64::from(me.0)),
            plan: plan_for(&fabric),
            partials: PartialsPool::new(ByteCount::new(600)),
            one_in: NonZeroU64::MIN,
            last_epoch: Epoch(0),
            unsolicited_max: ByteCount::new(u64::MAX),
        };
        let ranks = fabric.gateway(me).ranks.clone();
        let mut victim = Self {
            dice,
            me,
            peers: fabric.gateway_ids().filter(|id| *id != me).collect(),
            session: Session::new(config),
            fabric,
            now: TimeNs::from_ns(1),
            ranks: ranks.clone(),
            epoch: Epoch(0),
            next: BTreeMap::new(),
            tasks: Vec::new(),
            leases: Vec::new(),
            cancelled: Vec::new(),
            waiting: BTreeMap::new(),
        };
        victim.session.handle_start(victim.now);
        ranks.for_each(|rank| victim.session.handle_attach(RankId(rank), victim.now));
        victim.connect(MeshConnectionState::Up, "start");
        victim
    }

    /// The connection to the peer comes up or is lost.
    fn connect(&mut self, state: MeshConnectionState, why: &str) {
        let graph = connections(&self.fabric, state);
        self.session.handle_connections(&graph, why, self.now);
    }

    /// Whether it only passes on what two ranks elsewhere send.
    fn is_relay(&self) -> bool {
        self.ranks.is_empty()
    }

    fn peer(&mut self) -> GatewayId {
        let index = self.dice.roll(self.peers.len());
        self.peers[index]
    }

    fn boots(&self) -> Vec<BootId> {
        self.fabric.gateway_ids().map(|id| BootId(100 + u64::from(id.0))).collect()
    }

    /// The plan, in some cases with trees of blocks that may be wrong.
    fn plan(&mut self) -> Plan {
        let mut plan = plan_for(&self.fabric);
        if self.dice.roll(5) == 0 {
            let regions = self.fabric.regions().len() as u16;
            for root in (0..regions).map(RegionId) {
                let mut region = || RegionId(self.dice.roll(usize::from(regions) + 1) as u16);
                let (one, other) = (region(), region());
                let parents = [(other, one), (one, root)].into();
                plan.block_trees.push(BlockTree { root, share: 1, parents });
            }
        }
        plan
    }

    /// A number that the session may depend on.
    fn number(&mut self) -> u64 {
        let next = self.next.values().next().map_or(0, |next| next.0);
        let edges = [
            0,
            1,
            2,
            next,
            next + 1,
            next + 1023,
            next + 1024,
            Sequence::PLACES_BOUND - 1,
            1 << 62,
        ];
        match self.dice.roll(edges.len() + 2) {
            0 => u64::MAX,
            1 => u64::MAX - 1,
            edge => edges[edge - 2],
        }
    }

    fn epoch(&mut self) -> Epoch {
        if self.dice.roll(4) > 0 { self.epoch } else { Epoch(self.number()) }
    }

    fn sequence(&mut self) -> Sequence {
        let next = self.next.values().next().map_or(0, |next| next.0);
        if self.is_relay() && self.dice.roll(4) > 0 {
            let (from, tag) = (RankId(self.dice.roll(2) as u32), Tag(self.dice.roll(2) as u16));
            let next = self.session.collectives.next_sequence().0;
            return SendSeries { from, tag }.sequence_at(next + self.dice.roll(3) as u64);
        }
        match self.dice.roll(8) {
            0 => Sequence(self.number()),
            1 => {
                let (from, tag) = (RankId(self.dice.roll(2) as u32), Tag(self.dice.roll(3) as u16));
                SendSeries { from, tag }.sequence_at(self.number())
            }
            more => Sequence((next + more as u64).saturating_sub(4)),
        }
    }

    fn descriptor(&mut self) -> Descriptor {
        use crate::descriptor::{AgreedCounts, ArrayShape, Dtype, Pattern, ReduceOp};
        let elements = [40, 40, 40, 40, 41, 0, 1 << 45, u64::MAX][self.dice.roll(8)];
        if self.dice.roll(4) == 0 {
            let counts = AgreedCounts::ByPair;
            let (op, dtype, shape) = (ReduceOp::Sum, Dtype::I64, ArrayShape::FLAT);
            let pattern = Pattern::AllToAll;
            return Descriptor { op, dtype, elements: 0, layout_hash: 0, shape, pattern, counts };
        }
        let sends = if self.is_relay() { 5 } else { 0 };
        let pattern = match self.dice.roll(6) {
            kind if kind <= sends => Pattern::Send { from: RankId(self.dice.roll(3) as u32) },
            _ => Pattern::AllReduce,
        };
        // Floats have no bitwise operation.
        let undefined = self.dice.roll(8) == 0;
        Descriptor {
            op: if undefined { ReduceOp::Bxor } else { ReduceOp::Sum },
            dtype: if undefined { Dtype::F32 } else { Dtype::I64 },
            elements,
            layout_hash: 0,
            shape: ArrayShape::FLAT,
            pattern,
            counts: AgreedCounts::Even,
        }
    }

    /// Counts of elements for the ranks of the fabric, or for a number of ranks that it has not.
    fn list(&mut self) -> Arc<[u64]> {
        let ranks = self.session.epoch.local().fabric().world_size() as usize;
        let length = [ranks, ranks, ranks, 0, ranks + 1][self.dice.roll(5)];
        (0..length).map(|_| [0, 5, 40, u64::MAX][self.dice.roll(4)]).collect()
    }

    fn key(&mut self) -> SegmentKey {
        let sequence = self.sequence();
        let tree = TreeIndex([0, 0, 0, 0, 1, u16::MAX][self.dice.roll(6)]);
        let segment = SegmentIndex([0, 1, 2, 3, u32::MAX - 1][self.dice.roll(5)]);
        SegmentKey { sequence, tree, segment }
    }

    fn message(&mut self) -> Message {
        let (epoch, sequence) = (self.epoch(), self.sequence());
        let code = [FailureCode::Stalled, FailureCode::Disagreement][self.dice.roll(2)];
        let failure = Failure::new(code, "so they say");
        let step = Step(self.number());
        let id = EpochId { term: self.number(), number: epoch };
        let committed =
            (self.dice.roll(2) == 0).then_some(Committed { step, below: sequence, epoch: id });
        match self.dice.roll(13) {
            0 => {
                let (last, next) = (Epoch(self.number()), Sequence(self.number()));
                let steps = vec![(sequence, step); self.dice.roll(3)];
                let number = Epoch(self.number());
                let prepared = PreparedSteps { epoch: EpochId { number, ..id }, steps };
                Message::Join { boot: BootId(self.number()), last, next, committed, prepared }
            }
            1 => {
                let next = Sequence(self.number());
                let (boots, plan) = (self.boots(), self.plan());
                Message::Begin { epoch: Epoch(self.number()), next, boots, plan, committed }
            }
            2 => {
                let rate = [8_000, 1_000_000, u64::MAX][self.dice.roll(3)];
                let rtt = [Span::ZERO, Span::from_ms(2), Span::from_secs(60)][self.dice.roll(3)];
                let loss = Fraction::from_ppb([0, 1, 499_999_999][self.dice.roll(3)]);
                let rate = BitRate::from_bits_per_second(rate);
                let link = LinkState { rate, rtt, loss: loss.expect("below 1") };
                Message::Ready { epoch, link: (self.dice.roll(4) > 0).then_some(link) }
            }
            3 | 4 => {
                let rank = RankId([0, 1, 2, 7, u32::MAX][self.dice.roll(5)]);
                let (descriptor, all) = (self.descriptor(), self.dice.roll(2) == 0);
                let by_pair = descriptor.counts == AgreedCounts::ByPair;
                let sent = by_pair.then(|| self.list());
                Message::Announce { epoch, sequence, rank, descriptor, all, sent }
            }
            5 | 6 => {
                let key = self.key();
                let limit = [0, 1, 2, u32::MAX][self.dice.roll(4)];
                Message::Grant { epoch, sequence, tree: key.tree, limit }
            }
            7 => {
                let SegmentKey { sequence, tree, segment: SegmentIndex(segment) } = self.key();
                let start = segment.min(u32::MAX - 1);
                let count = [1, 2, u32::MAX][self.dice.roll(3)];
                let segments = start..start.saturating_add(count);
                Message::Receipt { epoch, sequence, tree, segments }
            }
            8 => Message::Fail { epoch, sequence, failure },
            9 => Message::End { epoch, failure },
            10 => {
                let below = Sequence(sequence.0.saturating_add(1 + self.dice.roll(3) as u64));
                if self.dice.roll(2) == 0 {
                    Message::Done { epoch, from: sequence, below }
                } else {
                    let (rank, step) =
                        (RankId(self.dice.roll(9) as u32), Step(self.dice.roll(3) as u64));
                    Message::Ask { epoch, from: sequence, below, rank, step }
                }
            }
            11 => {
                let code = [FailureCode::MembershipChanged, code][self.dice.roll(2)];
                let failure = Failure::new(code, "so they say");
                let ends_step = self.dice.roll(2) == 0;
                Message::Boundary { epoch, from: sequence, ends_step, failure }
            }
            _ => Message::Drain { epoch, from: sequence },
        }
    }

    fn arrival(&mut self) {
        let digests = [self.descriptor().digest(), 0];
        let header = SegmentHeader {
            epoch: self.epoch(),
            key: self.key(),
            bytes: [0, 1, 64, 128, 4096, u32::MAX][self.dice.roll(6)],
            digest: digests[usize::from(self.dice.roll(8) == 0)],
            weight: 1.0,
            parity: [0, 0, 0, 4][self.dice.roll(4)],
        };
        let peer = self.peer();
        match self.session.handle_arrival(peer, &header) {
            Ok(ArrivalPlace::Combine { lease, .. } | ArrivalPlace::Land { lease, .. }) => {
                self.leases.push(lease);
            }
            Ok(ArrivalPlace::Discard(_)) => {}
            Err(error) => self.accuse(peer, &error),
        }
    }

    /// As the engine does.
    fn accuse(&mut self, peer: GatewayId, error: &PeerError) {
        if error.is_caused_by_ranks() {
            self.session.handle_overreach(peer, error, self.now);
        } else {
            self.connect(MeshConnectionState::Awaited, "accused");
            self.connect(MeshConnectionState::Up, "start");
        }
    }

    fn own_rank_acts(&mut self) {
        if self.is_relay() {
            return;
        }
        let rank = RankId(self.ranks.start + self.dice.roll(self.ranks.len()) as u32);
        let Some(next) = self.next.get(&rank).copied() else { return };
        let timeout = Span::from_secs(1 + self.dice.roll(60) as u64);
        let epoch = self.epoch;
        match self.dice.roll(12) {
            0 => {
                let commit = Commit { epoch, step: Step(self.number()), timeout };
                self.session.handle_commit(rank, commit, self.now);
            }
            1 => {
                self.session.handle_detach(rank, self.now);
                self.drain();
                self.session.handle_attach(rank, self.now);
            }
            _ if next.0 < Sequence::PLACES_BOUND && self.waiting.len() < 40 => {
                let (descriptor, counts) = match self.descriptor() {
                    by_pair if by_pair.counts == AgreedCounts::ByPair => {
                        (by_pair, Counts::ByPair { to: self.list(), from: self.list() })
                    }
                    whole => (Descriptor { elements: 40, ..whole }, Counts::Even),
                };
                let post = Post { epoch, sequence: next, descriptor, counts, weight: 1.0, timeout };
                *self.waiting.entry((rank, next)).or_default() += 1;
                self.next.insert(rank, Sequence(next.0 + 1));
                self.session.handle_post(rank, post, self.now);
            }
            _ => {}
        }
    }

    fn engine_acts(&mut self) {
        match self.dice.roll(4) {
            0 if !self.tasks.is_empty() => {
                let task = self.tasks.swap_remove(self.dice.roll(self.tasks.len()));
                self.session.handle_task_done(task, self.now);
            }
            1 if !self.leases.is_empty() => {
                let lease = self.leases.swap_remove(self.dice.roll(self.leases.len()));
                let whole = self.dice.roll(3) > 0;
                self.session.handle_arrival_end(lease, whole, self.now);
            }
            2 if !self.cancelled.is_empty() => {
                let sequence = self.cancelled.swap_remove(0);
                self.session.handle_streams_cancelled(sequence, self.now);
            }
            3 => {
                self.now = self.now + Span::from_ms(self.dice.roll(3000) as u64);
                if self.session.poll_timeout().is_some_and(|at| at <= self.now) {
                    self.session.handle_timeout(self.now);
                }
            }
            _ => {}
        }
    }

    /// Takes all actions as the engine does, asserts its rules, and notes what ranks are notified
    /// of.
    fn drain(&mut self) {
        while let Some(action) = self.session.poll_action() {
            let length = |view: &BufferView| view.range.end - view.range.start;
            match action {
                Action::Reduce { task, inputs, out, .. } => {
                    let same = inputs.iter().all(|input| length(&input.view) == length(&out));
                    assert!(same, "{inputs:?} into {out:?}");
                    self.tasks.push(task);
                }
                Action::Copy { task, from, to } => {
                    assert!(to.iter().all(|to| length(to) == length(&from)));
                    self.tasks.push(task);
                }
                Action::Cancel(sequence) => self.cancelled.push(sequence),
                Action::Notify { rank, event } => self.hear(rank, &event),
                _ => {}
            }
        }
        let status = self.session.status();
        if self.is_relay() {
            self.epoch = status.epoch;
        }
        assert!(status.collectives.len() as u64 <= 2 * recent_collectives::COLLECTIVES_AHEAD_MAX);
    }

    fn hear(&mut self, rank: RankId, event: &RankEvent) {
        match event {
            RankEvent::EpochBegan { epoch, next, .. } => {
                self.epoch = *epoch;
                self.next.insert(rank, *next);
            }
            RankEvent::ContributionFree { sequence } | RankEvent::Failed { sequence, .. } => {
                if let Some(count) = self.waiting.get_mut(&(rank, *sequence)) {
                    *count -= 1;
                    if *count == 0 {
                        self.waiting.remove(&(rank, *sequence));
                    }
                }
            }
            _ => {}
        }
    }

    /// The peer sends nothing more, time passes, and the engine finishes its tasks and leases.
    fn end(&mut self) {
        self.connect(MeshConnectionState::Awaited, "silent");
        self.drain();
        for task in std::mem::take(&mut self.tasks) {
            self.session.handle_task_done(task, self.now);
        }
        for lease in std::mem::take(&mut self.leases) {
            self.session.handle_arrival_end(lease, false, self.now);
        }
        self.drain();
        for sequence in std::mem::take(&mut self.cancelled) {
            self.session.handle_streams_cancelled(sequence, self.now);
        }
        self.drain();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Under any messages of a peer nothing panics, no reduction has operands of other lengths than
    /// its result, and once the peer is gone every post of our own ranks has been answered.
    #[test]
    fn no_peer_breaks_a_session(seed: u64) {
        let mut victim = Victim::new(seed);
        victim.drain();
        for _ in 0..400 {
            match victim.dice.roll(6) {
                0 | 1 => {
                    let (peer, message, now) = (victim.peer(), victim.message(), victim.now);
                    if let Err(error) = victim.session.handle_message(peer, message, now) {
                        victim.accuse(peer, &error);
                    }
                }
                2 | 3 => victim.arrival(),
                4 => victim.own_rank_acts(),
                _ => victim.engine_acts(),
            }
            victim.drain();
            // It knows how to meet, or little would happen.
            if victim.session.status().plan.is_none() && victim.dice.roll(10) == 0 {
                victim.meet();
            }
        }
        victim.end();
        prop_assert!(victim.waiting.is_empty(), "not answered: {:?}", victim.waiting);
        if victim.is_relay() {
            prop_assert!(victim.session.is_idle());
            victim.session.transfer.inspect_at_rest();
        }
    }
}

impl Victim {
    fn meet(&mut self) {
        let (last, next) = (self.session.status().epoch, self.session.collectives.next_sequence());
        let (boots, plan) = (self.boots(), plan_for(&self.fabric));
        let epoch = Epoch(last.0 + 1);
        let message = if self.me == GatewayId(0) {
            let prepared = PreparedSteps::default();
            Message::Join { boot: boots[1], last, next, committed: None, prepared }
        } else {
            Message::Begin { epoch, next, boots, plan, committed: None }
        };
        // Refused when what it said before led too far.
        let _ = self.session.handle_message(self.peers[0], message, self.now);
        self.drain();
        for peer in self.peers.clone() {
            let ready = Message::Ready { epoch: self.session.status().epoch, link: None };
            let _ = self.session.handle_message(peer, ready, self.now);
            self.drain();
        }
    }
}

/// The plan of two gateways, or of a line of three.
fn plan_for(fabric: &Fabric) -> Plan {
    match fabric.gateways().len() {
        2 => plan_of(vec![tree(1, &[0, 1], &[])]),
        _ => plan_of(vec![tree(1, &[0], &[(1, 0), (2, 1)])]),
    }
}

/// A peer's plan may differ from our own as far as plans of one fabric do. Beyond that it is
/// refused, since it would cut a buffer into too many segments.
#[test]
fn a_plan_of_absurd_segments_or_trees_is_refused() {
    let plan = |bytes: u64, trees: usize| Plan {
        segment: ByteCount::new(bytes),
        ..plan_of(vec![tree(1, &[0, 1], &[]); trees])
    };
    let session = || {
        let mut session = Session::new(SessionConfig {
            leaves_doubt: false,
            fabric: fabric(&[2, 1]),
            me: GatewayId(1),
            gateways: fabric(&[2, 1]).gateway_ids().collect(),
            boot: BootId(101),
            plan: plan(1 << 20, 1),
            partials: PartialsPool::new(ByteCount::new(64 << 20)),
            one_in: NonZeroU64::MIN,
            last_epoch: Epoch(0),
            unsolicited_max: ByteCount::new(u64::MAX),
        });
        let graph = connections(&fabric(&[2, 1]), MeshConnectionState::Up);
        session.handle_connections(&graph, "start", TimeNs::from_ns(1));
        session
    };
    let begin = |plan: Plan| {
        let mut session = session();
        let boots = vec![BootId(100), BootId(101)];
        let (epoch, next) = (Epoch(1), Sequence(0));
        let message = Message::Begin { epoch, next, boots, plan, committed: None };
        let result = session.handle_message(GatewayId(0), message, TimeNs::from_ns(2));
        assert_eq!(session.status().plan.is_some(), result.is_ok());
        (session, result)
    };
    for (bytes, trees, good) in [
        (1 << 20, 1, true),
        (64 << 10, 17, true),
        (16 << 20, 1, true),
        ((64 << 10) - 64, 1, false),
        (64, 1, false),
        ((16 << 20) + 64, 1, false),
        (1 << 20, 18, false),
        (1 << 20, 65_535, false),
    ] {
        let result = begin(plan(bytes, trees)).1;
        assert_eq!(result.is_ok(), good, "{trees} trees, {bytes} bytes: {result:?}");
        // Nor in the middle of an epoch.
        let mut session = begin(plan(1 << 20, 1)).0;
        let (epoch, change, from) = (Epoch(1), 1, Sequence(0));
        let now = TimeNs::from_ns(3);
        let pause = Message::Pause { epoch, change };
        session.handle_message(GatewayId(0), pause, now).expect("may pause");
        let message = Message::Change { epoch, change, from, plan: plan(bytes, trees) };
        let result = session.handle_message(GatewayId(0), message, now);
        assert_eq!(result.is_ok(), good, "{trees} trees, {bytes} bytes: {result:?}");
    }
}
