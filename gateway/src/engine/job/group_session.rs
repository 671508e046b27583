//! One group of ranks on this gateway: its session, its buffers and its leases.
//!
//! The job itself is the group of all its ranks. A session numbers ranks and gateways from 0 on, so
//! a group translates them at its border: peers, slots and trainers have the numbers of the fabric.

use super::engine_shared::EngineShared;
use super::group_membership::GroupMembership;
use crate::events::{Event, SegmentPlacement};
use crate::host::{INLINE_COMPUTE_BYTES_MAX, Task, TaskPanicked};
use crate::memory::arena::ArenaGauges;
use crate::memory::buffer_table::BufferTable;
use crate::memory::mem_slice::MemSlice;
use crate::wan::stream::segment_trace::trace_segment;
use hier_collectives::ids::{Epoch, GatewayId, GroupId, RankId, SegmentIndex, Sequence};
use hier_collectives::plan::{self, PayloadFlows};
use hier_collectives::post::RankEvent;
use hier_collectives::session::{
    Action, ArrivalPlace, LeaseId, MissingBytes, PeerError, Session, SessionConfig, SessionNote,
    SessionStatus, TaskId,
};
use hier_collectives::topology::Fabric;
use hier_collectives::wire::{Message, SegmentHeader, SegmentKey};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::debug;
use units::{Span, TimeNs};

/// A group on this gateway.
pub(in crate::engine) struct GroupSession {
    /// The job of the group.
    pub job: GroupId,
    /// The id of the group on the wire: that of the job for the job itself.
    pub id: GroupId,
    pub session: Session,
    /// The posted slots and the scratch of the group.
    pub buffers: BufferTable,
    /// The gateways that know of the group; `None` for the job itself, which a file names.
    pub membership: Option<GroupMembership>,
    /// The number in the fabric of each gateway of the session, ascending.
    gateways: Vec<GatewayId>,
    /// Segments that are arriving, and the tokens that end their leases.
    leases: BTreeMap<LeaseId, SegmentLease>,
    /// Bytes of scratch that the job has counted.
    pub(super) counted_scratch_bytes: u64,
    /// Whether the session knows which gateways can be reached.
    pub(super) has_begun: bool,
    /// When the job has noted that the session wants to be called.
    pub(super) deadline: Option<TimeNs>,
    /// Its last epoch, with the digest of the boot ids of its gateways, for the ids of traces.
    pub(super) last_epoch: (Epoch, u64),
}

/// A permission to write an arriving segment into the buffers.
struct SegmentLease {
    sequence: Sequence,
    cancel: CancellationToken,
}

/// An action of a session that concerns its job: facts about it, its trainers, or its records.
#[derive(Debug)]
pub(in crate::engine) enum JobAction {
    /// Tell a gateway, by its number in the fabric, which group this is.
    Introduce(GatewayId),
    /// Notify a rank, by its number in the job.
    Notify(RankId, RankEvent),
    /// Tell a rank, by its number in the job, that bytes of its result are in place.
    PlaceResult(RankId, Sequence, Range<u64>),
    /// Divide ports and links among pairs of gateways by the operations under way.
    ShareTraffic,
    /// Log and count a fact.
    Note(SessionNote),
}

impl GroupSession {
    /// Makes a group of `job` with a new session. `membership` is `None` for the job itself.
    pub fn of_session(
        job: GroupId,
        id: GroupId,
        config: SessionConfig,
        membership: Option<GroupMembership>,
        mapped: ArenaGauges,
    ) -> Self {
        let gateways = config.gateways.clone();
        let session = Session::new(config);
        Self {
            job,
            id,
            session,
            buffers: BufferTable::new(mapped),
            membership,
            gateways,
            leases: BTreeMap::new(),
            counted_scratch_bytes: 0,
            has_begun: false,
            deadline: None,
            last_epoch: (Epoch(0), 0),
        }
    }

    /// Returns the number in the job of a rank, given by its number in the session.
    pub fn rank_number(&self, rank: RankId) -> RankId {
        self.session.fabric().rank_number(rank)
    }

    /// Returns the number in the session of a gateway, given by its number in the fabric; `None` if
    /// it has no rank of the group and passes nothing of it on.
    pub fn member(&self, gateway: GatewayId) -> Option<GatewayId> {
        let index = self.gateways.binary_search(&gateway).ok()?;
        u16::try_from(index).ok().map(GatewayId)
    }

    /// Returns the bytes that large operations under way send between gateways, by their numbers in the
    /// fabric.
    pub fn moving_flows(&self) -> PayloadFlows {
        let number = |id: GatewayId| self.gateways[usize::from(id.0)];
        let flows = self.session.moving_flows().into_iter();
        flows.map(|((from, to), bytes)| ((number(from), number(to)), bytes)).collect()
    }

    /// Iterates over the gateways of the group, by their numbers in the fabric, but for this one.
    pub fn other_gateways(&self, me: GatewayId) -> impl Iterator<Item = GatewayId> {
        self.gateways.iter().copied().filter(move |id| *id != me)
    }

