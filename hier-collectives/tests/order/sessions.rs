//! The sessions of all gateways of a job, whose tasks and segments take place in any order.

use hier_collectives::descriptor::{Counts, Descriptor, SlotElements};
use hier_collectives::ids::{BootId, Epoch, GatewayId, RankId, Sequence};
use hier_collectives::mesh::{MeshConnectionState, MeshGraph};
use hier_collectives::plan::Plan;
use hier_collectives::post::{Post, RankEvent};
use hier_collectives::session::{
    Action, ArrivalPlace, Buffer, BufferView, PartialsPool, Session, SessionConfig,
};
use hier_collectives::testing::SplitMix64;
use hier_collectives::topology::Fabric;
use hier_collectives::wire::{Message, SegmentHeader};
use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;
use units::{ByteCount, Span, TimeNs};

/// An element of a result that nothing was written to.
const UNTOUCHED: u64 = u64::MAX;

/// The order in which segments come and tasks are done.
#[derive(Debug, Clone)]
pub enum Order {
    /// As they were begun.
    Oldest,
    /// The last one first.
    Newest,
    /// As the numbers say.
    Drawn(SplitMix64),
}

/// A collective as one rank posts it.
#[derive(Debug, Clone)]
pub struct Posted {
    pub descriptor: Descriptor,
    pub counts: Counts,
}

/// The results of all ranks, by rank and collective.
pub type Results = BTreeMap<(RankId, u64), Vec<u64>>;

/// A segment under way.
struct Stream {
    from: GatewayId,
    to: GatewayId,
    header: SegmentHeader,
    source: BufferView,
    /// Its place, once its header has come.
    arrival: Option<ArrivalPlace>,
}

/// The sessions of a job, their memory, and what is under way between them.
pub struct Sessions {
    order: Order,
    now: TimeNs,
    fabric: Arc<Fabric>,
    sessions: Vec<Session>,
    memory: Vec<BTreeMap<Buffer, Vec<u64>>>,
    messages: BTreeMap<(GatewayId, GatewayId), VecDeque<Message>>,
    streams: Vec<Stream>,
    tasks: Vec<(GatewayId, Action)>,
    epoch: Epoch,
    results: Results,
}

/// Returns the elements of a view. Each has 8 bytes.
fn elements(view: &BufferView) -> Range<usize> {
    view.range.start as usize / 8..view.range.end as usize / 8
}

/// Combines operands, the first one first: another order gives another number.
fn fold(first: &[u64], second: &[u64]) -> Vec<u64> {
    let fold = |(one, other): (&u64, &u64)| one.wrapping_mul(31).wrapping_add(*other);
    first.iter().zip(second).map(fold).collect()
}

impl Sessions {
    /// Starts a session for each gateway, and lets them meet.
    pub fn start(fabric: &Arc<Fabric>, plan: &Plan, order: Order) -> Self {
        let gateways: Vec<GatewayId> = fabric.gateway_ids().collect();
        let session = |me: &GatewayId| {
            Session::new(SessionConfig {
                fabric: Arc::clone(fabric),
                me: *me,
                gateways: gateways.clone(),
                boot: BootId(u64::from(me.0) + 1),
                plan: plan.clone(),
                partials: PartialsPool::new(ByteCount::new(1 << 20)),
                one_in: NonZeroU64::MIN,
                last_epoch: Epoch(0),
                leaves_doubt: false,
                unsolicited_max: ByteCount::new(u64::MAX),
            })
        };
        let mut world = Self {
            order,
            now: TimeNs::from_ns(1),
            fabric: Arc::clone(fabric),
            sessions: gateways.iter().map(session).collect(),
            memory: vec![BTreeMap::new(); gateways.len()],
            messages: BTreeMap::new(),
            streams: vec![],
            tasks: vec![],
            epoch: Epoch(0),
            results: BTreeMap::new(),
        };
        let now = world.now;
        for rank in (0..fabric.world_size()).map(RankId) {
            world.session_of(rank).handle_attach(rank, now);
        }
        let graph = Arc::new(MeshGraph::uniform(fabric, MeshConnectionState::Up));
        for session in &mut world.sessions {
            session.handle_start(now);
            session.handle_connections(&graph, "start", now);
        }
        world.run_to_rest();
        assert!(world.epoch > Epoch(0), "an epoch begins");
        world
    }

