//! Measured loss of the lanes to a peer, and the alarm when it is above what the fabric
//! expects.

use std::collections::VecDeque;
use units::Fraction;

/// Loss is measured over this many looks, one a second.
const LOOKS: usize = 10;
/// The alarm begins above this many times the expected loss,
const BEGIN_FACTOR: f64 = 1.5;
/// plus this,
const BEGIN_ABOVE: f64 = 0.000_5;
/// and when the lost packets are more by this many standard deviations than what it takes
const DEVIATIONS: f64 = 4.0;
/// and at least this many.
const LOST_MIN: f64 = 10.0;
/// It ends below this many times the expected loss,
const END_FACTOR: f64 = 1.2;
/// plus this.
const END_ABOVE: f64 = 0.000_2;

/// What the last looks saw, of one peer.
#[derive(Debug)]
pub(crate) struct Losses {
    expected: f64,
    /// Packets sent, and lost, in each of the last looks.
    looks: VecDeque<(u64, u64)>,
    alarm: bool,
}

/// What a look has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Begun,
    Ended,
}

impl Losses {
    pub fn new(expected: Fraction) -> Self {
        Self { expected: expected.as_f64(), looks: VecDeque::new(), alarm: false }
    }

    /// Packets sent and lost since the last look.
    pub fn look(&mut self, sent: u64, lost: u64) -> Option<Change> {
        self.looks.push_back((sent, lost));
        if self.looks.len() > LOOKS {
            self.looks.pop_front();
        }
        let (sent, lost) = self.seen();
        let change = if self.alarm {
            let limit = END_FACTOR * self.expected + END_ABOVE;
            (lost as f64 <= limit * sent as f64).then_some(Change::Ended)
        } else {
            let usual = (BEGIN_FACTOR * self.expected + BEGIN_ABOVE) * sent as f64;
            let limit = (usual + DEVIATIONS * usual.sqrt()).max(LOST_MIN);
            (lost as f64 > limit).then_some(Change::Begun)
        };
        if let Some(change) = change {
            self.alarm = change == Change::Begun;
        }
        change
    }

    /// Packets sent and lost in the last looks.
    pub fn seen(&self) -> (u64, u64) {
        self.looks.iter().fold((0, 0), |sum, look| (sum.0 + look.0, sum.1 + look.1))
    }

    /// The measured loss, from 0 to 1; packets are known as lost later than as sent, so a
    /// single second may seem to lose more than it sent.
    pub fn ratio(&self) -> f64 {
        let (sent, lost) = self.seen();
        if sent == 0 { 0.0 } else { (lost as f64 / sent as f64).min(1.0) }
    }

    /// Whether the loss is above what the fabric expects.
    pub fn alarm(&self) -> bool {
        self.alarm
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn losses(expected_ppm: u32) -> Losses {
        Losses::new(Fraction::from_ppb(expected_ppm * 1000).expect("below 1"))
    }

    #[test]
    fn the_alarm_begins_once_and_ends_once() {
        let mut losses = losses(1000);
        let mut changes = Vec::new();
        let looks = [(10_000, 10); 20].into_iter().chain([(10_000, 50); 20]);
        let looks = looks.chain([(10_000, 15); 20]).chain([(10_000, 9); 20]);
        for (at, (sent, lost)) in looks.enumerate() {
            changes.extend(losses.look(sent, lost).map(|change| (at, change)));
        }
        let [(begun, Change::Begun), (ended, Change::Ended)] = changes[..] else {
            panic!("{changes:?}");
        };
        // Between the two limits nothing changes.
        assert!((20..30).contains(&begun) && (60..=70).contains(&ended), "{changes:?}");
        assert_eq!(losses.ratio(), 0.0009);
    }

    #[test]
    fn a_few_packets_prove_nothing_and_silence_ends_an_alarm() {
        let mut losses = losses(0);
        assert_eq!(losses.look(20, 9), None, "too few to tell");
        assert_eq!(losses.look(1_000_000, 400), None, "what nobody would miss");
        assert_eq!(losses.look(100_000, 5_000), Some(Change::Begun));
        let quiet: Vec<_> = (0..10).filter_map(|_| losses.look(0, 0)).collect();
        assert_eq!(quiet, [Change::Ended]);
        assert_eq!((losses.alarm(), losses.ratio()), (false, 0.0));
    }
}
