//! The rate limit and the byte-limited drop-tail queue before it.

use super::LinkSpec;
use std::collections::VecDeque;
use units::{BitRate, ByteCount, TimeNs};

/// One sender working at a fixed rate. Sending times carry their remainder, so that a
/// thousand packets take exactly as long as their bits.
#[derive(Debug)]
pub(super) struct Bottleneck {
    rate: BitRate,
    queue: ByteCount,
    /// When everything accepted so far has been sent, rounded down.
    clear_at: TimeNs,
    /// What the rounding left, in ns / rate.
    remainder: u64,
    /// Packets whose sending has not begun: at most `queue` bytes of them.
    waiting: VecDeque<Waiting>,
    waiting_bytes: u64,
    waiting_bytes_peak: u64,
}

#[derive(Debug)]
struct Waiting {
    sent_from: TimeNs,
    ip_bytes: u32,
}

impl Bottleneck {
    pub(super) fn new(spec: &LinkSpec) -> Self {
        Self {
            rate: spec.rate(),
            queue: spec.queue(),
            clear_at: TimeNs::default(),
            remainder: 0,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            waiting_bytes_peak: 0,
        }
    }

    /// Rate and queue for packets accepted from now on.
    pub(super) fn set(&mut self, spec: &LinkSpec) {
        if self.rate != spec.rate() {
            self.rate = spec.rate();
            self.remainder = 0;
        }
        self.queue = spec.queue();
    }

    /// When the packet's last bit leaves; `None` when the queue has no room for it.
    pub(super) fn accept(&mut self, now: TimeNs, ip_bytes: u32) -> Option<TimeNs> {
        self.forget_sent(now);
        if now > self.clear_at {
            self.clear_at = now;
            self.remainder = 0;
        }
        if self.clear_at > now {
            let waiting_bytes = self.waiting_bytes + u64::from(ip_bytes);
            if waiting_bytes > self.queue.get() {
                return None;
            }
            self.waiting_bytes = waiting_bytes;
            self.waiting_bytes_peak = self.waiting_bytes_peak.max(waiting_bytes);
            self.waiting.push_back(Waiting { sent_from: self.clear_at, ip_bytes });
        }
        self.send(ip_bytes);
        Some(self.clear_at)
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

    fn send(&mut self, ip_bytes: u32) {
        let rate = u128::from(self.rate.bits_per_second());
        let bit_ns = u128::from(ip_bytes) * 8 * 1_000_000_000 + u128::from(self.remainder);
        self.remainder = (bit_ns % rate) as u64;
        // At most 2^32 bytes at 1 bit/s: below 2^65 ns, so saturate rather than wrap.
        let ns = u64::try_from(bit_ns / rate).unwrap_or(u64::MAX);
        self.clear_at = TimeNs::from_ns(self.clear_at.ns().saturating_add(ns));
    }
}
