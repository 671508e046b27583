//! A UDP flow with segmentation offload, paced only by what the socket takes.

use crate::site::{A, B, World};
use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use std::io::IoSliceMut;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// 1472 bytes: the UDP payload of an IPv4 packet of 1,500 bytes.
pub const PAYLOAD_BYTES: usize = 1472;
/// 40 datagrams in one send call with UDP segmentation offload.
const SEGMENTS: u64 = 40;
/// 7000: the UDP port of the sockets at both sites.
const PORT: u16 = 7000;

/// A bound socket at a site.
pub fn socket(world: &World, site: &str, ip: &str) -> UdpSocket {
    let address = SocketAddr::new(ip.parse().expect("an address"), PORT);
    let socket = world.at(site, || UdpSocket::bind(address).expect("bound"));
    socket.set_read_timeout(Some(Duration::from_secs(5))).expect("set");
    let bytes = 16 << 20;
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, bytes).expect("as root");
    socket
}

/// The goodput of a flow of `offered` Mbit/s of payload, in Mbit/s of payload, after the first
/// second.
pub fn goodput(world: &World, offered_mbits: f64, seconds: u64) -> f64 {
    let (sender, receiver) = (socket(world, "a", A), socket(world, "b", B));
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| send(&sender, offered_mbits, &ended));
        let state = UdpSocketState::new((&receiver).into()).expect("a socket");
        receiver.set_nonblocking(false).expect("set");
        let mut memory = vec![0; 32 * 65_536];
        let began = Instant::now();
        // The first and the last read that count, and the bytes after the first.
        let (mut first, mut last, mut bytes) = (None, began, 0);
        while began.elapsed() < Duration::from_secs(1 + seconds) {
            let mut metas = [RecvMeta::default(); 32];
            let mut buffers: Vec<_> = memory.chunks_mut(65_536).map(IoSliceMut::new).collect();
            let taken = state.recv((&receiver).into(), &mut buffers, &mut metas).unwrap_or(0);
            if began.elapsed() > Duration::from_secs(1) {
                last = Instant::now();
                if first.replace(first.unwrap_or(last)).is_some() {
                    bytes += metas.iter().take(taken).map(|meta| meta.len).sum::<usize>();
                }
            }
        }
        ended.store(true, Ordering::Relaxed);
        let measured = last.duration_since(first.unwrap_or(began)).as_secs_f64();
        bytes as f64 * 8.0 / measured / 1e6
    })
}

/// A burst of full packets, ready to be sent at once in large buffers.
pub struct Burst<'a> {
    socket: &'a UdpSocket,
    state: UdpSocketState,
    contents: Vec<u8>,
    bytes: usize,
}

impl<'a> Burst<'a> {
    /// A burst of `packets` to be sent by `socket`.
    pub fn of(socket: &'a UdpSocket, packets: u32) -> Self {
        let state = UdpSocketState::new(socket.into()).expect("a socket");
        socket.set_nonblocking(false).expect("set");
        let contents = vec![7; PAYLOAD_BYTES * SEGMENTS as usize];
        Self { socket, state, contents, bytes: packets as usize * PAYLOAD_BYTES }
    }

    /// Sends the burst.
    pub fn send(&self) {
        let mut left = self.bytes;
        while left > 0 {
            let now = left.min(self.contents.len());
            let transmit = transmit(&self.contents[..now]);
            self.state.try_send(self.socket.into(), &transmit).expect("sent");
            left -= now;
        }
    }
}

fn transmit(contents: &[u8]) -> Transmit<'_> {
    Transmit {
        destination: SocketAddr::new(B.parse().expect("an address"), PORT),
        ecn: None,
        contents,
        segment_size: Some(PAYLOAD_BYTES),
        src_ip: None,
    }
}

fn send(socket: &UdpSocket, offered_mbits: f64, ended: &AtomicBool) {
    let state = UdpSocketState::new(socket.into()).expect("a socket");
    socket.set_nonblocking(false).expect("set");
    let contents = vec![7; PAYLOAD_BYTES * SEGMENTS as usize];
    let every = Duration::from_secs_f64(contents.len() as f64 * 8.0 / offered_mbits / 1e6);
    let mut due = Instant::now();
    while !ended.load(Ordering::Relaxed) {
        let _ = state.try_send(socket.into(), &transmit(&contents));
        due += every;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}
