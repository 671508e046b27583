//! Actions for the gateway's engine, the names of memory, and the errors of peers.

mod arrival;
mod buffer;
mod handle;
mod peer_error;
mod post_transport;

use crate::tail_fec::TailParity;
pub use arrival::{ArrivalPlace, Discard};
pub use buffer::{Buffer, BufferView, ReduceInput};
pub use handle::{LeaseId, ScratchId, TaskId};
pub use peer_error::PeerError;
pub use post_transport::{ContributionMisfit, PostTransport};

use crate::descriptor::{Descriptor, Dtype, ReduceOp};
use crate::ids::{Epoch, GatewayId, RankId, Sequence};
use crate::post::{Failure, RankEvent, Timing};
use crate::size_class::SizeClass;
use crate::topology::Fabric;
use crate::wire::{Message, SegmentHeader, SegmentKey};
use std::ops::Range;
use std::sync::Arc;
use units::TimeNs;

/// The order of a segment among all segments of its job to one peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SegmentPriority {
    /// The class of its operation: smaller classes go first.
    pub class: SizeClass,
    /// The position in its tree's part, in units of 1 / `u32::MAX`. Within one collective the lower
    /// goes first, so that all trees advance together and none waits for another's end.
    pub depth: u32,
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
    /// Divide ports and links among pairs of gateways by [`Session::traffic_flows`], since other large
    /// operations are under way.
    ///
    /// [`Session::traffic_flows`]: super::Session::traffic_flows
    ShareTraffic,
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
    /// Bytes of a result are in place, and nothing else is written there any more. Only ranks hear of
    /// it that asked with [`PostTransport::reports_result`], once of each byte, before
    /// [`RankEvent::ResultReady`].
    ResultPlaced {
        /// The rank.
        rank: RankId,
        /// The collective.
        sequence: Sequence,
        /// The bytes of the result.
        range: Range<u64>,
    },
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
        /// Digest of the boot ids of all its gateways.
        boots_hash: u64,
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
        /// Operation, element type and shape as its ranks posted them.
        descriptor: Descriptor,
        /// The time of the first post that became known here.
        begun: TimeNs,
        /// Its instants.
        timing: Timing,
        /// The peers not all of whose ranks were known to have posted when the last local rank had.
        awaited: Vec<GatewayId>,
    },
    /// A collective failed here.
    Failed {
        /// The collective.
        sequence: Sequence,
        /// Operation, element type and shape as the first rank posted them; `None` where none had.
        descriptor: Option<Descriptor>,
        /// The time of the first post that became known here, if there was one.
        begun: Option<TimeNs>,
        /// The reason.
        failure: Failure,
        /// The peers not all of whose ranks are known to have posted.
        awaited: Vec<GatewayId>,
    },
}