    /// Returns the number in the session of a rank, given by its number in the job; `None` if it is
    /// not in the group.
    pub fn rank_in_session(&self, rank: RankId) -> Option<RankId> {
        self.session.fabric().rank_numbered(rank)
    }

    /// Returns the number in the fabric of a gateway, given by its number in the session.
    fn gateway(&self, member: GatewayId) -> GatewayId {
        self.gateways[usize::from(member.0)]
    }

    /// Returns a snapshot of the session, with the numbers of the job and of the fabric.
    pub fn status(&self) -> SessionStatus {
        let mut status = self.session.status();
        let rank = |rank: &mut RankId| *rank = self.rank_number(*rank);
        let gateway = |id: &mut GatewayId| *id = self.gateway(*id);
        status.peers.iter_mut().for_each(|peer| gateway(&mut peer.gateway));
        status.ranks.iter_mut().for_each(|(id, _)| rank(id));
        for collective in &mut status.collectives {
            collective.awaited_local_ranks.iter_mut().for_each(rank);
            collective.awaited_remote_ranks.iter_mut().for_each(rank);
            collective.awaited_gateways.iter_mut().for_each(gateway);
        }
        for commit in &mut status.commits {
            rank(&mut commit.rank);
            commit.awaited_gateways.iter_mut().for_each(gateway);
        }
        if let Some(drain) = &mut status.draining {
            drain.uncommitted.iter_mut().for_each(rank);
        }
        status
    }

    /// Returns the bytes of a collective for which this gateway waits, by peer, with the numbers of the
    /// fabric.
    pub fn missing_bytes(&self, sequence: Sequence) -> Vec<MissingBytes> {
        let mut missing = self.session.missing_bytes(sequence);
        missing.iter_mut().for_each(|of_peer| of_peer.gateway = self.gateway(of_peer.gateway));
        missing
    }

    /// Tells the session how long gateways, by their numbers in the fabric, have acknowledged nothing.
    pub fn note_peer_silences(&mut self, silences: &[(GatewayId, Span)]) {
        for (gateway, silence) in silences {
            if let Some(member) = self.member(*gateway) {
                self.session.note_peer_silence(member, *silence);
            }
        }
    }

    /// Decides where the payload of an arriving segment goes, and leases that memory.
    ///
    /// # Errors
    /// [`PeerError`]: end the group's epoch or close the connection; see
    /// [`PeerError::is_caused_by_ranks`].
    pub fn resolve_segment_destination(
        &mut self,
        from: GatewayId,
        header: &SegmentHeader,
    ) -> Result<SegmentPlacement, PeerError> {
        let sequence = header.key.sequence;
        let cancel = CancellationToken::new();
        let from = self.member(from).ok_or(PeerError::UnknownPeer(from))?;
        Ok(match self.session.handle_arrival(from, header)? {
            ArrivalPlace::Combine { lease, op, dtype, local, net_weight, net_first, out } => {
                self.leases.insert(lease, SegmentLease { sequence, cancel: cancel.clone() });
                let local = (self.buffers.view_memory(&local.view), local.weight);
                let out = self.buffers.view_memory(&out);
                SegmentPlacement::Combine {
                    lease,
                    op,
                    dtype,
                    local,
                    net_weight,
                    net_first,
                    out,
                    cancel,
                }
            }
            ArrivalPlace::Land { lease, into } => {
                self.leases.insert(lease, SegmentLease { sequence, cancel: cancel.clone() });
                SegmentPlacement::Land { lease, into: self.buffers.view_memory(&into), cancel }
            }
            ArrivalPlace::Discard(why) => {
                debug!(
                    group = self.id.0,
                    collective = sequence.0,
                    "segment {:?} discarded: {why:?}",
                    header.key
                );
                SegmentPlacement::Discard(why)
            }
        })
    }

    /// Handles a control message of another gateway.
    ///
    /// # Errors
    /// [`PeerError`]: end the group's epoch or close the connection; see
    /// [`PeerError::is_caused_by_ranks`].
    pub fn handle_message(
        &mut self,
        from: GatewayId,
        message: Message,
        now: TimeNs,
    ) -> Result<(), PeerError> {
        if let Message::Grant { sequence, tree, limit, .. } = &message {
            let (sequence, tree, segment) = (*sequence, *tree, SegmentIndex(*limit));
            let below = SegmentKey { sequence, tree, segment };
            trace_segment("granted", self.id, from, below, 0);
        }
        let from = self.member(from).ok_or(PeerError::UnknownPeer(from))?;
        self.session.handle_message(from, message, now)
    }

    /// Ends the permission to write an arriving segment; `whole` says whether all of it is in
    /// place.
    pub fn end_lease(&mut self, lease: LeaseId, whole: bool, now: TimeNs) {
        self.leases.remove(&lease);
        self.session.handle_arrival_end(lease, whole, now);
    }

