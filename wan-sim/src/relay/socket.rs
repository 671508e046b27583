//! A UDP socket with large buffers, segmentation offload and ECN.

#![expect(unsafe_code, reason = "a socket option that no safe interface offers")]

use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

#[derive(Debug)]
pub(super) struct RelaySocket {
    socket: Socket,
    state: UdpSocketState,
}

impl RelaySocket {
    pub(super) fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        // Beyond the kernel's limit only a privileged process gets what it asks for; the
        // rest is capped, and read back by whoever cares.
        if rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER_BYTES).is_err() {
            socket.set_recv_buffer_size(BUFFER_BYTES)?;
        }
        if rustix::net::sockopt::set_socket_send_buffer_size_force(&socket, BUFFER_BYTES).is_err() {
            socket.set_send_buffer_size(BUFFER_BYTES)?;
        }
        socket.bind(&address.into())?;
        let state = UdpSocketState::new((&socket).into())?;
        Ok(Self { socket, state })
    }

    pub(super) fn local_address(&self) -> io::Result<SocketAddr> {
        let address = self.socket.local_addr()?;
        address.as_socket().ok_or_else(|| io::Error::other("not an IP socket"))
    }

    /// The receive buffer that the kernel granted, in bytes; Linux doubles the request for its own
    /// bookkeeping.
    pub(super) fn receive_buffer_bytes(&self) -> io::Result<usize> {
        Ok(self.socket.recv_buffer_size()? / 2)
    }

    /// Datagrams dropped because the receive buffer was full.
    pub(super) fn overflowed(&self) -> u64 {
        let mut values = [0u32; MEMORY_VALUES];
        let mut bytes = size_of_val(&values) as libc::socklen_t;
        let (fd, into) = (self.socket.as_raw_fd(), values.as_mut_ptr().cast());
        // SAFETY: the call writes at most `bytes`, which is the size of `values`, and how many
        // it wrote into `bytes`; both outlive it.
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_MEMINFO, into, &raw mut bytes) };
        u64::from(values[MEMORY_DROPS])
    }

    /// Sends `data`, cut into datagrams of `segment_bytes`. Returns how many the kernel
    /// did not take.
    pub(super) fn send(&self, to: &Route, outgoing: &Datagrams<'_>) -> u64 {
        let segment_bytes = outgoing.segment_bytes.max(1);
        if outgoing.data.len() <= segment_bytes {
            return u64::from(self.send_some(to, outgoing, outgoing.data).is_err());
        }
        let mut refused = 0;
        let mut rest = outgoing.data;
        while !rest.is_empty() {
            // Read each time: the kernel may turn out not to segment.
            let most = segment_bytes.saturating_mul(self.state.max_gso_segments());
            let (now, later) = rest.split_at(rest.len().min(most));
            if self.send_some(to, outgoing, now).is_err() {
                refused += now.len().div_ceil(segment_bytes) as u64;
            }
            rest = later;
        }
        refused
    }

    fn send_some(&self, to: &Route, outgoing: &Datagrams<'_>, data: &[u8]) -> io::Result<()> {
        let transmit = Transmit {
            destination: to.address,
            ecn: outgoing.ecn,
            contents: data,
            segment_size: Some(outgoing.segment_bytes),
            src_ip: to.from,
        };
        self.state.try_send((&self.socket).into(), &transmit)
    }

    /// Reads what has arrived, without waiting.
    pub(super) fn receive(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> io::Result<usize> {
        self.state.recv((&self.socket).into(), buffers, metas)
    }
}

/// The destination of a packet, and the own address it leaves from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Route {
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
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Number of values in the kernel's socket memory report, `SO_MEMINFO`.
const MEMORY_VALUES: usize = 9;
/// Index of the drops among these values.
const MEMORY_DROPS: usize = 8;

/// Asked of the kernel for each direction of each socket: 16 ms at 4 Gbit/s.
pub(super) const BUFFER_BYTES: usize = 8 << 20;
