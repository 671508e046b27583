//! Actions for the gateway's engine, the names of memory, and the errors of peers.

use crate::descriptor::{Dtype, Pattern, ReduceOp};
use crate::ids::{Epoch, GatewayId, RankId, Sequence, TreeIndex};
use crate::post::{Failure, RankEvent};
use crate::size_class::SizeClass;
use crate::store::StoreViolation;
use crate::topology::Fabric;
use crate::wire::{Message, SegmentHeader, SegmentKey};
use std::ops::Range;
use std::sync::Arc;
use units::Span;

/// The name of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Buffer {
    /// The data that a local rank posted.
    Contribution(Sequence, RankId),
    /// The result slot of a local rank.
    Result(Sequence, RankId),
    /// The gateway's own memory. It is created when it is first named.
    Scratch(ScratchId),
}

/// A range of a buffer, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferView {
    /// The buffer.
    pub buffer: Buffer,
    /// The bytes of the buffer.
    pub range: Range<u64>,
}

/// An operand of a reduction.
#[derive(Debug, Clone, PartialEq)]
pub struct ReduceInput {
    /// The bytes of the operand.
    pub view: BufferView,
    /// The weight of the operand in an average.
    pub weight: f64,
}

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name(pub u64);
    };
}

handle!(
    /// A piece of the gateway's own memory.
    ScratchId
);
handle!(
    /// A reduction or copy under way.
    TaskId
);
handle!(
    /// A stream's permission to write.
    LeaseId
);

/// The order of a segment among all segments of its job to one peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SegmentPriority {
    /// The class of its operation: smaller classes go first.
    pub class: SizeClass,
    /// The position in its tree's part, in units of 1 / `u32::MAX`. Within one collective the lower
    /// goes first, so that all trees advance together and none waits for another's end.
    pub depth: u32,
}

/// The parity of a segment near the end of a transfer. It is sent unless later segments hide the
/// time that a retransmission takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TailParity {
    /// Parity shards; 0 for none.
    pub parity: u16,
    /// Bytes. No parity is sent where so many bytes wait behind the segment, or where more bytes
    /// with parity would be under way without a receipt.
    pub room: u64,
}

/// An action for the gateway's engine. Actions are independent of each other unless they name the
/// same task, lease, scratch or peer.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Tell a gateway, in order with the messages to it, which job this session is of. The engine
    /// knows the facts about the job.
    Introduce {
        /// The gateway.
        to: GatewayId,
    },
    /// Deliver a control message, after every earlier one to the same peer.
    Message {
        /// The peer.
        to: GatewayId,
        /// The message.
        message: Message,
    },
    /// Send a segment over some lane; keep its source readable until [`Action::Receipted`]
    /// or [`Action::Cancel`].
    Send {
        /// The peer.
        to: GatewayId,
        /// The header that precedes the bytes.
        header: SegmentHeader,
        /// The bytes.
        source: BufferView,
        /// The order among other segments.
        priority: SegmentPriority,
        /// The parity that protects it.
        tail: TailParity,
    },
    /// Reduce the inputs, in order, into `out`; then call `handle_task_done`.
    Reduce {
        /// The task.
        task: TaskId,
        /// The operation.
        op: ReduceOp,
        /// The element type.
        dtype: Dtype,
        /// The operands.
        inputs: Vec<ReduceInput>,
        /// The destination; overlaps no operand.
        out: BufferView,
    },
    /// Copy `from` to each of `to`; then call `handle_task_done`.
    Copy {
        /// The task.
        task: TaskId,
        /// The source.
        from: BufferView,
        /// The destinations.
        to: Vec<BufferView>,
    },
    /// The session does not use the scratch any more.
    Release(ScratchId),
    /// The peer holds the segment, so its stream can be forgotten.
    Receipted {
        /// The peer.
        from: GatewayId,
        /// The segment.
        key: SegmentKey,
    },
    /// Stop all streams of the collective, out and in, so that nothing of it is retransmitted.
    /// Then call `handle_streams_cancelled`. Each lease still ends with `handle_arrival_end`.
    Cancel(Sequence),
    /// Stop one stream in; it ends with `handle_arrival_end`.
    CancelLease(LeaseId),
    /// Notify a local rank. After `ContributionFree` or `Failed` its slots are not used any
    /// more.
    Notify {
        /// The rank.
        rank: RankId,
        /// The event.
        event: RankEvent,
    },
    /// Make a plan for the fabric with its links as reported, which may take long; then call
    /// `handle_planned`.
    Plan(Arc<Fabric>),
    /// A fact for logs and metrics.
    Note(SessionNote),
}

