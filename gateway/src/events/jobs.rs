//! Jobs that come, go or change while the gateway runs, and files that cannot be taken up.

use hier_collectives::membership::FabricVersion;
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
    /// Keys whose values differ from those in use and need a restart.
    pub restart_needed: ChangesNotReloaded,
}

/// Keys of files whose values differ from those at the start of the gateway.
#[derive(Debug, Clone, Default)]
pub struct ChangesNotReloaded {
    /// Those that need a restart in any case, such as `gateway.east-0.memory`.
    pub keys: Vec<String>,
    /// Those of the fabric file, which need none if this version is in force.
    pub of_fabric: Vec<String>,
    /// The version of the fabric file.
    pub version: FabricVersion,
}

impl ChangesNotReloaded {
    /// Returns the keys that need a restart while a version of the fabric is in force.
    pub fn with_fabric_in_force(mut self, in_force: FabricVersion) -> Vec<String> {
        if in_force.number == 0 || in_force != self.version {
            self.keys.append(&mut self.of_fabric);
        }
        self.keys
    }
}
