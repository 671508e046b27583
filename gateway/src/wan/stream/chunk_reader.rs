//! Reads the chunks of a segment's stream: many at a time while no packet is missing, then each as it
//! comes.
//!
//! quinn keeps one chunk for each packet. In order, it hands over all that are there under one lock
//! of the connection, and keeps no set of the ranges that it handed over. But a missing packet holds
//! back those behind it. So the reader leaves the order at the first sign of a missing packet: a read
//! is woken, and its next byte is not there. quinn lets no stream go back to order.
//!
//! The task of a stream owns it (`wan/stream/segment_receiver.rs`).

use bytes::Bytes;
use quinn::{Chunk, ReadError, RecvStream, VarInt};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll};

/// 32 chunks, one for each packet: the most that a stream's task takes from QUIC at once while no
/// packet is missing. Each read locks the connection; a full send call has 44 packets at 1,472
/// bytes.
const CHUNKS_PER_READ: usize = 32;

/// A stream, and the chunks that were read from it and not taken yet.
pub(super) struct ChunkReader {
    stream: RecvStream,
    chunks: VecDeque<Chunk>,
    order: ChunkOrder,
    /// Whether the last read had to wait for a packet.
    has_waited: bool,
}

/// The order in which chunks are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkOrder {
    /// In the order of the stream, the next one from this offset on.
    Stream(u64),
    /// As their packets arrive.
    Arrival,
}

impl ChunkReader {
    /// Creates the reader of a stream of which nothing was read.
    pub fn new(stream: RecvStream) -> Self {
        let (chunks, order) = (VecDeque::new(), ChunkOrder::Stream(0));
        Self { stream, chunks, order, has_waited: false }
    }

    /// Reads one chunk, whether or not a packet before it is missing; `None` at the stream's end.
    ///
    /// # Errors
    /// The stream was reset, or the lane was lost.
    pub async fn read_one_chunk(&mut self) -> Result<Option<Chunk>, ReadError> {
        if let ChunkOrder::Stream(_) = self.order {
            let mut read = [Bytes::new()];
            let polled = poll_fn(|context| Poll::Ready(self.poll_chunks(context, &mut read)));
            if let Poll::Ready(count) = polled.await {
                self.keep_chunks(count?, &mut read);
                return Ok(self.take_chunk());
            }
            self.leave_chunk_order();
        }
        self.stream.read_chunk(usize::MAX, false).await
    }

    /// Reads chunks, which [`Self::take_chunk`] returns. Returns false at the stream's end.
    ///
    /// # Errors
    /// The stream was reset, or the lane was lost.
    pub async fn read_chunks(&mut self) -> Result<bool, ReadError> {
        self.has_waited = false;
        if let ChunkOrder::Stream(_) = self.order {
            let mut read = [const { Bytes::new() }; CHUNKS_PER_READ];
            let polled = poll_fn(|context| match self.poll_chunks(context, &mut read) {
                Poll::Ready(count) => Poll::Ready(Some(count)),
                Poll::Pending if self.has_waited => Poll::Ready(None),
                Poll::Pending => {
                    self.has_waited = true;
                    Poll::Pending
                }
            });
            match polled.await {
                Some(count) => return Ok(self.keep_chunks(count?, &mut read)),
                // A packet has come, and one before it is missing.
                None => self.leave_chunk_order(),
            }
        }
        let mut next = pin!(self.stream.read_chunk(usize::MAX, false));
        let has_waited = &mut self.has_waited;
        let next = poll_fn(|context| {
            let polled = next.as_mut().poll(context);
            *has_waited |= polled.is_pending();
            polled
        });
        let chunk = next.await?;
        self.chunks.extend(chunk);
        Ok(!self.chunks.is_empty())
    }

    /// Polls QUIC for the chunks that follow in order, as many as `read` holds. Returns how many
    /// there were; `None` at the stream's end.
    fn poll_chunks(
        &mut self,
        context: &mut Context<'_>,
        read: &mut [Bytes],
    ) -> Poll<Result<Option<usize>, ReadError>> {
        pin!(self.stream.read_chunks(read)).poll(context)
    }

    /// Keeps the first `count` chunks of `read`, which follow in order. Returns false at the
    /// stream's end, where `count` is `None`.
    fn keep_chunks(&mut self, count: Option<usize>, read: &mut [Bytes]) -> bool {
        let (Some(count), ChunkOrder::Stream(offset)) = (count, &mut self.order) else {
            return false;
        };
        for bytes in read.iter_mut().take(count).map(std::mem::take) {
            let end = *offset + bytes.len() as u64;
            self.chunks.push_back(Chunk { offset: *offset, bytes });
            *offset = end;
        }
        true
    }

    /// Reads chunks as their packets arrive from now on.
    pub fn leave_chunk_order(&mut self) {
        self.order = ChunkOrder::Arrival;
    }

    /// Takes the next chunk that was read; `None` once all are taken.
    pub fn take_chunk(&mut self) -> Option<Chunk> {
        self.chunks.pop_front()
    }

    /// Returns whether the last [`Self::read_chunks`] had to wait for a packet.
    pub fn has_waited(&self) -> bool {
        self.has_waited
    }

    /// Tells the peer to send no more of the stream.
    pub fn stop(&mut self, code: VarInt) {
        let _ = self.stream.stop(code);
    }