    /// Posts collectives on all ranks, each with a post for each rank, and runs them. Returns the
    /// results; every rank has each of its own, and nothing is left under way.
    pub fn run(mut self, posts: &[Vec<Posted>]) -> Results {
        for (sequence, posts) in (0..).zip(posts) {
            for (rank, posted) in (0..).map(RankId).zip(posts) {
                self.post(rank, Sequence(sequence), posted);
            }
        }
        self.run_to_rest();
        assert_eq!(self.results.len(), posts.len() * self.fabric.world_size() as usize);
        let is_scratch = |buffer: &&Buffer| matches!(buffer, Buffer::Scratch(_));
        let left = self.memory.iter().flat_map(BTreeMap::keys).filter(is_scratch).count();
        assert_eq!(left, 0, "scratch left over");
        self.results
    }

    fn session(&mut self, id: GatewayId) -> &mut Session {
        &mut self.sessions[usize::from(id.0)]
    }

    fn session_of(&mut self, rank: RankId) -> &mut Session {
        let gateway = self.fabric.gateway_of(rank).expect("served");
        self.session(gateway)
    }

    /// Posts a collective with numbers that follow from rank, collective and place.
    fn post(&mut self, rank: RankId, sequence: Sequence, posted: &Posted) {
        let Posted { descriptor, counts } = posted.clone();
        let slots = descriptor.slot_elements(&counts, rank, self.fabric.world_size());
        let SlotElements { contribution, result } = slots.expect("counts that fit");
        let gateway = self.fabric.gateway_of(rank).expect("served");
        let memory = &mut self.memory[usize::from(gateway.0)];
        let mut dice = SplitMix64(u64::from(rank.0) << 32 | sequence.0);
        let data = (0..contribution).map(|_| dice.range(0, 1 << 40)).collect();
        memory.insert(Buffer::Contribution(sequence, rank), data);
        memory.insert(Buffer::Result(sequence, rank), vec![UNTOUCHED; result as usize]);
        let (epoch, weight, timeout) = (self.epoch, 1.0, Span::from_secs(60));
        let post = Post { epoch, sequence, descriptor, counts, weight, timeout };
        let now = self.now;
        self.session(gateway).handle_post(rank, post, now);
    }

    /// Carries out actions, and lets what is under way take place, until nothing is left.
    fn run_to_rest(&mut self) {
        for id in Arc::clone(&self.fabric).gateway_ids() {
            self.carry_out_actions(id);
        }
        loop {
            let pairs: Vec<(GatewayId, GatewayId)> = self.messages.keys().copied().collect();
            let all = pairs.len() + self.tasks.len() + self.streams.len();
            if all == 0 {
                return;
            }
            self.now = self.now + Span::from_ns(1000);
            let choice = match &mut self.order {
                Order::Oldest => 0,
                Order::Newest => all - 1,
                Order::Drawn(dice) => dice.range(0, all as u64 - 1) as usize,
            };
            let changed = if let Some(pair) = pairs.get(choice) {
                self.deliver_message(*pair)
            } else if choice - pairs.len() < self.tasks.len() {
                self.do_task(choice - pairs.len())
            } else {
                self.move_stream(choice - pairs.len() - self.tasks.len())
            };
            self.carry_out_actions(changed);
        }
    }

    fn carry_out_actions(&mut self, me: GatewayId) {
        while let Some(action) = self.session(me).poll_action() {
            match action {
                Action::Message { to, message } => {
                    self.messages.entry((me, to)).or_default().push_back(message);
                }
                Action::Send { to, header, source, tail, .. } => {
                    let header = SegmentHeader { parity: tail.parity, ..header };
                    self.streams.push(Stream { from: me, to, header, source, arrival: None });
                }
                Action::Reduce { .. } | Action::Copy { .. } => self.tasks.push((me, action)),
                Action::Release(scratch) => {
                    self.memory[usize::from(me.0)].remove(&Buffer::Scratch(scratch));
                }
                Action::Notify { rank, event } => self.hear(me, rank, event),
                Action::Cancel(_) | Action::CancelLease(_) => {
                    panic!("{action:?} without a failure")
                }
                _ => {}
            }
        }
    }

