//! The label sets of the metrics, and the values of their labels.

use hier_collectives::post::FailureCode;
use hier_collectives::session::Discard;
use prometheus_client::encoding::EncodeLabelSet;

/// Returns the value of the `outcome` label of a collective that failed.
pub(super) const fn failed_outcome_label(code: FailureCode) -> &'static str {
    match code {
        FailureCode::Disagreement => "disagreed",
        _ => "failed",
    }
}

/// Returns the value of the `code` label of failures.
pub(super) const fn failure_label(code: FailureCode) -> &'static str {
    match code {
        FailureCode::Disagreement => "disagreement",
        FailureCode::BadPost => "bad_post",
        FailureCode::TimedOut => "timed_out",
        FailureCode::RankLost => "rank_lost",
        FailureCode::RegionLost => "region_lost",
        FailureCode::EpochEnded => "epoch_ended",
        FailureCode::Stalled => "stalled",
        FailureCode::ShuttingDown => "shutting_down",
        FailureCode::GatewayLost => "gateway_lost",
        FailureCode::MembershipChanged => "membership_changed",
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

/// The labels of a peer's place in the fabric.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct PeerInfoLabel {
    pub peer: String,
    pub region: String,
    pub link: String,
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

/// The labels of lost bytes; the kind is `random`, `queue` or `outage`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct LossLabel {
    pub peer: String,
    pub kind: &'static str,
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

/// The labels of failures by their code.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct FailureLabel {
    pub job: String,
    pub code: &'static str,
}

/// The label of problems, by their kind.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct CauseLabel {
    pub cause: &'static str,
}

/// The label of certificates: the gateway's `own`, or that of the `ca`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct CertificateLabel {
    pub certificate: &'static str,
}

/// The labels of the build of the program.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct BuildLabel {
    pub version: &'static str,
    pub arch: &'static str,
}
