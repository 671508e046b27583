//! The engine: one task that owns the session, feeds it events and carries out its actions.
//!
//! It handles segments, never bytes, and never waits for a send: lanes pull, jobs report
//! back, ranks are told over queues that cannot fill.

mod look;
mod memory;
mod peers;
mod ranks;

use crate::host::Host;
use crate::local::arena::{MemSlice, Operand};
use crate::local::server::LocalEvent;
use crate::observe::metrics::{Metrics, Outcome};
use crate::observe::status::StatusRequest;
use crate::wan::outbox::ConnectionId;
use crate::wan::{LaneHandle, PeerLink, PeerSeen};
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::{GatewayId, RankId, Sequence};
use hier_collectives::post::{FailureCode, RankEvent};
use hier_collectives::session::{
    Action, Arrival, Discard, JobId, LeaseId, Note, PeerError, Session, SessionConfig,
};
use hier_collectives::topology::Fabric;
use hier_collectives::wire::{Message, SegmentHeader};
use memory::Memory;
use peers::Peers;
use ranks::Ranks;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use units::{Span, TimeNs};

/// Events that may wait for the engine; lanes and trainers wait beyond that.
pub const EVENTS_MAX: usize = 4096;

/// How often gauges are brought up to date; counters count by themselves.
const GAUGES_EVERY: Span = Span::from_secs(1);

/// Where lanes and others put events.
pub type EventSender = mpsc::Sender<Event>;

/// What the engine hears of.
#[derive(Debug)]
pub enum Event {
    /// From a trainer.
    Local(LocalEvent),
    /// A lane to a peer is up.
    LaneUp {
        /// Who is at its other end.
        seen: PeerSeen,
        /// Our hold on it.
        handle: LaneHandle,
    },
    /// A lane is lost.
    LaneDown {
        /// Who was at its other end.
        peer: GatewayId,
        /// Which lane.
        lane: u16,
        /// Its connection.
        id: ConnectionId,
        /// Why.
        why: String,
    },
    /// A lane could not be brought up.
    DialFailed {
        /// The peer.
        peer: GatewayId,
        /// The lane.
        lane: u16,
        /// Why.
        why: String,
    },
    /// A control message.
    Message {
        /// The peer.
        from: GatewayId,
        /// The connection it came on.
        id: ConnectionId,
        /// The message.
        message: Message,
    },
    /// A segment's header arrived.
    Arrival {
        /// The peer.
        from: GatewayId,
        /// The connection it came on.
        id: ConnectionId,
        /// The header.
        header: SegmentHeader,
        /// Where its bytes go.
        reply: oneshot::Sender<Placement>,
    },
    /// A segment's stream ended.
    ArrivalEnd {
        /// Its permission to write.
        lease: LeaseId,
        /// Whether all of it is in place.
        whole: bool,
    },
    /// A reduction or copy is done.
    JobDone(JobId),
    /// End the epoch and tell the peers.
    Shutdown(oneshot::Sender<()>),
}

/// [`Arrival`] with memory in place of names.
#[derive(Debug)]
pub enum Placement {
    /// Combine with what is here.
    Combine {
        /// The permission.
        lease: LeaseId,
        /// The operation.
        op: ReduceOp,
        /// The element type.
        dtype: Dtype,
        /// The operand here and its weight.
        local: (MemSlice, f64),
        /// The weight of the arriving one.
        net_weight: f64,
        /// Whether the arriving one comes first.
        net_first: bool,
        /// The destination.
        out: MemSlice,
        /// Ends the permission.
        cancel: CancellationToken,
    },
    /// Write as it is.
    Land {
        /// The permission.
        lease: LeaseId,
        /// The destination.
        into: MemSlice,
        /// Ends the permission.
        cancel: CancellationToken,
    },
    /// Stop the stream.
    Discard(Discard),
}

/// See the module.
pub struct Engine {
    host: Arc<dyn Host>,
    fabric: Arc<Fabric>,
    me: GatewayId,
    session: Session,
    memory: Memory,
    peers: Peers,
    ranks: Ranks,
    metrics: Arc<Metrics>,
    leases: BTreeMap<LeaseId, (Sequence, CancellationToken)>,
    events: EventSender,
    inbox: mpsc::Receiver<Event>,
    questions: mpsc::Receiver<StatusRequest>,
}

impl Engine {
    /// An engine for a session, with the peers' links.
    pub fn new(
        host: Arc<dyn Host>,
        session: SessionConfig,
        links: BTreeMap<GatewayId, Arc<PeerLink>>,
        observed: (Arc<Metrics>, mpsc::Receiver<StatusRequest>),
        channel: (EventSender, mpsc::Receiver<Event>),
    ) -> Self {
        let (metrics, questions) = observed;
        let (events, inbox) = channel;
        let fabric = Arc::clone(&session.fabric);
        Self {
            me: session.me,
            session: Session::new(session),
            memory: Memory::default(),
            peers: Peers::new(Arc::clone(&fabric), links),
            fabric,
            questions,
            ranks: Ranks::default(),
            metrics,
            leases: BTreeMap::new(),
            host,
            events,
            inbox,
        }
    }