    /// Takes note of an epoch, and of a result.
    fn hear(&mut self, me: GatewayId, rank: RankId, event: RankEvent) {
        match event {
            RankEvent::EpochBegan { epoch, .. } => self.epoch = epoch,
            RankEvent::ResultReady { sequence, .. } => {
                let slot = Buffer::Result(sequence, rank);
                let result = self.memory[usize::from(me.0)][&slot].clone();
                self.results.insert((rank, sequence.0), result);
            }
            RankEvent::Failed { failure, .. } => panic!("rank {rank}: {failure}"),
            _ => {}
        }
    }

    /// Delivers the next message between two gateways, and returns the second. Messages keep their
    /// order.
    fn deliver_message(&mut self, (from, to): (GatewayId, GatewayId)) -> GatewayId {
        let queue = self.messages.get_mut(&(from, to)).expect("there");
        let message = queue.pop_front().expect("not empty");
        if queue.is_empty() {
            self.messages.remove(&(from, to));
        }
        let now = self.now;
        assert_eq!(self.session(to).handle_message(from, message, now), Ok(()));
        to
    }

    /// Lets the header of a segment come, or its bytes; returns the gateway to which it comes.
    fn move_stream(&mut self, index: usize) -> GatewayId {
        let (to, now) = (self.streams[index].to, self.now);
        if self.streams[index].arrival.is_none() {
            let (from, header) = (self.streams[index].from, self.streams[index].header);
            let arrival = self.session(to).handle_arrival(from, &header).expect("fair");
            self.streams[index].arrival = Some(arrival);
            return to;
        }
        let stream = self.streams.remove(index);
        let net = self.read(stream.from, &stream.source);
        let lease = match stream.arrival.expect("its header has come") {
            ArrivalPlace::Combine { lease, local, net_first, out, .. } => {
                let local = self.read(to, &local.view);
                let folded = if net_first { fold(&net, &local) } else { fold(&local, &net) };
                self.write(to, &out, &folded);
                lease
            }
            ArrivalPlace::Land { lease, into } => {
                self.write(to, &into, &net);
                lease
            }
            ArrivalPlace::Discard(why) => panic!("discarded without a cut: {why:?}"),
        };
        self.session(to).handle_arrival_end(lease, true, now);
        to
    }

    /// Does a reduction or a copy, and returns its gateway.
    fn do_task(&mut self, index: usize) -> GatewayId {
        let (me, action) = self.tasks.remove(index);
        let task = match &action {
            Action::Reduce { task, inputs, out, .. } => {
                let operands = inputs.iter().map(|input| self.read(me, &input.view));
                let folded = operands.reduce(|sum, next| fold(&sum, &next)).expect("operands");
                self.write(me, out, &folded);
                *task
            }
            Action::Copy { task, from, to } => {
                let data = self.read(me, from);
                to.iter().for_each(|view| self.write(me, view, &data));
                *task
            }
            other => unreachable!("{other:?} is no task"),
        };
        let now = self.now;
        self.session(me).handle_task_done(task, now);
        me
    }

    fn read(&self, me: GatewayId, view: &BufferView) -> Vec<u64> {
        if view.range.is_empty() {
            return vec![];
        }
        let buffer = self.memory[usize::from(me.0)].get(&view.buffer);
        buffer.unwrap_or_else(|| panic!("{me} reads {view:?}, which is gone"))[elements(view)]
            .to_vec()
    }

    fn write(&mut self, me: GatewayId, view: &BufferView, data: &[u64]) {
        let memory = &mut self.memory[usize::from(me.0)];
        let end = elements(view).end;
        let buffer = memory.entry(view.buffer).or_default();
        if buffer.len() < end {
            buffer.resize(end, 0);
        }
        buffer[elements(view)].copy_from_slice(data);
    }
}
