//! Recorded capacity, parallel paths and cross traffic: the part of a link beside its numbers.

use super::capacity::CapacityRecording;
use super::cross::CrossTraffic;
use super::link_spec::LinkSpec;
use std::sync::Arc;

/// The part of a link beside the numbers of its [`LinkSpec`]. By default there is none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Conditions {
    /// The capacity of the first path over time, in place of its rate. The rate then only decides
    /// the size of a queue that is given in time or in BDP.
    pub capacity: Option<Arc<CapacityRecording>>,
    /// Further paths beside the first. Each flow takes one of them all, by its hash.
    pub parallel: Vec<LinkSpec>,
    /// Flows that share the queues of the paths. Each takes one path, by its hash.
    pub cross: Vec<CrossTraffic>,
}

/// Conditions that a link cannot have. The caller's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConditionsError {
    /// Cross traffic on a path without a rate, which it would fill without an end.
    #[error("cross traffic needs a rate on every path, which it then fills: give `rate`")]
    CrossWithoutRate,
    /// A recorded capacity without a rate, from which no queue follows that holds a packet.
    #[error("a recorded capacity needs a rate beside it, which decides the size of the queue")]
    CapacityWithoutRate,
}

impl Conditions {
    /// Whether the link has no conditions: neither a recorded capacity, nor parallel paths, nor
    /// cross traffic.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Checks that a link whose first path has the properties `first` can have these conditions.
    ///
    /// # Errors
    /// [`ConditionsError`].
    pub fn check(&self, first: &LinkSpec) -> Result<(), ConditionsError> {
        if self.capacity.is_some() && first.rate().is_none() {
            return Err(ConditionsError::CapacityWithoutRate);
        }
        let limited =
            first.rate().is_some() && self.parallel.iter().all(|path| path.rate().is_some());
        if !self.cross.is_empty() && !limited {
            return Err(ConditionsError::CrossWithoutRate);
        }
        Ok(())
    }
}
