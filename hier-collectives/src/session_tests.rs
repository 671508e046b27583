//! Whole groups of sessions in one process: messages in order per pair, everything else in
//! any order, streams cut at random. Memory is checked, not only events.

use super::*;
use crate::descriptor::{Dtype, ReduceOp};
use crate::plan::{Algorithm, Tree};
use crate::topology::{LinkSpec, RegionSpec, WanPort};
use proptest::prelude::*;
use units::{BitRate, Fraction};

const SEGMENT_BYTES: u64 = 128;

/// splitmix64: the tests' only source of chance.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % sides as u64).expect("small")
    }
}

#[derive(Debug)]
struct Stream {
    from: GatewayId,
    to: GatewayId,
    header: SegmentHeader,
    source: View,
    arrival: Option<Arrival>,
}

struct World {
    dice: Dice,
    now: TimeNs,
    fabric: Arc<Fabric>,
    sessions: Vec<Session>,
    memory: Vec<BTreeMap<Buffer, Vec<i64>>>,
    messages: BTreeMap<(GatewayId, GatewayId), VecDeque<Message>>,
    streams: Vec<Stream>,
    jobs: Vec<(GatewayId, Action)>,
    events: BTreeMap<RankId, Vec<RankEvent>>,
    cuts_left: u32,
    /// Gateways on which something failed: there, a job under way may outlive the release
    /// of its scratch, as it does in the shell, which counts references.
    failed: std::collections::BTreeSet<GatewayId>,
}

fn fabric(ranks: &[u32]) -> Arc<Fabric> {
    let port = BitRate::from_bits_per_second(1_000_000);
    let wan = Some(WanPort { egress: port, ingress: port });
    let name = |index: usize| format!("r{index}");
    let region = |(index, ranks): (usize, &u32)| RegionSpec {
        name: name(index),
        speeds: vec![1.0; *ranks as usize],
        gateways: vec![(format!("g{index}"), *ranks, wan)],
    };
    let mut links = Vec::new();
    for one in 0..ranks.len() {
        for other in one + 1..ranks.len() {
            links.push(LinkSpec {
                between: (name(one), name(other)),
                rate: port,
                rtt: Span::from_ms(2),
                loss: Fraction::default(),
            });
        }
    }
    let regions = ranks.iter().enumerate().map(region).collect();
    Arc::new(Fabric::new("test", 1500, regions, links).expect("valid"))
}

fn tree(share: u64, crown: &[u16], parents: &[(u16, u16)]) -> Tree {
    Tree {
        share,
        crown: crown.iter().copied().map(GatewayId).collect(),
        parents: parents.iter().map(|(a, b)| (GatewayId(*a), GatewayId(*b))).collect(),
    }
}

fn plan_of(trees: Vec<Tree>) -> Plan {
    let (algorithm, reason) = (Algorithm::Swap, String::new());
    Plan { algorithm, reason, segment: ByteCount::new(SEGMENT_BYTES), trees }
}

impl World {
    fn new(ranks: &[u32], plan: Plan, seed: u64, partials: u64) -> Self {
        let fabric = fabric(ranks);
        plan.prove(u16::try_from(ranks.len()).expect("small")).expect("sound plan");
        let session = |me: GatewayId| {
            Session::new(SessionConfig {
                fabric: Arc::clone(&fabric),
                me,
                boot: BootId(u64::from(me.0) + 100),
                plan: plan.clone(),
                partials: ByteCount::new(partials),
            })
        };
        let mut world = Self {
            dice: Dice(seed),
            now: TimeNs::from_ns(1),
            sessions: fabric.gateway_ids().map(session).collect(),
            memory: ranks.iter().map(|_| BTreeMap::new()).collect(),
            messages: BTreeMap::new(),
            streams: Vec::new(),
            jobs: Vec::new(),
            events: (0..fabric.world_size()).map(|rank| (RankId(rank), Vec::new())).collect(),
            fabric,
            cuts_left: 20,
            failed: std::collections::BTreeSet::new(),
        };
        for rank in 0..world.fabric.world_size() {
            let gateway = world.gateway_of(RankId(rank));
            world.session(gateway).handle_attach(RankId(rank), TimeNs::from_ns(1));
        }
        for one in world.fabric.gateway_ids() {
            world.session(one).handle_start(TimeNs::from_ns(1));
            for other in world.fabric.gateway_ids().filter(|other| *other != one) {
                world.session(one).handle_peer_up(other, TimeNs::from_ns(1));
            }
        }
        world.run();
        world
    }

