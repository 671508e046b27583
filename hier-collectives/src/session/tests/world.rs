//! A whole group of sessions in one process: messages in order for each pair, everything else in
//! any order, streams cut at random, and memory that is checked.

mod memory_limits;
mod streamed;
mod window_limits;

use super::blocks::reference::{Posts, contribution, expected_result};
use super::fabrics::*;
use crate::descriptor::*;
use crate::ids::*;
use crate::mesh::*;
use crate::plan::*;
use crate::post::*;
use crate::session::*;
use crate::topology::*;
use crate::wire::*;
pub(super) use memory_limits::MemoryLimits;
use std::collections::*;
use std::num::NonZeroU64;
use std::sync::Arc;
use units::*;
use window_limits::WindowLimits;

/// The memory of one gateway in a world.
pub(super) type Memory = BTreeMap<Buffer, Vec<i64>>;

/// A part of a result, by its elements, and its values when it was reported.
type ReportedPart = (std::ops::Range<usize>, Vec<i64>);

/// The tests' only random numbers: splitmix64.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % sides as u64).expect("small")
    }
}

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) from: GatewayId,
    pub(super) to: GatewayId,
    pub(super) header: SegmentHeader,
    pub(super) source: BufferView,
    pub(super) arrival: Option<ArrivalPlace>,
}

pub(super) struct World {
    pub(super) dice: Dice,
    pub(super) now: TimeNs,
    pub(super) fabric: Arc<Fabric>,
    pub(super) sessions: Vec<Session>,
    pub(super) memory: Vec<Memory>,
    /// Memory for partials of several local ranks, on each gateway.
    pub(super) partials: ByteCount,
    pub(super) messages: BTreeMap<(GatewayId, GatewayId), VecDeque<Message>>,
    pub(super) streams: Vec<Stream>,
    pub(super) tasks: Vec<(GatewayId, Action)>,
    /// Collectives whose streams out are to be stopped.
    pub(super) stopping: Vec<(GatewayId, Sequence)>,
    pub(super) events: BTreeMap<RankId, Vec<RankEvent>>,
    pub(super) cuts_left: u32,
    /// Collectives that are not all-reduces.
    pub(super) patterns: BTreeMap<u64, Pattern>,
    /// The counts of collectives whose blocks differ in length, by rank.
    pub(super) counts: BTreeMap<(RankId, u64), Counts>,
    /// Each rank's post of a collective.
    posted: Posts,
    /// Gateways on which something failed. There a task or stream under way may outlive the release
    /// of its scratch, as in the engine, which counts references.
    pub(super) failed: BTreeSet<GatewayId>,
    /// Scratch that was released, by gateway and buffer.
    pub(super) released: BTreeMap<(GatewayId, Buffer), Vec<i64>>,
    /// Connections that are not up.
    pub(super) not_up: BTreeMap<GatewayPair, MeshConnectionState>,
    /// Changes of connections that gateways do not know yet, oldest first.
    pub(super) unknown: BTreeMap<GatewayId, VecDeque<Arc<MeshGraph>>>,
    /// The collectives that commits cover, by rank and step.
    pub(super) steps: BTreeMap<(RankId, Step), std::ops::Range<u64>>,
    /// The limits of memory that were computed before, by gateway.
    window_limits: Vec<WindowLimits>,
    /// Of three contributions, the number whose bytes come after their posts.
    pub(super) streamed_of_three: usize,
    /// The number of elements that have come, of contributions that come after their posts.
    pub(super) arriving: BTreeMap<(RankId, Sequence), usize>,
    /// The parts of results of which ranks have heard, with their bytes at that time.
    reported: BTreeMap<(RankId, Sequence), Vec<ReportedPart>>,
    /// Ranks whose contributions stop coming.
    pub(super) withheld: BTreeSet<RankId>,
    /// The facts that gateways noted.
    pub(super) notes: Vec<(GatewayId, SessionNote)>,
}

