//! Rounds of a lane: what arrived between two acknowledgements a round trip apart.
//!
//! Acknowledgements come in batches of one instant, since timers have steps and receivers answer many
//! packets at once. A round therefore ends with the last one of an instant, which is known when the
//! next one comes later. Bytes over time between two such ends have no error at any size of batches.

use units::{Span, TimeNs};

/// The counters of a lane at one acknowledgement.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counters {
    pub at: TimeNs,
    /// When the newest packet left of those acknowledged so far.
    pub newest_sent: TimeNs,
    /// Bytes acknowledged so far.
    pub delivered: u64,
    /// Acknowledgements so far.
    pub acks: u64,
    /// Acknowledgements at which window or pace held the sender.
    pub held_acks: u64,
}

/// The measurements of a round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RoundSample {
    /// The delivery rate in bytes per second.
    pub rate: f64,
    /// Bytes acknowledged.
    pub delivered: u64,
    /// The time in which they were acknowledged, or sent if that took longer.
    pub length: Span,
    /// The least RTT of the packets acknowledged.
    pub min_rtt: Span,
    /// Whether window or pace held the sender at half of the acknowledgements, so that no more could
    /// arrive.
    pub is_limited: bool,
}

/// The round under way.
#[derive(Debug, Clone)]
pub(crate) struct Round {
    begin: Counters,
    last: Counters,
    min_rtt: Option<Span>,
    /// When the last packet left before the begin.
    last_sent: TimeNs,
    /// Whether that packet or a later one is acknowledged.
    is_complete: bool,
}

impl Round {
    /// Begins a round at these counters; the last packet left at `last_sent`.
    pub fn new(begin: Counters, last_sent: TimeNs) -> Self {
        Self { begin, last: begin, min_rtt: None, last_sent, is_complete: false }
    }

    /// Ends the round and begins the next one, if it is complete and no further acknowledgement of
    /// the same instant can follow by `now`. The packet acknowledged now left at `sent`, the last
    /// one of all at `last_sent`. A round whose last packet is lost ends before the first packet
    /// that left later: the sender may have waited between them.
    pub fn end_before(
        &mut self,
        now: TimeNs,
        sent: TimeNs,
        last_sent: TimeNs,
    ) -> Option<RoundSample> {
        let took = self.last.at.since(self.begin.at);
        let is_complete = self.is_complete || sent > self.last_sent;
        if !is_complete || now <= self.last.at || took < ROUND_MIN {
            return None;
        }
        // Acknowledgements that waited behind the peer's data come faster than their packets left.
        let sending = self.last.newest_sent.since(self.begin.newest_sent);
        let (acks, held) =
            (self.last.acks - self.begin.acks, self.last.held_acks - self.begin.held_acks);
        let delivered = self.last.delivered - self.begin.delivered;
        let length = took.max(sending);
        let sample = self.min_rtt.map(|min_rtt| RoundSample {
            rate: delivered as f64 / length.as_secs_f64(),
            delivered,
            length,
            min_rtt,
            is_limited: 2 * held >= acks,
        });
        *self = Self::new(self.last, last_sent);
        sample
    }

    /// Adds a packet that was sent at `sent` and acknowledged after `rtt`.
    pub fn add_packet(&mut self, sent: TimeNs, rtt: Span) {
        self.min_rtt = self.min_rtt.into_iter().chain([rtt]).min();
        self.is_complete |= sent >= self.last_sent;
    }

    /// Keeps the counters after an acknowledgement, in place of those after the one before.
    pub fn add_counters(&mut self, counters: Counters) {
        self.last = counters;
    }
}

/// 1 ms: the least length of a round, which is the step of a timer. A round that has been shorter
/// goes on until a later acknowledgement.
const ROUND_MIN: Span = Span::from_ms(1);

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Batches of 10 kB each 1 ms are 10 MB/s, wherever rounds of 3.5 ms end.
    #[test]
    fn batches_of_acknowledgements_do_not_blur_the_rate() {
        let at = |ms: u64| TimeNs::from_ns(ms * MS);
        let mut round = Round::new(Counters::default(), TimeNs::default());
        let mut rates = Vec::new();
        for ms in 1..50 {
            for part in 1..=5 {
                rates.extend(round.end_before(at(ms), at(ms), at(ms)).map(|sample| sample.rate));
                let sent = TimeNs::from_ns((ms * MS).saturating_sub(3_500_000));
                round.add_packet(sent, Span::from_ms(3));
                let delivered = (ms - 1) * 10_000 + part * 2_000;
                let counters = Counters { at: at(ms), delivered, ..Counters::default() };
                round.add_counters(Counters { newest_sent: sent, ..counters });
            }
        }
        assert!(rates.len() >= 10, "{rates:?}");
        assert!(rates.iter().all(|rate| (rate / 1e7 - 1.0).abs() < 1e-9), "{rates:?}");
    }

    /// The sender waits between the lost packet, which ends the round, and the next one.
    #[test]
    fn a_silence_after_a_lost_packet_lowers_no_rate() {
        let at = |ms: u64| TimeNs::from_ns(ms * MS);
        let mut round = Round::new(Counters::default(), at(10));
        for ms in 1..10 {
            round.add_packet(at(ms), Span::from_ms(20));
            let delivered = ms * 10_000;
            let counters =
                Counters { at: at(ms), newest_sent: at(ms), delivered, acks: ms, held_acks: ms };
            round.add_counters(counters);
        }
        assert_eq!(round.end_before(at(30), at(10), at(50)), None, "it may not be lost");
        let sample = round.end_before(at(60), at(40), at(50)).expect("the next packet left later");
        assert!((sample.rate / 1e7 - 1.0).abs() < 1e-9, "{}", sample.rate);
    }

    #[test]
    fn a_round_is_limited_if_the_sender_was_held() {
        for (held_acks, is_limited) in [(4, false), (5, true)] {
            let mut round = Round::new(Counters::default(), TimeNs::default());
            round.add_packet(TimeNs::from_ns(1), Span::from_ms(9));
            let at = TimeNs::from_ns(10 * MS);
            let newest_sent = TimeNs::from_ns(MS);
            let counters = Counters { at, newest_sent, delivered: 1000, acks: 10, held_acks };
            round.add_counters(counters);
            assert_eq!(round.end_before(at, at, at), None, "more may follow");
            let sample = round.end_before(TimeNs::from_ns(11 * MS), at, at).expect("complete");
            assert_eq!((sample.rate, sample.is_limited), (1e5, is_limited));
        }
    }
}
