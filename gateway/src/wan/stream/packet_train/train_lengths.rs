//! How long the packet trains of a measurement are, and which capacity they show.

use super::TrainArrival;
use super::train_message::TRAIN_BYTES_MAX;
use units::Span;

/// The lengths of the trains to a peer, and their reports so far.
#[derive(Debug)]
pub(super) struct TrainLengths {
    /// The span of arrivals from which on a train counts.
    span_wanted: Span,
    /// The length of the next train.
    next: u64,
    /// The longest train: what the most that the lane may send takes in the wanted span.
    most: u64,
    /// Trains that were sent.
    sent: u32,
    /// Bytes and spans of the trains that count.
    counted: (u64, Span),
    /// Trains that count.
    counted_trains: u32,
}

impl TrainLengths {
    /// Creates the lengths for a path with this RTT, packets of so many bytes, and a lane that may send
    /// at most `rate_max` bytes per second.
    pub fn new(rtt: Span, packet_bytes: u64, rate_max: f64) -> Self {
        let span_wanted = Span::from_ns(rtt.ns() / 2).clamp(TRAIN_SPAN_MIN, TRAIN_SPAN_MAX);
        let first = FIRST_TRAIN_PACKETS * packet_bytes;
        let most = (TRAIN_MARGIN * rate_max * span_wanted.as_secs_f64()) as u64;
        Self {
            span_wanted,
            next: first,
            most: most.min(TRAIN_BYTES_MAX.into()).max(first),
            sent: 0,
            counted: (0, Span::ZERO),
            counted_trains: 0,
        }
    }

    /// Returns the length of the next train in bytes; `None` if the capacity is known, or too many
    /// trains were sent.
    pub fn next_train(&self) -> Option<u32> {
        let is_known = self.counted.1 >= TRAIN_SPAN_MAX || self.counted_trains >= COUNTED_TRAINS;
        let bytes = u32::try_from(self.next.min(self.most)).unwrap_or(TRAIN_BYTES_MAX);
        (!is_known && self.sent < TRAINS_MAX).then_some(bytes)
    }

    /// Adds the report on the last train; `None` if none came in time.
    pub fn note_report(&mut self, arrival: Option<TrainArrival>) {
        self.sent += 1;
        let Some(TrainArrival { bytes, span }) = arrival else { return };
        let is_longest = self.next >= self.most;
        if span >= self.span_wanted || is_longest && span > Span::ZERO {
            self.counted = (self.counted.0 + bytes, self.counted.1 + span);
            self.counted_trains += 1;
            return;
        }
        // What arrives at once shows no rate.
        let growth = match span {
            Span::ZERO => TRAIN_GROWTH_MAX,
            span => {
                let rate = bytes as f64 / span.as_secs_f64();
                let wanted = TRAIN_MARGIN * rate * self.span_wanted.as_secs_f64();
                (wanted / self.next as f64).clamp(TRAIN_GROWTH_MIN, TRAIN_GROWTH_MAX)
            }
        };
        self.next = (self.next as f64 * growth) as u64;
    }

    /// Returns the capacity in bytes per second that the trains have shown; `None` if no report on a
    /// train came that was long enough.
    pub fn capacity(&self) -> Option<f64> {
        let (bytes, span) = self.counted;
        (self.counted_trains > 0).then(|| bytes as f64 / span.as_secs_f64())
    }
}