impl World {
    pub(super) fn new(
        ranks: &[u32],
        plan: Plan,
        seed: u64,
        memory: impl Into<MemoryLimits>,
    ) -> Self {
        Self::with_fabrics(vec![fabric(ranks); ranks.len()], plan, seed, memory)
    }

    /// Gateways whose fabric files differ.
    pub(super) fn with_fabrics(
        fabrics: Vec<Arc<Fabric>>,
        plan: Plan,
        seed: u64,
        memory: impl Into<MemoryLimits>,
    ) -> Self {
        Self::with_connections(fabrics, plan, seed, memory, BTreeMap::new())
    }

    /// Gateways with these connections that are not up.
    pub(super) fn with_connections(
        fabrics: Vec<Arc<Fabric>>,
        plan: Plan,
        seed: u64,
        memory: impl Into<MemoryLimits>,
        not_up: BTreeMap<GatewayPair, MeshConnectionState>,
    ) -> Self {
        let MemoryLimits { partials, unsolicited } = memory.into();
        let fabric = Arc::clone(&fabrics[0]);
        let gateways = fabrics.len();
        plan.prove(u16::try_from(gateways).expect("small")).expect("sound plan");
        let session = |me: GatewayId| {
            Session::new(SessionConfig {
                leaves_doubt: false,
                fabric: Arc::clone(&fabrics[usize::from(me.0)]),
                me,
                gateways: fabrics[usize::from(me.0)].gateway_ids().collect(),
                boot: BootId(u64::from(me.0) + 100),
                plan: plan.clone(),
                partials: PartialsPool::new(ByteCount::new(partials)),
                one_in: NonZeroU64::MIN,
                last_epoch: Epoch(0),
                unsolicited_max: ByteCount::new(unsolicited),
            })
        };
        let mut world = Self {
            dice: Dice(seed),
            now: TimeNs::from_ns(1),
            sessions: fabric.gateway_ids().map(session).collect(),
            memory: vec![BTreeMap::new(); gateways],
            partials: ByteCount::new(partials),
            messages: BTreeMap::new(),
            streams: Vec::new(),
            tasks: Vec::new(),
            stopping: Vec::new(),
            events: (0..fabric.world_size()).map(|rank| (RankId(rank), Vec::new())).collect(),
            fabric,
            cuts_left: 20,
            patterns: BTreeMap::new(),
            counts: BTreeMap::new(),
            posted: BTreeMap::new(),
            failed: BTreeSet::new(),
            released: BTreeMap::new(),
            not_up,
            unknown: BTreeMap::new(),
            steps: BTreeMap::new(),
            window_limits: (0..gateways).map(|_| WindowLimits::default()).collect(),
            streamed_of_three: 0,
            arriving: BTreeMap::new(),
            reported: BTreeMap::new(),
            withheld: BTreeSet::new(),
            notes: Vec::new(),
        };
        for rank in 0..world.fabric.world_size() {
            let gateway = world.gateway_of(RankId(rank));
            world.session(gateway).handle_attach(RankId(rank), TimeNs::from_ns(1));
        }
        let graph = world.graph();
        for one in world.fabric.gateway_ids() {
            world.session(one).handle_start(TimeNs::from_ns(1));
            world.session(one).handle_connections(&graph, "start", TimeNs::from_ns(1));
        }
        world.run();
        world
    }

    pub(super) fn session(&mut self, id: GatewayId) -> &mut Session {
        &mut self.sessions[usize::from(id.0)]
    }

    pub(super) fn gateway_of(&self, rank: RankId) -> GatewayId {
        self.fabric.gateway_of(rank).expect("served")
    }

    pub(super) fn epoch_of(&self, rank: RankId) -> (Epoch, Sequence) {
        let began = self.events[&rank].iter().rev().find_map(|event| match event {
            RankEvent::EpochBegan { epoch, next, .. } => Some((*epoch, *next)),
            _ => None,
        });
        began.expect("an epoch began")
    }

