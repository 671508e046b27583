//! Recorded capacity: when a link delivered how much, from files and from a generator.

mod recording;
mod source;
mod synthetic;
mod use_of_recording;

pub use recording::{CapacityError, CapacityRecording, DELIVERY_BYTES};
pub use source::{CapacitySource, CapacitySourceError};
pub use synthetic::SyntheticCapacity;
pub(super) use use_of_recording::RecordingUse;
