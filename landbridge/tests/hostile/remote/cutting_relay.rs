//! A relay of TCP connections between a trainer and its gateway, which cuts them behind any byte.

use rustix::net::sockopt::set_socket_linger;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// 16 KiB: the most bytes that are passed on at a time.
const CHUNK_BYTES: usize = 1 << 14;

/// The direction of bytes on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelayWay {
    /// From the trainer.
    ToGateway,
    /// From the gateway.
    ToTrainer,
}

/// A cut of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// The direction whose bytes are counted.
    pub way: RelayWay,
    /// The number of bytes that are passed on.
    pub behind: u64,
    /// Whether both ends get a reset, as from a host that has forgotten the connection. Otherwise they
    /// get an orderly end.
    pub is_reset: bool,
}

/// A relay to one gateway, for one connection at a time.
pub struct CuttingRelay {
    listener: TcpListener,
    gateway: SocketAddr,
    /// The bytes of the last connection that were passed on, to the gateway and to the trainer.
    passed: [AtomicU64; 2],
}

impl CuttingRelay {
    /// Begins to listen for connections to a gateway's address.
    pub async fn open(gateway: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        Self { listener, gateway, passed: Default::default() }
    }

    /// Returns the address at which trainers connect.
    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr().expect("it listens")
    }

    /// Returns the bytes of the last connection that were passed on one way.
    pub fn passed(&self, way: RelayWay) -> u64 {
        self.passed[way as usize].load(Ordering::Relaxed)
    }

    /// Relays the next connection until it is cut, or an end closes it. Returns whether it was cut.
    pub async fn relay(&self, cut: Option<Cut>) -> bool {
        let (mut trainer, _) = self.listener.accept().await.expect("a trainer");
        let mut gateway = TcpStream::connect(self.gateway).await.expect("it listens");
        for (stream, passed) in [&trainer, &gateway].into_iter().zip(&self.passed) {
            stream.set_nodelay(true).expect("a TCP socket");
            passed.store(0, Ordering::Relaxed);
        }
        let most = |way| cut.filter(|cut| cut.way == way).map_or(u64::MAX, |cut| cut.behind);
        let (from_trainer, to_trainer) = trainer.split();
        let (from_gateway, to_gateway) = gateway.split();
        let up = self.pass(RelayWay::ToGateway, from_trainer, to_gateway, most);
        let down = self.pass(RelayWay::ToTrainer, from_gateway, to_trainer, most);
        let is_cut = tokio::select! {
            is_cut = up => is_cut,
            is_cut = down => is_cut,
        };
        if is_cut && cut.is_some_and(|cut| cut.is_reset) {
            for stream in [&trainer, &gateway] {
                set_socket_linger(stream.as_fd(), Some(Duration::ZERO)).expect("a TCP socket");
            }
        }
        is_cut
    }

    /// Passes bytes on until the most have passed, or an end has closed. Returns whether it was the
    /// former.
    async fn pass(
        &self,
        way: RelayWay,
        mut from: ReadHalf<'_>,
        mut to: WriteHalf<'_>,
        most: impl Fn(RelayWay) -> u64,
    ) -> bool {
        let mut left = most(way);
        let mut chunk = vec![0; CHUNK_BYTES];
        while left > 0 {
            let room = usize::try_from(left).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
            let Ok(count @ 1..) = from.read(&mut chunk[..room]).await else { return false };
            if to.write_all(&chunk[..count]).await.is_err() {
                return false;
            }
            left -= count as u64;
            self.passed[way as usize].fetch_add(count as u64, Ordering::Relaxed);
        }
        true
    }
}
