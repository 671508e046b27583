//! An exchange over quinn alone, to compare the gateways with: one stream each way on each
//! connection, and whatever comes is added.

use crate::lab::credentials::CredentialKind;
use crate::{Shape, simulated_address};
use bytes::Bytes;
use gateway::wan::connect::tls::{Credentials, CredentialsError, gateway_identity_dns_name};
use hier_collectives::ids::GatewayId;
use quinn::congestion::{Controller, ControllerFactory};
use quinn::{
    ClientConfig, ConnectError, Connection, ConnectionError, Endpoint, EndpointConfig, ReadError,
    ServerConfig, TransportConfig, VarInt, WriteError,
};
use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use units::{ByteCount, Span};
use wan_sim::{VirtualExecutor, VirtualNet};

/// Settings that differ from quinn's defaults.
#[derive(Debug, Clone, Copy, Default)]
pub struct Settings {
    /// Bytes of UDP payload in each packet.
    pub mtu: Option<u16>,
    /// Bytes in flight on each connection, whatever is lost.
    pub window: Option<u64>,
}

/// The reason why there was no exchange.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each is what it holds")]
pub enum BareError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    #[error(transparent)]
    System(#[from] std::io::Error),
    #[error("the peer ended after {0} bytes")]
    Short(usize),
    #[error("packets of {0} bytes of UDP payload, which is not what was asked for")]
    Packets(u16),
}

/// 28 bytes: the IPv4 and UDP headers of a packet.
const IP_UDP_BYTES: u64 = 28;

/// 1 MiB: the most bytes that one read takes from a QUIC stream.
const CHUNK_BYTES: usize = 1 << 20;

impl Settings {
    /// The configuration of an endpoint that accepts connections.
    ///
    /// # Errors
    /// Credentials that TLS refuses.
    pub fn server(&self, credentials: &Credentials) -> Result<ServerConfig, BareError> {
        let mut config = ServerConfig::with_crypto(credentials.server_config()?);
        config.transport_config(Arc::new(self.transport()));
        Ok(config)
    }

    /// Dials the peer whose certificate has the DNS name `name`.
    ///
    /// # Errors
    /// Credentials that TLS refuses; a peer that does not answer or has another name.
    pub async fn dial(
        &self,
        endpoint: &Endpoint,
        credentials: &Credentials,
        at: SocketAddr,
        name: &str,
    ) -> Result<Connection, BareError> {
        let mut config = ClientConfig::new(credentials.client_config()?);
        config.transport_config(Arc::new(self.transport()));
        Ok(endpoint.connect_with(config, at, name)?.await?)
    }

    fn transport(&self) -> TransportConfig {
        let mut transport = TransportConfig::default();
        if let Some(mtu) = self.mtu {
            transport.initial_mtu(mtu).min_mtu(mtu).mtu_discovery_config(None);
        }
        if let Some(window) = self.window {
            let room = VarInt::from_u64(4 * window).unwrap_or(VarInt::MAX);
            transport.stream_receive_window(room).receive_window(room).send_window(4 * window);
            transport.congestion_controller_factory(Arc::new(FixedWindow(window)));
        }
        transport
    }
}

/// The outcome of a simulated exchange.
#[derive(Debug, Clone, Copy)]
pub struct Simulated {
    /// Seconds of the exchange; `None` where it timed out.
    pub seconds: Option<f64>,
    /// UDP payload sent one way.
    pub sent_bytes: ByteCount,
    /// The most that ever waited before the link, either way.
    pub queue_bytes_peak: ByteCount,
}

/// Sends these bytes each way over the shape's link in virtual time, by one connection, for `cut`
/// at most.
///
/// # Errors
/// No connection, or one that ended.
///
/// # Panics
/// When everybody waits for ever.
pub fn simulated(
    shape: &Shape,
    settings: Settings,
    bytes: [u64; 2],
    cut: Span,
) -> Result<Simulated, BareError> {
    let (fabric, time) = (shape.fabric(), VirtualExecutor::new());
    let net = VirtualNet::under(&time);
    let [east, west] = [0, 1].map(|gateway| simulated_address(GatewayId(gateway)));
    net.connect(east.ip(), west.ip(), shape.link(), shape.link(), 1);
    let credentials = [0, 1].map(|id| CredentialKind::Valid.credentials(&fabric, GatewayId(id)));
    let endpoint = |at, server, seed| {
        let mut config = EndpointConfig::default();
        config.rng_seed(Some([seed; 32]));
        let socket = net.bind(at).expect("free");
        Endpoint::new_with_abstract_socket(config, server, socket, Arc::new(time.clone()))
    };
    let exchanged = async {
        let server = endpoint(west, Some(settings.server(&credentials[1])?), 1)?;
        let client = endpoint(east, None, 2)?;
        let to = gateway_identity_dns_name(&fabric.gateway(GatewayId(1)).name, fabric.name());
        let accepted = async { Ok(server.accept().await.ok_or(BareError::Short(0))?.await?) };
        let ends = tokio::try_join!(settings.dial(&client, &credentials[0], west, &to), accepted)?;
        let numbers = bytes.map(|bytes| usize::try_from(bytes / 4).unwrap_or(usize::MAX));
        let [there, back] = numbers.map(|numbers| Bytes::from(vec![0; 4 * numbers]));
        let [mut of_east, mut of_west] = numbers.map(|numbers| vec![0.0; numbers]);
        let [at_west, at_east] = [there.clone(), back.clone()];
        let begin = time.now();
        let both = async {
            let east = exchange(&ends.0, &there, &at_east, &mut of_west);
            let west = exchange(&ends.1, &back, &at_west, &mut of_east);
            tokio::try_join!(east, west)
        };
        tokio::select! {
            biased;
            done = both => done.map(|_| Some(time.now().since(begin).as_secs_f64())),
            () = time.sleep_until(begin + cut) => Ok(None),
        }
    };
    let seconds = time.run(exchanged).expect("a connection has timers")?;
    let peak = |from, to| net.queue_bytes_peak(from, to).unwrap_or_default();
    let queue_bytes_peak = peak(east.ip(), west.ip()).max(peak(west.ip(), east.ip()));
    let sent = net.counters(east.ip(), west.ip()).unwrap_or_default();
    let sent_bytes = ByteCount::new(sent.ip_bytes - IP_UDP_BYTES * sent.packets);
    Ok(Simulated { seconds, sent_bytes, queue_bytes_peak })
}

