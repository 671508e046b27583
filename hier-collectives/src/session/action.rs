//! What the session asks of the shell, and how it names memory.

use crate::descriptor::{Dtype, ReduceOp};
use crate::ids::{Epoch, GatewayId, RankId, Sequence, TreeIndex};
use crate::post::{Failure, RankEvent};
use crate::size_class::SizeClass;
use crate::topology::Fabric;
use crate::wire::{Message, SegmentHeader, SegmentKey};
use std::ops::Range;
use std::sync::Arc;
use units::Span;

/// A buffer, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Buffer {
    /// What a local rank posted to be reduced.
    Contribution(Sequence, RankId),
    /// Where a local rank wants the result.
    Result(Sequence, RankId),
    /// The gateway's own memory; comes into being when first named.
    Scratch(ScratchId),
}

/// A range of a buffer, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// The buffer.
    pub buffer: Buffer,
    /// The bytes of it.
    pub range: Range<u64>,
}

/// An operand of a reduction.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// Its bytes.
    pub view: View,
    /// Its weight in an average.
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
    JobId
);
handle!(
    /// A stream's permission to write.
    LeaseId
);

/// When a segment goes, among those of its group and peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Turn {
    /// That of its operation: smaller ones go first.
    pub class: SizeClass,
    /// How far into its tree's part it is, of `u32::MAX`. Of one collective what is less far goes
    /// first, so that all trees go on at once and none waits for another's end.
    pub depth: u32,
}

/// Parity that a segment near the end of what is under way has, if nothing that follows hides its
/// losses when it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tail {
    /// Shards of it; 0 for none.
    pub parity: u16,
    /// None either where so many bytes wait behind the segment, or where it would make more than so
    /// many whose parity went along and that no receipt has come for.
    pub room: u64,
}

/// What the shell is to do. Actions are independent of each other unless they name the same
/// job, lease or scratch.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
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
        /// What goes ahead of the bytes.
        header: SegmentHeader,
        /// The bytes.
        source: View,
        /// When it goes.
        turn: Turn,
        /// The parity that goes along.
        tail: Tail,
    },
    /// Reduce the inputs, in order, into `out`; then call `handle_job_done`.
    Reduce {
        /// The job.
        job: JobId,
        /// The operation.
        op: ReduceOp,
        /// The element type.
        dtype: Dtype,
        /// The operands.
        inputs: Vec<Input>,
        /// The destination; overlaps no operand.
        out: View,
    },
    /// Copy `from` to each of `to`; then call `handle_job_done`.
    Copy {
        /// The job.
        job: JobId,
        /// The source.
        from: View,
        /// The destinations.
        to: Vec<View>,
    },
    /// The scratch is not used any more.
    Release(ScratchId),
    /// The peer holds the segment: forget its stream.
    Receipted {
        /// The peer.
        from: GatewayId,
        /// The segment.
        key: SegmentKey,
    },
    /// Stop all streams of the collective, out and in, so that nothing of it is sent again;
    /// then call `handle_cancelled`. Leases end with `handle_arrival_end` as ever.
    Cancel(Sequence),
    /// Stop one stream in; it ends with `handle_arrival_end`.
    CancelLease(LeaseId),
    /// Tell a local rank. After `ContributionFree` or `Failed` its slots are not used any
    /// more.
    Notify {
        /// The rank.
        rank: RankId,
        /// What happened.
        event: RankEvent,
    },
    /// Plan for the fabric as its links are found to be, which may take long; then call
    /// `handle_planned`.
    Plan(Arc<Fabric>),
    /// For logs and metrics.
    Note(Note),
}

