//! Ports on loopback for processes that are started in a moment: no block twice from one process,
//! and below those that Linux hands to whoever asks for any, so that nobody takes one in between.

use crate::config::LANES_MAX;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Linux hands out 32,768 and above, unless it is told otherwise.
const FIRST: u16 = 16_384;
const BLOCKS: u32 = (32_768 - FIRST as u32) / LANES_MAX as u32;
/// Processes of neighbouring ids begin so many blocks apart.
const APART: u32 = 37;

/// The first of as many free UDP ports in a row as a gateway may take; its number is free for TCP
/// as well. `AddrNotAvailable` when there are none.
pub fn block() -> io::Result<SocketAddr> {
    static NEXT: LazyLock<AtomicU32> =
        LazyLock::new(|| AtomicU32::new(std::process::id().wrapping_mul(APART)));
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
    fn no_block_is_given_twice_and_none_that_is_taken() {
        let taken: Vec<_> = (0..3).map(|_| block().expect("a free block")).collect();
        let held: Vec<_> =
            taken.iter().map(|first| UdpSocket::bind(first).expect("free")).collect();
        let found: BTreeSet<_> = (0..BLOCKS / 2).map(|_| block().expect("a free block")).collect();
        assert_eq!(found.len(), BLOCKS as usize / 2);
        assert!(held.iter().all(|held| !found.contains(&held.local_addr().expect("bound"))));
    }
}