    /// Returns the stream, for a reader of its own. No chunk is left that was read and not taken.
    pub fn into_stream(self) -> RecvStream {
        debug_assert!(self.chunks.is_empty(), "chunks were read and not taken");
        self.stream
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certs::{CertificateAuthority, CertificateValidity};
    use crate::wan::connect::tls::{Credentials, gateway_identity_dns_name};
    use quinn::{ClientConfig, Endpoint, EndpointConfig, SendStream, ServerConfig, TokioRuntime};
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::time::Duration;
    use units::Span;
    use wan_sim::{LinkSpec, VirtualNet};

    const FABRIC: &str = "two-region";

    fn address(number: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, number], 7400))
    }

    fn credentials(authority: &CertificateAuthority, name: &str) -> Credentials {
        let valid = CertificateValidity::days(1);
        let issued = authority.issue_certificate(name, FABRIC, valid).expect("signed");
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("a file");
            path
        };
        let (own, key) =
            (file("own.pem", &issued.certificate_pem), file("own.key", &issued.key_pem));
        Credentials::load(&own, &key, &file("ca.pem", authority.certificate_pem()))
            .expect("credentials")
    }

    /// A stream from one host to another, 20 ms away, and what it takes to keep it.
    struct Sent {
        net: VirtualNet,
        stream: SendStream,
        reader: ChunkReader,
        _kept: [(Endpoint, quinn::Connection); 2],
    }

    impl Sent {
        /// Opens the stream with a first byte, which is read.
        async fn open() -> Self {
            let authority = CertificateAuthority::generate(FABRIC).expect("a CA");
            let [east, west] = ["east-0", "west-0"].map(|name| credentials(&authority, name));
            let net = VirtualNet::new();
            let link = LinkSpec::unlimited(Span::from_ms(20)).expect("a delay");
            net.connect(address(1).ip(), address(2).ip(), link, link, 1);
            let endpoint = |at: SocketAddr, server: Option<ServerConfig>| {
                let (socket, config) = (net.bind(at).expect("free"), EndpointConfig::default());
                Endpoint::new_with_abstract_socket(config, server, socket, Arc::new(TokioRuntime))
                    .expect("an endpoint")
            };
            let server = ServerConfig::with_crypto(west.server_config().expect("TLS"));
            let (here, there) = (endpoint(address(1), None), endpoint(address(2), Some(server)));
            let client = ClientConfig::new(east.client_config().expect("TLS"));
            let name = gateway_identity_dns_name("west-0", FABRIC);
            let dialled = here.connect_with(client, address(2), &name).expect("a name");
            let accepted = async { there.accept().await.expect("open").await.expect("TLS") };
            let (dialled, accepted) = tokio::join!(dialled, accepted);
            let dialled = dialled.expect("TLS");
            let mut stream = dialled.open_uni().await.expect("a stream");
            stream.write_all(b"a").await.expect("room");
            let mut reader = ChunkReader::new(accepted.accept_uni().await.expect("a stream"));
            let first = reader.read_one_chunk().await.expect("up").expect("a chunk");
            assert_eq!((first.offset, &first.bytes[..]), (0, &b"a"[..]));
            Self { net, stream, reader, _kept: [(here, dialled), (there, accepted)] }
        }

        /// Sends bytes in a packet of their own, which the link loses if `lost`.
        async fn send(&mut self, bytes: &[u8], lost: bool) {
            let (from, to) = (address(1).ip(), address(2).ip());
            self.net.set_blackhole(from, to, lost).expect("a link");
            self.stream.write_all(bytes).await.expect("room");
            tokio::time::sleep(Duration::from_millis(1)).await;
            self.net.set_blackhole(from, to, false).expect("a link");
        }

        /// Returns the chunks of the next read.
        async fn read(&mut self) -> Vec<(u64, Vec<u8>)> {
            assert!(self.reader.read_chunks().await.expect("up"), "the stream has ended");
            let chunks = std::iter::from_fn(|| self.reader.take_chunk());
            chunks.map(|chunk| (chunk.offset, chunk.bytes.to_vec())).collect()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn chunks_that_are_there_come_in_one_read() {
        let mut sent = Sent::open().await;
        for bytes in [b"bb", b"cc", b"dd"] {
            sent.send(bytes, false).await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        let chunk = |offset, bytes: &[u8; 2]| (offset, bytes.to_vec());
        assert_eq!(sent.read().await, [chunk(1, b"bb"), chunk(3, b"cc"), chunk(5, b"dd")]);
        assert!(!sent.reader.has_waited());
        sent.stream.finish().expect("open");
        assert!(!sent.reader.read_chunks().await.expect("up"), "the end");
        assert!(sent.reader.has_waited());
    }

    #[tokio::test(start_paused = true)]
    async fn a_chunk_behind_a_missing_packet_does_not_wait() {
        let mut sent = Sent::open().await;
        sent.send(b"lost", true).await;
        sent.send(b"behind", false).await;
        assert_eq!(sent.read().await, [(5, b"behind".to_vec())]);
        assert_eq!(sent.read().await, [(1, b"lost".to_vec())]);
    }

    #[tokio::test(start_paused = true)]
    async fn one_chunk_is_read_whatever_is_missing() {
        let mut sent = Sent::open().await;
        sent.send(b"lost", true).await;
        sent.send(b"behind", false).await;
        tokio::time::sleep(Duration::from_millis(25)).await;
        let chunk = sent.reader.read_one_chunk().await.expect("up").expect("a chunk");
        assert_eq!((chunk.offset, &chunk.bytes[..]), (5, &b"behind"[..]));
    }
}