    /// Performs one action of the session. Returns the part that only the job can perform, if there
    /// is one.
    pub fn perform_action(&mut self, action: Action, shared: &EngineShared) -> Option<JobAction> {
        let peers = &shared.peers;
        match action {
            Action::Introduce { to } => return Some(JobAction::Introduce(self.gateway(to))),
            Action::Message { to, message } => {
                peers.send_group_message(self.gateway(to), (self.job, self.id), &message);
            }
            Action::Send { to, header, source, priority, tail } => {
                let to = self.gateway(to);
                trace_segment("sent", self.id, to, header.key, u64::from(header.bytes));
                let payload = self.buffers.view_memory(&source);
                peers.queue_segment(to, (self.job, self.id), (header, priority, tail), payload);
            }
            Action::Reduce { task: id, op, dtype, inputs, out } => {
                let buffers = &mut self.buffers;
                let inputs: Vec<(MemSlice, f64)> = inputs
                    .iter()
                    .map(|input| (buffers.view_memory(&input.view), input.weight))
                    .collect();
                let out = buffers.view_memory(&out);
                let bytes = out.len() * inputs.len() as u64;
                let reduce = move || out.reduce(op, dtype, &inputs);
                self.run_reduction(shared, id, bytes, Box::new(reduce));
            }
            Action::Copy { task: id, from, to } => {
                let from = self.buffers.view_memory(&from);
                let to: Vec<MemSlice> =
                    to.iter().map(|view| self.buffers.view_memory(view)).collect();
                let bytes = from.len() * to.len() as u64;
                let copy = move || to.iter().for_each(|slice| from.copy_to_slice(slice));
                self.run_reduction(shared, id, bytes, Box::new(copy));
            }
            Action::Release(scratch) => self.buffers.release_scratch(scratch),
            Action::Receipted { from, key } => {
                let from = self.gateway(from);
                trace_segment("receipted", self.id, from, key, 0);
                peers.handle_receipt(from, self.id, key);
            }
            Action::Cancel(sequence) => {
                let leases = self.leases.values().filter(|lease| lease.sequence == sequence);
                leases.for_each(|lease| lease.cancel.cancel());
                self.cancel_sends(shared, sequence);
            }
            Action::CancelLease(lease) => {
                if let Some(lease) = self.leases.get(&lease) {
                    lease.cancel.cancel();
                }
            }
            Action::ResultPlaced { rank, sequence, range } => {
                return Some(JobAction::PlaceResult(self.rank_number(rank), sequence, range));
            }
            Action::Notify { rank, event } => {
                if let RankEvent::ContributionFree { sequence }
                | RankEvent::Failed { sequence, .. } = event
                {
                    self.buffers.remove_slots(sequence, rank);
                }
                return Some(JobAction::Notify(self.rank_number(rank), event));
            }
            Action::ShareTraffic => return Some(JobAction::ShareTraffic),
            Action::Plan(as_measured) => self.start_planning(shared, as_measured),
            Action::Note(note) => return Some(JobAction::Note(note)),
        }
        None
    }

    /// Stops sending a collective's segments, and tells the session when none is being written.
    fn cancel_sends(&mut self, shared: &EngineShared, sequence: Sequence) {
        let writing = shared.peers.cancel_segments(self.id, sequence);
        if writing.is_empty() {
            return self.session.handle_streams_cancelled(sequence, shared.host.now());
        }
        let (group, events) = (self.id, shared.events.clone());
        shared.host.spawn(Box::pin(async move {
            for released in writing {
                released.cancelled().await;
            }
            let _ = events.send(Event::SendsCancelled { group, sequence }).await;
        }));
    }

    /// Starts to make a plan for the fabric as measured, on a blocking thread, since a large fabric
    /// takes a while. The result comes back as an event.
    fn start_planning(&self, shared: &EngineShared, as_measured: Arc<Fabric>) {
        let (group, events) = (self.id, shared.events.clone());
        let (done, planned) = oneshot::channel();
        let fabric = Arc::clone(&as_measured);
        let planning = shared.host.run_blocking(Box::new(move || {
            let _ = done.send(plan::make_plan(&fabric).ok());
        }));
        shared.host.spawn(Box::pin(async move {
            let event = match planning.await {
                Ok(()) => {
                    let plan = planned.await.ok().flatten();
                    Event::Planned { group, as_measured, plan }
                }
                Err(TaskPanicked) => Event::TaskPanicked,
            };
            let _ = events.send(event).await;
        }));
    }

    /// Runs a reduction or copy that reads `bytes`: in the engine's task if they are at most
    /// [`INLINE_COMPUTE_BYTES_MAX`], else on a compute thread. The end comes back to the session,
    /// from a compute thread as an event.
    fn run_reduction(&mut self, shared: &EngineShared, id: TaskId, bytes: u64, task: Task) {
        if bytes <= INLINE_COMPUTE_BYTES_MAX {
            task();
            return self.session.handle_task_done(id, shared.host.now());
        }
        let done = shared.host.run_compute(task);
        let (group, events) = (self.id, shared.events.clone());
        shared.host.spawn(Box::pin(async move {
            let event = match done.await {
                Ok(()) => Event::ReduceDone { group, task: id },
                Err(TaskPanicked) => Event::TaskPanicked,
            };
            let _ = events.send(event).await;
        }));
    }
}
