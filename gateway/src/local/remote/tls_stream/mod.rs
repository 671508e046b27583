//! TLS 1.3 over TCP, between a trainer on another host and its gateway.
//!
//! ```text
//! socket > incoming > decrypted where it lies > the reader's memory
//! writer's memory > encrypted into outgoing > socket
//! ```
//!
//! [`records`] does TLS on bytes in memory, by rustls, and reads and writes nothing. [`TlsStream`]
//! moves the bytes between it and a socket, with few system calls. rustls' unbuffered connections
//! decrypt a record where it was read, so that a receiver copies each byte twice less than with
//! buffered ones.

mod records;
#[cfg(test)]
mod tests;

use records::{TlsConnection, TlsRecords};
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::{ClientConfig, ServerConfig};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// 512 KiB: so many encrypted bytes wait for a flush, or for the next write, before they are sent. Each
/// write wakes the other end, so shorter ones cost more. Longer ones leave the cache of many a processor
/// core, which is 1 MiB, before the system copies them.
const OUTGOING_BYTES_MAX: usize = 1 << 19;

/// A TLS 1.3 connection over `S`, after its handshake.
pub(crate) struct TlsStream<S, C> {
    socket: S,
    records: TlsRecords<C>,
}

/// The trainer's end of a connection.
pub(crate) type TlsClientStream<S> = TlsStream<S, UnbufferedClientConnection>;
/// The gateway's end of a connection.
pub(super) type TlsServerStream<S> = TlsStream<S, UnbufferedServerConnection>;

impl<S: AsyncRead + AsyncWrite + Unpin> TlsClientStream<S> {
    /// Does the handshake of a trainer with the gateway of this name.
    ///
    /// # Errors
    /// The connection ended, or the gateway did not prove its name: then the error holds that of
    /// rustls.
    pub(crate) async fn connect(
        socket: S,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> io::Result<Self> {
        let connection = UnbufferedClientConnection::new(config, name).map_err(io::Error::other)?;
        Self::shake_hands(socket, connection).await
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsServerStream<S> {
    /// Does the handshake of a gateway with a trainer.
    ///
    /// # Errors
    /// The connection ended, or the trainer broke a rule of TLS: then the error holds that of
    /// rustls.
    pub(super) async fn accept(socket: S, config: Arc<ServerConfig>) -> io::Result<Self> {
        let connection = UnbufferedServerConnection::new(config).map_err(io::Error::other)?;
        Self::shake_hands(socket, connection).await
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin, C: TlsConnection> TlsStream<S, C> {
    /// Does the handshake. An end that refuses the other one tells it why, as far as the socket
    /// takes it at once.
    async fn shake_hands(socket: S, connection: C) -> io::Result<Self> {
        let mut stream = Self { socket, records: TlsRecords::new(connection) };
        loop {
            let processed = stream.records.shake_hands();
            if let Err(error) = processed {
                // The alert is told if there is room for it; the error is what counts.
                poll_fn(|cx| Poll::Ready(stream.poll_send(cx).is_ready())).await;
                return Err(error);
            }
            poll_fn(|cx| Pin::new(&mut stream).poll_flush(cx)).await?;
            if !stream.records.is_shaking_hands() {
                return Ok(stream);
            }
            if !poll_fn(|cx| stream.poll_fill(cx)).await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Returns the protocol that both ends agreed on (ALPN).
    pub(super) fn alpn_protocol(&self) -> Option<&[u8]> {
        self.records.alpn_protocol()
    }

    /// Reads what has come from the socket. Returns false at its end.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let mut read = ReadBuf::new(self.records.room());
        ready!(Pin::new(&mut self.socket).poll_read(cx, &mut read))?;
        let bytes = read.filled().len();
        self.records.note_read(bytes);
        Poll::Ready(Ok(bytes > 0))
    }

    /// Writes to the socket what is encrypted, until nothing is left.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.records.outgoing().is_empty() {
            let outgoing = self.records.outgoing();
            let sent = ready!(Pin::new(&mut self.socket).poll_write(cx, outgoing))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.records.note_sent(sent);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin, C: TlsConnection> AsyncRead for TlsStream<S, C> {
    /// Decrypts what has come into the reader's memory. The end of the socket without the other
    /// side's word for it is an error.
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = out.filled().len();
        loop {
            if let Err(error) = this.records.read_into(out) {
                // The alert is told if there is room for it: the connection is over in any case.
                let _ = this.poll_send(cx);
                // The next call has the error again.
                let has_read = out.filled().len() > before;
                return Poll::Ready(if has_read { Ok(()) } else { Err(error) });
            }
            if out.filled().len() > before || out.remaining() == 0 || this.records.has_ended() {
                return Poll::Ready(Ok(()));
            }
            // What the records want to say goes with the next write: the writer's task alone waits
            // for the socket to take bytes.
            if !ready!(this.poll_fill(cx))? {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin, C: TlsConnection> AsyncWrite for TlsStream<S, C> {
    /// Encrypts some of the bytes, which a flush or a later write sends. Waits until the socket has taken
    /// those before if they are many.
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.records.outgoing().len() >= OUTGOING_BYTES_MAX {
            ready!(this.poll_send(cx))?;
        }
        Poll::Ready(this.records.write(bytes))
    }

    /// Waits until the socket has taken all bytes.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_send(cx))?;
        Pin::new(&mut this.socket).poll_flush(cx)
    }

    /// Tells the other end that no more bytes follow, and ends the sending side of the socket.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.records.end()?;
        ready!(this.poll_send(cx))?;
        Pin::new(&mut this.socket).poll_shutdown(cx)
    }
}