    pub(super) fn post(&mut self, rank: RankId, sequence: u64, elements: u64) {
        let (epoch, _) = self.epoch_of(rank);
        let pattern = self.patterns.get(&sequence).copied().unwrap_or_default();
        let counts = self.counts.get(&(rank, sequence)).map(Counts::agreed).unwrap_or_default();
        let descriptor = Descriptor { counts, ..descriptor(pattern, elements) };
        self.post_descriptor(epoch, rank, sequence, descriptor);
    }

    /// Posts in an epoch that may be over, or a descriptor that other ranks do not post.
    pub(super) fn post_descriptor(
        &mut self,
        epoch: Epoch,
        rank: RankId,
        sequence: u64,
        descriptor: Descriptor,
    ) {
        let counts = self.counts.get(&(rank, sequence)).cloned().unwrap_or_default();
        self.posted.insert((rank, sequence), (descriptor, counts.clone()));
        let slots = descriptor.slot_elements(&counts, rank, self.fabric.world_size());
        let SlotElements { contribution: given, result } = slots.unwrap_or_default();
        let gateway = self.gateway_of(rank);
        let sequence_id = Sequence(sequence);
        let memory = &mut self.memory[usize::from(gateway.0)];
        let data = contribution(rank, sequence, given);
        memory.insert(Buffer::Contribution(sequence_id, rank), data);
        let empty = vec![-1; usize::try_from(result).expect("small")];
        memory.insert(Buffer::Result(sequence_id, rank), empty);
        let (weight, timeout) = (1.0, Span::from_secs(60));
        let post = Post { epoch, sequence: sequence_id, descriptor, counts, weight, timeout };
        let now = self.now;
        let transport = self.post_transport(rank, sequence_id, descriptor.pattern);
        self.session(gateway).handle_streamed_post(rank, post, transport, now);
        self.collect(gateway);
    }

    /// A rank commits what it posted, from collective `from` to below `below`.
    pub(super) fn commit(&mut self, rank: RankId, step: u64, range: std::ops::Range<u64>) {
        let (epoch, _) = self.epoch_of(rank);
        let (step, timeout) = (Step(step), Span::from_secs(60));
        self.steps.insert((rank, step), range);
        let (gateway, now) = (self.gateway_of(rank), self.now);
        self.session(gateway).handle_commit(rank, Commit { epoch, step, timeout }, now);
        self.collect(gateway);
    }

    pub(super) fn collect(&mut self, me: GatewayId) {
        while let Some(action) = self.session(me).poll_action() {
            match action {
                Action::Message { to, message } => {
                    let wire = Message::decode(&message.encode());
                    assert_eq!(wire.as_ref(), Ok(&message), "survives the wire");
                    self.messages.entry((me, to)).or_default().push_back(message);
                }
                // A session that does not know of a cut sends into it.
                Action::Send { to, .. } if self.not_up.contains_key(&pair_of(me, to)) => {}
                Action::Send { to, mut header, source, priority: _, tail } => {
                    header.parity = tail.parity;
                    let stream = Stream { from: me, to, header, source, arrival: None };
                    self.streams.push(stream);
                }
                Action::Reduce { .. } | Action::Copy { .. } => self.tasks.push((me, action)),
                Action::ShareTraffic => {}
                Action::Cancel(sequence) => self.cancel(me, sequence),
                Action::CancelLease(lease) => self.end_lease(me, lease),
                Action::Release(scratch) => {
                    let buffer = Buffer::Scratch(scratch);
                    let data = self.memory[usize::from(me.0)].remove(&buffer);
                    self.released.insert((me, buffer), data.unwrap_or_default());
                }
                Action::ResultPlaced { rank, sequence, range } => {
                    let view = BufferView { buffer: Buffer::Result(sequence, rank), range };
                    let (range, data) = (elements(&view), self.read(me, &view));
                    let reported = self.reported.get_mut(&(rank, sequence)).expect("asked for");
                    reported.push((range, data));
                }
                Action::Notify { rank, event } => self.notify(me, rank, event),
                Action::Plan(as_found) => {
                    let (plan, now) = (make_plan(&as_found).ok(), self.now);
                    self.session(me).handle_planned(&as_found, plan, now);
                }
                Action::Note(note) => self.notes.push((me, note)),
                Action::Introduce { .. } | Action::Receipted { .. } => {}
            }
        }
    }

