//! The measurements of one lane from sample to sample: traffic, load of its thread, silence.

use crate::wan::congestion::SharedLaneView;
use crate::wan::congestion::lane_telemetry::TelemetryThreadTime;
use crate::wan::link::link_traffic::LinkTraffic;
use crate::wan::{LaneHandle, LaneMeasurement};
use units::{Span, TimeNs};

/// 2 s: once the last note of a lane thread's processor time is older, the load of the thread is
/// taken for 0. A busy lane makes a note each round trip. On a link with a longer round trip the
/// thread of a busy lane is taken for idle in between.
const THREAD_NOTE_LIFETIME: Span = Span::from_secs(2);

/// The measurements of one lane until its last sample.
#[derive(Debug, Default)]
pub(super) struct LaneTally {
    /// The traffic over its present path so far.
    pub traffic: LinkTraffic,
    /// Bytes of UDP payload received so far.
    pub received_bytes: u64,
    /// The processor time of its thread.
    thread: TelemetryThreadTime,
    /// The busy part of its thread, from 0 to 1, between the last two notes.
    pub busy: f64,
    /// How long the lane is silent: bytes in flight have no acknowledgement.
    pub silence: Span,
    /// The state of its model; `None` where its link is not shared.
    pub shared: Option<SharedLaneView>,
}

impl LaneTally {
    /// Begins the tally of a lane with the counters of its handshake.
    pub fn begin(handle: &LaneHandle) -> Self {
        Self { traffic: handle.count_traffic(), ..Self::default() }
    }

    /// Replaces the lane's measurements by newer ones, and computes how busy its thread was in
    /// between.
    pub fn note(&mut self, measured: &LaneMeasurement, now: TimeNs) {
        (self.silence, self.shared) = (measured.silence, measured.shared);
        let noted = measured.thread.at.since(self.thread.at);
        if noted > Span::ZERO {
            let used = measured.thread.used.ns().saturating_sub(self.thread.used.ns());
            self.busy = (used as f64 / noted.ns() as f64).min(1.0);
            self.thread = measured.thread;
        } else if now.since(self.thread.at) > THREAD_NOTE_LIFETIME {
            self.busy = 0.0;
        }
        (self.traffic, self.received_bytes) = (measured.traffic, measured.received_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a time in milliseconds.
    fn ms(number: u64) -> TimeNs {
        TimeNs::from_ns(number * 1_000_000)
    }

    #[test]
    fn the_load_of_a_thread_lasts_until_its_next_note() {
        let mut tally = LaneTally::default();
        let mut busy = |at, used, now| {
            let thread = TelemetryThreadTime { at: ms(at), used: Span::from_ms(used) };
            let measured = LaneMeasurement {
                traffic: LinkTraffic::default(),
                min_rtt: None,
                received_bytes: 0,
                in_flight_bytes: 0,
                silence: Span::ZERO,
                thread,
                shared: None,
            };
            tally.note(&measured, ms(now));
            tally.busy
        };
        assert_eq!(busy(1000, 500, 1000), 0.5);
        assert_eq!(busy(1200, 690, 1200), 0.95);
        assert_eq!(busy(1200, 690, 1300), 0.95);
        assert_eq!(busy(1200, 690, 3300), 0.0, "the tuner sleeps");
    }
}
