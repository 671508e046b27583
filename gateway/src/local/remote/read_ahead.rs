//! A TCP connection that is read ahead of TLS.
//!
//! TLS takes 4 KiB with each read. [`ReadAhead`] takes what has come with one system call, into a
//! buffer that grows while reads fill it, so that a silent connection takes little memory.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// 4 KiB: the buffer of a connection at its first read, as much as TLS takes at once.
const READ_AHEAD_BYTES_MIN: usize = 1 << 12;
/// 256 KiB, as a piece: the longest buffer of a connection.
const READ_AHEAD_BYTES_MAX: usize = 1 << 18;

/// A connection of which more is read at once than is asked for.
#[derive(Debug)]
pub struct ReadAhead<S> {
    stream: S,
    buffer: Vec<u8>,
    /// The first byte that is read and not taken.
    start: usize,
    /// The end of what is read.
    end: usize,
}

impl<S> ReadAhead<S> {
    /// Makes a connection without a buffer, which comes with its first read.
    pub fn new(stream: S) -> Self {
        Self { stream, buffer: Vec::new(), start: 0, end: 0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadAhead<S> {
    /// Takes bytes that were read before, or reads as many as the buffer holds.
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.start == this.end {
            if this.end == this.buffer.len() {
                let length = 2 * this.buffer.len();
                this.buffer.resize(length.clamp(READ_AHEAD_BYTES_MIN, READ_AHEAD_BYTES_MAX), 0);
            }
            let mut read = ReadBuf::new(&mut this.buffer);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut read))?;
            (this.start, this.end) = (0, read.filled().len());
        }
        let taken = out.remaining().min(this.end - this.start);
        out.put_slice(&this.buffer[this.start..this.start + taken]);
        this.start += taken;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReadAhead<S> {
    /// Writes to the connection.
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    /// Writes several buffers to the connection at once.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, buffers)
    }

    /// Returns whether the connection takes several buffers at once.
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Flushes the connection.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    /// Ends the sending side of the connection.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// A stream that counts its reads.
    struct Counted<S>(S, usize);

    impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            out: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            self.1 += 1;
            Pin::new(&mut self.0).poll_read(cx, out)
        }
    }

    #[tokio::test]
    async fn many_bytes_take_few_reads() {
        let sent: Vec<u8> = (0..4 << 20).map(|at: u32| (at % 251) as u8).collect();
        let (mut ours, theirs) = tokio::io::duplex(sent.len());
        ours.write_all(&sent).await.expect("room");
        drop(ours);
        let mut read = ReadAhead::new(Counted(theirs, 0));
        let mut came: Vec<u8> = Vec::new();
        let mut part = [0; 4096];
        loop {
            let taken = read.read(&mut part).await.expect("open");
            if taken == 0 {
                break;
            }
            came.extend(&part[..taken]);
        }
        assert!(came == sent, "other bytes");
        // 16 reads of the longest buffer, six while it grows, and the end.
        assert!(read.stream.1 <= 16 + 6 + 1, "{} reads", read.stream.1);
    }

    #[tokio::test]
    async fn a_silent_connection_has_no_buffer() {
        let (_ours, theirs) = tokio::io::duplex(10);
        let read = ReadAhead::new(theirs);
        assert_eq!(read.buffer.capacity(), 0);
    }
}