    fn session(&mut self, id: GatewayId) -> &mut Session {
        &mut self.sessions[usize::from(id.0)]
    }

    fn gateway_of(&self, rank: RankId) -> GatewayId {
        self.fabric.gateway_of(rank).expect("served")
    }

    fn epoch_of(&self, rank: RankId) -> (Epoch, Sequence) {
        let began = self.events[&rank].iter().rev().find_map(|event| match event {
            RankEvent::EpochBegan { epoch, next } => Some((*epoch, *next)),
            _ => None,
        });
        began.expect("an epoch began")
    }

    fn contribution(rank: RankId, sequence: u64, elements: u64) -> Vec<i64> {
        let value = |i| i64::try_from((i + 1) * (u64::from(rank.0) + 2) * (sequence + 3));
        (0..elements).map(|i| value(i).expect("small")).collect()
    }

    fn post(&mut self, rank: RankId, sequence: u64, elements: u64) {
        let (epoch, _) = self.epoch_of(rank);
        let gateway = self.gateway_of(rank);
        let sequence_id = Sequence(sequence);
        let memory = &mut self.memory[usize::from(gateway.0)];
        let data = Self::contribution(rank, sequence, elements);
        memory.insert(Buffer::Contribution(sequence_id, rank), data);
        let empty = vec![-1; usize::try_from(elements).expect("small")];
        memory.insert(Buffer::Result(sequence_id, rank), empty);
        let (op, dtype) = (ReduceOp::Sum, Dtype::I64);
        let post = Post {
            epoch,
            sequence: sequence_id,
            descriptor: Descriptor { op, dtype, elements, layout_hash: 0 },
            weight: 1.0,
            timeout: Span::from_secs(60),
        };
        let now = self.now;
        self.session(gateway).handle_post(rank, post, now);
        self.collect(gateway);
    }

    fn collect(&mut self, me: GatewayId) {
        while let Some(action) = self.session(me).poll_action() {
            match action {
                Action::Message { to, message } => {
                    let wire = Message::decode(&message.encode());
                    assert_eq!(wire.as_ref(), Ok(&message), "survives the wire");
                    self.messages.entry((me, to)).or_default().push_back(message);
                }
                Action::Send { to, header, source } => {
                    let stream = Stream { from: me, to, header, source, arrival: None };
                    self.streams.push(stream);
                }
                Action::Reduce { .. } | Action::Copy { .. } => self.jobs.push((me, action)),
                Action::Cancel(sequence) => self.cancel(me, sequence),
                Action::CancelLease(lease) => self.end_lease(me, lease),
                Action::Release(scratch) => {
                    self.memory[usize::from(me.0)].remove(&Buffer::Scratch(scratch));
                }
                Action::Notify { rank, event } => self.notify(me, rank, event),
                Action::Receipted { .. } | Action::Note(_) => {}
            }
        }
    }

    fn notify(&mut self, me: GatewayId, rank: RankId, event: RankEvent) {
        let memory = &mut self.memory[usize::from(me.0)];
        match &event {
            RankEvent::ResultReady { sequence, .. } => {
                let result = memory.get_mut(&Buffer::Result(*sequence, rank)).expect("posted");
                let elements = u64::try_from(result.len()).expect("small");
                let mut sum = vec![0; result.len()];
                for other in 0..self.fabric.world_size() {
                    let theirs = Self::contribution(RankId(other), sequence.0, elements);
                    sum.iter_mut().zip(theirs).for_each(|(sum, value)| *sum += value);
                }
                assert_eq!(*result, sum, "rank {rank} collective {sequence}");
            }
            // From here on both slots are the rank's, and it writes something else there.
            RankEvent::ContributionFree { sequence } => {
                let slot = Buffer::Contribution(*sequence, rank);
                memory.get_mut(&slot).expect("posted").fill(-9);
                memory.get_mut(&Buffer::Result(*sequence, rank)).expect("posted").fill(-7);
            }
            _ => {}
        }
        self.events.get_mut(&rank).expect("known").push(event);
    }

