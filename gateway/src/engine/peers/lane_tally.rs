//! The measurements of one lane from sample to sample: traffic, load of its thread, silence.

use crate::wan::congestion::telemetry::ThreadTime;
use crate::wan::link::traffic::LinkTraffic;
use crate::wan::{LaneHandle, LaneMeasurement};
use units::{Span, TimeNs};

/// 200 ms, two sample intervals: the most by which a lane's silence grows with one sample. While this
/// process was stopped, no lane was silent.
const SILENCE_STEP_MAX: Span = Span::from_ms(200);
/// 2 s: a note of a thread's processor time that is older says that the thread is idle. Busy lanes note
/// it each round trip.
const THREAD_NOTE_LIFETIME: Span = Span::from_secs(2);

/// The measurements of one lane until its last sample.
#[derive(Debug, Default)]
pub(super) struct LaneTally {
    /// The traffic over its present path so far.
    pub traffic: LinkTraffic,
    /// Bytes of UDP payload received so far.
    pub received_bytes: u64,
    /// The processor time of its thread.
    thread: ThreadTime,
    /// The busy part of its thread, from 0 to 1, between the last two notes.
    pub busy: f64,
    /// The time for which bytes were in flight and none was acknowledged.
    pub silence: Span,
}

impl LaneTally {
    /// Begins the tally of a lane with the counters of its handshake.
    pub fn begin(handle: &LaneHandle) -> Self {
        Self { traffic: handle.count_traffic(), ..Self::default() }
    }

    /// Takes the next measurement of the lane, `step` after the one before.
    pub fn note(&mut self, measured: &LaneMeasurement, step: Span, now: TimeNs) {
        let delivered = measured.traffic.delivered_bytes != self.traffic.delivered_bytes;
        let is_silent = measured.in_flight_bytes > 0 && !delivered;
        let silence = self.silence + step.min(SILENCE_STEP_MAX);
        self.silence = if is_silent { silence } else { Span::ZERO };
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

    /// Returns what a lane measures at a time in ms, with these bytes in flight and delivered so far.
    fn measured(in_flight_bytes: u64, delivered_bytes: u64, thread: ThreadTime) -> LaneMeasurement {
        LaneMeasurement {
            traffic: LinkTraffic { delivered_bytes, ..LinkTraffic::default() },
            min_rtt: None,
            received_bytes: 0,
            in_flight_bytes,
            thread,
        }
    }

    /// Returns a time in milliseconds.
    fn ms(number: u64) -> TimeNs {
        TimeNs::from_ns(number * 1_000_000)
    }

    #[test]
    fn a_lane_is_silent_while_nothing_in_flight_is_acknowledged() {
        let (mut tally, thread) = (LaneTally::default(), ThreadTime::default());
        let mut silence = |in_flight, delivered, step| {
            tally.note(&measured(in_flight, delivered, thread), Span::from_ms(step), ms(1));
            tally.silence
        };
        assert_eq!(silence(10, 1, 100), Span::ZERO, "some were acknowledged");
        assert_eq!(silence(10, 1, 100), Span::from_ms(100));
        assert_eq!(silence(10, 1, 5000), Span::from_ms(300), "this process was stopped");
        assert_eq!(silence(0, 1, 100), Span::ZERO, "it has nothing to say");
    }

    #[test]
    fn the_load_of_a_thread_lasts_until_its_next_note() {
        let mut tally = LaneTally::default();
        let mut busy = |at, used, now| {
            let thread = ThreadTime { at: ms(at), used: Span::from_ms(used) };
            tally.note(&measured(0, 0, thread), Span::from_ms(100), ms(now));
            tally.busy
        };
        assert_eq!(busy(1000, 500, 1000), 0.5);
        assert_eq!(busy(1200, 690, 1200), 0.95);
        assert_eq!(busy(1200, 690, 1300), 0.95);
        assert_eq!(busy(1200, 690, 3300), 0.0, "the tuner sleeps");
    }
}
