//! Control messages between gateways.

use crate::descriptor::Descriptor;
use crate::ids::{BootId, Epoch, RankId, RegionId, Sequence, TreeIndex};
use crate::plan::Plan;
use crate::post::{Committed, Failure};
use crate::topology::LinkState;
use std::ops::Range;

/// A control message.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// To the first gateway: this member is here, outside any epoch after `last`.
    Join {
        /// The member's boot id.
        boot: BootId,
        /// The last epoch it was in.
        last: Epoch,
        /// The first sequence it has not seen.
        next: Sequence,
        /// The last step that it knows to be complete in every region.
        committed: Option<Committed>,
    },
    /// From the first gateway: an epoch begins.
    Begin {
        /// The epoch.
        epoch: Epoch,
        /// The number of its first collective.
        next: Sequence,
        /// Boot id of each gateway, in gateway order.
        boots: Vec<BootId>,
        /// The plan.
        plan: Plan,
        /// The last step that some member knows to be complete in every region.
        committed: Option<Committed>,
    },
    /// The sender is in this epoch, and ready for its messages and data.
    Ready {
        /// The epoch.
        epoch: Epoch,
        /// The link between both, as the sender's fabric has it: it keeps room by it.
        link: Option<LinkState>,
    },
    /// A rank of the sender's posted a collective of this shape.
    Announce {
        /// The epoch.
        epoch: Epoch,
        /// The collective.
        sequence: Sequence,
        /// A rank that posted it there.
        rank: RankId,
        /// Its shape.
        descriptor: Descriptor,
        /// Whether all ranks of the sender's have posted it.
        all: bool,
    },
    /// The receiver may send the segments of this tree below `limit`.
    Grant {
        /// The epoch.
        epoch: Epoch,
        /// The collective.
        sequence: Sequence,
        /// The tree.
        tree: TreeIndex,
        /// The first segment not granted.
        limit: u32,
    },
    /// The sender holds these segments for good.
    Receipt {
        /// The epoch.
        epoch: Epoch,
        /// The collective.
        sequence: Sequence,
        /// The tree.
        tree: TreeIndex,
        /// Which of its segments: not none.
        segments: Range<u32>,
    },
    /// The collective failed.
    Fail {
        /// The epoch.
        epoch: Epoch,
        /// The collective.
        sequence: Sequence,
        /// Why.
        failure: Failure,
    },
    /// The sender left the epoch.
    End {
        /// The epoch.
        epoch: Epoch,
        /// Why.
        failure: Failure,
    },
    /// All ranks of the sender's have the results of these collectives.
    Done {
        /// The epoch.
        epoch: Epoch,
        /// The first of them.
        from: Sequence,
        /// One past the last.
        below: Sequence,
    },
    /// A rank of the sender's waits for a `Done` of these collectives.
    Ask {
        /// The epoch.
        epoch: Epoch,
        /// The first of them.
        from: Sequence,
        /// One past the last.
        below: Sequence,
    },
    /// The sender is shutting down in order: its ranks post nothing from `from` on.
    Drain {
        /// The epoch.
        epoch: Epoch,
        /// The first collective that not all of its ranks have posted.
        from: Sequence,
    },
    /// Messages that the sender was to pass on may be lost: say everything again to those that
    /// others pass messages on to.
    Repeat,
    /// From the first gateway: start no collective that has not been started, and say so.
    Pause {
        /// The epoch.
        epoch: Epoch,
        /// Which change of the plan it is for; the first of an epoch is 1.
        change: u32,
    },
    /// To the first gateway: the sender starts nothing from `from` on before the change.
    Paused {
        /// The epoch.
        epoch: Epoch,
        /// The change.
        change: u32,
        /// The first collective that it has not started.
        from: Sequence,
    },
    /// From the first gateway: collectives from `from` on follow this plan.
    Change {
        /// The epoch.
        epoch: Epoch,
        /// The change.
        change: u32,
        /// The first collective of the plan.
        from: Sequence,
        /// The plan.
        plan: Plan,
    },
    /// To the first gateway: what the sender finds a link of its region to be.
    Link {
        /// The epoch.
        epoch: Epoch,
        /// The region at the other end.
        to: RegionId,
        /// What the link is like.
        state: LinkState,
    },
    /// Bytes of a segment still arrive at the sender.
    Moving {
        /// The epoch.
        epoch: Epoch,
    },
}