    fn cancel(&mut self, me: GatewayId, sequence: Sequence) {
        self.failed.insert(me);
        let mut ended = Vec::new();
        self.streams.retain(|stream| {
            let of_it = stream.header.key.sequence == sequence;
            let mine = stream.from == me || stream.to == me;
            if of_it && mine {
                ended.extend(lease_of(stream).map(|lease| (stream.to, lease)));
            }
            !(of_it && mine)
        });
        for (to, lease) in ended {
            self.end_lease(to, lease);
        }
    }

    fn end_lease(&mut self, me: GatewayId, lease: LeaseId) {
        self.streams.retain(|stream| stream.to != me || lease_of(stream) != Some(lease));
        let now = self.now;
        self.session(me).handle_arrival_end(lease, false, now);
        self.collect(me);
    }

    /// Runs until nothing is left to happen.
    fn run(&mut self) {
        for id in self.fabric.gateway_ids() {
            self.collect(id);
        }
        while self.step() {}
    }

    fn step(&mut self) -> bool {
        self.now = self.now + Span::from_ns(1000);
        let pairs: Vec<_> =
            self.messages.iter().filter(|(_, queue)| !queue.is_empty()).map(|(k, _)| *k).collect();
        let choices = pairs.len() + self.jobs.len() + self.streams.len();
        if choices == 0 {
            return false;
        }
        let choice = self.dice.roll(choices);
        if let Some((from, to)) = pairs.get(choice).copied() {
            let message = self.messages.get_mut(&(from, to)).and_then(VecDeque::pop_front);
            let now = self.now;
            let result = self.session(to).handle_message(from, message.expect("there"), now);
            assert_eq!(result, Ok(()));
            self.collect(to);
        } else if choice - pairs.len() < self.jobs.len() {
            let (me, action) = self.jobs.swap_remove(choice - pairs.len());
            self.do_job(me, &action);
        } else {
            let index = choice - pairs.len() - self.jobs.len();
            self.move_stream(index);
        }
        true
    }

    fn move_stream(&mut self, index: usize) {
        let cut = self.cuts_left > 0 && self.dice.roll(8) == 0;
        let mut stream = self.streams.swap_remove(index);
        let (to, now) = (stream.to, self.now);
        match stream.arrival.take() {
            None => {
                let (from, header) = (stream.from, stream.header);
                let arrival = self.session(to).handle_arrival(from, &header).expect("fair");
                if !matches!(arrival, Arrival::Discard(_)) {
                    stream.arrival = Some(arrival);
                    self.streams.push(stream);
                }
            }
            Some(arrival) if cut => {
                self.cuts_left -= 1;
                // Half of the bytes were written before the lane died.
                self.write(&stream, &arrival, 2);
                let lease = lease_in(&arrival).expect("a lease");
                let (from, header) = (stream.from, stream.header);
                self.streams.push(Stream { arrival: None, from, to, header, ..stream });
                self.session(to).handle_arrival_end(lease, false, now);
                self.session(from).handle_lane_lost(to);
                self.session(to).handle_lane_lost(from);
                self.collect(from);
            }
            Some(arrival) => {
                self.write(&stream, &arrival, 1);
                let lease = lease_in(&arrival).expect("a lease");
                self.session(to).handle_arrival_end(lease, true, now);
            }
        }
        self.collect(to);
    }

    fn write(&mut self, stream: &Stream, arrival: &Arrival, divisor: usize) {
        let net = self.read(stream.from, &stream.source);
        let net = &net[..net.len() / divisor];
        match arrival {
            Arrival::Combine { local, out, .. } => {
                let local = self.read(stream.to, &local.view);
                let sum: Vec<i64> = local.iter().zip(net).map(|(a, b)| a + b).collect();
                self.store(stream.to, out, &sum);
            }
            Arrival::Land { into, .. } => self.store(stream.to, into, net),
            Arrival::Discard(_) => {}
        }
    }

    fn do_job(&mut self, me: GatewayId, action: &Action) {
        let job = match action {
            Action::Reduce { job, inputs, out, .. } => {
                let mut sum: Vec<i64> = self.read(me, &inputs[0].view);
                for input in &inputs[1..] {
                    let data = self.read(me, &input.view);
                    sum.iter_mut().zip(data).for_each(|(sum, value)| *sum += value);
                }
                self.store(me, out, &sum);
                *job
            }
            Action::Copy { job, from, to } => {
                let data = self.read(me, from);
                to.iter().for_each(|view| self.store(me, view, &data));
                *job
            }
            _ => return,
        };
        let now = self.now;
        self.session(me).handle_job_done(job, now);
        self.collect(me);
    }

