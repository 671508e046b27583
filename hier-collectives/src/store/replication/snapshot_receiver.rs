//! Fetches a snapshot piece by piece, in any order and as often as pieces are lost.

use super::ballot::StoreBallotVersion;
use super::store_message::StoreViolation;
use crate::store::limits::{PIECE_BYTES, PIECES_ASKED_MAX};

/// A snapshot that is arriving.
#[derive(Debug)]
pub(super) struct SnapshotReceiver {
    /// The version of the state.
    pub version: StoreBallotVersion,
    /// The bytes; empty until the first piece has told the length.
    bytes: Vec<u8>,
    /// Which pieces have arrived; only the first is known of until it has told the length.
    pieces: Vec<PieceState>,
    /// The length of the snapshot.
    total: Option<u32>,
}

/// The state of one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PieceState {
    Missing,
    Asked,
    Arrived,
}

/// Returns the offset of a piece.
fn snapshot_receiver_piece_offset(index: usize) -> u32 {
    u32::try_from(index * PIECE_BYTES).unwrap_or(u32::MAX)
}

impl SnapshotReceiver {
    /// Begins to receive the snapshot of a version.
    pub fn new(version: StoreBallotVersion) -> Self {
        Self { version, bytes: Vec::new(), pieces: vec![PieceState::Missing], total: None }
    }

    /// Returns the offsets of missing pieces to ask for now, and marks them as asked. No more than
    /// [`PIECES_ASKED_MAX`] are asked and not arrived.
    pub fn offsets_to_ask(&mut self) -> Vec<u32> {
        let asked = self.pieces.iter().filter(|piece| **piece == PieceState::Asked).count();
        let missing = self.pieces.iter_mut().enumerate();
        let missing = missing.filter(|(_, piece)| **piece == PieceState::Missing);
        let next = missing.take(PIECES_ASKED_MAX.saturating_sub(asked)).map(|(index, piece)| {
            *piece = PieceState::Asked;
            snapshot_receiver_piece_offset(index)
        });
        next.collect()
    }

    /// Marks requested pieces as missing, so that the next call of [`Self::offsets_to_ask`] returns
    /// them.
    pub fn forget_asked(&mut self) {
        let asked = self.pieces.iter_mut().filter(|piece| **piece == PieceState::Asked);
        asked.for_each(|piece| *piece = PieceState::Missing);
    }

    /// Adds a piece to the snapshot. Returns the whole snapshot once all pieces are there; `None`
    /// before.
    ///
    /// # Errors
    /// [`StoreViolation`]: the piece is of a snapshot of another length, or lies beyond its end.
    pub fn take_piece(
        &mut self,
        offset: u32,
        total: u32,
        piece: &[u8],
    ) -> Result<Option<Vec<u8>>, StoreViolation> {
        if *self.total.get_or_insert(total) != total {
            return Err(StoreViolation("a piece of a snapshot of another length"));
        }
        let count = (total as usize).div_ceil(PIECE_BYTES).max(1);
        self.bytes.resize(total as usize, 0);
        self.pieces.resize(count, PieceState::Missing);
        let start = offset as usize;
        let place = self.bytes.get_mut(start..start + piece.len());
        let state = self.pieces.get_mut(start / PIECE_BYTES);
        let (Some(place), Some(state)) = (place, state) else {
            return Err(StoreViolation("a piece beyond its snapshot"));
        };
        place.copy_from_slice(piece);
        *state = PieceState::Arrived;
        let is_whole = self.pieces.iter().all(|piece| *piece == PieceState::Arrived);
        Ok(is_whole.then(|| std::mem::take(&mut self.bytes)))
    }
}