    pub(super) fn notify(&mut self, me: GatewayId, rank: RankId, event: RankEvent) {
        let memory = &mut self.memory[usize::from(me.0)];
        match &event {
            RankEvent::ResultReady { sequence, .. } => {
                let result = memory[&Buffer::Result(*sequence, rank)].clone();
                let expected =
                    expected_result(&self.posted, self.fabric.world_size(), rank, sequence.0);
                assert!(result == expected, "rank {rank} {sequence}: {result:?}, not {expected:?}");
                self.assert_reported(rank, *sequence, &result);
            }
            // From here on both slots are the rank's, and it writes something else there.
            RankEvent::ContributionFree { sequence } => {
                assert_eq!(self.arriving.get(&(rank, *sequence)), None, "not all of it was read");
                let slot = Buffer::Contribution(*sequence, rank);
                memory.get_mut(&slot).expect("posted").fill(-9);
                memory.get_mut(&Buffer::Result(*sequence, rank)).expect("posted").fill(-7);
            }
            RankEvent::Failed { sequence, .. } => {
                let slot = Buffer::Contribution(*sequence, rank);
                if let Some(kept) = memory.get_mut(&slot) {
                    let elements = u64::try_from(kept.len()).expect("small");
                    let posted = contribution(rank, sequence.0, elements);
                    let here = self.arriving.remove(&(rank, *sequence)).unwrap_or(kept.len());
                    assert_eq!(kept[..here], posted[..here], "a failed contribution is intact");
                    kept.fill(-9);
                    memory.get_mut(&Buffer::Result(*sequence, rank)).expect("posted").fill(-7);
                }
            }
            RankEvent::Committed { step } => self.assert_complete(rank, *step),
            RankEvent::EpochBegan { committed: Some(step), .. } => {
                self.assert_complete(rank, *step);
            }
            _ => {}
        }
        self.events.get_mut(&rank).expect("known").push(event);
    }

    /// Asserts that all ranks have had the results of a step, as far as its collectives are known.
    fn assert_complete(&self, told: RankId, step: Step) {
        for ((_, _), range) in self.steps.iter().filter(|((_, of), _)| *of == step) {
            for (rank, events) in &self.events {
                for sequence in range.clone().map(Sequence) {
                    let ready = |event: &RankEvent| matches!(event, RankEvent::ResultReady { sequence: of, .. } if *of == sequence);
                    let has = events.iter().any(ready);
                    assert!(
                        has,
                        "rank {told} was notified of step {step}; {rank} lacks {sequence}"
                    );
                }
            }
        }
    }

    /// Ends streams in at once; streams out go on until [`World::stop`].
    pub(super) fn cancel(&mut self, me: GatewayId, sequence: Sequence) {
        self.failed.insert(me);
        self.stopping.push((me, sequence));
        self.drop_streams(|stream| stream.to == me && stream.header.key.sequence == sequence);
    }

    pub(super) fn stop(&mut self, me: GatewayId, sequence: Sequence) {
        self.drop_streams(|stream| stream.from == me && stream.header.key.sequence == sequence);
        let now = self.now;
        self.session(me).handle_streams_cancelled(sequence, now);
        self.collect(me);
    }

    /// Cuts streams off.
    pub(super) fn drop_streams(&mut self, which: impl Fn(&Stream) -> bool) {
        let dropped: Vec<Stream> = self.streams.extract_if(.., |stream| which(stream)).collect();
        for stream in dropped {
            if let Some(lease) = lease_of(&stream) {
                self.end_lease(stream.to, lease);
            }
        }
    }

    /// Loses the lane of control messages between two gateways, each way from some message on.
    /// Later messages go over another lane.
    pub(super) fn lose_lane(&mut self, one: GatewayId, other: GatewayId) {
        for pair in [(one, other), (other, one)] {
            let under_way = self.messages.get(&pair).map_or(0, VecDeque::len);
            let arrive = self.dice.roll(under_way + 1);
            self.messages.entry(pair).or_default().truncate(arrive);
            self.session(pair.0).handle_connection_lane_lost(pair.1);
            self.collect(pair.0);
        }
    }

