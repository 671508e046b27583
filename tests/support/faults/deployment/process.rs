//! One simulated process, which can be stopped, resumed and killed.

use crate::faults::spec::fault::{Fault, Place, What};
use gateway::host::VirtualHost;
use std::sync::Arc;

#[derive(Clone)]
pub(super) struct Process {
    pub(super) host: Arc<VirtualHost>,
    pub(super) state: State,
    /// Counts its lives.
    pub(super) life: u64,
}

/// The state of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Running,
    Stopped,
    /// The process drains and ends by itself; only a target, never a current state.
    Draining,
    Dead,
}

impl Process {
    pub(super) fn bring(&mut self, wanted: State) {
        match (self.state, wanted) {
            (State::Dead, _) => return,
            (_, State::Dead) => self.host.kill(),
            (State::Running, State::Stopped) => self.host.stop(),
            (State::Stopped, State::Running | State::Draining) => self.host.resume(),
            _ => {}
        }
        self.state = if wanted == State::Draining { State::Running } else { wanted };
    }
}

/// The state that the process at a place must have under these faults.
pub(super) fn wanted(active: &[Fault], place: Place) -> State {
    let here = || active.iter().filter(|fault| fault.place == place);
    if here().any(|fault| fault.what == What::Kill) {
        State::Dead
    } else if here().any(|fault| fault.what == What::Stop) {
        State::Stopped
    } else if here().any(|fault| fault.what == What::Drain) {
        State::Draining
    } else {
        State::Running
    }
}
