//! The rate limit or the recorded capacity, and the byte-limited queue before it.

use super::super::capacity::{CapacityRecording, RecordingUse};
use super::super::delay::DelayedArrival;
use super::super::link_spec::LinkSpec;
use super::super::packet::packet_fate::PacketOwner;
use std::collections::VecDeque;
use std::sync::Arc;
use units::{BitRate, TimeNs};

/// One sender working at a rate. Sending times carry their remainder, so that a thousand
/// packets take exactly as long as their bits.
#[derive(Debug)]
pub(in crate::link) struct Bottleneck {
    /// When everything accepted so far has been sent, rounded down.
    clear_at: TimeNs,
    /// Work done after `clear_at` and before the rounding, in billionths of a bit.
    spent: u64,
    /// The recorded capacity, which then counts in place of the rate.
    recorded: Option<RecordingUse>,
    /// The packet whose sending began last.
    sending: Option<UnsentPacket>,
    /// Packets whose sending has not begun: at most the queue's bytes of them.
    waiting: VecDeque<UnsentPacket>,
    waiting_bytes: u64,
}

/// A packet that is not sent yet.
#[derive(Debug, Clone, Copy)]
pub(in crate::link) struct UnsentPacket {
    pub(in crate::link) owner: PacketOwner,
    entered: TimeNs,
    sent_from: TimeNs,
    pub(in crate::link) sent: TimeNs,
    ip_bytes: u32,
    work_bytes: u64,
    /// The result of the delay line.
    pub(in crate::link) arrival: DelayedArrival,
}

/// A packet to send.
#[derive(Debug, Clone, Copy)]
pub(in crate::link) struct Transmission {
    pub(in crate::link) owner: PacketOwner,
    pub(in crate::link) entered: TimeNs,
    pub(in crate::link) ip_bytes: u32,
}

/// A change of the rate; `None` is without a limit.
#[derive(Debug, Clone, Copy)]
pub(in crate::link) struct BottleneckRateChange {
    pub(in crate::link) before: Option<BitRate>,
    pub(in crate::link) after: Option<BitRate>,
}

/// A packet that the bottleneck took.
#[derive(Debug, Clone, Copy)]
pub(in crate::link) struct Accepted {
    /// When its last bit leaves.
    pub(in crate::link) sent: TimeNs,
    /// Bytes that wait now, itself included.
    pub(in crate::link) waiting_bytes: u64,
}

impl Bottleneck {
    /// Makes a bottleneck that has nothing to send, with its clock at zero. A recorded capacity
    /// counts in place of the rate.
    pub(in crate::link) fn new(recorded: Option<Arc<CapacityRecording>>) -> Self {
        Self {
            clear_at: TimeNs::default(),
            spent: 0,
            recorded: recorded.map(RecordingUse::new),
            sending: None,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
        }
    }

    /// Returns when the sending of a packet would begin that comes at `entered`.
    pub(in crate::link) fn next_start(&self, entered: TimeNs) -> TimeNs {
        match &self.recorded {
            Some(recorded) => recorded.first_byte_at(entered),
            None => self.clear_at.max(entered),
        }
    }

    /// Returns when everything accepted so far has been sent.
    pub(in crate::link) fn clear_at(&self) -> TimeNs {
        self.clear_at
    }

    /// Returns the rate, or the mean of the recorded capacity; `None` without a limit.
    pub(in crate::link) fn mean_rate(&self, spec: &LinkSpec) -> Option<BitRate> {
        let recorded = self.recorded.as_ref().map(|used| used.recording().mean_rate());
        recorded.or(spec.rate())
    }

    /// Queues a packet for sending; returns `None` when the queue has no room. `later` holds the
    /// changes of the rate after the packet enters, in order of time.
    pub(in crate::link) fn accept_packet(
        &mut self,
        transmission: Transmission,
        spec: &LinkSpec,
        later: impl Iterator<Item = (TimeNs, Option<BitRate>)>,
    ) -> Option<Accepted> {
        let Transmission { owner, entered, ip_bytes } = transmission;
        self.remove_started(entered);
        let sent_from = self.next_start(entered);
        let waits = sent_from > entered;
        if waits {
            let waiting_bytes = self.waiting_bytes + u64::from(ip_bytes);
            if waiting_bytes > spec.queue().get() {
                return None;
            }
            self.waiting_bytes = waiting_bytes;
        }
        let work_bytes = u64::from(ip_bytes) + u64::from(spec.overhead_bytes());
        let arrival = DelayedArrival::default();
        if let Some(recorded) = &mut self.recorded {
            self.clear_at = recorded.deliver(entered, work_bytes);
        } else {
            let work = u128::from(work_bytes) * 8 * NS_PER_SECOND;
            self.add_work(entered, work, spec.rate(), later);
        }
        let sent = self.clear_at;
        let held = UnsentPacket { owner, entered, sent_from, sent, ip_bytes, work_bytes, arrival };
        if waits {
            self.waiting.push_back(held);
        } else {
            self.sending = Some(held);
        }
        Some(Accepted { sent, waiting_bytes: self.waiting_bytes })
    }

    /// Returns the packet that was accepted last, whether or not it has been sent; `None` before
    /// the first.
    pub(in crate::link) fn newest_packet(&mut self) -> Option<&mut UnsentPacket> {
        self.waiting.back_mut().or(self.sending.as_mut())
    }

    /// Changes the rate at `now`, which has no effect on a recorded capacity. Packets accepted
    /// before and not sent yet are sent at the new rate. Returns these packets in order, each with
    /// the sending time that it had before.
    pub(in crate::link) fn change_rate<I: Iterator<Item = (TimeNs, Option<BitRate>)>>(
        &mut self,
        now: TimeNs,
        change: BottleneckRateChange,
        later: impl Fn() -> I,
    ) -> Vec<(&mut UnsentPacket, TimeNs)> {
        let BottleneckRateChange { before, after } = change;
        if self.recorded.is_some() {
            return Vec::new();
        }
        self.remove_started(now);
        self.spent = 0;
        let begun = self.sending.iter_mut().filter(|held| held.sent > now);
        let unsent = begun.chain(&mut self.waiting).map(|held| (held.sent, held));
        let mut unsent: Vec<_> = unsent.map(|(was, held)| (held, was)).collect();
        let mut clock = Self::new(None);
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
    pub(in crate::link) fn waiting_bytes(&mut self, now: TimeNs) -> u64 {
        self.remove_started(now);
        self.waiting_bytes
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
