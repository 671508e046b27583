//! The findings of lanes about their path, which outlive connections.
//!
//! The models of lanes write them (`shared_lane.rs`), on threads of lanes; a model of a new lane begins
//! with them.

use crate::lock::lock_ignoring_poison;
use congestion_model::FoundPath;
use std::sync::Mutex;

/// The findings of the lanes to one peer about their path. They outlive connections.
#[derive(Debug, Default)]
pub struct PathMemory(Mutex<Option<FoundPath>>);

impl PathMemory {
    /// Returns the rate and RTT that a lane to this peer found last; `None` before any has found
    /// one.
    pub(super) fn found(&self) -> Option<FoundPath> {
        *lock_ignoring_poison(&self.0)
    }

    /// Returns whether a lane to this peer has found rate and RTT.
    pub fn is_found(&self) -> bool {
        self.found().is_some()
    }

    /// Stores the rate and RTT that a lane has found, in place of those found before.
    pub(super) fn set_found(&self, found: FoundPath) {
        *lock_ignoring_poison(&self.0) = Some(found);
    }
}
