//! A sender with a window: it counts what is in flight, finds losses and measures rates.

use super::ack_sample::AckSample;
use super::cross_controller::CrossController;
use std::collections::BTreeMap;
use units::{Span, TimeNs};

/// A sender that always has data, and sends as its controller lets it.
#[derive(Debug)]
pub(super) struct WindowFlow {
    controller: CrossController,
    start: TimeNs,
    next_number: u64,
    in_flight: BTreeMap<u64, Sent>,
    /// Packets acknowledged so far, and when the last one was.
    delivered: u64,
    delivered_at: TimeNs,
    /// When the packet was sent that was acknowledged last.
    first_sent_at: TimeNs,
    largest_acked: u64,
    /// Packets below this number were sent before the last congestion was found. Their losses are
    /// part of it.
    recovery_until: u64,
    /// Whether no later packet has been acknowledged yet.
    in_recovery: bool,
    round_trip: Option<RoundTrip>,
    /// Timeouts in a row.
    timeouts: u32,
    deadline: TimeNs,
    /// When the next packet may leave.
    paced_until: TimeNs,
}

/// A packet in flight, with the state of its flow when it was sent.
#[derive(Debug, Clone, Copy)]
struct Sent {
    at: TimeNs,
    delivered: u64,
    delivered_at: TimeNs,
    first_sent_at: TimeNs,
}

/// The smoothed round trip and its deviation, as RFC 6298 has them.
#[derive(Debug, Clone, Copy)]
struct RoundTrip {
    smoothed_ns: u64,
    deviation_ns: u64,
}

impl WindowFlow {
    /// Makes a sender that starts at `start`.
    pub(super) fn new(controller: CrossController, start: TimeNs) -> Self {
        Self {
            controller,
            start,
            next_number: 0,
            in_flight: BTreeMap::new(),
            delivered: 0,
            delivered_at: start,
            first_sent_at: start,
            largest_acked: 0,
            recovery_until: 0,
            in_recovery: false,
            round_trip: None,
            timeouts: 0,
            deadline: start,
            paced_until: start,
        }
    }

