//! The fates of packets on a link: arrival, mark or drop, and the counters of all.

use units::TimeNs;

/// The fate of a packet, and of its copy if the link made one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketFates {
    /// Number of the packet on this link, from 0.
    pub number: u64,
    /// The fate of the packet.
    pub fate: Fate,
    /// The fate of the copy that followed it.
    pub copy: Option<Fate>,
}

impl PacketFates {
    /// Returns the arrival of the packet and then of its copy, without those that are dropped.
    pub fn deliveries(self) -> impl Iterator<Item = (PacketName, Delivery)> {
        let named = |copy| PacketName { number: self.number, copy };
        let original = self.fate.delivery().map(|delivery| (named(false), delivery));
        let copy = self.copy.and_then(Fate::delivery).map(|delivery| (named(true), delivery));
        original.into_iter().chain(copy)
    }

    /// Returns the packet and its copy, without those whose fate is decided.
    pub fn queued(self) -> impl Iterator<Item = PacketName> {
        let named = |copy| PacketName { number: self.number, copy };
        let original = (self.fate == Fate::Queued).then(|| named(false));
        let copy = (self.copy == Some(Fate::Queued)).then(|| named(true));
        original.into_iter().chain(copy)
    }
}

/// Which packet of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PacketName {
    /// Position among the packets offered, from 0.
    pub number: u64,
    /// Whether it is the copy that the link made.
    pub copy: bool,
}

/// A packet of a link: one that was offered, or one of the cross traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::link) enum PacketOwner {
    Offered(PacketName),
    Cross(CrossName),
}

/// A packet of the cross traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::link) struct CrossName {
    /// Index of its flow.
    pub(in crate::link) flow: usize,
    /// Position in its flow, from 0.
    pub(in crate::link) number: u64,
}

/// The fate of a packet that had waited for it, as [`Fate::Queued`] says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decided {
    /// When it left the queue.
    pub at: TimeNs,
    /// The packet, which may be a copy.
    pub packet: PacketName,
    /// The packet's length in bytes.
    pub ip_bytes: u32,
    /// The fate, which is not [`Fate::Queued`].
    pub fate: Fate,
}

/// A packet whose arrival a change of the rate moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// The packet, which may be a copy.
    pub packet: PacketName,
    /// When it arrives now.
    pub at: TimeNs,
}

/// The fate of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The packet arrives.
    Deliver(Delivery),
    /// The packet is dropped.
    Drop(DropReason),
    /// The packet waits, and the queue's discipline decides when it leaves.
    Queued,
}

impl Fate {
    /// Returns how the packet arrives; `None` when it is dropped or not decided yet.
    pub fn delivery(self) -> Option<Delivery> {
        match self {
            Self::Deliver(delivery) => Some(delivery),
            Self::Drop(_) | Self::Queued => None,
        }
    }
}

/// How a packet arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// When its last bit arrives.
    pub at: TimeNs,
    /// Why the link marked it, if it did: congestion experienced.
    pub marked: Option<MarkReason>,
    /// One bit is flipped: the payload's bit with this number, modulo its length in bits.
    pub corrupt_bit: Option<u32>,
}

/// Why a packet was marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MarkReason {
    /// Instead of losing it at random.
    Loss,
    /// The queue was longer than the threshold.
    Queue,
    /// It had waited too long, by CoDel.
    Codel,
    /// The queue was long on average, by RED.
    Red,
}

impl MarkReason {
    /// Returns the reason in one word, as traces and recordings spell it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Queue => "queue",
            Self::Codel => "codel",
            Self::Red => "red",
        }
    }
}

/// Why a packet was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DropReason {
    /// Random loss, independent of other packets.
    Loss,
    /// Random loss in a burst: in the bad state of a Gilbert-Elliott chain.
    Burst,
    /// The script names it.
    Script,
    /// The queue had no room.
    Queue,
    /// It had waited too long, by CoDel.
    Codel,
    /// The queue was long on average, by RED.
    Red,
    /// It exceeded the rate and the burst of the policer.
    Policer,
    /// The link already held as many packets as it may, waiting or in flight.
    Limit,
    /// The packet was longer than the link's MTU.
    Mtu,
    /// The link was cut: an outage.
    Blackhole,
}

