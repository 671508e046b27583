//! The position of a link in its recorded capacity.

use super::capacity_recording::{CapacityRecording, DELIVERY_BYTES};
use std::sync::Arc;
use units::TimeNs;

/// A recording and how much of it is used. Packets may share an opportunity, or take several.
#[derive(Debug)]
pub(in crate::link) struct RecordingUse {
    recording: Arc<CapacityRecording>,
    /// The first opportunity that is not used up, over all repetitions.
    next: u64,
    /// Bytes that the opportunity `next` still delivers.
    left_bytes: u64,
}

impl RecordingUse {
    /// Begins a recording at its first opportunity.
    pub(in crate::link) fn new(recording: Arc<CapacityRecording>) -> Self {
        Self { recording, next: 0, left_bytes: DELIVERY_BYTES }
    }

    /// Returns the recording.
    pub(in crate::link) fn recording(&self) -> &CapacityRecording {
        &self.recording
    }

    /// Returns when the first byte of a packet that comes at `entered` would be delivered.
    pub(in crate::link) fn first_byte_at(&self, entered: TimeNs) -> TimeNs {
        self.recording.time_of(self.first_usable(entered))
    }

    /// Delivers `bytes` that come at `entered`; returns when the last of them is delivered. What is
    /// left of an opportunity that passed before is lost.
    pub(in crate::link) fn deliver(&mut self, entered: TimeNs, bytes: u64) -> TimeNs {
        let first = self.first_usable(entered);
        if first != self.next {
            (self.next, self.left_bytes) = (first, DELIVERY_BYTES);
        }
        let after_first = bytes.saturating_sub(self.left_bytes);
        if after_first > 0 {
            let more = after_first.div_ceil(DELIVERY_BYTES);
            self.next += more;
            self.left_bytes = more * DELIVERY_BYTES - after_first;
        } else {
            self.left_bytes -= bytes;
        }
        let at = self.recording.time_of(self.next);
        if self.left_bytes == 0 {
            (self.next, self.left_bytes) = (self.next + 1, DELIVERY_BYTES);
        }
        at
    }

    /// Returns the number of the first opportunity that can carry a byte which comes at `entered`.
    fn first_usable(&self, entered: TimeNs) -> u64 {
        if self.recording.time_of(self.next) >= entered {
            self.next
        } else {
            self.recording.first_from(entered).max(self.next)
        }
    }
}