    /// Returns the packets in flight.
    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight.len() as u64
    }

    /// Updates round trip, rate and controller by the acknowledgement of packet `number`, and gives
    /// up packets overtaken by it.
    pub(super) fn on_ack(&mut self, now: TimeNs, number: u64) {
        let Some(sent) = self.in_flight.remove(&number) else {
            // Given up as lost, and only late.
            return;
        };
        let rtt = now.since(sent.at);
        self.add_round_trip(rtt);
        self.timeouts = 0;
        self.delivered += 1;
        self.delivered_at = now;
        self.first_sent_at = sent.at;
        let interval = now.since(sent.delivered_at).max(sent.at.since(sent.first_sent_at));
        let delivered = (self.delivered - sent.delivered) as f64;
        let rate = (interval > Span::ZERO).then(|| delivered / interval.as_secs_f64());
        self.largest_acked = self.largest_acked.max(number);
        let latest_lost = self.give_up_overtaken();
        if self.in_recovery && number >= self.recovery_until {
            self.in_recovery = false;
            self.controller.on_recovered();
        }
        if latest_lost.is_some_and(|lost| lost >= self.recovery_until) {
            (self.recovery_until, self.in_recovery) = (self.next_number, true);
            self.controller.on_congestion(self.in_flight());
        }
        self.controller.on_ack(&AckSample {
            now,
            rtt,
            in_flight: self.in_flight(),
            delivered: self.delivered,
            delivered_before: sent.delivered,
            rate,
            found_losses: latest_lost.is_some(),
            in_recovery: self.in_recovery,
        });
        self.deadline = now + self.timeout();
    }

    /// Gives up all packets in flight where no acknowledgement came until the deadline.
    pub(super) fn on_timer(&mut self, now: TimeNs) {
        if self.in_flight.is_empty() || now < self.deadline {
            return;
        }
        self.in_flight.clear();
        self.timeouts += 1;
        (self.recovery_until, self.in_recovery) = (self.next_number, false);
        self.controller.on_timeout();
        self.deadline = now + self.timeout();
    }

    /// Sends the packets that window and pace allow at `now`, and returns their numbers.
    pub(super) fn take_sends(&mut self, now: TimeNs) -> Vec<u64> {
        let mut sends = Vec::new();
        while now >= self.start && self.has_room() && now >= self.paced_until {
            if let Some(rate) = self.controller.pacing_rate() {
                let gap = Span::from_secs_f64(1.0 / rate).max(Span::from_ns(1));
                self.paced_until = self.paced_until.max(now) + gap;
            }
            if self.in_flight.is_empty() {
                (self.first_sent_at, self.delivered_at) = (now, now);
                self.deadline = now + self.timeout();
            }
            self.in_flight.insert(
                self.next_number,
                Sent {
                    at: now,
                    delivered: self.delivered,
                    delivered_at: self.delivered_at,
                    first_sent_at: self.first_sent_at,
                },
            );
            sends.push(self.next_number);
            self.next_number += 1;
        }
        sends
    }

    /// Returns when the flow wants to be woken: to send, where the window has room, or at the
    /// deadline of the packets in flight. `None` where neither is.
    pub(super) fn next_wake(&self) -> Option<TimeNs> {
        let send_at = self.has_room().then(|| self.paced_until.max(self.start));
        let deadline = (!self.in_flight.is_empty()).then_some(self.deadline);
        send_at.into_iter().chain(deadline).min()
    }

    /// Returns whether the window has room for a packet.
    fn has_room(&self) -> bool {
        self.in_flight() < self.controller.window().max(1)
    }

    /// Gives up the packets sent three or more places before the latest acknowledged one. Returns
    /// the number of the latest of them; `None` without any.
    fn give_up_overtaken(&mut self) -> Option<u64> {
        let kept = self
            .in_flight
            .split_off(&self.largest_acked.saturating_sub(LOST_AFTER_LATER_PACKETS - 1));
        let lost = std::mem::replace(&mut self.in_flight, kept);
        lost.last_key_value().map(|(number, _)| *number)
    }

    /// Updates the smoothed round trip with one sample.
    fn add_round_trip(&mut self, rtt: Span) {
        let rtt_ns = rtt.ns();
        self.round_trip = Some(match self.round_trip {
            None => RoundTrip { smoothed_ns: rtt_ns, deviation_ns: rtt_ns / 2 },
            Some(old) => RoundTrip {
                smoothed_ns: (7 * old.smoothed_ns + rtt_ns) / 8,
                deviation_ns: (3 * old.deviation_ns + old.smoothed_ns.abs_diff(rtt_ns)) / 4,
            },
        });
    }

    /// Returns the time after which a missing acknowledgement means loss; twice as long after each
    /// timeout in a row, up to six.
    fn timeout(&self) -> Span {
        let once = self.round_trip.map_or(TIMEOUT_INITIAL, |known| {
            Span::from_ns(known.smoothed_ns + 4 * known.deviation_ns).max(TIMEOUT_MIN)
        });
        Span::from_ns(once.ns().saturating_mul(1 << self.timeouts.min(TIMEOUT_DOUBLINGS_MAX)))
    }
}

/// 3 packets: a packet counts as lost once the third packet sent after it, or a later one, is
/// acknowledged, as RFC 9002 has it.
const LOST_AFTER_LATER_PACKETS: u64 = 3;
/// 1 s: the retransmission timeout of a simulated flow while it knows no round trip, as RFC 6298
/// has it. After the timeout all packets in flight count as lost.
const TIMEOUT_INITIAL: Span = Span::from_secs(1);
/// 200 ms: the shortest retransmission timeout of a simulated flow, as Linux has it for TCP. After
/// the timeout all packets in flight count as lost.
const TIMEOUT_MIN: Span = Span::from_ms(200);
/// 6: the most doublings of a simulated flow's retransmission timeout, one for each timeout in a
/// row. One that begins at 1 s ends at 64 s. RFC 6298 allows no bound below 60 s.
const TIMEOUT_DOUBLINGS_MAX: u32 = 6;
