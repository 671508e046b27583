//! Recordings: the packets that links were offered and their fates, as text, and the replay.
//!
//! A recording has one line for each link, with its seed and its netem words. Then come lines for its
//! recorded capacity, its parallel paths and its cross traffic, and one for each change or drop of its
//! script. Then follows one line for each packet and each change, in order of time. A change of the
//! rate is followed by the packets whose arrival it moved. A packet that waits in a queue under CoDel
//! is `queued`, and a later line has its fate. The replay offers the same packets to the core, which
//! must yield the same lines, byte for byte.

mod line;
mod recorder;
mod replay;

pub(crate) use line::RecordedFate;
pub use recorder::Recorder;
pub use replay::{Replay, ReplayError, replay};

#[cfg(test)]
mod tests;
