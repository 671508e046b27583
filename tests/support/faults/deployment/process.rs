//! One simulated process, which can be stopped, resumed and killed.

use crate::faults::spec::fault::{Fault, FaultKind};
use crate::faults::spec::place::FaultPlace;
use gateway::host::VirtualHost;
use std::sync::Arc;

#[derive(Clone)]
pub(super) struct Process {
    pub(super) host: Arc<VirtualHost>,
    pub(super) state: ProcessState,
    /// Number of its starts.
    pub(super) life: u64,
}

/// The state of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProcessState {
    Running,
    Stopped,
    /// The process drains and ends by itself; only a target, never a current state.
    Draining,
    Dead,
}

impl Process {
    pub(super) fn bring(&mut self, wanted: ProcessState) {
        match (self.state, wanted) {
            (ProcessState::Dead, _) => return,
            (_, ProcessState::Dead) => self.host.kill(),
            (ProcessState::Running, ProcessState::Stopped) => self.host.stop(),
            (ProcessState::Stopped, ProcessState::Running | ProcessState::Draining) => {
                self.host.resume()
            }
            _ => {}
        }
        self.state = if wanted == ProcessState::Draining { ProcessState::Running } else { wanted };
    }
}

/// The state that the process at a place must have under these faults.
pub(super) fn wanted(active: &[Fault], place: FaultPlace) -> ProcessState {
    let here = || active.iter().filter(|fault| fault.place == place);
    if here().any(|fault| fault.what == FaultKind::Kill) {
        ProcessState::Dead
    } else if here().any(|fault| fault.what == FaultKind::Stop) {
        ProcessState::Stopped
    } else if here().any(|fault| fault.what == FaultKind::Drain) {
        ProcessState::Draining
    } else {
        ProcessState::Running
    }
}