/// 10 packets: the length of the first packet train, as many as every QUIC sender may begin with
/// (RFC 9002).
const FIRST_TRAIN_PACKETS: u64 = 10;
/// 2 ms: a packet train whose arrivals span less does not count, since a host that is late by half a
/// millisecond would change the rate by a quarter.
const TRAIN_SPAN_MIN: Span = Span::from_ms(2);
/// 20 ms of arrivals, of one packet train or of several together, measure the capacity. A host that is
/// late by a millisecond changes the rate by a twentieth.
const TRAIN_SPAN_MAX: Span = Span::from_ms(20);
/// 3 packet trains of the wanted span: they measure the capacity, though they span less than 20 ms
/// together.
const COUNTED_TRAINS: u32 = 3;
/// 1.25 times the bytes that arrive in the wanted span: the length of a packet train, since a part of it
/// may be lost.
const TRAIN_MARGIN: f64 = 1.25;
/// 8 packet trains: after them the measurement ends, whatever the reports.
const TRAINS_MAX: u32 = 8;
/// 2 times: the least growth from a packet train that was too short to the next.
const TRAIN_GROWTH_MIN: f64 = 2.0;
/// 16 times: the most growth from a packet train that was too short to the next. The first span may be
/// that of one late packet.
const TRAIN_GROWTH_MAX: f64 = 16.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// The capacity that trains find on a path that passes `rate` bytes per second, and the number of
    /// trains. A host takes packets in batches of so many bytes.
    fn measure(rate: f64, rtt: Span, batch: u64) -> (Option<f64>, u32) {
        let mut lengths = TrainLengths::new(rtt, 1400, 1.25e9);
        let mut trains = 0;
        while let Some(bytes) = lengths.next_train() {
            trains += 1;
            let behind = u64::from(bytes).saturating_sub(batch) / batch * batch;
            let span = Span::from_ns((behind as f64 / rate * 1e9) as u64);
            lengths.note_report(Some(TrainArrival { bytes: behind, span }));
        }
        (lengths.capacity(), trains)
    }

    #[test]
    fn few_trains_find_rates_from_a_megabit_to_ten_gigabits() {
        for megabits in [1, 10, 50, 1000, 10_000] {
            for rtt_ms in [1, 20, 200] {
                let rate = f64::from(megabits) * 125_000.0;
                let (found, trains) = measure(rate, Span::from_ms(rtt_ms), 1400);
                let ratio = found.expect("answered") / rate;
                let text = format!("{megabits} Mbit/s, {rtt_ms} ms: {ratio:.3} by {trains} trains");
                assert!((0.99..1.01).contains(&ratio) && trains <= 6, "{text}");
            }
        }
    }

    #[test]
    fn trains_grow_while_a_host_takes_them_at_once() {
        let (found, trains) = measure(125e6, Span::from_ms(80), 64 * 1400);
        assert!((0.99..1.01).contains(&(found.expect("answered") / 125e6)), "{found:?}");
        assert!(trains <= 5, "{trains}");
    }

    #[test]
    fn a_peer_without_answers_ends_the_trains() {
        let mut lengths = TrainLengths::new(Span::from_ms(20), 1400, 1.25e9);
        let mut trains = 0;
        while lengths.next_train().is_some() {
            trains += 1;
            lengths.note_report(None);
        }
        assert_eq!((lengths.capacity(), trains), (None, TRAINS_MAX));
    }

    #[test]
    fn trains_are_no_longer_than_the_rate_limit_needs() {
        let (rate_max, rtt) = (1e6, Span::from_ms(40));
        let mut lengths = TrainLengths::new(rtt, 1400, rate_max);
        while let Some(bytes) = lengths.next_train() {
            assert!(bytes <= 25_000, "{bytes}");
            let span = Span::from_ns(u64::from(bytes));
            lengths.note_report(Some(TrainArrival { bytes: bytes.into(), span }));
        }
        assert!(lengths.capacity().is_some_and(|capacity| capacity >= rate_max));
    }

    #[test]
    fn trains_leave_less_than_a_bdp_of_queue() {
        for rtt_ms in [10, 20, 40] {
            let rate = 50e6 / 8.0;
            let mut lengths = TrainLengths::new(Span::from_ms(rtt_ms), 1400, 1.25e9);
            let bdp = rate * rtt_ms as f64 / 1000.0;
            while let Some(bytes) = lengths.next_train() {
                assert!(f64::from(bytes) <= 0.7 * bdp, "{bytes} of {bdp}");
                let behind = u64::from(bytes) - 1400;
                let span = Span::from_ns((behind as f64 / rate * 1e9) as u64);
                lengths.note_report(Some(TrainArrival { bytes: behind, span }));
            }
        }
    }
}
