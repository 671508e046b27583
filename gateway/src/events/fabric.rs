//! A signed fabric that an operator applies, and the judge of signed fabrics.

use crate::observe::fabric_report::FabricVersionReport;
use crate::wan::connect::tls::FabricSignatureError;
use crate::wan::link::controller_policy::LinkPolicies;
use hier_collectives::membership::{FabricVersion, OldFabricError, SignedFabric};
use hier_collectives::plan::Plan;
use hier_collectives::topology::Fabric;
use std::sync::Arc;
use tokio::sync::oneshot;
use units::{ByteCount, Span};

/// An operator's request to put a signed fabric in force at all gateways.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FabricChange {
    /// The text of the fabric file.
    pub text: String,
    /// The text of the file with its signature.
    pub signature: String,
    /// The time for which a step's boundary is awaited.
    pub within: Span,
    /// Whether the fabric is only checked.
    pub dry_run: bool,
}

/// Where the answer to an operator's request for a fabric goes.
pub type FabricChangeReply = oneshot::Sender<Result<FabricChangeReport, FabricChangeError>>;

/// The party that asked whether this gateway could put a fabric in force.
#[derive(Debug)]
pub enum FabricAsked {
    /// An operator here.
    Operator {
        /// The time for which a step's boundary is awaited.
        within: Span,
        /// Whether the fabric is only checked.
        dry_run: bool,
        /// Receives the answer.
        reply: FabricChangeReply,
    },
    /// Another gateway, which sent it.
    Peer {
        /// Its version.
        version: FabricVersion,
        /// The time for which a step's boundary is awaited.
        within: Span,
    },
}

/// The answer to an operator's request for a fabric.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct FabricChangeReport {
    /// The changes of the fabric, a line for each link or port.
    pub changes: Vec<String>,
    /// The versions in force and on their way.
    pub fabric: FabricVersionReport,
}

/// Why a fabric is not put in force; nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FabricChangeError {
    /// There are no terms, at whose boundaries a fabric comes into force.
    #[error(
        "the quorum of this fabric is all regions, so that no gateway goes on with another fabric while others \
         restart: change the files at all gateways and restart them, or write `quorum`, such as \
         \"majority\", first"
    )]
    AllNeeded,
    /// This gateway has no part in who goes on.
    #[error("this gateway is the witness, which has no part in it: ask a gateway with ranks")]
    AtWitness,
    /// This gateway cannot put it in force.
    #[error(transparent)]
    Refused(#[from] FabricRefusal),
    /// It is no newer than the newest fabric here.
    #[error(transparent)]
    Old(#[from] OldFabricError),
    /// Its number is that of the newest fabric here, which has another text.
    #[error(
        "version {0} is here already, with another text: give the file a higher `version`, and sign it again"
    )]
    OtherText(u64),
}

/// Why a gateway cannot put a fabric in force while it runs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FabricRefusal {
    /// It is longer than a message may be.
    #[error(
        "the fabric takes {0}, more than fits a message: change the files at all gateways, and restart them"
    )]
    TooLong(ByteCount),
    /// The deployment's CA has not signed it.
    #[error("the signature is not accepted: {0}")]
    Signature(#[from] FabricSignatureError),
    /// It is no fabric.
    #[error("the fabric has faults:\n{0}")]
    Faults(String),
    /// It has no version, by which gateways could order it.
    #[error("the fabric has no `version`: give it one above that in force")]
    NoVersion,
    /// The version in a message is not that of its text.
    #[error("the version that a gateway names is not that of the text")]
    OtherVersion,
    /// It changes what only a restart can change.
    #[error("these changes need a restart of all gateways, so that nothing is changed:\n{}", .0.join("\n"))]
    RestartNeeded(Vec<String>),
    /// There is no plan for it.
    #[error("no plan for it: {0}")]
    NoPlan(String),
    /// Windows for its links take more memory than the gateway may.
    #[error(
        "its links need more memory here: set `memory` of gateway {gateway} to at least {least}, and restart it first"
    )]
    Memory {
        /// This gateway.
        gateway: String,
        /// The least memory.
        least: ByteCount,
    },
}

impl FabricRefusal {
    /// Whether the CA has signed what is refused, and it is the version that was named. Otherwise another
    /// fabric of that version may be good.
    pub fn is_of_signed_version(&self) -> bool {
        match self {
            Self::TooLong(_) | Self::Signature(_) | Self::OtherVersion => false,
            Self::Faults(_)
            | Self::NoVersion
            | Self::RestartNeeded(_)
            | Self::NoPlan(_)
            | Self::Memory { .. } => true,
        }
    }
}

/// A signed fabric that this gateway could put in force.
#[derive(Debug, Clone)]
pub struct CheckedFabric {
    /// The file, with its version and signature.
    pub signed: SignedFabric,
    /// The fabric, with a witness if it has one.
    pub fabric: Arc<Fabric>,
    /// The plan for it.
    pub plan: Plan,
    /// Schedules of its links.
    pub policies: LinkPolicies,
}

/// Judges signed fabrics by what a gateway runs with. The daemon makes it, the engine asks it.
pub trait FabricJudge: Send + Sync {
    /// Checks signature and text of a fabric of an operator, for a gateway with so many jobs. It makes a
    /// plan, which takes a while.
    ///
    /// # Errors
    /// [`FabricRefusal`].
    fn judge_file(
        &self,
        text: &str,
        signature: &str,
        jobs: usize,
    ) -> Result<CheckedFabric, FabricRefusal>;

    /// Checks signature and text of a fabric of another gateway, as [`Self::judge_file`] does.
    ///
    /// # Errors
    /// [`FabricRefusal`].
    fn judge_signed(
        &self,
        signed: &SignedFabric,
        jobs: usize,
    ) -> Result<CheckedFabric, FabricRefusal>;

    /// Returns the fabric of the start with its signature, if the CA has signed it.
    fn signed_at_start(&self) -> Option<SignedFabric>;

    /// Keeps a fabric that has come into force for the next start, which may take a while.
    ///
    /// # Errors
    /// The file that cannot be written, and why.
    fn keep(&self, signed: &SignedFabric) -> Result<(), String>;

    /// Returns the memory for partials of each of so many jobs under a fabric and its plan.
    fn partials_of_job(&self, fabric: &Fabric, plan: &Plan, jobs: usize) -> ByteCount;
}
