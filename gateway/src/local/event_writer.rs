//! Writes messages and results to one trainer.
//!
//! A trainer's task may stop waiting for a write at any byte, and then has a last message to send.
//! [`EventWriter`] keeps what is not written yet, so that the last message never begins inside
//! another.

use super::protocol::{ProtocolResponse, frame_protocol_message};
use super::remote::pieces::frame_result_piece;
use super::slots_in_use::GroupCollective;
use super::trainer_listener::TrainerStream;
use crate::memory::mem_slice::MemSlice;
use bytes::{Buf, Bytes};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::ops::Range;
use tokio::io::{AsyncWriteExt, WriteHalf};

/// 8 messages and pieces: the most that one call hands to the connection. A piece is two of them; with
/// the events of a batch there are seldom more.
const WRITE_BUFFERS_MAX: usize = 8;

/// The gateway's end of a trainer's connection, for writing.
pub(super) struct EventWriter {
    stream: WriteHalf<Box<dyn TrainerStream>>,
    /// Messages, and bytes of results where they lie, that are not written yet.
    pending: VecDeque<Bytes>,
}

impl EventWriter {
    /// Makes the writer of a trainer's connection, with nothing queued.
    pub fn new(stream: WriteHalf<Box<dyn TrainerStream>>) -> Self {
        Self { stream, pending: VecDeque::new() }
    }

    /// Adds a message to what [`EventWriter::flush`] writes to the trainer.
    pub fn queue(&mut self, response: &ProtocolResponse) {
        self.pending.push_back(frame_protocol_message(&response.encode()).into());
    }

    /// Adds a piece of a result to what [`EventWriter::flush`] writes: the bytes `range` of the slot,
    /// which are read when they are written.
    pub fn queue_result_piece(
        &mut self,
        collective: GroupCollective,
        result: &MemSlice,
        range: Range<u64>,
    ) {
        self.pending.push_back(frame_result_piece(collective, &range).into());
        self.pending.push_back(result.slice(range).into_bytes());
    }

    /// Writes all messages that were added. A call that is dropped can be repeated.
    ///
    /// # Errors
    /// The connection is gone.
    pub async fn flush(&mut self) -> io::Result<()> {
        while !self.pending.is_empty() {
            let mut buffers = [IoSlice::new(&[]); WRITE_BUFFERS_MAX];
            let count = self.pending.len().min(WRITE_BUFFERS_MAX);
            for (buffer, bytes) in buffers.iter_mut().zip(&self.pending) {
                *buffer = IoSlice::new(bytes);
            }
            let mut written = self.stream.write_vectored(&buffers[..count]).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            while let Some(first) = self.pending.front_mut() {
                let part = first.len().min(written);
                first.advance(part);
                written -= part;
                if !first.is_empty() {
                    break;
                }
                self.pending.pop_front();
            }
        }
        self.stream.flush().await
    }

    /// Ends the sending side of the trainer's connection, so that the trainer reads the end of the
    /// stream.
    ///
    /// # Errors
    /// The connection is gone.
    pub async fn shut_down(&mut self) -> io::Result<()> {
        self.stream.shutdown().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::GroupNumber;
    use crate::local::protocol::{PIECE_BYTES_MAX, read_protocol_message};
    use crate::local::refusal::{Refusal, RefusalReason};
    use crate::memory::arena::Arena;
    use hier_collectives::ids::Sequence;
    use std::time::Duration;
    use tokio::io::AsyncReadExt;

    #[tokio::test(start_paused = true)]
    async fn an_interrupted_result_ends_before_the_last_message() {
        let (ours, mut theirs) = tokio::io::duplex(1000);
        let (_reader, writer) = tokio::io::split(Box::new(ours) as Box<dyn TrainerStream>);
        let mut writer = EventWriter::new(writer);
        let arena = Arena::anonymous(2 * u64::from(PIECE_BYTES_MAX)).expect("memory");
        let (result, piece) = (MemSlice::whole(&arena), 0..u64::from(PIECE_BYTES_MAX));
        writer.queue_result_piece((GroupNumber::JOB, Sequence(7)), &result, piece);
        let unread = tokio::time::timeout(Duration::from_secs(1), writer.flush()).await;
        assert!(unread.is_err(), "the trainer does not read");
        writer.queue(&ProtocolResponse::Refused(Refusal::new(RefusalReason::ShuttingDown, "bye")));
        let reading = async {
            let first =
                ProtocolResponse::decode(&read_protocol_message(&mut theirs).await.expect("one"));
            let Ok(ProtocolResponse::ResultPiece { bytes, .. }) = first else {
                panic!("{first:?}")
            };
            theirs.read_exact(&mut vec![0; bytes as usize]).await.expect("whole");
            ProtocolResponse::decode(&read_protocol_message(&mut theirs).await.expect("another"))
        };
        let (flushed, last) = tokio::join!(writer.flush(), reading);
        flushed.expect("read");
        assert!(matches!(last, Ok(ProtocolResponse::Refused(_))), "{last:?}");
    }
}
