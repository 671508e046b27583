//! Free ports on loopback for processes that are started in a moment.
//!
//! A process gets each block once. The ports lie below the ephemeral ports of Linux, so that no
//! other socket takes one in between.

use crate::config::LANES_MAX;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// 127.0.0.1: the address at which processes on one machine reach each other.
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// UDP port 16,384: the lowest port of any block, which is a row of ports for one gateway's lanes.
/// By default Linux gives no ports below [`EPHEMERAL_PORT_FIRST`] to other sockets.
const BLOCK_PORT_FIRST: u16 = 16_384;
/// Port 32,768: the lowest that Linux by default gives to sockets that ask for any free port.
const EPHEMERAL_PORT_FIRST: u16 = 32_768;
/// 1,024: number of blocks of [`LANES_MAX`] ports between [`BLOCK_PORT_FIRST`] and
/// [`EPHEMERAL_PORT_FIRST`].
const PORT_BLOCKS: u32 = (EPHEMERAL_PORT_FIRST - BLOCK_PORT_FIRST) as u32 / LANES_MAX as u32;
/// 37 blocks of ports: distance between the first blocks that two processes with consecutive ids
/// try. A prime number spreads the processes over all blocks.
const PROCESS_BLOCK_STRIDE: u32 = 37;

/// Returns the first port of a free block: [`LANES_MAX`] UDP ports in a row. The first one is free
/// for TCP as well.
///
/// # Errors
/// `AddrNotAvailable` when no block is free.
pub fn free_port_block() -> io::Result<SocketAddr> {
    /// Number of the next block of ports that this process tries, modulo [`PORT_BLOCKS`].
    static NEXT_BLOCK: LazyLock<AtomicU32> =
        LazyLock::new(|| AtomicU32::new(std::process::id().wrapping_mul(PROCESS_BLOCK_STRIDE)));
    let blocks = (0..PORT_BLOCKS).map(|_| NEXT_BLOCK.fetch_add(1, Ordering::Relaxed) % PORT_BLOCKS);
    let mut firsts =
        blocks.map(|block| BLOCK_PORT_FIRST + u16::try_from(block).expect("few") * LANES_MAX);
    let first =
        firsts.find(|first| is_port_block_free(*first)).ok_or(io::ErrorKind::AddrNotAvailable)?;
    Ok(SocketAddr::new(LOOPBACK, first))
}

/// Whether all UDP ports of the block that starts at `first` are free, and TCP port `first`.
fn is_port_block_free(first: u16) -> bool {
    let mut udp = first..first + LANES_MAX;
    udp.all(|port| UdpSocket::bind((LOOPBACK, port)).is_ok())
        && TcpListener::bind((LOOPBACK, first)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_block_is_free_and_is_returned_once() {
        let taken: Vec<_> = (0..3).map(|_| free_port_block().expect("a free block")).collect();
        let held: Vec<_> =
            taken.iter().map(|first| UdpSocket::bind(first).expect("free")).collect();
        let found: BTreeSet<_> =
            (0..PORT_BLOCKS / 2).map(|_| free_port_block().expect("a free block")).collect();
        assert_eq!(found.len(), PORT_BLOCKS as usize / 2);
        assert!(held.iter().all(|held| !found.contains(&held.local_addr().expect("bound"))));
    }
}
