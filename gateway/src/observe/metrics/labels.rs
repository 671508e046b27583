//! The label sets of the metrics, and the values of their labels.

use hier_collectives::session::Discard;
use prometheus_client::encoding::EncodeLabelSet;

/// The end of a collective on one gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CollectiveOutcome {
    /// Every local rank has its result.
    Completed,
    /// Ranks posted different operations, types or sizes.
    Disagreed,
    /// Any other failure: a lost peer, the end of an epoch, a deadline.
    Failed,
}

impl CollectiveOutcome {
    /// Returns the value of the `outcome` label.
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Disagreed => "disagreed",
            Self::Failed => "failed",
        }
    }
}

/// Returns the value of the `reason` label of segments that were not used.
pub(super) const fn discard_label(discard: Discard) -> &'static str {
    match discard {
        Discard::Group => "other_group",
        Discard::Epoch => "other_epoch",
        Discard::Duplicate => "duplicate",
        Discard::Failed => "failed_collective",
        Discard::Disagreement => "disagreement",
    }
}

/// The label of metrics of one peer, by its gateway name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct PeerLabel {
    pub peer: String,
}

/// The label of metrics of one link, by its name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct LinkLabel {
    pub link: String,
}

/// The labels of metrics of one lane: its number, and the address that it listens on. A lane to the
/// gateways of the region may have the number of one between regions.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct LaneLabel {
    pub lane: u16,
    pub address: String,
}

/// The labels of payload counters; the direction is `sent` or `received`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct PayloadLabel {
    pub peer: String,
    pub direction: &'static str,
}

/// The label of metrics of one job.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct JobLabel {
    pub job: String,
}

/// The labels of metrics of one rank of a job.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RankLabel {
    pub job: String,
    pub rank: u32,
}

/// The labels of the straggler: its kind is `rank`, `region` or `link`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct StragglerLabel {
    pub job: String,
    pub kind: String,
    pub name: String,
}

/// The labels of collectives by operation and outcome.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct CollectiveLabel {
    pub job: String,
    pub op: &'static str,
    pub outcome: &'static str,
}

/// The labels of collectives by operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OpLabel {
    pub job: String,
    pub op: &'static str,
}

/// The label of segments that were not used.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct DropLabel {
    pub reason: &'static str,
}
