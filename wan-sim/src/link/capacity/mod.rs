//! Recorded capacity: when a link delivered how much, as text and from a generator.

mod recording;
mod synthetic;
mod use_of_recording;

pub use recording::{CapacityError, CapacityRecording, DELIVERY_BYTES};
pub use synthetic::SyntheticCapacity;
pub(super) use use_of_recording::RecordingUse;
