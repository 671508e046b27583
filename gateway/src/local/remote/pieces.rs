//! Contributions and results on a connection without shared memory, cut into pieces.
//!
//! A piece is a frame and the bytes that it announces. The trainer's task and the client both send
//! and receive pieces. What arrives is copied into an arena without ever being interpreted.

use crate::events::GroupNumber;
use crate::local::protocol::{
    PIECE_BYTES_MAX, ProtocolRequest, ProtocolResponse, frame_protocol_message,
};
use crate::memory::mem_slice::MemSlice;
use hier_collectives::descriptor::Pattern;
use hier_collectives::ids::{RankId, Sequence};
use std::io;
use std::ops::Range;
use tokio::io::{AsyncRead, AsyncReadExt};

/// 64 KiB: the most bytes of a piece that one read takes from the connection, before they are
/// copied into the arena. A longer piece takes several reads. A read of four TLS records costs
/// little more than a read of one.
const PIECE_READ_BYTES_MAX: usize = 1 << 16;

/// Returns whether the gateway reads the contribution of `rank`, so that its bytes follow its post:
/// always, but for a broadcast from another rank.
pub fn is_contribution_sent_in_pieces(pattern: Pattern, rank: RankId) -> bool {
    !matches!(pattern, Pattern::Broadcast { from } if from != rank)
}

/// Returns whether the gateway writes the result of `rank`, so that its bytes come back: always,
/// but for a reduction to another rank.
pub fn is_result_sent_in_pieces(pattern: Pattern, rank: RankId) -> bool {
    !matches!(pattern, Pattern::Reduce { to } if to != rank)
}

/// Returns the pieces of a slot of `bytes` bytes, as ranges from its first byte.
pub fn piece_ranges(bytes: u64) -> impl Iterator<Item = Range<u64>> {
    let length = u64::from(PIECE_BYTES_MAX);
    (0..bytes.div_ceil(length)).map(move |at| at * length..((at + 1) * length).min(bytes))
}

/// Appends the piece `range` of a contribution to `out`.
pub fn append_contribution_piece(out: &mut Vec<u8>, contribution: &MemSlice, range: Range<u64>) {
    let (offset, bytes) = (range.start, piece_bytes(&range));
    let frame = ProtocolRequest::ContributionPiece { offset, bytes }.encode();
    out.extend(frame_protocol_message(&frame));
    contribution.slice(range).append_to(out);
}

/// Returns the frame that announces a piece of a result, whose bytes `range` follow it. The result is
/// that of collective `sequence` of the trainer's group `number`.
pub fn frame_result_piece(
    (number, sequence): (GroupNumber, Sequence),
    range: &Range<u64>,
) -> Vec<u8> {
    let (offset, bytes) = (range.start, piece_bytes(range));
    let piece = ProtocolResponse::ResultPiece { sequence, offset, bytes };
    frame_protocol_message(&piece.of_group(number).encode())
}

/// Returns the number of bytes in a piece of this range.
fn piece_bytes(range: &Range<u64>) -> u32 {
    u32::try_from(range.end - range.start).expect("a piece is short")
}

/// Receives the bytes of pieces from one connection.
#[derive(Debug, Default)]
pub struct PieceReceiver {
    /// Made for the first piece.
    buffer: Vec<u8>,
}

impl PieceReceiver {
    /// Makes a receiver, which takes no memory before the first piece.
    pub fn new() -> Self {
        Self { buffer: Vec::new() }
    }

    /// Reads the `bytes` bytes of one piece. Calls `put` for each part of them, with its offset in
    /// the piece.
    ///
    /// # Errors
    /// The connection ended first. A part of the bytes may have been put.
    pub async fn receive(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        bytes: u32,
        mut put: impl FnMut(u64, &[u8]),
    ) -> io::Result<()> {
        self.buffer.resize(PIECE_READ_BYTES_MAX, 0);
        let (mut at, bytes) = (0, bytes as usize);
        while at < bytes {
            let wanted = self.buffer.len().min(bytes - at);
            let read = stream.read(&mut self.buffer[..wanted]).await?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            put(at as u64, &self.buffer[..read]);
            at += read;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::protocol::read_protocol_message;
    use crate::memory::arena::Arena;
    use proptest::prelude::*;

    #[test]
    fn only_used_slots_of_a_rank_are_streamed() {
        let (own, other) = (RankId(1), RankId(2));
        let used = |pattern| {
            (is_contribution_sent_in_pieces(pattern, own), is_result_sent_in_pieces(pattern, own))
        };
        assert_eq!(used(Pattern::AllReduce), (true, true));
        assert_eq!(used(Pattern::Broadcast { from: own }), (true, true));
        assert_eq!(used(Pattern::Broadcast { from: other }), (false, true));
        assert_eq!(used(Pattern::Reduce { to: own }), (true, true));
        assert_eq!(used(Pattern::Reduce { to: other }), (true, false));
    }

    /// Sends a whole contribution in pieces, cuts the stream after `kept` bytes, and receives what
    /// is left. Returns the error, or the contribution as it arrived.
    async fn send_and_cut(bytes: &[u8], kept: usize) -> io::Result<Vec<u8>> {
        let (from, to) = (arena_with(bytes), arena_with(&vec![0; bytes.len()]));
        let mut sent = Vec::new();
        for range in piece_ranges(from.len()) {
            append_contribution_piece(&mut sent, &from, range);
        }
        let mut stream = &sent[..kept.min(sent.len())];
        let (mut receiver, mut arrived) = (PieceReceiver::new(), 0);
        while arrived < to.len() {
            let message = read_protocol_message(&mut stream).await?;
            let Ok(ProtocolRequest::ContributionPiece { offset, bytes }) =
                ProtocolRequest::decode(&message)
            else {
                panic!("another request")
            };
            assert_eq!(offset, arrived);
            let place = to.slice(offset..offset + u64::from(bytes));
            let put = |at, part: &[u8]| place.copy_from_bytes(at, part);
            receiver.receive(&mut stream, bytes, put).await?;
            arrived += place.len();
        }
        assert!(stream.is_empty());
        Ok(to.to_vec())
    }

    fn arena_with(bytes: &[u8]) -> MemSlice {
        let arena = Arena::anonymous(bytes.len().max(1) as u64).expect("memory");
        let slice = MemSlice::whole(&arena).slice(0..bytes.len() as u64);
        slice.copy_from_bytes(0, bytes);
        slice
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_slot_arrives_whole_or_not_at_all(
            length in 0usize..3 * PIECE_BYTES_MAX as usize,
            kept in 0usize..4 * PIECE_BYTES_MAX as usize,
        ) {
            let bytes: Vec<u8> = (0..length).map(|at| (at * 7 + at / 251) as u8).collect();
            // 17 bytes go before each piece: length, type, offset and number of bytes.
            let whole = length + 17 * piece_ranges(length as u64).count();
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("one");
            match runtime.block_on(send_and_cut(&bytes, kept)) {
                Ok(arrived) => {
                    prop_assert!(kept >= whole);
                    prop_assert_eq!(arrived, bytes);
                }
                Err(error) => {
                    prop_assert!(kept < whole);
                    prop_assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
                }
            }
        }
    }
}
