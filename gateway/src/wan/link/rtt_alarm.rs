//! The RTT alarm of one peer: the path is longer than the fabric says, so that windows and deadlines
//! are sized for another link.
//!
//! The engine task samples it once a second (`engine/peers/traffic.rs`) and shows it in its status.
//! `landbridge doctor` judges its own measurement by the same limit.
//!
//! ```text
//! alarm = least RTT of the last RTT_ALARM_PERIOD to twice that, less RTT_ALARM_ACK_DELAY
//!         > RTT_ALARM_FACTOR x fabric's RTT + RTT_ALARM_MARGIN
//! ```

use units::{Span, TimeNs};

/// 1.25 times the fabric's RTT, plus [`RTT_ALARM_MARGIN`] (2 ms): a longer RTT raises the RTT
/// alarm, since congestion windows are sized for the fabric's RTT. The factor is chosen.
const RTT_ALARM_FACTOR: f64 = 1.25;
/// 2 ms: added to 1.25 times the fabric's RTT ([`RTT_ALARM_FACTOR`]), above which the RTT alarm is
/// raised. So scheduling delay on a short link raises no alarm. The time is chosen.
const RTT_ALARM_MARGIN: Span = Span::from_ms(2);
/// 30 s: the RTT alarm judges the least RTT of the last 30 to 60 s, and is silent for the first 30
/// s. So a queue that empties now and then is not taken for a longer path. The time is chosen.
const RTT_ALARM_PERIOD: Span = Span::from_secs(30);

/// 30 ms: the RTT alarm subtracts this time from a measured RTT, since acknowledgements are delayed
/// on a path without much traffic. It is 25 ms (QUIC's `max_ack_delay`), and 5 ms for late timers
/// of both ends.
const RTT_ALARM_ACK_DELAY: Span = Span::from_ms(30);

/// Returns whether a measured RTT is longer than 1.25 times that of the fabric plus 2 ms.
pub fn is_rtt_above_fabric(measured: Span, fabric: Span) -> bool {
    measured > Span::from_secs_f64(fabric.as_secs_f64() * RTT_ALARM_FACTOR) + RTT_ALARM_MARGIN
}

/// The least RTT of one peer's lanes over the last periods, and the alarm.
#[derive(Debug)]
pub(crate) struct RttAlarm {
    /// The RTT by the fabric.
    fabric: Span,
    /// When the present period began; `None` before the first RTT.
    begun: Option<TimeNs>,
    /// The least RTT of the present period and of the one before.
    present: Option<Span>,
    before: Option<Span>,
}

impl RttAlarm {
    /// Creates the alarm of a peer's lanes over a link with the RTT `fabric`.
    pub fn new(fabric: Span) -> Self {
        Self { fabric, begun: None, present: None, before: None }
    }

    /// Adds the least RTT since the last sample; `None` where nothing was acknowledged.
    pub fn add_sample(&mut self, least: Option<Span>, now: TimeNs) {
        if least.is_none() && self.begun.is_none() {
            return;
        }
        let begun = *self.begun.get_or_insert(now);
        if now.since(begun) >= RTT_ALARM_PERIOD {
            (self.before, self.present) = (self.present, None);
            self.begun = Some(now);
        }
        self.present = self.present.into_iter().chain(least).min();
    }

    /// Returns the least RTT of the last 30 to 60 s if, less 30 ms, it is longer than the fabric
    /// admits. `None` too before the first 30 s have passed.
    pub fn long_rtt(&self) -> Option<Span> {
        // Without a whole period nothing is sure.
        let least = self.present.into_iter().chain([self.before?]).min()?;
        let path = Span::from_ns(least.ns().saturating_sub(RTT_ALARM_ACK_DELAY.ns()));
        is_rtt_above_fabric(path, self.fabric).then_some(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples an RTT each second for `seconds`; returns the seconds of the first alarm.
    fn first_alarm(seconds: u64, rtt_ms: impl Fn(u64) -> u64) -> Option<u64> {
        let mut alarm = RttAlarm::new(Span::from_ms(80));
        (0..seconds).find(|second| {
            let now = TimeNs::from_ns(7) + Span::from_secs(*second);
            alarm.add_sample(Some(Span::from_ms(rtt_ms(*second))), now);
            alarm.long_rtt().is_some()
        })
    }

    #[test]
    fn a_longer_path_raises_the_alarm_after_a_period() {
        assert_eq!(first_alarm(100, |_| 300), Some(30));
        assert_eq!(first_alarm(100, |_| 130), None, "a quarter more and a late acknowledgement");
        assert_eq!(first_alarm(100, |_| 2), None, "a shorter path is no fault");
    }

    #[test]
    fn a_queue_that_empties_raises_no_rtt_alarm() {
        let queued = |second| if second % 20 == 0 { 80 } else { 400 };
        assert_eq!(first_alarm(500, queued), None);
    }

    #[test]
    fn the_rtt_alarm_ends_with_the_longer_path() {
        let mut alarm = RttAlarm::new(Span::from_ms(80));
        for second in 0..100 {
            let rtt = Span::from_ms(if second < 50 { 300 } else { 80 });
            alarm.add_sample(Some(rtt), TimeNs::from_ns(7) + Span::from_secs(second));
            assert_eq!(alarm.long_rtt().is_some(), (30..50).contains(&second), "{second}");
        }
    }
}
