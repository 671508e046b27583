//! Writes messages and results to one trainer.
//!
//! A trainer's task may stop waiting for a write at any byte, and then has a last message to send.
//! [`EventWriter`] keeps what is not written yet, so that the last message never begins inside
//! another.

use super::protocol::{ProtocolResponse, frame_protocol_message};
use super::remote::pieces::append_result_piece;
use super::slots_in_use::GroupCollective;
use super::trainer_listener::TrainerStream;
use crate::memory::mem_slice::MemSlice;
use std::io;
use std::ops::Range;
use tokio::io::{AsyncWriteExt, WriteHalf};

/// The gateway's end of a trainer's connection, for writing.
pub(super) struct EventWriter {
    stream: WriteHalf<Box<dyn TrainerStream>>,
    /// Whole messages, of which the first `written` bytes are written.
    pending: Vec<u8>,
    written: usize,
}

impl EventWriter {
    /// Makes the writer of a trainer's connection, with nothing queued.
    pub fn new(stream: WriteHalf<Box<dyn TrainerStream>>) -> Self {
        Self { stream, pending: Vec::new(), written: 0 }
    }

    /// Adds a message to what [`EventWriter::flush`] writes to the trainer.
    pub fn queue(&mut self, response: &ProtocolResponse) {
        self.pending.extend(frame_protocol_message(&response.encode()));
    }

    /// Adds a piece of a result to what [`EventWriter::flush`] writes: the bytes `range` of the slot.
    pub fn queue_result_piece(
        &mut self,
        collective: GroupCollective,
        result: &MemSlice,
        range: Range<u64>,
    ) {
        append_result_piece(&mut self.pending, collective, result, range);
    }

    /// Writes all messages that were added. A call that is dropped can be repeated.
    ///
    /// # Errors
    /// The connection is gone.
    pub async fn flush(&mut self) -> io::Result<()> {
        while self.written < self.pending.len() {
            let written = self.stream.write(&self.pending[self.written..]).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.written += written;
        }
        self.pending.clear();
        self.written = 0;
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
