//! Everything a network did, packet by packet, and a running hash over it.

use crate::recording::RecordedFate;
use crate::{DropReason, Fate, MarkReason, PacketFates};
use std::fmt;
use std::net::SocketAddr;
use units::TimeNs;

/// One packet and its fate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceRecord {
    /// When it was offered, or when the fate of a packet that waited for one was decided.
    pub now: TimeNs,
    /// The sender's address.
    pub source: SocketAddr,
    /// For whom.
    pub destination: SocketAddr,
    /// Length with IP and UDP headers, in bytes.
    pub ip_bytes: u32,
    /// The fate; `None` where no link leads to its destination.
    pub offered: Option<PacketFates>,
}

impl fmt::Display for TraceRecord {
    /// Writes one line without its end: time in nanoseconds, source, destination, bytes, fate.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { now, source, destination, ip_bytes, offered } = self;
        write!(f, "{} {source} {destination} {ip_bytes} ", now.ns())?;
        let Some(offered) = offered else {
            return write!(f, "unreachable");
        };
        write!(f, "{}", RecordedFate(offered.fate))?;
        offered.copy.map_or(Ok(()), |copy| write!(f, " copy {}", RecordedFate(copy)))
    }
}

/// FNV-1a over the records in order. Equal hashes: the same packets, times and fates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceHash(u64);

impl Default for TraceHash {
    /// Makes the hash of no records: the offset basis of 64-bit FNV-1a.
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl TraceHash {
    /// Updates the hash with `record`: time, addresses, size and fate.
    pub fn add_record(&mut self, record: &TraceRecord) {
        self.add_u64(record.now.ns());
        self.add_address(record.source);
        self.add_address(record.destination);
        self.add_u64(u64::from(record.ip_bytes));
        let Some(offered) = record.offered else {
            return self.add_byte(0);
        };
        self.add_fate(offered.fate);
        if let Some(copy) = offered.copy {
            self.add_byte(b'+');
            self.add_fate(copy);
        }
    }

    /// Returns the hash over all records so far.
    pub fn value(self) -> u64 {
        self.0
    }

    /// Updates the hash with a fate: a number for each kind, then time and flipped bit.
    fn add_fate(&mut self, fate: Fate) {
        match fate {
            Fate::Drop(DropReason::Loss) => self.add_byte(1),
            Fate::Drop(DropReason::Queue) => self.add_byte(2),
            Fate::Drop(DropReason::Blackhole) => self.add_byte(3),
            Fate::Drop(DropReason::Script) => self.add_byte(5),
            Fate::Drop(DropReason::Limit) => self.add_byte(6),
            Fate::Drop(DropReason::Mtu) => self.add_byte(7),
            Fate::Drop(DropReason::Burst) => self.add_byte(8),
            Fate::Drop(DropReason::Codel) => self.add_byte(9),
            Fate::Drop(DropReason::Red) => self.add_byte(10),
            Fate::Drop(DropReason::Policer) => self.add_byte(11),
            Fate::Queued => self.add_byte(12),
            Fate::Deliver(delivery) => {
                self.add_byte(4);
                self.add_u64(delivery.at.ns());
                if let Some(mark) = delivery.marked {
                    self.add_byte(match mark {
                        MarkReason::Loss => b'm',
                        MarkReason::Queue => b'q',
                        MarkReason::Codel => b'd',
                        MarkReason::Red => b'r',
                    });
                }
                if let Some(bit) = delivery.corrupt_bit {
                    self.add_byte(b'c');
                    self.add_u64(u64::from(bit));
                }
            }
        }
    }

    /// Updates the hash with the bytes of an IP address, then the port.
    fn add_address(&mut self, address: SocketAddr) {
        match address {
            SocketAddr::V4(v4) => v4.ip().octets().into_iter().for_each(|b| self.add_byte(b)),
            SocketAddr::V6(v6) => v6.ip().octets().into_iter().for_each(|b| self.add_byte(b)),
        }
        self.add_u64(u64::from(address.port()));
    }

    /// Updates the hash with the 8 bytes of `word`, in little-endian order.
    fn add_u64(&mut self, word: u64) {
        word.to_le_bytes().into_iter().for_each(|byte| self.add_byte(byte));
    }

    /// Updates the hash with one byte, by FNV-1a.
    fn add_byte(&mut self, byte: u8) {
        self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
}