/// What happened, for logs and metrics.
#[derive(Debug, Clone, PartialEq)]
pub enum Note {
    /// An epoch began.
    EpochBegan {
        /// The epoch.
        epoch: Epoch,
        /// The number of its first collective.
        next: Sequence,
        /// Its plan's algorithm.
        algorithm: &'static str,
        /// Why that one.
        reason: String,
        /// Digest of the plan's wire form.
        plan_hash: u64,
    },
    /// Another plan from some collective on.
    PlanChanged {
        /// The first collective that follows it.
        from: Sequence,
        /// Its algorithm.
        algorithm: &'static str,
        /// Why that one.
        reason: String,
        /// Digest of the plan's wire form.
        plan_hash: u64,
    },
    /// The epoch ended.
    EpochEnded {
        /// The epoch.
        epoch: Epoch,
        /// Why.
        failure: Failure,
    },
    /// A collective completed here.
    Completed {
        /// The collective.
        sequence: Sequence,
        /// Its operation: [`Descriptor::name`](crate::descriptor::Descriptor::name).
        op: &'static str,
        /// Bytes of its buffer.
        bytes: u64,
        /// From the last local post to the last local result.
        took: Span,
    },
    /// A collective failed here.
    Failed {
        /// The collective.
        sequence: Sequence,
        /// Its operation, if some rank had posted it.
        op: Option<&'static str>,
        /// Why.
        failure: Failure,
    },
}

/// Where an arriving segment goes.
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
        /// The operand that is here.
        local: Input,
        /// The weight of the arriving one.
        net_weight: f64,
        /// Whether the arriving operand comes first.
        net_first: bool,
        /// The destination.
        out: View,
    },
    /// Write the bytes as they are.
    Land {
        /// The permission.
        lease: LeaseId,
        /// The destination.
        into: View,
    },
    /// Stop the stream.
    Discard(Discard),
}

/// Why a segment is not wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Discard {
    /// It is for a group that has no session here.
    Group,
    /// It belongs to another epoch.
    Epoch,
    /// It is here already.
    Duplicate,
    /// Its collective failed.
    Failed,
    /// Its descriptor is not ours; the announcement will say in what.
    Disagreement,
}

/// A message or segment against the protocol. The peer's fault: close its connection, except where
/// its ranks can bring it about ([`PeerError::is_of_ranks`]).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// Not a peer of this session.
    #[error("gateway {0} is not a peer")]
    Stranger(GatewayId),
    /// Only the first gateway plans.
    #[error("{0} from a gateway that may not send it")]
    NotYours(&'static str),
    /// A collective too far ahead of those under way.
    #[error("collective {sequence} is more than {limit} ahead")]
    TooFarAhead {
        /// The collective named.
        sequence: Sequence,
        /// How far is allowed.
        limit: u64,
    },
    /// A segment that the plan does not have.
    #[error("no segment {key:?} of {bytes} bytes is due from this peer")]
    NoSuchSegment {
        /// The segment named.
        key: SegmentKey,
        /// Its length.
        bytes: u32,
    },
    /// More unasked-for bytes than there is room for.
    #[error("{used} bytes sent ahead of grants, {room} agreed")]
    EarlyOverrun {
        /// Bytes held.
        used: u64,
        /// Bytes agreed.
        room: u64,
    },
    /// More questions than commits can wait.
    #[error("more than {limit} questions about commits")]
    TooManyAsks {
        /// How many are allowed.
        limit: usize,
    },
    /// Numbers that nobody reaches by counting.
    #[error("epoch {epoch}, collective {next}: nobody has come that far")]
    Uncountable {
        /// The epoch named.
        epoch: Epoch,
        /// The collective named.
        next: Sequence,
    },
    /// A tree that the plan does not have.
    #[error("the plan has no tree {0}")]
    NoSuchTree(TreeIndex),
    /// A plan that is none.
    #[error("plan refused: {0}")]
    BadPlan(String),
}

impl PeerError {
    /// Whether a peer's trainers can bring this about: then it is the group's own affair,
    /// [`Session::handle_overreach`](super::Session::handle_overreach). Failures that are told
    /// late make what follows them seem early.
    pub fn is_of_ranks(&self) -> bool {
        use PeerError::{EarlyOverrun, TooFarAhead, TooManyAsks};
        matches!(self, TooFarAhead { .. } | TooManyAsks { .. } | EarlyOverrun { .. })
    }
}
