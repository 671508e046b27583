//! One UDP port for several sockets, each of which has a thread of its own.
//!
//! Each datagram goes to the socket that the first byte of its connection id names, where every QUIC
//! packet has it (RFC 8999, section 5). So a connection stays with its socket when its packets come
//! from another address, as behind a NAT. Linux chooses by a program of classic BPF on a group of
//! `SO_REUSEPORT`, which needs no privilege; the virtual network calls [`place_of_shared_datagram`].

#![expect(unsafe_code, reason = "a socket option that no safe interface offers")]

use socket2::Socket;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

/// The place of a socket among those that share one UDP port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortShare {
    /// The place, from 0 to one less than `sockets`. Sockets are bound in this order.
    pub place: u16,
    /// The number of sockets that share the port, at least 1.
    pub sockets: u16,
}

impl PortShare {
    /// The only socket of its port.
    pub const ALONE: Self = Self { place: 0, sockets: 1 };

    /// Binds a socket of a shared port. The first one is bound alone, so that no port is shared with
    /// another program; each further one joins it.
    ///
    /// # Errors
    /// The address is in use, or is not one of this machine.
    pub(super) fn bind_socket(self, socket: &Socket, address: SocketAddr) -> io::Result<()> {
        let share = || rustix::net::sockopt::set_socket_reuseport(socket, true);
        if self.place > 0 {
            share()?;
        }
        socket.bind(&address.into())?;
        if self.place == 0 && self.sockets > 1 {
            share()?;
        }
        Ok(())
    }

    /// Has the system choose among the sockets of the port by connection ids, once there are two. Without
    /// this it chooses by addresses, and a connection may have another lane's thread.
    ///
    /// # Errors
    /// The system has no such choice.
    pub(super) fn attach_port_program(self, socket: &Socket) -> io::Result<()> {
        // The system makes the group when the second socket joins.
        if self.place != 1 {
            return Ok(());
        }
        let mut program = shared_port_program(self.sockets);
        let filter =
            libc::sock_fprog { len: program.len() as libc::c_ushort, filter: program.as_mut_ptr() };
        let bytes = size_of_val(&filter) as libc::socklen_t;
        // SAFETY: the call reads `bytes` of `filter`, and the program that it names, which has as many
        // instructions as it says; both outlive the call.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_ATTACH_REUSEPORT_CBPF,
                (&raw const filter).cast(),
                bytes,
            )
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// Returns the first byte of the connection id of a QUIC datagram, and 0 for a shorter datagram. Its
/// remainder by the number of sockets that share the port is the place of the socket that gets it.
pub(super) fn place_of_shared_datagram(datagram: &[u8]) -> u16 {
    let is_long = datagram.first().is_some_and(|first| first & LONG_HEADER_BIT != 0);
    let at = if is_long { LONG_HEADER_ID_OFFSET } else { SHORT_HEADER_ID_OFFSET };
    datagram.get(at as usize).map_or(0, |byte| u16::from(*byte))
}

/// 51: the socket option of Linux by which a program chooses among the sockets of a port. The crate
/// `libc` has no name for it here.
const SO_ATTACH_REUSEPORT_CBPF: libc::c_int = 51;
/// 0x80: the bit of a QUIC packet's first byte that is set in long headers (RFC 8999).
const LONG_HEADER_BIT: u8 = 0x80;
/// 6 bytes precede the destination connection id in a long header: flags, version, length of the id.
const LONG_HEADER_ID_OFFSET: u32 = 6;
/// 1 byte, of flags, precedes the destination connection id in a short header.
const SHORT_HEADER_ID_OFFSET: u32 = 1;

/// Returns the program by which Linux chooses among so many sockets: that of
/// [`place_of_shared_datagram`]. A read behind the end of a datagram ends it with 0.
fn shared_port_program(sockets: u16) -> [libc::sock_filter; 7] {
    let instruction = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |at| instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0, at);
    let if_long =
        instruction(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 0, 2, LONG_HEADER_BIT.into());
    [
        load(0),
        if_long,
        load(LONG_HEADER_ID_OFFSET),
        instruction(libc::BPF_JMP | libc::BPF_JA, 0, 0, 1),
        load(SHORT_HEADER_ID_OFFSET),
        instruction(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, 0, 0, sockets.max(1).into()),
        instruction(libc::BPF_RET | libc::BPF_A, 0, 0, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::{Domain, Type};
    use std::io::ErrorKind;
    use std::net::UdpSocket;

    /// Binds a socket of a loopback port, which is a free one for the first.
    fn bind(share: PortShare, port: u16) -> io::Result<UdpSocket> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
        share.bind_socket(&socket, SocketAddr::from(([127, 0, 0, 1], port)))?;
        share.attach_port_program(&socket)?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    }

    /// Binds all sockets that share a free port.
    fn bind_all(sockets: u16) -> Vec<UdpSocket> {
        let first = bind(PortShare { place: 0, sockets }, 0).expect("a free port");
        let port = first.local_addr().expect("bound").port();
        let more = (1..sockets).map(|place| bind(PortShare { place, sockets }, port));
        std::iter::once(first).chain(more.map(|bound| bound.expect("it joins"))).collect()
    }

    #[test]
    fn the_system_chooses_as_the_virtual_network_does() {
        let sockets = bind_all(5);
        let to = sockets[0].local_addr().expect("bound");
        let senders: Vec<_> =
            (0..4).map(|_| UdpSocket::bind("127.0.0.1:0").expect("free")).collect();
        for sender in &senders {
            for id in 0..32 {
                let (long, short) = ([0xc0, 0, 0, 0, 1, 8, id, 9], [0x40, id, 9, 9, 9, 9, 9, 9]);
                for datagram in [&long[..], &short[..], &[0xc0, 7], &[0x40]] {
                    sender.send_to(datagram, to).expect("sent");
                    let place = usize::from(place_of_shared_datagram(datagram)) % sockets.len();
                    let got = |socket: &UdpSocket| socket.recv(&mut [0; 8]).is_ok();
                    let getters: Vec<_> = (0..5).filter(|at| got(&sockets[*at])).collect();
                    assert_eq!(getters, [place], "{datagram:?}");
                }
            }
        }
    }

    #[test]
    fn a_shared_port_is_refused_to_other_programs() {
        let sockets = bind_all(4);
        let port = sockets[0].local_addr().expect("bound").port();
        let again = bind(PortShare { place: 0, sockets: 4 }, port).expect_err("it is taken");
        assert_eq!(again.kind(), ErrorKind::AddrInUse);
        let alone = bind(PortShare::ALONE, port).expect_err("it is taken");
        assert_eq!(alone.kind(), ErrorKind::AddrInUse);
    }
}
