//! Programs that watch running processes until SIGINT ends them.

use rustix::process::{Pid, Signal, kill_process};
use scenarios::testbed::error::LabError;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// 500 ms until a watcher is attached to every thread.
const ATTACHING: Duration = Duration::from_millis(500);

/// A program that watches.
pub struct Watcher(Child);

impl Watcher {
    /// Starts it and waits until it is attached.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(mut command: Command) -> Result<Self, LabError> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let watcher = Self(command.spawn()?);
        std::thread::sleep(ATTACHING);
        Ok(watcher)
    }

    /// Ends it and waits until it has written its file.
    ///
    /// # Errors
    /// The system refuses.
    pub fn stop(mut self) -> Result<(), LabError> {
        // One that is gone already has written what it has.
        let _ = kill_process(Pid::from_child(&self.0), Signal::INT);
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Watcher {
    /// Kills a watcher that still runs.
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
