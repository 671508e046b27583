//! The rate limit and the byte-limited drop-tail queue before it.

use super::LinkSpec;
use std::collections::VecDeque;
use units::{BitRate, ByteCount, TimeNs};

/// One sender working at a rate. Sending times carry their remainder, so that a thousand
/// packets take exactly as long as their bits.
#[derive(Debug)]
pub(super) struct Bottleneck {
    /// When everything accepted so far has been sent, rounded down.
    clear_at: TimeNs,
    /// Work done after `clear_at` and before the rounding, in bits / 10^9.
    spent: u64,
    /// Packets whose sending has not begun: at most the queue's bytes of them.
    waiting: VecDeque<Waiting>,
    waiting_bytes: u64,
    waiting_bytes_peak: u64,
}

#[derive(Debug)]
struct Waiting {
    sent_from: TimeNs,
    ip_bytes: u32,
}

/// A packet that the bottleneck took.
#[derive(Debug, Clone, Copy)]
pub(super) struct Accepted {
    /// When its last bit leaves.
    pub(super) sent: TimeNs,
    /// Bytes that wait now, itself included.
    pub(super) waiting_bytes: u64,
}

impl Bottleneck {
    pub(super) fn new() -> Self {
        Self {
            clear_at: TimeNs::default(),
            spent: 0,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            waiting_bytes_peak: 0,
        }
    }

    /// Takes a packet, or `None` when the queue has no room for it. `later` are the changes
    /// of the rate after `now`, in order of time.
    pub(super) fn accept(
        &mut self,
        now: TimeNs,
        ip_bytes: u32,
        spec: &LinkSpec,
        later: impl Iterator<Item = (TimeNs, Option<BitRate>)>,
    ) -> Option<Accepted> {
        self.forget_sent(now);
        if now > self.clear_at {
            self.clear_at = now;
            self.spent = 0;
        }
        if self.clear_at > now {
            let waiting_bytes = self.waiting_bytes + u64::from(ip_bytes);
            if waiting_bytes > spec.queue().get() {
                return None;
            }
            self.waiting_bytes = waiting_bytes;
            self.waiting_bytes_peak = self.waiting_bytes_peak.max(waiting_bytes);
            self.waiting.push_back(Waiting { sent_from: self.clear_at, ip_bytes });
        }
        self.send(u64::from(ip_bytes) + u64::from(spec.overhead_bytes()), spec.rate(), later);
        Some(Accepted { sent: self.clear_at, waiting_bytes: self.waiting_bytes })
    }

    /// The rate changed without notice: what was rounded off is of the old one.
    pub(super) fn forget_remainder(&mut self) {
        self.spent = 0;
    }

    pub(super) fn waiting_bytes(&mut self, now: TimeNs) -> ByteCount {
        self.forget_sent(now);
        ByteCount::new(self.waiting_bytes)
    }

    pub(super) fn waiting_bytes_peak(&self) -> ByteCount {
        ByteCount::new(self.waiting_bytes_peak)
    }

    fn forget_sent(&mut self, now: TimeNs) {
        while let Some(front) = self.waiting.front()
            && front.sent_from <= now
        {
            self.waiting_bytes -= u64::from(front.ip_bytes);
            self.waiting.pop_front();
        }
    }

    fn send(
        &mut self,
        bytes: u64,
        mut rate: Option<BitRate>,
        later: impl Iterator<Item = (TimeNs, Option<BitRate>)>,
    ) {
        let mut work = u128::from(bytes) * 8 * NS + u128::from(self.spent);
        for (at, next) in later {
            if at > self.clear_at {
                let Some(rate) = rate else { break };
                let until_then =
                    u128::from(rate.bits_per_second()) * u128::from(at.since(self.clear_at).ns());
                if work <= until_then {
                    break;
                }
                work -= until_then;
                self.clear_at = at;
            }
            rate = next;
        }
        let Some(rate) = rate else {
            self.spent = 0;
            return;
        };
        let rate = u128::from(rate.bits_per_second());
        // 2^32 bytes at 1 bit/s take more than 2^64 ns: forever, then.
        let ns = u64::try_from(work / rate).unwrap_or(u64::MAX);
        self.spent = (work % rate) as u64;
        self.clear_at = TimeNs::from_ns(self.clear_at.ns().saturating_add(ns));
    }
}

const NS: u128 = 1_000_000_000;
