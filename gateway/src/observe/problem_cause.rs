//! A problem of a gateway, as `/status`, `/readyz`, metrics and `doctor` show it.
//!
//! `readiness` finds problems, and `engine::health` logs those that last.

use serde::{Deserialize, Serialize};

/// The kind of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemCause {
    /// The gateway shuts down.
    ShuttingDown,
    /// Trainers cannot attach at its socket.
    Socket,
    /// A limit on processors holds the gateway back.
    Processor,
    /// No lane to a peer is up.
    Peer,
    /// Some lanes to a peer are missing.
    Lanes,
    /// A link between two regions is down.
    Link,
    /// A job has no epoch.
    Job,
    /// The region files of two gateways differ in a job.
    JobFiles,
    /// The way to a peer loses more than the fabric expects.
    Loss,
    /// The path to a peer is longer than the fabric says.
    Rtt,
    /// Its files have changed, and the changes need a restart.
    Restart,
    /// Another gateway has another fabric, or a fabric cannot come into force here.
    Fabric,
    /// Its files cannot be used: they have faults, or peers refuse the certificate.
    Files,
}

impl ProblemCause {
    /// All 13 causes of problems; the metric `landbridge_problems` has a value for each.
    pub const ALL: [Self; 13] = [
        Self::ShuttingDown,
        Self::Socket,
        Self::Processor,
        Self::Peer,
        Self::Lanes,
        Self::Link,
        Self::Job,
        Self::JobFiles,
        Self::Loss,
        Self::Rtt,
        Self::Restart,
        Self::Fabric,
        Self::Files,
    ];

    /// Returns the name of the cause, which metrics and JSON have in common.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ShuttingDown => "shutting_down",
            Self::Socket => "socket",
            Self::Processor => "processor",
            Self::Peer => "peer",
            Self::Lanes => "lanes",
            Self::Link => "link",
            Self::Job => "job",
            Self::JobFiles => "job_files",
            Self::Loss => "loss",
            Self::Rtt => "rtt",
            Self::Restart => "restart",
            Self::Fabric => "fabric",
            Self::Files => "files",
        }
    }
}

/// One problem of a gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProblemReport {
    /// Its kind.
    pub cause: ProblemCause,
    /// Whether it keeps the gateway from being ready. Otherwise the gateway works, but not as well
    /// as it could.
    pub blocks: bool,
    /// The peer, job or part of the gateway that has it.
    pub subject: String,
    /// The observation.
    pub found: String,
    /// The action to take, where one is known.
    pub remedy: Option<String>,
}