/// Sends `mine`, and adds the received bytes to an operand, into a separate buffer, as an
/// all-reduce must while its operand is being sent. Both are as long as the data from the peer.
///
/// # Errors
/// The connection ended.
pub async fn exchange(
    connection: &Connection,
    mine: &Bytes,
    operand: &[u8],
    sum: &mut [f32],
) -> Result<(), BareError> {
    let send = async {
        let mut stream = connection.open_uni().await?;
        stream.write_chunk(mine.clone()).await?;
        stream.finish().map_err(|_| WriteError::ClosedStream)?;
        Ok::<_, BareError>(())
    };
    let receive = async {
        let mut stream = connection.accept_uni().await?;
        let mut adder = Adder { operand: operand.as_chunks().0, sum, bytes: 0, part: [0; 4] };
        while let Some(chunk) = stream.read_chunk(CHUNK_BYTES, true).await? {
            adder.add(&chunk.bytes);
        }
        let whole = adder.bytes == 4 * adder.sum.len();
        whole.then_some(()).ok_or(BareError::Short(adder.bytes))
    };
    tokio::try_join!(send, receive).map(|_| ())
}

/// Adds numbers that come in pieces of any length.
struct Adder<'a> {
    operand: &'a [[u8; 4]],
    sum: &'a mut [f32],
    bytes: usize,
    /// The begin of a number that is not whole yet.
    part: [u8; 4],
}

impl Adder<'_> {
    fn add(&mut self, mut piece: &[u8]) {
        while !self.bytes.is_multiple_of(4)
            && let Some((first, rest)) = piece.split_first()
        {
            self.part[self.bytes % 4] = *first;
            self.bytes += 1;
            piece = rest;
            if self.bytes.is_multiple_of(4) {
                let at = self.bytes / 4 - 1;
                self.sum[at] = added(&self.operand[at], &self.part);
            }
        }
        let (numbers, rest) = piece.as_chunks::<4>();
        let at = self.bytes / 4;
        let sums = self.sum.get_mut(at..).unwrap_or_default();
        let operand = self.operand.get(at..).unwrap_or_default();
        for ((sum, mine), number) in sums.iter_mut().zip(operand).zip(numbers) {
            *sum = added(mine, number);
        }
        self.part[..rest.len()].copy_from_slice(rest);
        self.bytes += piece.len();
    }
}

fn added(one: &[u8; 4], other: &[u8; 4]) -> f32 {
    f32::from_le_bytes(*one) + f32::from_le_bytes(*other)
}

/// Congestion controller whose window, in bytes, never changes.
#[derive(Debug, Clone, Copy)]
struct FixedWindow(u64);

impl ControllerFactory for FixedWindow {
    /// Makes a controller with this window for a connection.
    fn build(self: Arc<Self>, _: Instant, _: u16) -> Box<dyn Controller> {
        Box::new(*self)
    }
}

impl Controller for FixedWindow {
    /// Does nothing: congestion changes no fixed window.
    fn on_congestion_event(&mut self, _: Instant, _: Instant, _: bool, _: u64) {}

    /// Does nothing: the window does not depend on the MTU.
    fn on_mtu_update(&mut self, _: u16) {}

    /// Returns the fixed window in bytes.
    fn window(&self) -> u64 {
        self.0
    }

    /// Makes a controller with the same window.
    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(*self)
    }

    /// Returns the same fixed window in bytes.
    fn initial_window(&self) -> u64 {
        self.0
    }

    /// Returns the controller itself, for a downcast.
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_pieces_of_any_length_are_added_once() {
        let numbers: Vec<f32> = (0..50u8).map(f32::from).collect();
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        for length in 1..=bytes.len() {
            let mut sum = vec![0.0; numbers.len()];
            let ones = [1f32.to_le_bytes(); 50];
            let mut adder = Adder { operand: &ones, sum: &mut sum, bytes: 0, part: [0; 4] };
            bytes.chunks(length).for_each(|piece| adder.add(piece));
            assert_eq!(adder.bytes, bytes.len());
            let expected: Vec<f32> = numbers.iter().map(|number| number + 1.0).collect();
            assert_eq!(sum, expected, "pieces of {length}");
        }
    }
}
