//! Accepts the connections of trainers on other hosts, with TLS 1.3 over TCP.
//!
//! The gateway's certificate proves its name. Renewed certificates serve from the next connection
//! on. A handshake is part of the time in which a connection must attach, and holds an admission
//! slot.

use super::renewed_settings::RenewedSettings;
use super::tls_stream::TlsServerStream;
use crate::host::BoxFuture;
use crate::local::trainer_listener::{
    AcceptedConnection, ConnectionSource, IncomingConnection, TrainerListener, TrainerListenerArena,
};
use crate::wan::connect::tls::{ATTACH_ALPN, Credentials, CredentialsError, TrustAnchors};
use rustix::net::sockopt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// 15 s without a byte from the other host: after this time the system asks whether that host is
/// still there (TCP keep-alive). With 6 questions, 5 s apart, the connection to a lost host ends
/// after 45 s.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
/// 5 s: time from one question of the system (TCP keep-alive) to the next, whether the host of a
/// silent connection is still there. The value is chosen: after the 15 s before the first question,
/// 6 unanswered ones end the connection after 45 s.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// 6 questions of the system (TCP keep-alive) without an answer end the connection to another host,
/// 45 s after the last byte. The system answers for a process that is stopped, so slow is not dead.
const KEEPALIVE_PROBES_MAX: u32 = 6;

/// The settings of a gateway that serves trainers on other hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachSpec {
    /// The TCP address at which it listens.
    pub address: SocketAddr,
    /// The CA whose certificates trainers must show; without it their job's token alone admits
    /// them.
    pub trainers_ca: Option<PathBuf>,
}

/// Why a gateway cannot serve trainers on other hosts.
#[derive(Debug, thiserror::Error)]
pub enum AttachListenError {
    /// The address is in use, or is not one of this host.
    #[error("cannot listen at the `attach` address {address}: {source}")]
    Address {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// A certificate or the CA of the trainers cannot be used.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
}

/// A listening TCP socket, before it belongs to an executor.
#[derive(Debug)]
pub struct AttachListenerSocket {
    socket: std::net::TcpListener,
    trainers: Option<TrustAnchors>,
}

impl AttachListenerSocket {
    /// Binds the address, and checks that the certificates can be used.
    ///
    /// # Errors
    /// [`AttachListenError`]: nothing listens then.
    pub fn bind(spec: &AttachSpec, credentials: &Credentials) -> Result<Self, AttachListenError> {
        let trainers = spec.trainers_ca.as_deref().map(TrustAnchors::load).transpose()?;
        credentials.attach_acceptor_config(trainers.as_ref())?;
        let at_fault = |source| AttachListenError::Address { address: spec.address, source };
        let socket = std::net::TcpListener::bind(spec.address).map_err(at_fault)?;
        socket.set_nonblocking(true).map_err(at_fault)?;
        Ok(Self { socket, trainers })
    }

    /// Makes a listener for the executor that calls this. Each connection gets the certificates
    /// that are current when it arrives.
    ///
    /// # Errors
    /// The system refuses to watch the socket.
    pub fn listen(
        self,
        credentials: watch::Receiver<Arc<Credentials>>,
    ) -> io::Result<TlsAttachListener> {
        let socket = Arc::new(TcpListener::from_std(self.socket)?);
        let trainers = self.trainers;
        let settings = RenewedSettings { credentials, trainers, settings: Mutex::new(None) };
        Ok(TlsAttachListener { socket, settings: Arc::new(settings) })
    }
}

/// A listener for trainers on other hosts.
pub struct TlsAttachListener {
    socket: Arc<TcpListener>,
    settings: Arc<RenewedSettings>,
}

impl TrainerListener for TlsAttachListener {
    /// Waits for the next TCP connection. Its handshake is that of TLS.
    fn accept(&self) -> BoxFuture<io::Result<IncomingConnection>> {
        let (socket, settings) = (Arc::clone(&self.socket), Arc::clone(&self.settings));
        Box::pin(async move {
            let (stream, peer) = socket.accept().await?;
            // Certificates may have been renewed while it waited.
            let config = settings.current_settings()?;
            let handshake = Box::pin(async move {
                prepare_attach_listener_stream(&stream)?;
                let stream = TlsServerStream::accept(stream, config).await?;
                if stream.alpn_protocol() != Some(ATTACH_ALPN) {
                    let text = "a client that does not ask for the protocol of trainers";
                    return Err(io::Error::new(io::ErrorKind::InvalidData, text));
                }
                let memory = Some(TrainerListenerArena::Streamed);
                Ok(AcceptedConnection { stream: Box::new(stream) as _, memory })
            });
            Ok(IncomingConnection { source: attach_listener_peer_source(peer.ip()), handshake })
        })
    }
}

/// Sets up a TCP connection between trainer and gateway, at either end. Small messages are not held
/// back, and the system ends the connection to a lost host 45 s after its last byte.
///
/// # Errors
/// The connection is gone.
pub fn prepare_attach_listener_stream(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = stream.as_fd();
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES_MAX)?;
    Ok(sockopt::set_socket_keepalive(socket, true)?)
}

/// Returns the host to which the admission counts a new connection. It is the whole IPv4 address,
/// or the first 64 bits of an IPv6 address, which are a network.
fn attach_listener_peer_source(peer: IpAddr) -> ConnectionSource {
    /// A mask of the first 64 of the 128 bits of an IPv6 address. Those bits tell networks apart.
    /// All addresses of a network are taken for one host in the admission, since one host may have
    /// them all.
    const IPV6_NETWORK_MASK: u128 = !(u64::MAX as u128);
    ConnectionSource::Host(match peer.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & IPV6_NETWORK_MASK).into(),
        address => address,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_are_one_source() {
        let source = |text: &str| attach_listener_peer_source(text.parse().expect("an address"));
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:1"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("::ffff:192.0.2.1"), source("192.0.2.1"));
        assert_ne!(source("192.0.2.1"), source("192.0.2.2"));
    }
}
