//! Ports of peers that are closed, as the peers' systems say: a process that has ended has no ports.
//!
//! A system answers a datagram to a closed port with an ICMP message *port unreachable* (RFC 1122, section
//! 3.2.2.1; RFC 4443, section 3.1). Linux puts it into the error queue of the socket that sent the datagram, under
//! the option `IP_RECVERR` (ip(7)). A message counts only if
//! it comes from the address of the peer itself, and never as proof: anybody may forge one.
//!
//! Port probes leave by sockets of their own. With `IP_RECVERR` the next call on a socket fails for each
//! error in its queue. On the socket of a lane each ICMP message would so cost packets to other peers.

#![expect(unsafe_code, reason = "error queues, which no safe interface offers")]

use crate::lock::lock_ignoring_poison;
use socket2::{Domain, Protocol, SockAddr, SockAddrStorage, Socket, Type};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use units::{Span, TimeNs};

/// 256 addresses of closed ports are kept. With one more the oldest is forgotten. The limit of memory is
/// chosen, as anybody may forge ICMP messages.
const REFUSALS_MAX: usize = 256;
/// 10 ms between two looks at the error queues, whoever asks: a silent lane looks twice a round trip, and
/// a gateway may have hundreds of lanes. The time is chosen.
const QUEUES_READ_EVERY: Span = Span::from_ms(10);
/// The byte 0: a datagram that no gateway answers, as it is no QUIC packet. The system of a process that has
/// ended does.
const PORT_PROBE: &[u8] = &[0];

/// The sockets that send port probes, and what their error queues said.
#[derive(Debug, Default)]
pub struct PortWatch(Mutex<WatchState>);

#[derive(Debug, Default)]
struct WatchState {
    /// The sockets that send port probes, of IPv4 and of IPv6.
    probers: [Option<Socket>; 2],
    read_at: TimeNs,
    /// When each closed port was reported last.
    refusals: BTreeMap<SocketAddr, TimeNs>,
}

impl PortWatch {
    /// Sends a port probe to a peer's address. A process that lives ignores it, and errors are those of any
    /// network. A firewall or NAT may drop it, as it comes from no lane's port.
    pub fn probe(&self, to: SocketAddr) {
        let mut state = lock_ignoring_poison(&self.0);
        let prober = &mut state.probers[usize::from(to.is_ipv6())];
        if prober.is_none() {
            *prober = make_port_prober(Domain::for_address(to)).ok();
        }
        if let Some(socket) = prober {
            send_port_probe(socket, to);
        }
    }

    /// Forgets what a peer's system has said of this port, as a process has it open by now.
    pub fn forget(&self, address: SocketAddr, now: TimeNs) {
        let mut state = lock_ignoring_poison(&self.0);
        state.read_queues(now);
        state.refusals.remove(&canonical_address(address));
    }

    /// Returns when a peer's system last said that this port of it is closed; `None` if it has not.
    pub fn refused_at(&self, address: SocketAddr, now: TimeNs) -> Option<TimeNs> {
        let mut state = lock_ignoring_poison(&self.0);
        if state.read_at == TimeNs::default() || now >= state.read_at + QUEUES_READ_EVERY {
            state.read_at = now;
            state.read_queues(now);
        }
        state.refusals.get(&canonical_address(address)).copied()
    }
}

impl WatchState {
    /// Empties all error queues.
    fn read_queues(&mut self, now: TimeNs) {
        for queue in self.probers.iter().flatten() {
            while let Some(error) = read_queued_error(queue) {
                self.refusals.extend(error.closed_port().map(|port| (port, now)));
            }
        }
        while self.refusals.len() > REFUSALS_MAX {
            let oldest = self.refusals.iter().min_by_key(|(_, at)| **at).map(|(port, _)| *port);
            oldest.map(|port| self.refusals.remove(&port));
        }
    }
}

/// An error in the queue of a socket.
#[derive(Debug)]
struct QueuedError {
    /// Where the datagram was sent.
    to: SocketAddr,
    /// The address that reports it, if it is an ICMP message about a closed port.
    from: Option<IpAddr>,
}