impl DropReason {
    /// Returns the reason in one word, as traces and recordings spell it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Burst => "burst",
            Self::Script => "script",
            Self::Queue => "queue",
            Self::Codel => "codel",
            Self::Red => "red",
            Self::Policer => "policer",
            Self::Limit => "limit",
            Self::Mtu => "mtu",
            Self::Blackhole => "blackhole",
        }
    }
}

/// Counters of a link since it was made. Copies that it made count only as `duplicated`, not among
/// the packets offered or dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FateCounters {
    /// Packets offered, whatever their fate.
    pub packets: u64,
    /// Bytes of IP packets offered, headers included, whatever their fate.
    pub ip_bytes: u64,
    /// Packets dropped by random loss, bursts included.
    pub drops_loss: u64,
    /// Packets of `drops_loss` that were dropped in a burst.
    pub drops_burst: u64,
    /// Packets dropped because the script names them.
    pub drops_script: u64,
    /// Packets dropped because the queue had no room.
    pub drops_queue: u64,
    /// Packets dropped by CoDel.
    pub drops_codel: u64,
    /// Packets dropped by RED.
    pub drops_red: u64,
    /// Packets dropped by the policer.
    pub drops_policer: u64,
    /// Packets dropped because the link held as many as it may.
    pub drops_limit: u64,
    /// Packets dropped because they were longer than the link takes.
    pub drops_mtu: u64,
    /// Packets dropped because the link was cut.
    pub drops_blackhole: u64,
    /// Packets delivered with a congestion mark of this link instead of lost at random.
    pub marked_loss: u64,
    /// Packets delivered with a congestion mark of this link because the queue was long.
    pub marked_queue: u64,
    /// Packets delivered with a congestion mark of CoDel.
    pub marked_codel: u64,
    /// Packets delivered with a congestion mark of RED.
    pub marked_red: u64,
    /// Packets delivered with a flipped bit.
    pub corrupted: u64,
    /// Packets of which a copy was made.
    pub duplicated: u64,
}

impl FateCounters {
    /// Counts a packet's mark or flipped bit, or the reason for its drop. A packet that is
    /// still under way is counted when its fate is known.
    pub(in crate::link) fn count_fate(&mut self, fate: &Fate) {
        match fate {
            Fate::Deliver(delivery) => {
                self.corrupted += u64::from(delivery.corrupt_bit.is_some());
                match delivery.marked {
                    None => {}
                    Some(MarkReason::Loss) => self.marked_loss += 1,
                    Some(MarkReason::Queue) => self.marked_queue += 1,
                    Some(MarkReason::Codel) => self.marked_codel += 1,
                    Some(MarkReason::Red) => self.marked_red += 1,
                }
            }
            Fate::Drop(DropReason::Loss) => self.drops_loss += 1,
            Fate::Drop(DropReason::Burst) => {
                self.drops_loss += 1;
                self.drops_burst += 1;
            }
            Fate::Drop(DropReason::Script) => self.drops_script += 1,
            Fate::Drop(DropReason::Queue) => self.drops_queue += 1,
            Fate::Drop(DropReason::Codel) => self.drops_codel += 1,
            Fate::Drop(DropReason::Red) => self.drops_red += 1,
            Fate::Drop(DropReason::Policer) => self.drops_policer += 1,
            Fate::Drop(DropReason::Limit) => self.drops_limit += 1,
            Fate::Drop(DropReason::Mtu) => self.drops_mtu += 1,
            Fate::Drop(DropReason::Blackhole) => self.drops_blackhole += 1,
            Fate::Queued => {}
        }
    }

    /// Returns the packets dropped, for any reason.
    pub fn drops(&self) -> u64 {
        self.drops_loss
            + self.drops_script
            + self.drops_queue
            + self.drops_codel
            + self.drops_red
            + self.drops_policer
            + self.drops_limit
            + self.drops_mtu
            + self.drops_blackhole
    }
}