    pub(super) fn end_lease(&mut self, me: GatewayId, lease: LeaseId) {
        self.streams.retain(|stream| stream.to != me || lease_of(stream) != Some(lease));
        let now = self.now;
        self.session(me).handle_arrival_end(lease, false, now);
        self.collect(me);
    }

    /// Runs until nothing is left to happen.
    pub(super) fn run(&mut self) {
        for id in self.fabric.gateway_ids() {
            self.collect(id);
        }
        while self.step() {}
    }

    pub(super) fn step(&mut self) -> bool {
        self.now = self.now + Span::from_ns(1000);
        let pairs: Vec<_> =
            self.messages.iter().filter(|(_, queue)| !queue.is_empty()).map(|(k, _)| *k).collect();
        self.unknown.retain(|_, graphs| !graphs.is_empty());
        let learners: Vec<GatewayId> = self.unknown.keys().copied().collect();
        let others = pairs.len() + self.tasks.len() + self.streams.len() + self.stopping.len();
        let arriving = self.arriving.keys().filter(|(rank, _)| !self.withheld.contains(rank));
        let arriving: Vec<(RankId, Sequence)> = arriving.copied().collect();
        let all = others + learners.len() + arriving.len();
        if all == 0 {
            return false;
        }
        let choice = self.dice.roll(all);
        if let Some(index) = choice.checked_sub(others + learners.len()) {
            let (rank, sequence) = arriving[index];
            self.arrive(rank, sequence);
        } else if let Some(me) = choice.checked_sub(others).map(|index| learners[index]) {
            let graph = self.unknown.get_mut(&me).and_then(VecDeque::pop_front);
            self.learn(me, &graph.expect("there"));
        } else if let Some((from, to)) = pairs.get(choice).copied() {
            let message = self.messages.get_mut(&(from, to)).and_then(VecDeque::pop_front);
            if !self.is_reached(from, to) {
                return true;
            }
            let now = self.now;
            let result = self.session(to).handle_message(from, message.expect("there"), now);
            assert_eq!(result, Ok(()));
            self.collect(to);
        } else if choice - pairs.len() < self.tasks.len() {
            let (me, action) = self.tasks.swap_remove(choice - pairs.len());
            self.do_task(me, &action);
        } else if choice - pairs.len() - self.tasks.len() < self.streams.len() {
            let index = choice - pairs.len() - self.tasks.len();
            self.move_stream(index);
        } else {
            let index = choice - pairs.len() - self.tasks.len() - self.streams.len();
            let (me, sequence) = self.stopping.swap_remove(index);
            self.stop(me, sequence);
        }
        let limits = self.window_limits.iter_mut();
        for ((session, memory), limits) in self.sessions.iter().zip(&self.memory).zip(limits) {
            limits.assert_within_windows(session, memory, self.partials);
        }
        true
    }

