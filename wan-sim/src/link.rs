//! One direction of a link: copies, loss, corruption; then rate and queue; then delay.

mod bottleneck;
mod delay;
mod fate;
mod loss;
mod queue_size;
mod script;
mod spec;

pub use delay::{Jitter, Order, Reorder, Shape};
pub use fate::{Counters, Delivery, Fate, Offered, Packet, Reason};
pub use loss::{GilbertElliott, Loss};
pub use queue_size::QueueSize;
pub use script::{Change, Script};
pub use spec::{DELAY_MAX, LinkSpec, SpecError};

use crate::rng::Stream;
use bottleneck::Bottleneck;
use delay::{DelayLine, Transit};
use loss::LossProcess;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use units::{ByteCount, TimeNs};

/// One direction of a link.
///
/// Offer each packet with the time it enters; its fate comes back at once. Times must not
/// go back. A change by [`Link::set_spec`] or [`Link::set_blackhole`] holds for packets
/// offered after it: those already accepted keep the delivery they were promised. A
/// [`Script`] is known ahead, so packets that wait when its rate changes are sent at the
/// new one.
///
/// Each impairment has a random stream of its own and draws for every packet offered, so
/// switching one on leaves the others' draws alone. Copies draw from streams of their own.
#[derive(Debug)]
pub struct Link {
    spec: LinkSpec,
    blackhole: bool,
    script: Script,
    duplicate: Stream,
    originals: Chances,
    copies: Chances,
    bottleneck: Bottleneck,
    /// Latest arrival of a packet that keeps order.
    last_arrival: TimeNs,
    /// Arrivals to come; kept only for a limit on packets.
    inside: BinaryHeap<Reverse<TimeNs>>,
    counters: Counters,
}

/// The random processes that a packet meets.
#[derive(Debug)]
struct Chances {
    loss: LossProcess,
    corrupt: Stream,
    delay: DelayLine,
}

/// What chance decided about a packet, whether or not it gets that far.
struct Draws {
    lost: bool,
    corrupt_bit: Option<u32>,
    transit: Transit,
}

impl Link {
    /// An idle link; `seed` decides every random draw.
    pub fn new(spec: LinkSpec, seed: u64) -> Self {
        Self::scripted(spec, Script::default(), seed)
    }

    /// An idle link that changes as `script` has it.
    pub fn scripted(spec: LinkSpec, script: Script, seed: u64) -> Self {
        Self {
            spec,
            blackhole: false,
            script,
            duplicate: Stream::new(seed, "duplicate"),
            originals: Chances::new(seed),
            copies: Chances::new(Stream::new(seed, "copies").next()),
            bottleneck: Bottleneck::new(),
            last_arrival: TimeNs::default(),
            inside: BinaryHeap::new(),
            counters: Counters::default(),
        }
    }

    /// Takes a packet that enters at `now`.
    pub fn offer(&mut self, now: TimeNs, packet: Packet) -> Offered {
        while let Some(change) = self.script.pop_change(now) {
            match change {
                Change::Spec(spec) => self.spec = spec,
                Change::Cut => self.blackhole = true,
                Change::Join => self.blackhole = false,
            }
        }
        let scripted = self.script.drops(self.counters.packets);
        self.counters.packets += 1;
        self.counters.ip_bytes += u64::from(packet.ip_bytes);
        let draws = self.originals.draw(&self.spec);
        let duplicated = self.duplicate.happens(self.spec.duplicate());
        let fate = if self.blackhole {
            Fate::Drop(Reason::Blackhole)
        } else if scripted {
            Fate::Drop(Reason::Script)
        } else {
            self.pass(now, packet, &draws, Who::Original)
        };
        self.counters.count(&fate);
        let copy = (duplicated && !self.blackhole).then(|| {
            self.counters.duplicated += 1;
            let draws = self.copies.draw(&self.spec);
            self.pass(now, packet, &draws, Who::Copy)
        });
        Offered { fate, copy }
    }

    fn pass(&mut self, now: TimeNs, packet: Packet, draws: &Draws, who: Who) -> Fate {
        let mut marked = false;
        if draws.lost {
            if !(self.spec.losses_marked() && packet.ecn_capable) {
                return Fate::Drop(Reason::Loss);
            }
            marked = true;
        }
        if let Some(limit) = self.spec.limit_packets() {
            while self.inside.peek().is_some_and(|Reverse(at)| *at <= now) {
                self.inside.pop();
            }
            if self.inside.len() >= limit.get() as usize {
                return Fate::Drop(Reason::Limit);
            }
        }
        let accepted =
            self.bottleneck.accept(now, packet.ip_bytes, &self.spec, self.script.rates());
        let Some(accepted) = accepted else {
            return Fate::Drop(Reason::Queue);
        };
        let threshold = self.spec.mark_above();
        marked |= packet.ecn_capable
            && threshold.is_some_and(|bytes| accepted.waiting_bytes > bytes.get());
        let chances = match who {
            Who::Original => &mut self.originals,
            Who::Copy => &mut self.copies,
        };
        let (sent, last) = (accepted.sent, &mut self.last_arrival);
        let at = chances.delay.arrival(&self.spec, draws.transit, sent, last);
        if self.spec.limit_packets().is_some() {
            self.inside.push(Reverse(at));
        }
        Fate::Deliver(Delivery { at, marked, corrupt_bit: draws.corrupt_bit })
    }

    /// Makes the link like `spec` for packets offered from now on.
    pub fn set_spec(&mut self, spec: LinkSpec) {
        if self.spec.rate() != spec.rate() {
            self.bottleneck.forget_remainder();
        }
        self.spec = spec;
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

#[derive(Clone, Copy)]
enum Who {
    Original,
    Copy,
}

impl Chances {
    fn new(seed: u64) -> Self {
        Self {
            loss: LossProcess::new(Stream::new(seed, "loss")),
            corrupt: Stream::new(seed, "corrupt"),
            delay: DelayLine::new(Stream::new(seed, "jitter"), Stream::new(seed, "reorder")),
        }
    }

    fn draw(&mut self, spec: &LinkSpec) -> Draws {
        let corrupt = self.corrupt.happens(spec.corrupt());
        let bit = (self.corrupt.next() >> 32) as u32;
        Draws {
            lost: self.loss.draw(&spec.loss()),
            corrupt_bit: corrupt.then_some(bit),
            transit: self.delay.draw(spec),
        }
    }
}

#[cfg(test)]
mod tests;