    fn read(&self, me: GatewayId, view: &View) -> Vec<i64> {
        let buffer = self.memory[usize::from(me.0)].get(&view.buffer);
        if view.range.is_empty() {
            return vec![];
        }
        match buffer {
            Some(buffer) => buffer[elements(view)].to_vec(),
            None if self.failed.contains(&me) => vec![0; elements(view).len()],
            None => panic!("{me} reads {view:?}, which is gone"),
        }
    }

    fn store(&mut self, me: GatewayId, view: &View, data: &[i64]) {
        let memory = &mut self.memory[usize::from(me.0)];
        let buffer = memory.entry(view.buffer).or_insert_with(|| vec![0; elements(view).end]);
        buffer[elements(view)][..data.len()].copy_from_slice(data);
    }

    fn count(&self, rank: u32, wanted: impl Fn(&RankEvent) -> bool) -> usize {
        self.events[&RankId(rank)].iter().filter(|event| wanted(event)).count()
    }

    fn assert_clean(&self) {
        for (id, session) in self.sessions.iter().enumerate() {
            assert!(session.live.is_empty(), "gateway {id}: {:?}", session.live);
            assert_eq!(session.core.partial_bytes, 0);
            assert!(session.core.jobs.is_empty() && session.core.leases.is_empty());
            for peer in session.peers.values() {
                assert!(peer.early_out.is_empty() && peer.early_in == 0, "{peer:?}");
            }
            let left = self.memory[id].keys().filter(|b| matches!(b, Buffer::Scratch(_)));
            assert_eq!(left.count(), 0, "scratch left over");
            for (buffer, data) in &self.memory[id] {
                let mark = if matches!(buffer, Buffer::Result(..)) { -7 } else { -9 };
                assert!(
                    data.iter().all(|value| *value == mark),
                    "{buffer:?} written after its end"
                );
            }
        }
    }
}

fn elements(view: &View) -> std::ops::Range<usize> {
    let at = |bytes: u64| usize::try_from(bytes / 8).expect("small");
    at(view.range.start)..at(view.range.end)
}

fn lease_in(arrival: &Arrival) -> Option<LeaseId> {
    match arrival {
        Arrival::Combine { lease, .. } | Arrival::Land { lease, .. } => Some(*lease),
        Arrival::Discard(_) => None,
    }
}

fn lease_of(stream: &Stream) -> Option<LeaseId> {
    stream.arrival.as_ref().and_then(lease_in)
}