    /// Runs until everybody who could send an event is gone, or a shutdown.
    pub async fn run(mut self) {
        self.session.handle_start(self.host.now());
        self.act();
        let mut gauges_due = self.host.now() + GAUGES_EVERY;
        loop {
            let deadline = self.session.poll_timeout();
            let event = tokio::select! {
                biased;
                event = self.inbox.recv() => event,
                Some(question) = self.questions.recv() => {
                    let _ = question.send(self.look());
                    continue;
                }
                () = self.host.sleep_until(gauges_due) => {
                    gauges_due = self.host.now() + GAUGES_EVERY;
                    self.measure();
                    continue;
                }
                () = sleep_until(&self.host, deadline) => {
                    self.session.handle_timeout(self.host.now());
                    self.act();
                    continue;
                }
            };
            match event {
                Some(Event::Shutdown(done)) => {
                    self.session.handle_shutdown(self.host.now());
                    self.act();
                    let _ = done.send(());
                    return;
                }
                Some(event) => self.handle(event),
                None => return,
            }
            self.act();
        }
    }

    fn handle(&mut self, event: Event) {
        let now = self.host.now();
        match event {
            Event::Local(event) => self.handle_local(event, now),
            Event::LaneUp { seen, handle } => self.handle_lane_up(seen, handle, now),
            Event::LaneDown { peer, lane, id, why } => {
                self.handle_lane_down(peer, lane, id, &why, now)
            }
            Event::DialFailed { peer, lane, why } => self.peers.dial_failed(peer, lane, why),
            Event::Message { from, id, message } => {
                if self.peers.is_current(from, id)
                    && let Err(error) = self.session.handle_message(from, message, now)
                {
                    self.accuse(from, id, &error);
                }
            }
            Event::Arrival { from, id, header, reply } => {
                let placement = self.place(from, id, &header);
                if let Err(Placement::Combine { lease, .. } | Placement::Land { lease, .. }) =
                    reply.send(placement)
                {
                    self.end_lease(lease, false, now);
                }
            }
            Event::ArrivalEnd { lease, whole } => {
                if whole {
                    self.metrics.segments.inc();
                }
                self.end_lease(lease, whole, now);
            }
            Event::JobDone(job) => self.session.handle_job_done(job, now),
            Event::Shutdown(_) => unreachable!("taken by the loop"),
        }
    }

    fn handle_local(&mut self, event: LocalEvent, now: TimeNs) {
        match event {
            LocalEvent::Attach { rank, attachment, events } => {
                info!("rank {rank} attached");
                self.ranks.attach(rank, attachment, events);
                self.session.handle_attach(rank, now);
            }
            LocalEvent::Post { rank, attachment, post, contribution, result } => {
                if self.ranks.is_current(rank, attachment) {
                    self.memory.post(post.sequence, rank, contribution, result);
                    self.session.handle_post(rank, post, now);
                }
            }
            LocalEvent::Detach { rank, attachment } => {
                if self.ranks.detach(rank, attachment) {
                    info!("rank {rank} detached");
                    self.session.handle_detach(rank, now);
                }
            }
        }
    }

    fn handle_lane_up(&mut self, seen: PeerSeen, handle: LaneHandle, now: TimeNs) {
        // A new boot id is a restart: whatever the old connections still say is of the past.
        if self.peers.restarted(seen) {
            for (lane, id) in self.peers.lanes_of(seen.peer) {
                self.handle_lane_down(seen.peer, lane, id, "the peer restarted", now);
            }
        }
        if let Some(old) = self.peers.connection_on(seen.peer, seen.lane) {
            self.handle_lane_down(seen.peer, seen.lane, old, "superseded", now);
        }
        if self.peers.lane_up(seen, handle) {
            self.session.handle_peer_up(seen.peer, now);
        }
    }

    fn handle_lane_down(
        &mut self,
        peer: GatewayId,
        lane: u16,
        id: ConnectionId,
        why: &str,
        now: TimeNs,
    ) {
        let Some(left) = self.peers.lane_down(peer, lane, id, why) else { return };
        if left == 0 {
            self.session.handle_peer_down(peer, why, now);
        } else {
            self.session.handle_lane_lost(peer);
        }
    }

    fn accuse(&self, peer: GatewayId, id: ConnectionId, error: &PeerError) {
        warn!("gateway {}: {error}; closing its connection", self.peers.name(peer));
        self.peers.accuse(peer, id, &error.to_string());
    }

