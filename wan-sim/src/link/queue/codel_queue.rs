//! A queue under CoDel: packets wait in order, and their fate is decided when they leave.

use super::discipline::Codel;
use std::collections::VecDeque;
use units::{Span, TimeNs};

/// A queue that decides by the wait of the packets that leave it, as RFC 8289 has it.
#[derive(Debug)]
pub(in crate::link) struct CodelQueue<T> {
    waiting: VecDeque<QueuedPacket<T>>,
    bytes: u64,
    /// The longest packet so far: a queue that holds no more is as short as it can be.
    packet_bytes_max: u64,
    /// When the wait will have been above the target for an interval; `None` while it is below.
    first_above: Option<TimeNs>,
    drop_next: TimeNs,
    /// Drops since the dropping state began.
    count: u64,
    /// The count with which the dropping state began.
    last_count: u64,
    dropping: bool,
}

/// A packet that waits.
#[derive(Debug)]
pub(in crate::link) struct QueuedPacket<T> {
    pub(in crate::link) item: T,
    pub(in crate::link) entered: TimeNs,
    pub(in crate::link) ip_bytes: u32,
    pub(in crate::link) ecn_capable: bool,
}

/// The packets that left the queue at once.
#[derive(Debug)]
pub(in crate::link) struct Departure<T> {
    /// Those that were dropped, in order.
    pub(in crate::link) dropped: Vec<QueuedPacket<T>>,
    /// The one that is sent, and whether it is marked; `None` where all were dropped.
    pub(in crate::link) sent: Option<(QueuedPacket<T>, bool)>,
}

impl<T> CodelQueue<T> {
    /// Makes an empty queue.
    pub(in crate::link) fn new() -> Self {
        Self {
            waiting: VecDeque::new(),
            bytes: 0,
            packet_bytes_max: 0,
            first_above: None,
            drop_next: TimeNs::default(),
            count: 0,
            last_count: 0,
            dropping: false,
        }
    }

    /// Returns the bytes of IP packets that wait.
    pub(in crate::link) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of packets that wait.
    pub(in crate::link) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns when the first packet that waits came; `None` when none waits.
    pub(in crate::link) fn first_entered(&self) -> Option<TimeNs> {
        self.waiting.front().map(|first| first.entered)
    }

    /// Adds a packet behind all others.
    pub(in crate::link) fn push(&mut self, packet: QueuedPacket<T>) {
        self.bytes += u64::from(packet.ip_bytes);
        self.packet_bytes_max = self.packet_bytes_max.max(u64::from(packet.ip_bytes));
        self.waiting.push_back(packet);
    }

    /// Takes the next packet to send at `now`, and those dropped before it. Without `codel`, which
    /// a change of the link may take away, none is dropped.
    pub(in crate::link) fn take_next(&mut self, now: TimeNs, codel: Option<Codel>) -> Departure<T> {
        let mut dropped = Vec::new();
        let Some(codel) = codel else {
            let sent = self.pop(now, Codel::RECOMMENDED).0.map(|packet| (packet, false));
            return Departure { dropped, sent };
        };
        let (mut packet, mut may_drop) = self.pop(now, codel);
        let mut marked = false;
        if self.dropping {
            self.dropping = may_drop;
            while self.dropping && now >= self.drop_next {
                let Some(taken) = packet.take() else { break };
                self.count += 1;
                if taken.ecn_capable {
                    (packet, marked) = (Some(taken), true);
                    self.drop_next = self.time_after(self.drop_next, codel.interval);
                    break;
                }
                dropped.push(taken);
                (packet, may_drop) = self.pop(now, codel);
                if may_drop {
                    self.drop_next = self.time_after(self.drop_next, codel.interval);
                } else {
                    self.dropping = false;
                }
            }
        } else if may_drop && let Some(taken) = packet.take() {
            if taken.ecn_capable {
                (packet, marked) = (Some(taken), true);
            } else {
                dropped.push(taken);
                packet = self.pop(now, codel).0;
            }
            self.begin_dropping(now, codel);
        }
        Departure { dropped, sent: packet.map(|packet| (packet, marked)) }
    }

    /// Enters the dropping state, at the rate of the last one if that ended less than 16 intervals
    /// ago.
    fn begin_dropping(&mut self, now: TimeNs, codel: Codel) {
        self.dropping = true;
        let more = self.count.saturating_sub(self.last_count);
        let recent = now.since(self.drop_next).ns() < RECENT_INTERVALS * codel.interval.ns();
        self.count = if more > 1 && recent { more } else { 1 };
        self.drop_next = self.time_after(now, codel.interval);
        self.last_count = self.count;
    }

    /// Removes the first packet. Returns it, and whether it may be dropped: all packets of the last
    /// interval have waited longer than the target. The queue must also still hold more bytes than
    /// the longest packet.
    fn pop(&mut self, now: TimeNs, codel: Codel) -> (Option<QueuedPacket<T>>, bool) {
        let Some(packet) = self.waiting.pop_front() else {
            self.first_above = None;
            return (None, false);
        };
        self.bytes -= u64::from(packet.ip_bytes);
        if now.since(packet.entered) < codel.target || self.bytes <= self.packet_bytes_max {
            self.first_above = None;
            return (Some(packet), false);
        }
        let first_above = *self.first_above.get_or_insert(now + codel.interval);
        (Some(packet), now >= first_above)
    }

    /// Returns the time of the next drop after `from`: the control law of RFC 8289.
    fn time_after(&self, from: TimeNs, interval: Span) -> TimeNs {
        // The square root is one that every machine rounds alike.
        from + Span::from_ns((interval.ns() as f64 / (self.count as f64).sqrt()) as u64)
    }
}

/// 16 intervals of CoDel: a dropping state that begins sooner after the last one goes on at the
/// last one's rate of drops. A later one begins with one drop an interval. RFC 8289 has this
/// number.
const RECENT_INTERVALS: u64 = 16;