fn shapes() -> Vec<(usize, Vec<Tree>)> {
    vec![
        (1, vec![tree(1, &[0], &[])]),
        (2, vec![tree(1, &[0, 1], &[])]),
        (2, vec![tree(1, &[1], &[(0, 1)])]),
        (3, vec![tree(1, &[0, 1, 2], &[])]),
        (3, vec![tree(3, &[0], &[(1, 0), (2, 0)]), tree(2, &[2], &[(0, 2), (1, 2)])]),
        (4, vec![tree(1, &[0], &[(1, 0), (2, 1), (3, 1)]), tree(1, &[2, 3], &[(0, 2), (1, 2)])]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Any shape, any order of events, streams cut at random, several collectives at once.
    #[test]
    fn every_result_is_the_sum_and_nothing_is_left(
        seed: u64,
        shape in 0..6usize,
        ranks in proptest::collection::vec(1u32..4, 4),
        lengths in proptest::collection::vec(0u64..200, 1..5),
        partials in 0u64..600,
    ) {
        let (gateways, trees) = shapes().swap_remove(shape);
        let mut world = World::new(&ranks[..gateways], plan_of(trees), seed, partials);
        let world_size = world.fabric.world_size();
        let mut due: Vec<(u32, u64)> = (0..world_size).map(|rank| (rank, 0)).collect();
        while !due.is_empty() {
            let index = world.dice.roll(due.len());
            let (rank, sequence) = due[index];
            world.post(RankId(rank), sequence, lengths[sequence as usize]);
            due[index].1 += 1;
            if due[index].1 == lengths.len() as u64 {
                due.swap_remove(index);
            }
            for _ in 0..world.dice.roll(30) {
                world.step();
            }
        }
        world.run();
        for rank in 0..world_size {
            let ready = world.count(rank, |e| matches!(e, RankEvent::ResultReady { .. }));
            prop_assert_eq!(ready, lengths.len());
            let free = world.count(rank, |e| matches!(e, RankEvent::ContributionFree { .. }));
            prop_assert_eq!(free, lengths.len());
        }
        world.assert_clean();
    }

    /// A disagreement reaches every rank with one text, and the next collective works.
    #[test]
    fn a_disagreement_names_field_and_values_everywhere(seed: u64, odd in 0u32..4) {
        let mut world = World::new(&[3, 1], plan_of(shapes().swap_remove(1).1), seed, 1000);
        for rank in 0..4 {
            world.post(RankId(rank), 0, if rank == odd { 30 } else { 20 });
            for _ in 0..world.dice.roll(30) {
                world.step();
            }
        }
        world.run();
        let mut texts = Vec::new();
        for rank in 0..4 {
            let failures = world.events[&RankId(rank)].iter().filter_map(|event| match event {
                RankEvent::Failed { failure, .. } => Some(failure.clone()),
                _ => None,
            });
            texts.extend(failures);
        }
        prop_assert_eq!(texts.len(), 4);
        for failure in &texts {
            prop_assert_eq!(failure.code, FailureCode::Disagreement);
            prop_assert!(failure.text.contains("length"), "{}", failure.text);
            prop_assert!(failure.text.contains("20") && failure.text.contains("30"));
        }
        for rank in 0..4 {
            world.post(RankId(rank), 1, 25);
        }
        world.run();
        for rank in 0..4 {
            prop_assert_eq!(world.count(rank, |e| matches!(e, RankEvent::ResultReady { .. })), 1);
        }
    }

    /// Peers go away at any point: every post ends, and the next epoch works.
    #[test]
    fn a_lost_peer_ends_the_epoch_and_the_next_one_works(seed: u64, after in 0..200usize) {
        let mut world = World::new(&[2, 2], plan_of(shapes().swap_remove(1).1), seed, 300);
        for rank in 0..4 {
            world.post(RankId(rank), 0, 150);
        }
        for _ in 0..after {
            world.step();
        }
        let (a, b, now) = (GatewayId(0), GatewayId(1), world.now);
        // The connection takes its streams and messages with it.
        let open: Vec<_> =
            world.streams.drain(..).filter_map(|s| lease_of(&s).map(|l| (s.to, l))).collect();
        world.messages.clear();
        for (me, other) in [(a, b), (b, a)] {
            world.session(me).handle_peer_down(other, "test", now);
            world.collect(me);
        }
        for (to, lease) in open {
            world.end_lease(to, lease);
        }
        for (me, other) in [(a, b), (b, a)] {
            world.session(me).handle_peer_up(other, now);
        }
        world.run();
        for rank in 0..4 {
            let ended = |e: &RankEvent| {
                matches!(e, RankEvent::Failed { .. } | RankEvent::ContributionFree { .. })
            };
            prop_assert_eq!(world.count(rank, ended), 1);
            let (epoch, next) = world.epoch_of(RankId(rank));
            prop_assert_eq!((epoch, next), (Epoch(2), Sequence(1)));
            world.post(RankId(rank), 1, 100);
        }
        world.run();
        for rank in 0..4 {
            let ready = |e: &RankEvent| {
                matches!(e, RankEvent::ResultReady { sequence: Sequence(1), .. })
            };
            prop_assert_eq!(world.count(rank, ready), 1);
        }
        prop_assert!(world.sessions.iter().all(|session| session.live.is_empty()));
    }
}

fn failure_of(world: &World, rank: u32) -> Option<FailureCode> {
    world.events[&RankId(rank)].iter().rev().find_map(|event| match event {
        RankEvent::Failed { failure, .. } => Some(failure.code),
        _ => None,
    })
}

#[test]
fn a_rank_that_never_posts_is_named_when_the_timeout_passes() {
    let mut world = World::new(&[2, 1], plan_of(shapes().swap_remove(1).1), 1, 1000);
    world.post(RankId(0), 0, 10);
    world.post(RankId(2), 0, 10);
    world.run();
    let later = world.now + Span::from_secs(61);
    assert!(world.session(GatewayId(0)).poll_timeout().is_some_and(|at| at < later));
    world.session(GatewayId(0)).handle_timeout(later);
    world.run();
    assert_eq!(failure_of(&world, 0), Some(FailureCode::TimedOut));
    assert_eq!(failure_of(&world, 2), Some(FailureCode::TimedOut));
    // The late rank hears of it when it comes.
    world.post(RankId(1), 0, 10);
    world.run();
    assert_eq!(failure_of(&world, 1), Some(FailureCode::TimedOut));
    for rank in 0..3 {
        world.post(RankId(rank), 1, 10);
    }
    world.run();
    for rank in 0..3 {
        assert_eq!(world.count(rank, |e| matches!(e, RankEvent::ResultReady { .. })), 1);
    }
}

#[test]
fn a_rank_that_goes_away_fails_what_waits_for_it_and_may_come_back() {
    let mut world = World::new(&[2, 1], plan_of(shapes().swap_remove(1).1), 2, 1000);
    for rank in 0..3 {
        world.post(RankId(rank), 0, 10);
    }
    world.run();
    world.post(RankId(2), 1, 10);
    let now = world.now;
    world.session(GatewayId(0)).handle_detach(RankId(1), now);
    world.run();
    assert_eq!(failure_of(&world, 2), Some(FailureCode::RankLost));
    world.post(RankId(0), 1, 10);
    world.run();
    assert_eq!(failure_of(&world, 0), Some(FailureCode::RankLost));
    world.session(GatewayId(0)).handle_attach(RankId(1), now);
    world.run();
    for rank in 0..3 {
        let (epoch, next) = world.epoch_of(RankId(rank));
        assert_eq!(epoch, Epoch(2));
        world.post(RankId(rank), next.0, 33);
    }
    world.run();
    for rank in 0..3 {
        assert_eq!(world.count(rank, |e| matches!(e, RankEvent::ResultReady { .. })), 2);
    }
}

#[test]
fn nothing_moving_after_the_last_post_is_a_stall() {
    let mut world = World::new(&[1, 1], plan_of(shapes().swap_remove(1).1), 3, 1000);
    world.post(RankId(0), 0, 100);
    world.post(RankId(1), 0, 100);
    while !world.streams.is_empty() || world.messages.values().any(|queue| !queue.is_empty()) {
        world.streams.clear();
        if !world.step() {
            break;
        }
    }
    let at = world.session(GatewayId(0)).poll_timeout().expect("a deadline");
    assert!(at.since(world.now) >= Span::from_secs(4), "{at:?}");
    world.now = at;
    world.session(GatewayId(0)).handle_timeout(at);
    world.run();
    assert_eq!(failure_of(&world, 0), Some(FailureCode::Stalled));
    assert_eq!(failure_of(&world, 1), Some(FailureCode::Stalled));
}

#[test]
fn integer_averages_and_bad_weights_fail_for_everybody() {
    let mut world = World::new(&[1, 1], plan_of(shapes().swap_remove(1).1), 4, 1000);
    let (epoch, sequence) = world.epoch_of(RankId(0));
    let (op, dtype) = (ReduceOp::Avg, Dtype::I64);
    let descriptor = Descriptor { op, dtype, elements: 4, layout_hash: 0 };
    let post = Post { epoch, sequence, descriptor, weight: 1.0, timeout: Span::from_secs(1) };
    let now = world.now;
    world.session(GatewayId(0)).handle_post(RankId(0), post, now);
    world.run();
    assert_eq!(failure_of(&world, 0), Some(FailureCode::BadPost));
    world.post(RankId(1), 0, 4);
    assert_eq!(failure_of(&world, 1), Some(FailureCode::BadPost));
}

#[test]
fn what_breaks_the_protocol_is_refused() {
    let mut world = World::new(&[1, 1], plan_of(shapes().swap_remove(1).1), 5, 1000);
    let now = world.now;
    let (epoch, sequence) = world.epoch_of(RankId(0));
    let session = world.session(GatewayId(1));
    let far = Message::Grant {
        epoch,
        sequence: Sequence(5000),
        tree: crate::ids::TreeIndex(0),
        limit: 1,
    };
    assert!(matches!(
        session.handle_message(GatewayId(0), far, now),
        Err(PeerError::TooFarAhead { .. })
    ));
    let join = Message::Join { boot: BootId(1), last: Epoch(0), next: Sequence(0) };
    assert!(matches!(
        session.handle_message(GatewayId(0), join.clone(), now),
        Err(PeerError::NotYours(_))
    ));
    assert!(matches!(session.handle_message(GatewayId(9), join, now), Err(PeerError::Stranger(_))));
    let header = |tree, segment, bytes| SegmentHeader {
        epoch,
        key: SegmentKey {
            sequence,
            tree: crate::ids::TreeIndex(tree),
            segment: crate::ids::SegmentIndex(segment),
        },
        bytes,
        digest: 1,
        weight: 1.0,
    };
    for bad in [header(1, 0, 8), header(0, 0, 4096)] {
        let result = session.handle_arrival(GatewayId(0), &bad);
        assert!(matches!(result, Err(PeerError::NoSuchSegment { .. })), "{result:?}");
    }
    // Early segments fill the room, then it is an overrun.
    let overrun = (0..100_000)
        .find_map(|segment| session.handle_arrival(GatewayId(0), &header(0, segment, 128)).err());
    assert!(matches!(overrun, Some(PeerError::EarlyOverrun { .. })), "{overrun:?}");
}

#[test]
fn news_of_a_failure_that_a_lane_took_with_it_is_repeated() {
    let mut world = World::new(&[2, 1], plan_of(vec![tree(1, &[0, 1], &[])]), 1, 1 << 20);
    let (first, second) = (GatewayId(0), GatewayId(1));
    world.post(RankId(0), 0, 100);
    world.post(RankId(1), 0, 101);
    world.collect(first);
    world.messages.clear();
    for (one, other) in [(first, second), (second, first)] {
        world.session(one).handle_lane_lost(other);
    }
    world.run();
    world.post(RankId(2), 0, 100);
    world.run();
    for rank in 0..3 {
        assert_eq!(failure_of(&world, rank), Some(FailureCode::Disagreement), "rank {rank}");
    }
    assert!(world.sessions.iter().all(|session| session.live.is_empty()));
}

/// Whether the first gateway leaves an epoch before the other was ready for it, or a lane
/// takes the news with it: the next epoch begins all the same.
#[test]
fn news_of_an_end_reaches_a_peer_that_missed_it() {
    for lost_with_its_lane in [false, true] {
        let mut world = World::new(&[1, 1], plan_of(shapes().swap_remove(1).1), 7, 1000);
        let (first, second) = (GatewayId(0), GatewayId(1));
        let now = world.now;
        if lost_with_its_lane {
            world.session(first).end_epoch(Failure::new(FailureCode::EpochEnded, "t"), None, now);
            world.collect(first);
            world.messages.clear();
            for (one, other) in [(first, second), (second, first)] {
                world.session(one).handle_lane_lost(other);
            }
        } else {
            // A new epoch: the first gateway enters it, and leaves it before the other's word.
            world.session(second).end_epoch(Failure::new(FailureCode::EpochEnded, "t"), None, now);
            world.collect(second);
            while world.session(first).epoch == Epoch(1) {
                assert!(world.step());
            }
            world.session(first).end_epoch(Failure::new(FailureCode::EpochEnded, "t"), None, now);
        }
        world.run();
        for rank in 0..2 {
            let (epoch, next) = world.epoch_of(RankId(rank));
            assert!(epoch > Epoch(1), "{epoch}");
            world.post(RankId(rank), next.0, 10);
        }
        world.run();
        for rank in 0..2 {
            let ready = world.count(rank, |e| matches!(e, RankEvent::ResultReady { .. }));
            assert_eq!(ready, 1, "rank {rank}, lost with its lane: {lost_with_its_lane}");
        }
    }
}

/// The other gateway gives up on what is done here: its word ends the epoch, so that neither
/// waits for receipts that never come nor takes the next collective for the last.
#[test]
fn a_failure_elsewhere_of_what_is_done_here_ends_the_epoch() {
    for freed in [false, true] {
        let mut world = World::new(&[1, 1], plan_of(vec![tree(1, &[0, 1], &[])]), 3, 1000);
        let (first, second) = (GatewayId(0), GatewayId(1));
        for rank in 0..2 {
            world.post(RankId(rank), 0, 10);
        }
        // Nothing of the first gateway's bytes arrives.
        let mut held = Vec::new();
        loop {
            held.extend(world.streams.extract_if(.., |stream| stream.from == first));
            if !world.step() {
                break;
            }
        }
        assert_eq!(world.count(0, |e| matches!(e, RankEvent::ResultReady { .. })), 1);
        if freed {
            let key = held[0].header.key;
            let (epoch, now) = (Epoch(1), world.now);
            let receipt = Message::Receipt { epoch, key };
            assert_eq!(world.session(first).handle_message(second, receipt, now), Ok(()));
        }
        let at = world.session(second).poll_timeout().expect("a deadline");
        world.now = at;
        world.session(second).handle_timeout(at);
        world.run();
        assert_eq!(failure_of(&world, 1), Some(FailureCode::Stalled));
        assert_eq!(world.count(0, |e| matches!(e, RankEvent::ContributionFree { .. })), 1);
        for rank in 0..2 {
            let (epoch, next) = world.epoch_of(RankId(rank));
            assert_eq!(epoch, Epoch(2), "rank {rank}");
            world.post(RankId(rank), next.0, 10);
        }
        world.run();
        assert_eq!(world.count(0, |e| matches!(e, RankEvent::ResultReady { .. })), 2);
        assert!(world.sessions.iter().all(|session| session.live.is_empty()));
    }
}

/// A collective is done at one end and its receipts die with a lane: they are sent again.
#[test]
fn receipts_of_a_finished_collective_that_a_lane_took_with_it_are_repeated() {
    let mut world = World::new(&[1, 1], plan_of(vec![tree(1, &[0, 1], &[])]), 3, 1000);
    let (first, second) = (GatewayId(0), GatewayId(1));
    for rank in 0..2 {
        world.post(RankId(rank), 0, 100);
    }
    loop {
        if let Some(queue) = world.messages.get_mut(&(second, first)) {
            queue.retain(|message| !matches!(message, Message::Receipt { .. }));
        }
        if !world.step() {
            break;
        }
    }
    assert_eq!(world.count(1, |e| matches!(e, RankEvent::ContributionFree { .. })), 1);
    assert_eq!(world.count(0, |e| matches!(e, RankEvent::ContributionFree { .. })), 0);
    for (one, other) in [(first, second), (second, first)] {
        world.session(one).handle_lane_lost(other);
    }
    world.run();
    assert_eq!(world.count(0, |e| matches!(e, RankEvent::ContributionFree { .. })), 1);
    world.assert_clean();
}

/// A stream of the old epoch still writes when the next one begins: its number is not used
/// again while it lives.
#[test]
fn a_number_still_in_use_by_the_last_epoch_is_not_given_out_again() {
    let mut world = World::new(&[1, 1], plan_of(vec![tree(1, &[0, 1], &[])]), 3, 1000);
    let (first, second) = (GatewayId(0), GatewayId(1));
    let key = SegmentKey {
        sequence: Sequence(0),
        tree: crate::ids::TreeIndex(0),
        segment: crate::ids::SegmentIndex(0),
    };
    let header = SegmentHeader { epoch: Epoch(1), key, bytes: 80, digest: 1, weight: 1.0 };
    let arrival = world.session(second).handle_arrival(first, &header).expect("fair");
    let lease = lease_in(&arrival).expect("a lease");
    let now = world.now;
    world.session(second).end_epoch(Failure::new(FailureCode::EpochEnded, "t"), None, now);
    world.run();
    for rank in 0..2 {
        let (epoch, next) = world.epoch_of(RankId(rank));
        assert_eq!(epoch, Epoch(2));
        world.post(RankId(rank), next.0, 10);
    }
    world.session(second).handle_arrival_end(lease, false, now);
    world.run();
    for rank in 0..2 {
        assert_eq!(failure_of(&world, rank), None, "rank {rank}");
        assert_eq!(world.count(rank, |e| matches!(e, RankEvent::ResultReady { .. })), 1);
    }
}

/// The weights of a region's ranks are added and go over the wire, so their sum must be finite.
#[test]
fn weights_whose_sum_is_not_finite_are_refused() {
    let mut world = World::new(&[2, 1], plan_of(vec![tree(1, &[0, 1], &[])]), 4, 1000);
    let (epoch, sequence) = world.epoch_of(RankId(0));
    let (op, dtype) = (ReduceOp::Sum, Dtype::I64);
    let descriptor = Descriptor { op, dtype, elements: 4, layout_hash: 0 };
    let post = Post { epoch, sequence, descriptor, weight: f64::MAX, timeout: Span::from_secs(1) };
    let now = world.now;
    for rank in 0..2 {
        world.session(GatewayId(0)).handle_post(RankId(rank), post.clone(), now);
    }
    world.run();
    assert_eq!(failure_of(&world, 0), Some(FailureCode::BadPost));
}