    fn place(&mut self, from: GatewayId, id: ConnectionId, header: &SegmentHeader) -> Placement {
        if !self.peers.is_current(from, id) {
            return Placement::Discard(Discard::Epoch);
        }
        let sequence = header.key.sequence;
        let cancel = CancellationToken::new();
        match self.session.handle_arrival(from, header) {
            Ok(Arrival::Combine { lease, op, dtype, local, net_weight, net_first, out }) => {
                self.leases.insert(lease, (sequence, cancel.clone()));
                let local = (self.memory.view(&local.view), local.weight);
                let out = self.memory.view(&out);
                Placement::Combine { lease, op, dtype, local, net_weight, net_first, out, cancel }
            }
            Ok(Arrival::Land { lease, into }) => {
                self.leases.insert(lease, (sequence, cancel.clone()));
                Placement::Land { lease, into: self.memory.view(&into), cancel }
            }
            Ok(Arrival::Discard(why)) => {
                self.metrics.dropped_segments(why).inc();
                debug!(
                    "segment {:?} from {} discarded: {why:?}",
                    header.key,
                    self.peers.name(from)
                );
                Placement::Discard(why)
            }
            Err(error) => {
                self.accuse(from, id, &error);
                Placement::Discard(Discard::Failed)
            }
        }
    }

    fn end_lease(&mut self, lease: LeaseId, whole: bool, now: TimeNs) {
        self.leases.remove(&lease);
        self.session.handle_arrival_end(lease, whole, now);
    }

    /// Carries out everything the session asks for.
    fn act(&mut self) {
        while let Some(action) = self.session.poll_action() {
            match action {
                Action::Message { to, message } => self.peers.send(to, &message),
                Action::Send { to, header, source } => {
                    let payload = self.memory.view(&source);
                    self.peers.push(to, header, payload);
                }
                Action::Reduce { job, op, dtype, inputs, out } => {
                    let memory = &mut self.memory;
                    let operands: Vec<Operand<'static>> = inputs
                        .iter()
                        .map(|input| Operand::Memory(memory.view(&input.view), input.weight))
                        .collect();
                    let out = memory.view(&out);
                    self.compute(job, Box::new(move || out.reduce(op, dtype, &operands)));
                }
                Action::Copy { job, from, to } => {
                    let from = self.memory.view(&from);
                    let to: Vec<MemSlice> = to.iter().map(|view| self.memory.view(view)).collect();
                    self.compute(
                        job,
                        Box::new(move || {
                            to.iter().for_each(|slice| from.copy_to_slice(slice));
                        }),
                    );
                }
                Action::Release(scratch) => self.memory.release(scratch),
                Action::Receipted { from, key } => self.peers.receipted(from, key),
                Action::Cancel(sequence) => {
                    self.peers.cancel(sequence);
                    let of_it = self.leases.values().filter(|(other, _)| *other == sequence);
                    of_it.for_each(|(_, cancel)| cancel.cancel());
                }
                Action::CancelLease(lease) => {
                    if let Some((_, cancel)) = self.leases.get(&lease) {
                        cancel.cancel();
                    }
                }
                Action::Notify { rank, event } => {
                    if let RankEvent::ContributionFree { sequence }
                    | RankEvent::Failed { sequence, .. } = event
                    {
                        self.memory.finish(sequence, rank);
                    }
                    self.ranks.notify(rank, event);
                }
                Action::Note(note) => self.note(note),
            }
        }
    }

    fn compute(&self, job: JobId, work: crate::host::Job) {
        let (done, events) = (self.host.compute(work), self.events.clone());
        self.host.spawn(Box::pin(async move {
            done.await;
            let _ = events.send(Event::JobDone(job)).await;
        }));
    }

    fn measure(&mut self) {
        self.peers.measure();
        let collectives = self.session.status().collectives;
        let awaited: BTreeSet<RankId> =
            collectives.iter().flat_map(|c| c.awaited_ranks.iter().copied()).collect();
        self.metrics.awaited_ranks.set(i64::try_from(awaited.len()).unwrap_or(i64::MAX));
    }

    fn note(&self, note: Note) {
        match note {
            Note::EpochBegan { epoch, algorithm, reason, plan_hash } => {
                self.metrics.epoch.set(i64::try_from(epoch.0).unwrap_or(i64::MAX));
                info!("epoch {epoch} began: {algorithm} ({reason}); plan {plan_hash:016x}");
            }
            Note::EpochEnded { epoch, failure } => warn!("epoch {epoch} ended: {failure}"),
            Note::Completed { sequence, op, bytes, took } => {
                self.metrics.seconds(op.name()).observe(took.as_secs_f64());
                self.metrics.collectives(op.name(), Outcome::Completed).inc();
                debug!("collective {sequence} completed: {op}, {bytes} bytes");
            }
            Note::Failed { sequence, op, failure } => {
                let disagreed = failure.code == FailureCode::Disagreement;
                let outcome = if disagreed { Outcome::Disagreed } else { Outcome::Failed };
                self.metrics.collectives(op.map_or("unknown", ReduceOp::name), outcome).inc();
                warn!("collective {sequence} failed: {failure}");
            }
        }
    }
}

async fn sleep_until(host: &Arc<dyn Host>, deadline: Option<TimeNs>) {
    match deadline {
        Some(at) => host.sleep_until(at).await,
        None => std::future::pending().await,
    }
}
