//! The lines of a recording that packets make, as both the writer and the replay spell them.

use crate::{Decided, Fate, Moved, Packet, PacketFates, PacketFlow};
use std::fmt;
use units::TimeNs;

/// The line of a packet and its fate.
pub(super) struct PacketLine<'a> {
    pub(super) index: usize,
    pub(super) now: TimeNs,
    pub(super) packet: Packet,
    pub(super) offered: &'a PacketFates,
}

impl fmt::Display for PacketLine<'_> {
    /// Writes link, time in ns, bytes, ECN capability, the flow where one is known, and fate,
    /// without an end of line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, now, packet, offered } = self;
        let ecn = if packet.ecn_capable { "ect" } else { "not" };
        write!(f, "{index} {} {} {ecn} ", now.ns(), packet.ip_bytes)?;
        if packet.flow != PacketFlow::default() {
            write!(f, "flow:{} ", packet.flow.number())?;
        }
        write!(f, "{}", RecordedFate(offered.fate))?;
        offered.copy.map_or(Ok(()), |copy| write!(f, " copy {}", RecordedFate(copy)))
    }
}

/// The line of a packet whose arrival a change of the rate moved.
pub(super) struct MovedLine<'a> {
    pub(super) index: usize,
    pub(super) moved: &'a Moved,
}

impl fmt::Display for MovedLine<'_> {
    /// Writes link, `moved`, packet and new arrival time in ns, without an end of line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Moved { packet, at } = self.moved;
        let copy = if packet.copy { " copy" } else { "" };
        write!(f, "{} moved {}{copy} {}", self.index, packet.number, at.ns())
    }
}

/// The line of a packet whose fate was decided when it left the queue.
pub(super) struct DecidedLine<'a> {
    pub(super) index: usize,
    pub(super) decided: &'a Decided,
}

impl fmt::Display for DecidedLine<'_> {
    /// Writes link, `decided`, time in ns, packet and fate, without an end of line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Decided { at, packet, fate, .. } = self.decided;
        let copy = if packet.copy { " copy" } else { "" };
        let (index, number, fate) = (self.index, packet.number, RecordedFate(*fate));
        write!(f, "{index} decided {} {number}{copy} {fate}", at.ns())
    }
}

/// A fate as recordings and traces spell it.
pub(crate) struct RecordedFate(pub(crate) Fate);

impl fmt::Display for RecordedFate {
    /// Writes `queued`, or `drop:` with the reason, or the arrival time in ns with mark and flipped
    /// bit.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Fate::Drop(reason) => write!(f, "drop:{}", reason.word()),
            Fate::Queued => write!(f, "queued"),
            Fate::Deliver(delivery) => {
                write!(f, "{}", delivery.at.ns())?;
                if let Some(mark) = delivery.marked {
                    write!(f, " marked:{}", mark.word())?;
                }
                delivery.corrupt_bit.map_or(Ok(()), |bit| write!(f, " bit:{bit}"))
            }
        }
    }
}

/// The first line of every recording of packets, with 1 as the version of its format. A replay
/// refuses a text with another first line.
pub(super) const HEADER_LINE: &str = "wan-sim recording 1";
