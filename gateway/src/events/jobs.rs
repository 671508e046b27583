//! Jobs that come, go or change while the gateway runs.

use hier_collectives::session::SessionConfig;

/// A job and the settings of its session.
#[derive(Debug)]
pub struct JobSession {
    /// The job's name.
    pub name: String,
    /// The session's settings.
    pub config: SessionConfig,
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
