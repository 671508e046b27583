//! Everything a network did, packet by packet, and a running hash over it.

use crate::recording::FateWord;
use crate::{Fate, Mark, Offered, Reason};
use std::fmt;
use std::net::SocketAddr;
use units::TimeNs;

/// One packet and its fate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceRecord {
    /// When it was offered.
    pub now: TimeNs,
    /// The sender's address.
    pub source: SocketAddr,
    /// For whom.
    pub destination: SocketAddr,
    /// Length with IP and UDP headers, in bytes.
    pub ip_bytes: u32,
    /// The fate; `None` where no link leads to its destination.
    pub offered: Option<Offered>,
}

/// One line without its end: time in nanoseconds, source, destination, bytes, fate.
impl fmt::Display for TraceRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { now, source, destination, ip_bytes, offered } = self;
        write!(f, "{} {source} {destination} {ip_bytes} ", now.ns())?;
        let Some(offered) = offered else {
            return write!(f, "unreachable");
        };
        write!(f, "{}", FateWord(offered.fate))?;
        offered.copy.map_or(Ok(()), |copy| write!(f, " copy {}", FateWord(copy)))
    }
}

/// FNV-1a over the records in order. Equal hashes: the same packets, times and fates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceHash(u64);

impl Default for TraceHash {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl TraceHash {
    /// Adds `record`.
    pub fn add(&mut self, record: &TraceRecord) {
        self.word(record.now.ns());
        self.address(record.source);
        self.address(record.destination);
        self.word(u64::from(record.ip_bytes));
        let Some(offered) = record.offered else {
            return self.byte(0);
        };
        self.fate(offered.fate);
        if let Some(copy) = offered.copy {
            self.byte(b'+');
            self.fate(copy);
        }
    }

    /// The hash so far.
    pub fn value(self) -> u64 {
        self.0
    }

    fn fate(&mut self, fate: Fate) {
        match fate {
            Fate::Drop(Reason::Loss) => self.byte(1),
            Fate::Drop(Reason::Queue) => self.byte(2),
            Fate::Drop(Reason::Blackhole) => self.byte(3),
            Fate::Drop(Reason::Script) => self.byte(5),
            Fate::Drop(Reason::Limit) => self.byte(6),
            Fate::Drop(Reason::Mtu) => self.byte(7),
            Fate::Deliver(delivery) => {
                self.byte(4);
                self.word(delivery.at.ns());
                if let Some(mark) = delivery.marked {
                    self.byte(if mark == Mark::Loss { b'm' } else { b'q' });
                }
                if let Some(bit) = delivery.corrupt_bit {
                    self.byte(b'c');
                    self.word(u64::from(bit));
                }
            }
        }
    }

    fn address(&mut self, address: SocketAddr) {
        match address {
            SocketAddr::V4(v4) => v4.ip().octets().into_iter().for_each(|b| self.byte(b)),
            SocketAddr::V6(v6) => v6.ip().octets().into_iter().for_each(|b| self.byte(b)),
        }
        self.word(u64::from(address.port()));
    }

    fn word(&mut self, word: u64) {
        word.to_le_bytes().into_iter().for_each(|byte| self.byte(byte));
    }

    fn byte(&mut self, byte: u8) {
        self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
}