    pub(super) fn move_stream(&mut self, index: usize) {
        let cut = self.cuts_left > 0 && self.dice.roll(8) == 0;
        let mut stream = self.streams.swap_remove(index);
        let (to, now) = (stream.to, self.now);
        match stream.arrival.take() {
            None => {
                let (from, header) = (stream.from, stream.header);
                let arrival = self.session(to).handle_arrival(from, &header).expect("fair");
                if !matches!(arrival, ArrivalPlace::Discard(_)) {
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
                self.session(from).handle_connection_lane_lost(to);
                self.session(to).handle_connection_lane_lost(from);
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

    pub(super) fn write(&mut self, stream: &Stream, arrival: &ArrivalPlace, divisor: usize) {
        let net = self.read(stream.from, &stream.source);
        let net = &net[..net.len() / divisor];
        match arrival {
            ArrivalPlace::Combine { local, out, .. } => {
                let local = self.read(stream.to, &local.view);
                let sum: Vec<i64> = local.iter().zip(net).map(|(a, b)| a + b).collect();
                self.store(stream.to, out, &sum);
            }
            ArrivalPlace::Land { into, .. } => self.store(stream.to, into, net),
            ArrivalPlace::Discard(_) => {}
        }
    }

    pub(super) fn do_task(&mut self, me: GatewayId, action: &Action) {
        let task = match action {
            Action::Reduce { task, inputs, out, .. } => {
                let mut sum: Vec<i64> = self.read(me, &inputs[0].view);
                for input in &inputs[1..] {
                    let data = self.read(me, &input.view);
                    sum.iter_mut().zip(data).for_each(|(sum, value)| *sum += value);
                }
                self.store(me, out, &sum);
                *task
            }
            Action::Copy { task, from, to } => {
                let data = self.read(me, from);
                to.iter().for_each(|view| self.store(me, view, &data));
                *task
            }
            _ => return,
        };
        let now = self.now;
        self.session(me).handle_task_done(task, now);
        self.collect(me);
    }

    pub(super) fn read(&self, me: GatewayId, view: &BufferView) -> Vec<i64> {
        let buffer = self.memory[usize::from(me.0)].get(&view.buffer);
        if view.range.is_empty() {
            return vec![];
        }
        match buffer {
            Some(buffer) => buffer[elements(view)].to_vec(),
            None if self.failed.contains(&me) => match self.released.get(&(me, view.buffer)) {
                Some(buffer) if !buffer.is_empty() => buffer[elements(view)].to_vec(),
                // Named by a task that has not run.
                _ => vec![0; elements(view).len()],
            },
            None => panic!("{me} reads {view:?}, which is gone"),
        }
    }

    pub(super) fn store(&mut self, me: GatewayId, view: &BufferView, data: &[i64]) {
        let memory = &mut self.memory[usize::from(me.0)];
        let buffer = match self.released.get_mut(&(me, view.buffer)) {
            Some(released) => {
                assert!(self.failed.contains(&me), "{me} writes {view:?}, which is gone");
                released.resize(elements(view).end, 0);
                released
            }
            None => memory.entry(view.buffer).or_insert_with(|| vec![0; elements(view).end]),
        };
        buffer[elements(view)][..data.len()].copy_from_slice(data);
    }

    pub(super) fn count(&self, rank: u32, wanted: impl Fn(&RankEvent) -> bool) -> usize {
        self.events[&RankId(rank)].iter().filter(|event| wanted(event)).count()
    }

    pub(super) fn assert_clean(&self) {
        for (id, session) in self.sessions.iter().enumerate() {
            assert!(session.collectives.is_empty(), "gateway {id}: {:?}", session.collectives);
            session.transfer.inspect_at_rest();
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

/// Returns the descriptor of a sum of 64-bit integers.
pub(super) fn descriptor(pattern: Pattern, elements: u64) -> Descriptor {
    let (op, dtype, shape) = (ReduceOp::Sum, Dtype::I64, ArrayShape::FLAT);
    let counts = AgreedCounts::Even;
    Descriptor { op, dtype, elements, layout_hash: 0, shape, pattern, counts }
}

pub(super) fn elements(view: &BufferView) -> std::ops::Range<usize> {
    let at = |bytes: u64| usize::try_from(bytes / 8).expect("small");
    at(view.range.start)..at(view.range.end)
}

pub(super) fn lease_in(arrival: &ArrivalPlace) -> Option<LeaseId> {
    match arrival {
        ArrivalPlace::Combine { lease, .. } | ArrivalPlace::Land { lease, .. } => Some(*lease),
        ArrivalPlace::Discard(_) => None,
    }
}

pub(super) fn lease_of(stream: &Stream) -> Option<LeaseId> {
    stream.arrival.as_ref().and_then(lease_in)
}

/// The last failure that a rank was notified of.
pub(super) fn failure_of(world: &World, rank: u32) -> Option<FailureCode> {
    world.events[&RankId(rank)].iter().rev().find_map(|event| match event {
        RankEvent::Failed { failure, .. } => Some(failure.code),
        _ => None,
    })
}
