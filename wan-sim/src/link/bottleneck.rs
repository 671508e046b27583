//! The rate limit and the byte-limited drop-tail queue before it.

use super::delay::Arrival;
use super::fate::PacketName;
use super::spec::LinkSpec;
use std::collections::VecDeque;
use units::{BitRate, ByteCount, TimeNs};

/// One sender working at a rate. Sending times carry their remainder, so that a thousand
/// packets take exactly as long as their bits.
#[derive(Debug)]
pub(super) struct Bottleneck {
    /// When everything accepted so far has been sent, rounded down.
    clear_at: TimeNs,
    /// Work done after `clear_at` and before the rounding, in billionths of a bit.
    spent: u64,
    /// The packet whose sending began last.
    sending: Option<UnsentPacket>,
    /// Packets whose sending has not begun: at most the queue's bytes of them.
    waiting: VecDeque<UnsentPacket>,
    waiting_bytes: u64,
    waiting_bytes_peak: u64,
}

/// A packet that is not sent yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnsentPacket {
    pub(super) name: PacketName,
    entered: TimeNs,
    sent_from: TimeNs,
    pub(super) sent: TimeNs,
    ip_bytes: u32,
    work_bytes: u64,
    /// The result of the delay line.
    pub(super) arrival: Arrival,
}

/// A packet to send.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transmission {
    pub(super) name: PacketName,
    pub(super) entered: TimeNs,
    pub(super) ip_bytes: u32,
}

/// A change of the rate; `None` is without a limit.
#[derive(Debug, Clone, Copy)]
pub(super) struct RateChange {
    pub(super) before: Option<BitRate>,
    pub(super) after: Option<BitRate>,
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
    /// Makes a bottleneck that has nothing to send, with its clock at zero.
    pub(super) fn new() -> Self {
        Self {
            clear_at: TimeNs::default(),
            spent: 0,
            sending: None,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            waiting_bytes_peak: 0,
        }
    }

    /// Queues a packet for sending; returns `None` when the queue has no room. `later` holds the
    /// changes of the rate after the packet enters, in order of time.
    pub(super) fn accept_packet(
        &mut self,
        transmission: Transmission,
        spec: &LinkSpec,
        later: impl Iterator<Item = (TimeNs, Option<BitRate>)>,
    ) -> Option<Accepted> {
        let Transmission { name, entered, ip_bytes } = transmission;
        self.remove_started(entered);
        let waits = self.clear_at > entered;
        if waits {
            let waiting_bytes = self.waiting_bytes + u64::from(ip_bytes);
            if waiting_bytes > spec.queue().get() {
                return None;
            }
            self.waiting_bytes = waiting_bytes;
            self.waiting_bytes_peak = self.waiting_bytes_peak.max(waiting_bytes);
        }
        let work_bytes = u64::from(ip_bytes) + u64::from(spec.overhead_bytes());
        let arrival = Arrival::default();
        let sent_from = self.clear_at.max(entered);
        let work = u128::from(work_bytes) * 8 * NS_PER_SECOND;
        self.add_work(entered, work, spec.rate(), later);
        let sent = self.clear_at;
        let held = UnsentPacket { name, entered, sent_from, sent, ip_bytes, work_bytes, arrival };
        if waits {
            self.waiting.push_back(held);
        } else {
            self.sending = Some(held);
        }
        Some(Accepted { sent, waiting_bytes: self.waiting_bytes })
    }

    /// Returns the packet that was accepted last; `None` if all packets have been sent.
    pub(super) fn newest_packet(&mut self) -> Option<&mut UnsentPacket> {
        self.waiting.back_mut().or(self.sending.as_mut())
    }

    /// Changes the rate at `now`. Packets accepted before and not sent yet are sent at the new
    /// rate. Returns these packets in order, each with the sending time that it had before.
    pub(super) fn change_rate<I: Iterator<Item = (TimeNs, Option<BitRate>)>>(
        &mut self,
        now: TimeNs,
        change: RateChange,
        later: impl Fn() -> I,
    ) -> Vec<(&mut UnsentPacket, TimeNs)> {
        let RateChange { before, after } = change;
        self.remove_started(now);
        self.spent = 0;
        let begun = self.sending.iter_mut().filter(|held| held.sent > now);
        let unsent = begun.chain(&mut self.waiting).map(|held| (held.sent, held));
        let mut unsent: Vec<_> = unsent.map(|(was, held)| (held, was)).collect();
        let mut clock = Self::new();
        clock.clear_at = unsent.first().map_or(now, |(first, _)| first.sent_from.max(now));
        for (held, _) in &mut unsent {
            let work = if held.sent_from <= now {
                bottleneck_work_between(now, held.sent, before, later())
            } else {
                u128::from(held.work_bytes) * 8 * NS_PER_SECOND
            };
            held.sent_from = clock.clear_at.max(held.entered);
            clock.add_work(held.entered, work, after, later());
            held.sent = clock.clear_at;
        }
        if !unsent.is_empty() {
            (self.clear_at, self.spent) = (clock.clear_at, clock.spent);
        }
        unsent
    }

    /// Returns the bytes of IP packets that wait at `now`, without the one being sent.
    pub(super) fn waiting_bytes(&mut self, now: TimeNs) -> ByteCount {
        self.remove_started(now);
        ByteCount::new(self.waiting_bytes)
    }

    /// Returns the most bytes of IP packets that ever waited at once.
    pub(super) fn waiting_bytes_peak(&self) -> ByteCount {
        ByteCount::new(self.waiting_bytes_peak)
    }

    /// Removes from the queue the packets whose sending has begun by `now`.
    fn remove_started(&mut self, now: TimeNs) {
        while let Some(front) = self.waiting.front()
            && front.sent_from <= now
        {
            self.waiting_bytes -= u64::from(front.ip_bytes);
            self.sending = self.waiting.pop_front();
        }
    }

    /// Adds `work`, in billionths of a bit, not before `entered`: moves `clear_at`, the time when
    /// all work is done. `rate` holds until the first change in `later`; `None` is unlimited.
    fn add_work(
        &mut self,
        entered: TimeNs,
        work: u128,
        mut rate: Option<BitRate>,
        later: impl Iterator<Item = (TimeNs, Option<BitRate>)>,
    ) {
        if entered > self.clear_at {
            self.clear_at = entered;
            self.spent = 0;
        }
        let mut work = work + u128::from(self.spent);
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

/// Returns the work done from `from` until `to`, in billionths of a bit: `rate` at first, changed
/// by `later` at the times given there.
fn bottleneck_work_between(
    from: TimeNs,
    to: TimeNs,
    mut rate: Option<BitRate>,
    later: impl Iterator<Item = (TimeNs, Option<BitRate>)>,
) -> u128 {
    let (mut from, mut work) = (from, 0);
    let in_time = |rate: Option<BitRate>, from: TimeNs, to: TimeNs| {
        u128::from(rate.map_or(0, BitRate::bits_per_second)) * u128::from(to.since(from).ns())
    };
    for (at, next) in later.take_while(|(at, _)| *at < to) {
        work += in_time(rate, from, at);
        (from, rate) = (from.max(at), next);
    }
    work + in_time(rate, from, to)
}

/// 1,000,000,000 nanoseconds in a second.
const NS_PER_SECOND: u128 = 1_000_000_000;
