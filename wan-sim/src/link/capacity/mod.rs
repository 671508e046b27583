//! Recorded capacity: when a link delivered how much, as text and from a generator.

mod capacity_recording;
mod recording_use;
mod synthetic_capacity;

pub use capacity_recording::{CapacityError, CapacityRecording, DELIVERY_BYTES};
pub(super) use recording_use::RecordingUse;
pub use synthetic_capacity::SyntheticCapacity;
