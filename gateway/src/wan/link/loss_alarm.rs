//! The loss alarm of one peer: measured loss that is significantly above the configured loss.
//!
//! The engine task samples it once a second (`engine/peers/traffic.rs`), logs the changes and shows the
//! ratio in its metrics and status.
//!
//! With `n` packets sent over the last [`SAMPLES`] samples, and loss as a fraction of packets:
//!
//! ```text
//! usual  = n x (BEGIN_FACTOR x configured + BEGIN_MARGIN)
//! begins   lost > max(usual + DEVIATIONS x sqrt(usual), LOST_MIN)
//! ends     lost <= n x (END_FACTOR x configured + END_MARGIN)
//! ```

use std::collections::VecDeque;
use units::Fraction;

/// 10 samples, one a second: the time over which loss is measured.
const SAMPLES: usize = 10;
/// 1.5 times the configured loss, together with [`BEGIN_MARGIN`]; see the formula above.
/// Tested by `loss_above_the_fabrics_raises_an_alarm_until_it_ends`.
const BEGIN_FACTOR: f64 = 1.5;
/// 0.05 % of all packets, so that a link without configured loss has a threshold.
const BEGIN_MARGIN: f64 = 0.000_5;
/// 4 standard deviations of a Poisson count: chance alone raises no alarm.
const DEVIATIONS: f64 = 4.0;
/// 10 lost packets: fewer raise no alarm.
const LOST_MIN: f64 = 10.0;
/// 1.2 times the configured loss: below the beginning, so that the log has one line and not one a second.
/// Tested by `the_alarm_begins_once_and_ends_once`.
const END_FACTOR: f64 = 1.2;
/// 0.02 % of all packets, added to the end's threshold.
const END_MARGIN: f64 = 0.000_2;

/// The loss of one peer's lanes over the last samples, and its alarm.
#[derive(Debug)]
pub(crate) struct LossAlarm {
    /// The configured loss, from 0 to 1.
    configured: f64,
    samples: VecDeque<PacketCounts>,
    active: bool,
}

/// Packets of one sample, or of several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PacketCounts {
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
    /// An alarm for a link with this configured loss.
    pub fn new(configured: Fraction) -> Self {
        Self { configured: configured.as_f64(), samples: VecDeque::new(), active: false }
    }

    /// Adds the packets since the last sample; returns how that changes the alarm.
    pub fn sample(&mut self, packets: PacketCounts) -> Option<AlarmChange> {
        self.samples.push_back(packets);
        if self.samples.len() > SAMPLES {
            self.samples.pop_front();
        }
        let PacketCounts { sent, lost } = self.packets();
        let change = if self.active {
            let limit = END_FACTOR * self.configured + END_MARGIN;
            (lost as f64 <= limit * sent as f64).then_some(AlarmChange::Ended)
        } else {
            let usual = (BEGIN_FACTOR * self.configured + BEGIN_MARGIN) * sent as f64;
            let limit = (usual + DEVIATIONS * usual.sqrt()).max(LOST_MIN);
            (lost as f64 > limit).then_some(AlarmChange::Begun)
        };
        if let Some(change) = change {
            self.active = change == AlarmChange::Begun;
        }
        change
    }

    /// The packets of the last samples together.
    pub fn packets(&self) -> PacketCounts {
        let add = |sum: PacketCounts, sample: &PacketCounts| PacketCounts {
            sent: sum.sent + sample.sent,
            lost: sum.lost + sample.lost,
        };
        self.samples.iter().fold(PacketCounts::default(), add)
    }

    /// The measured loss, from 0 to 1. A packet counts as lost later than as sent, so a single second
    /// may seem to lose more than it sent.
    pub fn ratio(&self) -> f64 {
        let PacketCounts { sent, lost } = self.packets();
        if sent == 0 { 0.0 } else { (lost as f64 / sent as f64).min(1.0) }
    }

    /// Whether the loss is above the configured loss.
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

    fn packets(sent: u64, lost: u64) -> PacketCounts {
        PacketCounts { sent, lost }
    }

    #[test]
    fn the_alarm_begins_once_and_ends_once() {
        let mut alarm = alarm(1000);
        let mut changes = Vec::new();
        let samples = [(10_000, 10); 20].into_iter().chain([(10_000, 50); 20]);
        let samples = samples.chain([(10_000, 15); 20]).chain([(10_000, 9); 20]);
        for (at, (sent, lost)) in samples.enumerate() {
            changes.extend(alarm.sample(packets(sent, lost)).map(|change| (at, change)));
        }
        let [(begun, AlarmChange::Begun), (ended, AlarmChange::Ended)] = changes[..] else {
            panic!("{changes:?}");
        };
        // Between the two limits nothing changes.
        assert!((20..30).contains(&begun) && (60..=70).contains(&ended), "{changes:?}");
        assert_eq!(alarm.ratio(), 0.0009);
    }

    #[test]
    fn few_packets_begin_no_alarm_and_idleness_ends_one() {
        let mut alarm = alarm(0);
        assert_eq!(alarm.sample(packets(20, 9)), None, "too few to tell");
        assert_eq!(alarm.sample(packets(1_000_000, 400)), None, "below the margin");
        assert_eq!(alarm.sample(packets(100_000, 5_000)), Some(AlarmChange::Begun));
        let idle: Vec<_> = (0..10).filter_map(|_| alarm.sample(packets(0, 0))).collect();
        assert_eq!(idle, [AlarmChange::Ended]);
        assert_eq!((alarm.is_active(), alarm.ratio()), (false, 0.0));
    }
}
