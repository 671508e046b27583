//! Jobs that come, go or change while the gateway runs, and files that cannot be taken up.

use hier_collectives::session::SessionConfig;
use hier_collectives::wire::JobFacts;

/// A job and the settings of its session.
#[derive(Debug)]
pub struct JobSession {
    /// The job's name.
    pub name: String,
    /// The facts about the job that other gateways may know.
    pub facts: JobFacts,
    /// The session's settings.
    pub config: SessionConfig,
}

/// The files that a gateway reads again while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReloadedFiles {
    /// The region file, with its fabric file and token files.
    Region,
    /// The certificate, the key and the CA files.
    Certificates,
}

/// The region file, read again: every job of it, and the parts that the gateway cannot take up.
#[derive(Debug)]
pub struct JobsUpdate {
    /// All jobs of the file. Jobs that the gateway has and the file lacks are removed.
    pub jobs: Vec<JobSession>,
    /// Keys whose values differ from those in use and need a restart, such as
    /// `gateway.east-0.memory`.
    pub restart_needed: Vec<String>,
}
