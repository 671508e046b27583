//! The errors of the virtual network's users, and the counts of undelivered packets.

use std::net::{IpAddr, SocketAddr};

/// An address that no socket can have. The caller's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// A virtual host has no wildcard address.
    #[error("cannot bind {0}: name one address of the virtual host")]
    Unspecified(SocketAddr),
    /// Another socket has the address.
    #[error("cannot bind {0}: in use")]
    InUse(SocketAddr),
}

/// No link leads this way. The caller's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no link from {from} to {to}: connect them first")]
pub struct NoLink {
    /// The sending side.
    pub from: IpAddr,
    /// The receiving side.
    pub to: IpAddr,
}

/// Packets that met no link or no reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Undelivered {
    /// Packets for which no link leads from the sender's address to the destination's.
    pub no_link: u64,
    /// Packets that had no socket at the end of their link when they were sent.
    pub no_socket: u64,
    /// Packets from or to a muted socket.
    pub muted: u64,
    /// Packets in flight when all packets of a direction were dropped.
    pub dropped: u64,
    /// Packets to a socket that already held [`INBOX_BYTES_MAX`].
    pub inbox_full: u64,
    /// Transmits of more bytes or segments than a kernel takes in one call. It refuses these, which
    /// quinn ignores.
    pub too_big: u64,
}

/// 8 GiB: the most bytes of payload that are in flight to one socket of a virtual network, or
/// unread there. Further datagrams are dropped and counted. The limit of memory is chosen, a second
/// at 64 Gbit/s.
pub const INBOX_BYTES_MAX: usize = 8 << 30;
