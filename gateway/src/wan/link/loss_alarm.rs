//! The loss alarm of one peer: measured loss that is significantly above the configured loss.
//!
//! The engine task samples it once a second (`engine/peers/traffic.rs`), logs the changes and shows the
//! ratio in its metrics and status.
//!
//! With `n` packets sent over the last [`LOSS_ALARM_SAMPLES`] samples, and loss as a fraction of
//! packets:
//!
//! ```text
//! usual  = n x (ALARM_BEGIN_FACTOR x configured + ALARM_BEGIN_MARGIN)
//! begins   lost > max(usual + ALARM_DEVIATIONS x sqrt(usual), ALARM_LOST_PACKETS_MIN)
//! ends     lost <= n x (ALARM_END_FACTOR x configured + ALARM_END_MARGIN)
//! ```

use std::collections::VecDeque;
use units::Fraction;

/// 10 samples, one a second: the loss alarm of a peer judges the packets sent and lost in the last
/// 10 s; older samples are dropped. The number is chosen.
const LOSS_ALARM_SAMPLES: usize = 10;
/// 1.5 times the configured loss, plus [`ALARM_BEGIN_MARGIN`] (0.05 %): the loss that is still
/// usual. The loss alarm of a peer begins when significantly more is lost in ten seconds. The
/// factor is chosen.
/// Tested by `loss_above_the_fabrics_raises_an_alarm_until_it_ends`.
const ALARM_BEGIN_FACTOR: f64 = 1.5;
/// 0.05 % of all packets: added to 1.5 times the configured loss ([`ALARM_BEGIN_FACTOR`]) in the
/// loss that is still usual. So links without configured loss have a threshold above zero.
const ALARM_BEGIN_MARGIN: f64 = 0.000_5;
/// 4 standard deviations of a Poisson count: a loss alarm begins only if the lost packets exceed
/// the usual number ([`ALARM_BEGIN_FACTOR`]) by more than this. So chance alone begins no loss
/// alarm.
const ALARM_DEVIATIONS: f64 = 4.0;
/// 10 lost packets in ten seconds: with as many or fewer, no loss alarm begins, however high the
/// fraction. The number is chosen.
const ALARM_LOST_PACKETS_MIN: f64 = 10.0;
/// 1.2 times the configured loss, plus [`ALARM_END_MARGIN`] (0.02 %): as much packet loss or less
/// in ten seconds ends the loss alarm. The threshold to begin is higher, so that the alarm does not
/// flap.
/// Tested by `the_alarm_begins_once_and_ends_once`.
const ALARM_END_FACTOR: f64 = 1.2;
/// 0.02 % of all packets: added to 1.2 times the configured loss ([`ALARM_END_FACTOR`]), below
/// which the loss alarm ends. So the alarm of a link without configured loss can end before its
/// loss is zero.
const ALARM_END_MARGIN: f64 = 0.000_2;

/// The loss of one peer's lanes over the last samples, and its alarm.
#[derive(Debug)]
pub(crate) struct LossAlarm {
    /// The configured loss, from 0 to 1.
    configured: f64,
    samples: VecDeque<LossSample>,
    active: bool,
}

/// Packets of one sample, or of several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LossSample {
    /// Packets sent.
    pub sent: u64,
    /// Packets lost.
    pub lost: u64,
}

/// A change of the alarm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AlarmChange {
    /// The alarm has begun.
    Begun,
    /// The alarm has ended.
    Ended,
}

impl LossAlarm {
    /// Creates the alarm of a peer's lanes over a link with the configured loss `configured`.
    pub fn new(configured: Fraction) -> Self {
        Self { configured: configured.as_f64(), samples: VecDeque::new(), active: false }
    }

    /// Adds the packets since the last sample, a second ago; returns whether the alarm begins or
    /// ends with them.
    pub fn add_sample(&mut self, packets: LossSample) -> Option<AlarmChange> {
        self.samples.push_back(packets);
        if self.samples.len() > LOSS_ALARM_SAMPLES {
            self.samples.pop_front();
        }
        let LossSample { sent, lost } = self.recent_packets();
        let change = if self.active {
            let limit = ALARM_END_FACTOR * self.configured + ALARM_END_MARGIN;
            (lost as f64 <= limit * sent as f64).then_some(AlarmChange::Ended)
        } else {
            let usual = (ALARM_BEGIN_FACTOR * self.configured + ALARM_BEGIN_MARGIN) * sent as f64;
            let limit = (usual + ALARM_DEVIATIONS * usual.sqrt()).max(ALARM_LOST_PACKETS_MIN);
            (lost as f64 > limit).then_some(AlarmChange::Begun)
        };
        if let Some(change) = change {
            self.active = change == AlarmChange::Begun;
        }
        change
    }

    /// Returns the packets sent and lost in the last ten samples together.
    pub fn recent_packets(&self) -> LossSample {
        let add = |sum: LossSample, sample: &LossSample| LossSample {
            sent: sum.sent + sample.sent,
            lost: sum.lost + sample.lost,
        };
        self.samples.iter().fold(LossSample::default(), add)
    }

    /// Returns the fraction of packets lost in the last ten samples, 0 to 1; 0 when none was sent.
    /// It ends at 1 where more were lost than sent, since a packet counts as lost later than as
    /// sent.
    pub fn loss_ratio(&self) -> f64 {
        let LossSample { sent, lost } = self.recent_packets();
        if sent == 0 { 0.0 } else { (lost as f64 / sent as f64).min(1.0) }
    }

    /// Returns whether the alarm has begun and not ended: the loss is above the configured loss.
    pub fn is_active(&self) -> bool {
        self.active
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alarm(configured_ppm: u32) -> LossAlarm {
        LossAlarm::new(Fraction::from_ppb(configured_ppm * 1000).expect("below 1"))
    }

    fn packets(sent: u64, lost: u64) -> LossSample {
        LossSample { sent, lost }
    }

    #[test]
    fn the_alarm_begins_once_and_ends_once() {
        let mut alarm = alarm(1000);
        let mut changes = Vec::new();
        let samples = [(10_000, 10); 20].into_iter().chain([(10_000, 50); 20]);
        let samples = samples.chain([(10_000, 15); 20]).chain([(10_000, 9); 20]);
        for (at, (sent, lost)) in samples.enumerate() {
            changes.extend(alarm.add_sample(packets(sent, lost)).map(|change| (at, change)));
        }
        let [(begun, AlarmChange::Begun), (ended, AlarmChange::Ended)] = changes[..] else {
            panic!("{changes:?}");
        };
        // Between the two limits nothing changes.
        assert!((20..30).contains(&begun) && (60..=70).contains(&ended), "{changes:?}");
        assert_eq!(alarm.loss_ratio(), 0.0009);
    }

    #[test]
    fn few_packets_begin_no_alarm_and_idleness_ends_one() {
        let mut alarm = alarm(0);
        assert_eq!(alarm.add_sample(packets(20, 9)), None, "too few to tell");
        assert_eq!(alarm.add_sample(packets(1_000_000, 400)), None, "below the margin");
        assert_eq!(alarm.add_sample(packets(100_000, 5_000)), Some(AlarmChange::Begun));
        let idle: Vec<_> = (0..10).filter_map(|_| alarm.add_sample(packets(0, 0))).collect();
        assert_eq!(idle, [AlarmChange::Ended]);
        assert_eq!((alarm.is_active(), alarm.loss_ratio()), (false, 0.0));
    }
}