/// A fact for logs and metrics.
#[derive(Debug, Clone, PartialEq)]
pub enum SessionNote {
    /// An epoch began.
    EpochBegan {
        /// The epoch.
        epoch: Epoch,
        /// The number of its first collective.
        next: Sequence,
        /// The algorithm of its plan.
        algorithm: &'static str,
        /// The reason for that algorithm.
        reason: String,
        /// Digest of the plan's wire form.
        plan_hash: u64,
    },
    /// Another plan takes force.
    PlanChanged {
        /// The first collective that follows it.
        from: Sequence,
        /// Its algorithm.
        algorithm: &'static str,
        /// The reason for that algorithm.
        reason: String,
        /// Digest of the plan's wire form.
        plan_hash: u64,
    },
    /// The epoch ended.
    EpochEnded {
        /// The epoch.
        epoch: Epoch,
        /// The reason.
        failure: Failure,
    },
    /// A collective completed here.
    Completed {
        /// The collective.
        sequence: Sequence,
        /// The name of its operation: [`Descriptor::name`](crate::descriptor::Descriptor::name).
        op: &'static str,
        /// Its pattern, with the root if it has one.
        pattern: Pattern,
        /// The bytes of its buffer.
        bytes: u64,
        /// The time from the last local post to the last local result.
        took: Span,
    },
    /// A collective failed here.
    Failed {
        /// The collective.
        sequence: Sequence,
        /// The name of its operation, if some rank had posted it.
        op: Option<&'static str>,
        /// The reason.
        failure: Failure,
    },
}

/// The place of an arriving segment.
#[derive(Debug, Clone, PartialEq)]
pub enum Arrival {
    /// Write `f(local, net)`, or `f(net, local)` when `net_first`, for each arriving range.
    Combine {
        /// The permission.
        lease: LeaseId,
        /// The operation.
        op: ReduceOp,
        /// The element type.
        dtype: Dtype,
        /// The local operand.
        local: ReduceInput,
        /// The weight of the arriving operand.
        net_weight: f64,
        /// Whether the arriving operand comes first.
        net_first: bool,
        /// The destination.
        out: BufferView,
    },
    /// Write the bytes unchanged.
    Land {
        /// The permission.
        lease: LeaseId,
        /// The destination.
        into: BufferView,
    },
    /// Stop the stream.
    Discard(Discard),
}

/// The reason for which a segment is discarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Discard {
    /// The job has no session here.
    Group,
    /// The segment belongs to another epoch.
    Epoch,
    /// The segment is here already.
    Duplicate,
    /// The collective failed.
    Failed,
    /// The segment's descriptor differs from ours; the peer's announcement will say how.
    Disagreement,
}

/// A message or segment against the protocol. The engine closes the peer's connection, unless the
/// peer's ranks can cause the error ([`PeerError::is_caused_by_ranks`]).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// The gateway is not a peer of this session.
    #[error("gateway {0} is not a peer")]
    UnknownPeer(GatewayId),
    /// The gateway may not send this message.
    #[error("{0} from a gateway that may not send it")]
    NotYours(&'static str),
    /// A collective is too far ahead of those under way.
    #[error("collective {sequence} is more than {limit} ahead")]
    TooFarAhead {
        /// The collective named.
        sequence: Sequence,
        /// The distance that is allowed.
        limit: u64,
    },
    /// The plan has no such segment.
    #[error("no segment {key:?} of {bytes} bytes is due from this peer")]
    NoSuchSegment {
        /// The segment named.
        key: SegmentKey,
        /// Its length in bytes.
        bytes: u32,
    },
    /// The peer exceeded its unsolicited window.
    #[error("{used} bytes sent ahead of grants, {room} agreed")]
    UnsolicitedOverrun {
        /// Bytes that are held.
        used: u64,
        /// Bytes that are agreed on.
        room: u64,
    },
    /// The peer asks about more commits than can wait.
    #[error("more than {limit} questions about commits")]
    TooManyAsks {
        /// The number that is allowed.
        limit: usize,
    },
    /// The message breaks a rule of the job's store.
    #[error("store: {0}")]
    Store(#[from] StoreViolation),
    /// A number is so large that nobody reaches it by counting.
    #[error("epoch {epoch}, collective {next}: nobody has come that far")]
    Uncountable {
        /// The epoch named.
        epoch: Epoch,
        /// The collective named.
        next: Sequence,
    },
    /// The plan has no such tree.
    #[error("the plan has no tree {0}")]
    NoSuchTree(TreeIndex),
    /// The plan is invalid.
    #[error("plan refused: {0}")]
    BadPlan(String),
}

impl PeerError {
    /// Whether a peer's trainers can cause this error, so that it concerns their job alone and not
    /// the connection. [`Session::handle_overreach`](super::Session::handle_overreach) then ends
    /// the epoch. A peer that learns late of a failure may send segments that count as unsolicited.
    pub fn is_caused_by_ranks(&self) -> bool {
        use PeerError::{TooFarAhead, TooManyAsks, UnsolicitedOverrun};
        matches!(self, TooFarAhead { .. } | TooManyAsks { .. } | UnsolicitedOverrun { .. })
    }
}