impl QueuedError {
    /// Returns the port that is closed, if the system that has it says so.
    fn closed_port(&self) -> Option<SocketAddr> {
        let to = canonical_address(self.to);
        self.from.filter(|from| from.to_canonical() == to.ip()).map(|_| to)
    }
}

/// Returns an address in its shortest form: an IPv4 address inside an IPv6 one as itself.
fn canonical_address(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Sends a port probe from a socket.
fn send_port_probe(socket: &Socket, to: SocketAddr) {
    let to = SockAddr::from(to);
    // The first call may fail for an error in the queue, and sends nothing then.
    if socket.send_to(PORT_PROBE, &to).is_err() {
        let _ = socket.send_to(PORT_PROBE, &to);
    }
}

/// Makes the socket from which a process sends port probes.
fn make_port_prober(domain: Domain) -> io::Result<Socket> {
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    enable_error_queue(&socket)?;
    Ok(socket)
}

/// Has the system queue the errors of a socket.
///
/// # Errors
/// The system has no such queues.
fn enable_error_queue(socket: &Socket) -> io::Result<()> {
    let is_v6 = socket.domain()? == Domain::IPV6;
    let options = [(libc::IPPROTO_IP, libc::IP_RECVERR), (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)];
    for (level, option) in &options[..=usize::from(is_v6)] {
        let on: libc::c_int = 1;
        // SAFETY: the call reads as many bytes of `on` as it is told, and `on` outlives it.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                *level,
                *option,
                (&raw const on).cast(),
                size_of_val(&on) as libc::socklen_t,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// 26: the socket option of Linux by which a program chooses which datagrams a socket gets. The crate
/// `libc` has no name for it here.
const SO_ATTACH_FILTER: libc::c_int = 26;
/// 9 bytes: a port probe with the header of UDP, which precedes datagrams in a socket's program. QUIC packets
/// are longer.
const PORT_PROBE_UDP_BYTES: u32 = 8 + PORT_PROBE.len() as u32;

/// Has the system drop port probes at a socket, so that they wake nobody.
///
/// # Errors
/// The system has no such choice.
pub(super) fn drop_port_probes(socket: &Socket) -> io::Result<()> {
    let instruction = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_LEN, 0, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K, 0, 1, PORT_PROBE_UDP_BYTES),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ];
    let filter =
        libc::sock_fprog { len: program.len() as libc::c_ushort, filter: program.as_mut_ptr() };
    // SAFETY: the call reads as many bytes of `filter` as it is told, and the program that it names, which has
    // as many instructions as it says; both outlive the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_ATTACH_FILTER,
            (&raw const filter).cast(),
            size_of_val(&filter) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Removes and returns the oldest error in the queue of a socket; `None` without one.
fn read_queued_error(socket: &Socket) -> Option<QueuedError> {
    // Of words, as control messages are aligned to them.
    let mut control = [0u64; 32];
    let mut storage = SockAddrStorage::zeroed();
    // SAFETY: all fields may be zero: no buffers, no lengths.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = (&raw mut storage).cast();
    message.msg_namelen = storage.size_of();
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the name and the control messages are written into the buffers above, up to their lengths.
    let received = unsafe {
        libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT)
    };
    if received < 0 {
        return None;
    }
    // SAFETY: the system has written an address of this length.
    let to = unsafe { SockAddr::new(storage, message.msg_namelen) }.as_socket()?;
    let mut from = None;
    // SAFETY: `message` has the control messages that the system has written, and `control` is alive.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const message).as_ref() };
    while let Some(header) = next {
        let is_error = matches!(
            (header.cmsg_level, header.cmsg_type),
            (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
        );
        // SAFETY: the header is one of `message`, so that its data lie behind it in `control`.
        #[allow(clippy::unnecessary_cast, reason = "the length has another type with musl")]
        let data = unsafe {
            let bytes = (header.cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
            std::slice::from_raw_parts(libc::CMSG_DATA(header), bytes)
        };
        from = from.or(is_error.then(|| reporter_of_closed_port(data)).flatten());
        // SAFETY: as of the first header.
        next = unsafe { libc::CMSG_NXTHDR(&raw const message, header).as_ref() };
    }
    Some(QueuedError { to, from })
}

/// 2, 3, 3: an error of ICMP in `sock_extended_err`, and the type and code of *port unreachable*.
const PORT_UNREACHABLE: [u8; 3] = [libc::SO_EE_ORIGIN_ICMP, 3, 3];
/// 3, 1, 4: the same of ICMPv6.
const PORT_UNREACHABLE_V6: [u8; 3] = [libc::SO_EE_ORIGIN_ICMP6, 1, 4];
/// 4 bytes precede the origin of an error in `sock_extended_err`: its number.
const ORIGIN_OFFSET: usize = 4;
/// 16 bytes, of `sock_extended_err`, precede the address of the system that reports an error.
const REPORTER_OFFSET: usize = 16;

/// Returns the address that reports a closed port, from the data of an error's control message: a
/// `sock_extended_err`, and a `sockaddr`. `None` for other errors.
fn reporter_of_closed_port(data: &[u8]) -> Option<IpAddr> {
    let kind: [u8; 3] = data.get(ORIGIN_OFFSET..ORIGIN_OFFSET + 3)?.try_into().ok()?;
    if ![PORT_UNREACHABLE, PORT_UNREACHABLE_V6].contains(&kind) {
        return None;
    }
    let address = data.get(REPORTER_OFFSET..)?;
    let family = u16::from_ne_bytes(address.get(..2)?.try_into().ok()?);
    // Behind the port, and behind the flow of IPv6.
    if i32::from(family) == libc::AF_INET {
        let bytes: [u8; 4] = address.get(4..8)?.try_into().ok()?;
        Some(Ipv4Addr::from(bytes).into())
    } else {
        let bytes: [u8; 16] = address.get(8..24)?.try_into().ok()?;
        Some(Ipv6Addr::from(bytes).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::time::{Duration, Instant};

    /// Probes a port until it is reported as closed, or for so long.
    fn is_reported(watch: &PortWatch, port: SocketAddr, within: Duration) -> bool {
        let began = Instant::now();
        let now = || TimeNs::from_ns(1) + Span::from_ns(began.elapsed().as_nanos() as u64);
        while began.elapsed() < within {
            watch.probe(port);
            std::thread::sleep(Duration::from_millis(20));
            if watch.refused_at(port, now()).is_some() {
                return true;
            }
        }
        false
    }

    #[test]
    fn a_closed_port_is_reported_and_an_open_one_not() {
        for own in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(open) = UdpSocket::bind(own) else { continue };
            let port = open.local_addr().expect("bound");
            let watch = PortWatch::default();
            assert!(!is_reported(&watch, port, Duration::from_millis(200)), "{own}");
            drop(open);
            assert!(is_reported(&watch, port, Duration::from_secs(10)), "{own}");
        }
    }

    #[test]
    fn only_the_peers_own_system_closes_its_port() {
        let to: SocketAddr = "192.0.2.1:7400".parse().expect("valid");
        let closed = |from: Option<&str>| {
            let from = from.map(|from| from.parse().expect("valid"));
            QueuedError { to, from }.closed_port().is_some()
        };
        assert!(closed(Some("192.0.2.1")) && closed(Some("::ffff:192.0.2.1")));
        assert!(!closed(Some("192.0.2.254")) && !closed(None));
        let mut data = [0; 32];
        data[4..7].copy_from_slice(&PORT_UNREACHABLE);
        data[16..18].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        data[20..24].copy_from_slice(&[192, 0, 2, 1]);
        assert_eq!(reporter_of_closed_port(&data), Some(to.ip()));
        assert_eq!(reporter_of_closed_port(&data[..20]), None);
        data[6] = 1;
        assert_eq!(reporter_of_closed_port(&data), None, "the host is unreachable");
    }

    #[test]
    fn a_lanes_socket_gets_no_port_probe() {
        let bound = || {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("free");
            let address = socket.local_addr().expect("bound");
            (socket, address)
        };
        let ((lane, to), (other, _)) = (bound(), bound());
        let lane = Socket::from(lane);
        drop_port_probes(&lane).expect("possible");
        other.send_to(PORT_PROBE, to).expect("sent");
        other.send_to(b"data", to).expect("sent");
        let mut bytes = [0; 16];
        assert_eq!(UdpSocket::from(lane).recv(&mut bytes).expect("received"), 4);
    }
}
