//! One direction of a link: loss, then rate and queue, then delay.

mod bottleneck;
mod spec;

pub use spec::{DELAY_MAX, LinkSpec, SpecError};

use crate::rng::Stream;
use bottleneck::Bottleneck;
use units::{ByteCount, TimeNs};

/// One direction of a link.
///
/// Offer each packet with the time it enters; its fate comes back at once. Times must not
/// go back. A change by [`Link::set_spec`] or [`Link::set_blackhole`] holds for packets
/// offered after it: those already accepted keep the delivery they were promised.
///
/// Each impairment has a random stream of its own and draws once for every packet offered,
/// so the loss that the n-th packet meets depends on the seed and n alone.
#[derive(Debug)]
pub struct Link {
    spec: LinkSpec,
    blackhole: bool,
    loss: Stream,
    jitter: Stream,
    bottleneck: Bottleneck,
    last_delivery: TimeNs,
    counters: Counters,
}

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It arrives.
    Deliver {
        /// When its last bit arrives.
        at: TimeNs,
    },
    /// It is gone.
    Drop(Reason),
}

/// Why a packet was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Random loss.
    Loss,
    /// The queue had no room.
    Queue,
    /// The link was cut.
    Blackhole,
}

/// What a link has seen since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Packets offered, whatever became of them.
    pub packets: u64,
    /// Bytes of IP packets offered, headers included, whatever became of them.
    pub ip_bytes: u64,
    /// Packets dropped by random loss.
    pub drops_loss: u64,
    /// Packets dropped because the queue had no room.
    pub drops_queue: u64,
    /// Packets dropped because the link was cut.
    pub drops_blackhole: u64,
}

impl Link {
    /// An idle link; `seed` decides every random draw.
    pub fn new(spec: LinkSpec, seed: u64) -> Self {
        Self {
            spec,
            blackhole: false,
            loss: Stream::new(seed, "loss"),
            jitter: Stream::new(seed, "jitter"),
            bottleneck: Bottleneck::new(&spec),
            last_delivery: TimeNs::default(),
            counters: Counters::default(),
        }
    }

    /// Takes a packet of `ip_bytes` (a UDP payload plus 28 over IPv4, plus 48 over IPv6)
    /// that enters at `now`.
    pub fn offer(&mut self, now: TimeNs, ip_bytes: u32) -> Fate {
        self.counters.packets += 1;
        self.counters.ip_bytes += u64::from(ip_bytes);
        let lost = self.loss.below(PPB) < u64::from(self.spec.loss().ppb());
        let jitter_ns = self.jitter.below(2 * self.spec.jitter().ns() + 1);
        if self.blackhole {
            self.counters.drops_blackhole += 1;
            return Fate::Drop(Reason::Blackhole);
        }
        if lost {
            self.counters.drops_loss += 1;
            return Fate::Drop(Reason::Loss);
        }
        let Some(sent) = self.bottleneck.accept(now, ip_bytes) else {
            self.counters.drops_queue += 1;
            return Fate::Drop(Reason::Queue);
        };
        let delay_ns = self.spec.delay().ns() - self.spec.jitter().ns() + jitter_ns;
        let at = TimeNs::from_ns(sent.ns().saturating_add(delay_ns)).max(self.last_delivery);
        self.last_delivery = at;
        Fate::Deliver { at }
    }

    /// Makes the link like `spec` for packets offered from now on.
    pub fn set_spec(&mut self, spec: LinkSpec) {
        self.spec = spec;
        self.bottleneck.set(&spec);
    }

    /// Cuts the link, or joins it again.
    pub fn set_blackhole(&mut self, blackhole: bool) {
        self.blackhole = blackhole;
    }

    /// What the link is like now.
    pub fn spec(&self) -> &LinkSpec {
        &self.spec
    }

    /// What the link has seen.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Bytes of packets that wait at `now`.
    pub fn queue_bytes(&mut self, now: TimeNs) -> ByteCount {
        self.bottleneck.waiting_bytes(now)
    }

    /// The most bytes that ever waited.
    pub fn queue_bytes_peak(&self) -> ByteCount {
        self.bottleneck.waiting_bytes_peak()
    }
}

const PPB: u64 = 1_000_000_000;

#[cfg(test)]
mod tests;
