//! Events for the engine, and its answer about an arriving segment.

use super::fabric::{CheckedFabric, FabricAsked, FabricChange, FabricChangeReply, FabricRefusal};
use super::ids::ConnectionId;
use super::jobs::{JobsUpdate, ReloadedFiles};
use super::local_events::LocalEvent;
use super::operator::{MembershipChange, MembershipChangeError, RateChange, RateError};
use crate::memory::mem_slice::MemSlice;
use crate::observe::fabric_report::FabricVersionReport;
use crate::observe::membership_report::MembershipReport;
use crate::observe::status::LinkReport;
use crate::wan::connect::path_probe::path_check::PathCheckFindings;
use crate::wan::link::link_message::LinkMessage;
use crate::wan::{LaneHandle, LanePeerSeen};
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::{GatewayId, GroupId, Sequence};
use hier_collectives::plan::Plan;
use hier_collectives::session::{Discard, LeaseId, TaskId};
use hier_collectives::topology::Fabric;
use hier_collectives::wire::{Envelope, Message, SegmentHeader};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use units::Span;

/// 4,096 events: the most that wait in the queue of the engine's task. While the queue is full,
/// senders wait. The number is chosen; it bounds memory.
pub const ENGINE_QUEUE_MAX: usize = 4096;

/// The senders' end of the engine's queue.
pub type EventSender = mpsc::Sender<Event>;

