//! Free ports on loopback for processes that are started in a moment.
//!
//! A process that gets a block claims it: no other one gets it before its sockets are bound. The
//! ports lie below the ephemeral ports of Linux, so that no other socket takes one in between.

use crate::lock::lock_ignoring_poison;
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram};
use std::sync::{LazyLock, Mutex};

/// 127.0.0.1: the address at which processes on one machine reach each other. Free ports are looked
/// for at this address.
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// UDP port 16,384: the first port of the lowest block, which is a row of 16 ports for one gateway. All blocks lie below port 32,768 ([`EPHEMERAL_PORT_FIRST`]), where Linux by
/// default gives no ports to other sockets.
const BLOCK_PORT_FIRST: u16 = 16_384;
/// Port 32,768: the lowest that Linux by default gives to sockets that ask for any free port. All
/// blocks of ports for gateways lie below, so that no other socket takes a port of a block.
const EPHEMERAL_PORT_FIRST: u16 = 32_768;
/// 16 ports: the length of a block. A gateway takes the first; tests take others. The number is chosen.
const BLOCK_PORTS: u16 = 16;
/// 1,024: number of blocks of 16 ports ([`BLOCK_PORTS`]) from port 16,384 up to port 32,767. A
/// process that finds none of these blocks free gets an error.
const PORT_BLOCKS: u32 = (EPHEMERAL_PORT_FIRST - BLOCK_PORT_FIRST) as u32 / BLOCK_PORTS as u32;
/// 37 blocks of ports: distance between the first blocks that two processes with consecutive ids
/// try. A prime number spreads the processes over all blocks.
const PROCESS_BLOCK_STRIDE: u32 = 37;

/// 256 blocks of ports: this process keeps at most so many claimed, each with a descriptor. At one
/// more the oldest claim ends, so that another process may get that block. The number is chosen:
/// gateways of 40 deployments may restart without losing their ports.
const PORT_CLAIMS_MAX: usize = 256;

/// The blocks of ports that this process tries and has claimed.
struct PortClaims {
    /// Number of the block that is tried next, modulo [`PORT_BLOCKS`].
    next_block: u32,
    /// The last claims, oldest first.
    held: VecDeque<UnixDatagram>,
}

/// Returns the first port of a free block: `BLOCK_PORTS` UDP ports in a row. The first one is free
/// for TCP as well.
///
/// # Errors
/// `AddrNotAvailable` when no block is free.
pub fn free_port_block() -> io::Result<SocketAddr> {
    /// The claims of this process on blocks of ports, and the number of the block to try next.
    static CLAIMS: LazyLock<Mutex<PortClaims>> = LazyLock::new(|| {
        let next_block = std::process::id().wrapping_mul(PROCESS_BLOCK_STRIDE);
        Mutex::new(PortClaims { next_block, held: VecDeque::new() })
    });
    let mut claims = lock_ignoring_poison(&CLAIMS);
    for _ in 0..PORT_BLOCKS {
        let block = claims.next_block % PORT_BLOCKS;
        claims.next_block = claims.next_block.wrapping_add(1);
        let first = BLOCK_PORT_FIRST + u16::try_from(block).expect("few") * BLOCK_PORTS;
        let Ok(claim) = claim_port_block(first) else { continue };
        if is_port_block_free(first) {
            claims.held.push_back(claim);
            if claims.held.len() > PORT_CLAIMS_MAX {
                claims.held.pop_front();
            }
            return Ok(SocketAddr::new(LOOPBACK, first));
        }
    }
    Err(io::ErrorKind::AddrNotAvailable.into())
}

/// Claims the block that starts at `first`, for as long as the socket is open. Its abstract address
/// belongs to the network namespace, as the ports do. The Python package claims blocks by the same
/// address.
fn claim_port_block(first: u16) -> io::Result<UnixDatagram> {
    let name = format!("landbridge-ports-{first}");
    UnixDatagram::bind_addr(&UnixAddress::from_abstract_name(name)?)
}

/// Returns whether all UDP ports of the block that starts at `first` are free, and TCP port
/// `first`.
fn is_port_block_free(first: u16) -> bool {
    let mut udp = first..first + BLOCK_PORTS;
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

    #[test]
    fn a_claimed_block_is_claimed_by_nobody_else() {
        let first = free_port_block().expect("a free block").port();
        let error = claim_port_block(first).expect_err("claimed");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
