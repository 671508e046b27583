//! The processes of a row, whoever they are: what the rounds and the watchers need of them.

use crate::measured::Sample;
use scenarios::testbed::error::LabError;
use std::time::Duration;

/// 120 s: the longest time of one step of a run. Five gateways on two busy cores take a quarter of
/// it.
pub const CUT_AFTER: Duration = Duration::from_secs(120);

/// Processes that are up and can move bytes.
pub trait Running {
    /// Returns the ids of the processes that move the bytes.
    fn ids(&self) -> Vec<u32>;

    /// Moves the bytes of one run, and measures.
    ///
    /// # Errors
    /// A program failed or took too long.
    fn sample(&mut self) -> Result<Sample, LabError>;

    /// Moves about the bytes of one run, for a watcher. Returns the gigabytes of the buffer.
    ///
    /// # Errors
    /// As [`Self::sample`].
    fn carry(&mut self) -> Result<f64, LabError> {
        Ok(self.sample()?.gigabytes)
    }
}

/// Returns the error of a step that took longer than [`CUT_AFTER`].
pub fn too_long(who: &str) -> LabError {
    LabError::Failed(format!("{who}: a step took longer than {CUT_AFTER:?}"))
}