/// An event that the engine handles.
#[derive(Debug)]
pub enum Event {
    /// A trainer's task: a rank attached, posted, committed or detached.
    Local(LocalEvent),
    /// A lane to a peer is up.
    LaneUp {
        /// The gateway at its other end.
        seen: LanePeerSeen,
        /// The engine's handle of the lane.
        handle: LaneHandle,
    },
    /// The peer sends nothing more on a lane, which is to be taken away.
    LaneFinished {
        /// The gateway at its other end.
        peer: GatewayId,
        /// Its connection.
        id: ConnectionId,
    },
    /// A lane is lost, or taken away.
    LaneDown {
        /// The gateway at its other end.
        peer: GatewayId,
        /// The lane.
        lane: u16,
        /// Its connection.
        id: ConnectionId,
        /// The reason.
        why: String,
    },
    /// A lane could not be dialled.
    DialFailed {
        /// The peer.
        peer: GatewayId,
        /// The lane.
        lane: u16,
        /// The reason.
        why: String,
        /// Whether nothing was heard of the peer.
        is_unanswered: bool,
    },
    /// A lane that a peer dialled was refused, which is logged already.
    LaneRefused {
        /// The peer.
        peer: GatewayId,
        /// The lane.
        lane: u16,
        /// The reason.
        why: String,
    },
    /// A check of the path to a peer is done.
    PathChecked {
        /// The peer.
        peer: GatewayId,
        /// The results; `None` if the check was not possible.
        findings: Option<PathCheckFindings>,
    },
    /// Close a lane; see [`Gateway::close_lane`](crate::daemon::Gateway::close_lane).
    CloseLane {
        /// The gateway at its other end.
        peer: GatewayId,
        /// The lane.
        lane: u16,
        /// Receives the number of other lanes that are up.
        reply: oneshot::Sender<usize>,
    },
    /// A control message of a session arrived.
    Message {
        /// The peer.
        from: GatewayId,
        /// The connection that it arrived on.
        id: ConnectionId,
        /// Group, sender and final recipient.
        envelope: Envelope,
        /// The message.
        message: Message,
    },
    /// A control message about a link or its lanes arrived.
    LinkMessage {
        /// The peer.
        from: GatewayId,
        /// The connection that it arrived on.
        id: ConnectionId,
        /// The message.
        message: LinkMessage,
    },
    /// An operator limits a link, or returns it to its schedule.
    ChangeRate {
        /// The link and the limit.
        change: RateChange,
        /// Receives the state of the link after the change.
        reply: oneshot::Sender<Result<LinkReport, RateError>>,
    },
    /// An operator asks who goes on together, after a change if one is given.
    ChangeMembership {
        /// The region that leaves or joins.
        change: Option<MembershipChange>,
        /// Receives the members as they are now; the change may take a step.
        reply: oneshot::Sender<Result<MembershipReport, MembershipChangeError>>,
    },
    /// An operator puts a signed fabric in force, or has one checked.
    ChangeFabric {
        /// The fabric.
        change: FabricChange,
        /// Receives what it changes; it comes into force later.
        reply: FabricChangeReply,
    },
    /// An operator asks which version of the fabric is in force.
    FabricVersion(oneshot::Sender<FabricVersionReport>),
    /// A signed fabric is judged.
    FabricJudged {
        /// The party that asked for it.
        asked: FabricAsked,
        /// The fabric, if this gateway could put it in force.
        judged: Result<Box<CheckedFabric>, FabricRefusal>,
    },
    /// The region file was read again: add, remove and change jobs.
    UpdateJobs {
        /// The jobs of the file, and what needs a restart.
        update: JobsUpdate,
        /// Receives the keys that need a restart, once the engine has taken it up.
        done: oneshot::Sender<Vec<String>>,
    },
    /// The gateway has other certificates and keys: judge a refused fabric again when it comes again.
    CredentialsRenewed,
    /// Files were read again: record their faults, for the status. Good files have none.
    FileFaults {
        /// The files.
        files: ReloadedFiles,
        /// A text for each fault, with its file and line.
        faults: Vec<String>,
    },
    /// A segment's header arrived.
    Arrival {
        /// The peer.
        from: GatewayId,
        /// The connection that it arrived on.
        id: ConnectionId,
        /// The group.
        group: GroupId,
        /// The header.
        header: SegmentHeader,
        /// Receives the destination of the payload.
        reply: oneshot::Sender<SegmentPlacement>,
    },
    /// A segment's stream ended.
    ArrivalEnd {
        /// The group.
        group: GroupId,
        /// The lease that permitted writing.
        lease: LeaseId,
        /// Whether the whole payload is in place.
        whole: bool,
    },
    /// The payload of a slow segment is still arriving.
    ArrivalProgress {
        /// The group.
        group: GroupId,
        /// The lease that permits writing.
        lease: LeaseId,
    },
    /// A reduction or copy is done.
    ReduceDone {
        /// The group.
        group: GroupId,
        /// The session's number of the reduction or copy.
        task: TaskId,
    },
    /// A reduction, a copy or the planner panicked: a bug.
    TaskPanicked,
    /// No segment of a cancelled collective is being sent any more.
    SendsCancelled {
        /// The group.
        group: GroupId,
        /// The collective.
        sequence: Sequence,
    },
    /// The planner is done.
    Planned {
        /// The group.
        group: GroupId,
        /// The fabric with its links as measured.
        as_measured: Arc<Fabric>,
        /// The plan; `None` if there is none.
        plan: Option<Plan>,
    },
    /// Finish posted collectives, then leave the epochs.
    Drain {
        /// Time limit for both.
        bound: Span,
        /// Receives a value once it is done.
        done: oneshot::Sender<()>,
    },
    /// End the epochs, tell the peers, and stop.
    Shutdown(oneshot::Sender<()>),
}

/// The destination of an arriving segment: the session's `Arrival` with memory in place of names.
#[derive(Debug)]
pub enum SegmentPlacement {
    /// Reduce the payload with an operand of this gateway.
    Combine {
        /// The lease that permits writing.
        lease: LeaseId,
        /// The operation.
        op: ReduceOp,
        /// The element type.
        dtype: Dtype,
        /// The operand of this gateway and its weight.
        local: (MemSlice, f64),
        /// The weight of the payload.
        net_weight: f64,
        /// Whether the payload is the first operand.
        net_first: bool,
        /// The destination.
        out: MemSlice,
        /// Ends the lease.
        cancel: CancellationToken,
    },
    /// Store the payload.
    Land {
        /// The lease that permits writing.
        lease: LeaseId,
        /// The destination.
        into: MemSlice,
        /// Ends the lease.
        cancel: CancellationToken,
    },
    /// Stop the stream, for this reason.
    Discard(Discard),
}
