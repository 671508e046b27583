//! A UDP socket with large buffers, segmentation offload and ECN.

#![expect(unsafe_code, reason = "a socket option that no safe interface offers")]

use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// A UDP socket of the relay: a listener, or the upstream socket of a flow.
#[derive(Debug)]
pub(super) struct RelaySocket {
    socket: Socket,
    state: UdpSocketState,
}

impl RelaySocket {
    /// Binds a socket to `address`, with buffers of [`SOCKET_BUFFER_BYTES`] where the kernel grants
    /// them.
    pub(super) fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        // Beyond the kernel's limit only a privileged process gets the size that it asks for.
        // `receive_buffer_bytes` returns the size granted.
        if rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BUFFER_BYTES)
            .is_err()
        {
            socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES)?;
        }
        if rustix::net::sockopt::set_socket_send_buffer_size_force(&socket, SOCKET_BUFFER_BYTES)
            .is_err()
        {
            socket.set_send_buffer_size(SOCKET_BUFFER_BYTES)?;
        }
        socket.bind(&address.into())?;
        let state = UdpSocketState::new((&socket).into())?;
        Ok(Self { socket, state })
    }

    /// Returns the address that the socket is bound to.
    pub(super) fn local_address(&self) -> io::Result<SocketAddr> {
        let address = self.socket.local_addr()?;
        address.as_socket().ok_or_else(|| io::Error::other("not an IP socket"))
    }

    /// Returns the bytes of the receive buffer that the kernel granted; Linux doubles the request
    /// for its own bookkeeping.
    pub(super) fn receive_buffer_bytes(&self) -> io::Result<usize> {
        Ok(self.socket.recv_buffer_size()? / 2)
    }

    /// Returns the count of datagrams that the kernel dropped because the receive buffer was full.
    pub(super) fn overflowed_datagrams(&self) -> u64 {
        let mut values = [0u32; MEMINFO_VALUES];
        let mut bytes = size_of_val(&values) as libc::socklen_t;
        let (fd, into) = (self.socket.as_raw_fd(), values.as_mut_ptr().cast());
        // SAFETY: the call writes at most `bytes`, which is the size of `values`, and how many
        // it wrote into `bytes`; both outlive it.
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_MEMINFO, into, &raw mut bytes) };
        u64::from(values[MEMINFO_DROPS_INDEX])
    }

    /// Sends datagrams to `to`, many in one system call. Returns how many the kernel did not take.
    pub(super) fn send_datagrams(&self, to: &SocketRoute, outgoing: &Datagrams<'_>) -> u64 {
        let segment_bytes = outgoing.segment_bytes.max(1);
        if outgoing.data.len() <= segment_bytes {
            return u64::from(self.send_once(to, outgoing, outgoing.data).is_err());
        }
        let mut refused = 0;
        let mut rest = outgoing.data;
        while !rest.is_empty() {
            // Read each time: the kernel may turn out not to segment.
            let most = segment_bytes.saturating_mul(self.state.max_gso_segments());
            let (now, later) = rest.split_at(rest.len().min(most));
            if self.send_once(to, outgoing, now).is_err() {
                refused += now.len().div_ceil(segment_bytes) as u64;
            }
            rest = later;
        }
        refused
    }

    /// Sends `data`, a part of `outgoing`, in one system call.
    fn send_once(&self, to: &SocketRoute, outgoing: &Datagrams<'_>, data: &[u8]) -> io::Result<()> {
        let transmit = Transmit {
            destination: to.address,
            ecn: outgoing.ecn,
            contents: data,
            segment_size: Some(outgoing.segment_bytes),
            src_ip: to.from,
        };
        self.state.try_send((&self.socket).into(), &transmit)
    }

    /// Reads datagrams that have arrived, without waiting. Returns how many `buffers` were filled.
    pub(super) fn receive_datagrams(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> io::Result<usize> {
        self.state.recv((&self.socket).into(), buffers, metas)
    }
}

/// Returns whether this host has the address.
pub(super) fn is_own_relay_socket(address: IpAddr) -> bool {
    let bound = || -> io::Result<()> {
        let address = SocketAddr::new(address, 0);
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        socket.bind(&address.into())
    };
    address.is_loopback() || bound().is_ok()
}

/// Connects a socket to `address` for a moment, which sends nothing.
///
/// # Errors
/// The reason why no packet can be sent there.
pub(super) fn connect_relay_socket_to(address: SocketAddr) -> io::Result<()> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    socket.connect(&address.into())
}

/// The destination of a packet, and the own address it leaves from.
#[derive(Debug, Clone, Copy)]
pub(super) struct SocketRoute {
    pub(super) address: SocketAddr,
    pub(super) from: Option<IpAddr>,
}

/// Datagrams of one size, the last one perhaps shorter, back to back.
#[derive(Debug)]
pub(super) struct Datagrams<'a> {
    pub(super) data: &'a [u8],
    pub(super) segment_bytes: usize,
    pub(super) ecn: Option<EcnCodepoint>,
}

impl AsFd for RelaySocket {
    /// Returns the descriptor of the UDP socket.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// 9 values of 32 bits: the length of the kernel's report on a socket's memory, the socket option
/// `SO_MEMINFO`.
const MEMINFO_VALUES: usize = 9;
/// 8: the index of the count of dropped datagrams among the values of the socket option
/// `SO_MEMINFO`, as the kernel has it.
const MEMINFO_DROPS_INDEX: usize = 8;

/// 8 MiB: the buffer that each socket of the relay requests for each direction; the kernel may
/// grant less. It holds 16 ms of packets at 4 Gbit/s, for times when the thread is delayed.
const SOCKET_BUFFER_BYTES: usize = 8 << 20;
