//! The packets that go into a link, and their fates.

use units::TimeNs;

/// A packet as far as a link sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// Length of the IP packet in bytes: a UDP payload plus 28 over IPv4, 48 over IPv6.
    pub ip_bytes: u32,
    /// Whether its header allows an ECN CE mark instead of a drop (ECT or CE).
    pub ecn_capable: bool,
}

impl Packet {
    /// Makes a packet of `ip_bytes` that cannot be ECN-marked.
    pub const fn new(ip_bytes: u32) -> Self {
        Self { ip_bytes, ecn_capable: false }
    }

    /// Makes a packet of `ip_bytes` that can be ECN-marked instead of dropped.
    pub const fn ecn_capable(ip_bytes: u32) -> Self {
        Self { ip_bytes, ecn_capable: true }
    }
}

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
}

/// Which packet of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PacketName {
    /// Position among the packets offered, from 0.
    pub number: u64,
    /// Whether it is the copy that the link made.
    pub copy: bool,
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
}

impl Fate {
    /// Returns how the packet arrives; `None` when it is dropped.
    pub fn delivery(self) -> Option<Delivery> {
        match self {
            Self::Deliver(delivery) => Some(delivery),
            Self::Drop(_) => None,
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
    /// The queue was long.
    Queue,
}

impl MarkReason {
    /// Returns the reason in one word, as traces and recordings spell it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Queue => "queue",
        }
    }
}

/// Why a packet was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DropReason {
    /// Random loss.
    Loss,
    /// The script names it.
    Script,
    /// The queue had no room.
    Queue,
    /// The link already held as many packets as it may, waiting or in flight.
    Limit,
    /// The packet was longer than the link's MTU.
    Mtu,
    /// The link was cut.
    Blackhole,
}

impl DropReason {
    /// Returns the reason in one word, as traces and recordings spell it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Script => "script",
            Self::Queue => "queue",
            Self::Limit => "limit",
            Self::Mtu => "mtu",
            Self::Blackhole => "blackhole",
        }
    }
}

/// Counters of a link since it was made. Copies that it made count only as `duplicated`, not among
/// the packets offered or dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkCounters {
    /// Packets offered, whatever their fate.
    pub packets: u64,
    /// Bytes of IP packets offered, headers included, whatever their fate.
    pub ip_bytes: u64,
    /// Packets dropped by random loss.
    pub drops_loss: u64,
    /// Packets dropped because the script names them.
    pub drops_script: u64,
    /// Packets dropped because the queue had no room.
    pub drops_queue: u64,
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
    /// Packets delivered with a flipped bit.
    pub corrupted: u64,
    /// Packets of which a copy was made.
    pub duplicated: u64,
}

impl LinkCounters {
    /// Counts a packet's mark or flipped bit, or the reason for its drop.
    pub(super) fn count_fate(&mut self, fate: &Fate) {
        match fate {
            Fate::Deliver(delivery) => {
                self.marked_loss += u64::from(delivery.marked == Some(MarkReason::Loss));
                self.marked_queue += u64::from(delivery.marked == Some(MarkReason::Queue));
                self.corrupted += u64::from(delivery.corrupt_bit.is_some());
            }
            Fate::Drop(DropReason::Loss) => self.drops_loss += 1,
            Fate::Drop(DropReason::Script) => self.drops_script += 1,
            Fate::Drop(DropReason::Queue) => self.drops_queue += 1,
            Fate::Drop(DropReason::Limit) => self.drops_limit += 1,
            Fate::Drop(DropReason::Mtu) => self.drops_mtu += 1,
            Fate::Drop(DropReason::Blackhole) => self.drops_blackhole += 1,
        }
    }

    /// Returns the packets dropped, for any reason.
    pub fn drops(&self) -> u64 {
        self.drops_loss
            + self.drops_script
            + self.drops_queue
            + self.drops_limit
            + self.drops_mtu
            + self.drops_blackhole
    }
}
