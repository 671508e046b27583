//! Free ports on loopback for processes that are started in a moment.
//!
//! A process gets each block once. The ports lie below the ephemeral ports of Linux, so that no other
//! socket takes one in between.

use crate::config::LANES_MAX;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// First port in use, far below [`EPHEMERAL_FIRST`].
const FIRST: u16 = 16_384;
/// First port that Linux hands out by itself, unless it is configured otherwise.
const EPHEMERAL_FIRST: u16 = 32_768;
/// Blocks of ports, each as long as a gateway has lanes at most.
const BLOCKS: u32 = (EPHEMERAL_FIRST - FIRST) as u32 / LANES_MAX as u32;
/// Blocks between the first blocks of two processes with consecutive ids; prime, to spread them.
const PROCESS_STRIDE: u32 = 37;

/// Returns the first port of a free block: [`LANES_MAX`] UDP ports in a row. The first one is free
/// for TCP as well.
///
/// # Errors
/// `AddrNotAvailable` when no block is free.
pub fn block() -> io::Result<SocketAddr> {
    static NEXT: LazyLock<AtomicU32> =
        LazyLock::new(|| AtomicU32::new(std::process::id().wrapping_mul(PROCESS_STRIDE)));
    let blocks = (0..BLOCKS).map(|_| NEXT.fetch_add(1, Ordering::Relaxed) % BLOCKS);
    let mut firsts = blocks.map(|block| FIRST + u16::try_from(block).expect("few") * LANES_MAX);
    let first = firsts.find(|first| is_free(*first)).ok_or(io::ErrorKind::AddrNotAvailable)?;
    Ok(SocketAddr::new(LOOPBACK, first))
}

fn is_free(first: u16) -> bool {
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
        let taken: Vec<_> = (0..3).map(|_| block().expect("a free block")).collect();
        let held: Vec<_> =
            taken.iter().map(|first| UdpSocket::bind(first).expect("free")).collect();
        let found: BTreeSet<_> = (0..BLOCKS / 2).map(|_| block().expect("a free block")).collect();
        assert_eq!(found.len(), BLOCKS as usize / 2);
        assert!(held.iter().all(|held| !found.contains(&held.local_addr().expect("bound"))));
    }
}
