//! Control messages between gateways; their wire form is in `message_encoding.rs`.

use super::group_facts::GroupFacts;
use super::job_facts::JobFacts;
use crate::descriptor::Descriptor;
use crate::ids::{BootId, Epoch, RankId, RegionId, Sequence, Step, TreeIndex};
use crate::membership::TermMessage;
use crate::plan::Plan;
use crate::post::{Committed, Failure, PreparedSteps};
use crate::store::StoreMessage;
use crate::topology::LinkState;
use std::ops::Range;
use std::sync::Arc;

/// A control message.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// To the first gateway: the sender is ready to join an epoch after `last`.
    Join {
        /// Boot id of the sender.
        boot: BootId,
        /// The last epoch of the sender.
        last: Epoch,
        /// The first collective that the sender has not seen.
        next: Sequence,
        /// The last step that the sender knows to be complete in every region.
        committed: Option<Committed>,
        /// The later steps that a lost gateway may know to be complete.
        prepared: PreparedSteps,
    },
    /// From the first gateway: an epoch begins.
    Begin {
        /// The epoch.
        epoch: Epoch,
        /// Number of the epoch's first collective.
        next: Sequence,
        /// Boot id of each gateway, in gateway order.
        boots: Vec<BootId>,
        /// The plan.
        plan: Plan,
        /// The last step that some gateway knows to be complete in every region, or that all members have
        /// prepared.
        committed: Option<Committed>,
    },
    /// The sender is in this epoch and accepts its messages and data.
    Ready {
        /// The epoch.
        epoch: Epoch,
        /// The link between both, by the sender's fabric: it sizes the sender's windows.
        link: Option<LinkState>,
    },
    /// A rank of the sender posted a collective with this descriptor.
    Announce {
        /// The epoch.
        epoch: Epoch,
        /// The collective.
        sequence: Sequence,
        /// A rank of the sender that posted it.
        rank: RankId,
        /// The descriptor of the collective.
        descriptor: Descriptor,
        /// Whether all ranks of the sender have posted it.
        all: bool,
        /// The elements that the rank sends to each rank, where counts are by pair.
        sent: Option<Arc<[u64]>>,
    },
    /// Grant: the receiver may send the segments of this tree below `limit`.
    Grant {
        /// The epoch.
        epoch: Epoch,
        /// The collective.
        sequence: Sequence,
        /// The tree.
        tree: TreeIndex,
        /// The first segment that is not granted.
        limit: u32,
    },
    /// Receipt: the sender holds these segments and needs no retransmission.
    Receipt {
        /// The epoch.
        epoch: Epoch,
        /// The collective.
        sequence: Sequence,
        /// The tree.
        tree: TreeIndex,
        /// The segments, at least one.
        segments: Range<u32>,
    },
    /// The collective failed.
    Fail {
        /// The epoch.
        epoch: Epoch,
        /// The collective.
        sequence: Sequence,
        /// The reason.
        failure: Failure,
    },
    /// The sender left the epoch.
    End {
        /// The epoch.
        epoch: Epoch,
        /// The reason.
        failure: Failure,
    },
    /// All ranks of the sender have the results of these collectives.
    Done {
        /// The epoch.
        epoch: Epoch,
        /// The first of the collectives.
        from: Sequence,
        /// One past the last of the collectives.
        below: Sequence,
    },
    /// A rank of the sender commits a step, and waits for a `Done` of the step's collectives.
    Ask {
        /// The epoch.
        epoch: Epoch,
        /// The first of the collectives.
        from: Sequence,
        /// One past the last of the collectives.
        below: Sequence,
        /// The rank.
        rank: RankId,
        /// The step.
        step: Step,
    },
    /// The sender is shutting down in order: its ranks post no collective from `from` on.
    Drain {
        /// The epoch.
        epoch: Epoch,
        /// The first collective that some rank of the sender has not posted.
        from: Sequence,
    },
    /// From the first gateway: a region leaves or joins, so that collectives from `from` on fail here,
    /// and those before finish.
    Boundary {
        /// The epoch.
        epoch: Epoch,
        /// The first collective that is not carried out.
        from: Sequence,
        /// Whether a step ends before it, which all ranks commit.
        ends_step: bool,
        /// The failure of the collectives from there on.
        failure: Failure,
    },
    /// The sender lacks the messages of the receiver, since it serves the job only now. The
    /// receiver repeats all of them.
    Repeat,
    /// From the first gateway: the receiver starts no further collective and answers `Paused`.
    Pause {
        /// The epoch.
        epoch: Epoch,
        /// Number of the change of plan; the first of an epoch is 1.
        change: u32,
    },
    /// To the first gateway: the sender starts no collective from `from` on before the change.
    Paused {
        /// The epoch.
        epoch: Epoch,
        /// Number of the change of plan.
        change: u32,
        /// The first collective that the sender has not started.
        from: Sequence,
    },
    /// From the first gateway: collectives from `from` on follow this plan.
    Change {
        /// The epoch.
        epoch: Epoch,
        /// Number of the change of plan.
        change: u32,
        /// The first collective that follows the plan.
        from: Sequence,
        /// The plan.
        plan: Plan,
    },
    /// To the first gateway: the measured state of a link of the sender's region.
    Link {
        /// The epoch.
        epoch: Epoch,
        /// The region at the other end.
        to: RegionId,
        /// The measured state of the link.
        state: LinkState,
    },
    /// Bytes of a segment still arrive at the sender, which postpones the stall deadline.
    Moving {
        /// The epoch.
        epoch: Epoch,
    },
    /// The sender serves the job.
    Serves {
        /// Boot id of the sender.
        boot: BootId,
        /// The job as the sender's region file has it.
        job: JobFacts,
    },
    /// The sender knows this group of ranks of a job.
    Member {
        /// Random number that the sender drew when it made the group.
        boot: BootId,
        /// The group.
        facts: GroupFacts,
        /// Whether some rank of the sender has made the group and not left it.
        takes_part: bool,
    },
    /// The group is over, since its ranks do not agree on it or it cannot be made.
    Disband {
        /// The reason.
        failure: Failure,
    },
    /// The sender does not serve the job: the answer to `Serves`, or the job was removed.
    Unserved {
        /// Boot id of the sender.
        boot: BootId,
    },
    /// A message about terms, which no job concerns.
    Term(TermMessage),
    /// A message about the job's store, which no epoch concerns.
    Store(Box<StoreMessage>),
}
