//! A post whose contribution comes behind it, from a trainer without shared memory.
//!
//! The bytes come from the first to the last, in pieces. The engine hears of the post with its first
//! piece, and then of each further one, so that what is here is reduced and sent while the rest is
//! still to come.

use crate::events::LocalEvent;
use crate::local::slots_in_use::GroupCollective;
use crate::memory::mem_slice::MemSlice;

/// A trainer's last post, as far as its contribution has come.
#[derive(Debug)]
pub(in crate::local) struct StreamedPost {
    collective: GroupCollective,
    /// The slot of the contribution; `None` where nobody reads what comes.
    slot: Option<MemSlice>,
    /// Bytes that the trainer announced with the post.
    bytes: u64,
    /// Bytes that have come.
    arrived: u64,
    /// The event that the engine has not got yet, since nothing has come.
    held: Option<LocalEvent>,
}

impl StreamedPost {
    /// Makes a post behind which `bytes` bytes come for `slot`, and keeps `event` until the first of
    /// them is here. Without a slot nobody reads the bytes: the rank contributes none, or announced
    /// others than it has, so that the post fails. The event is returned then.
    pub fn new(
        collective: GroupCollective,
        slot: Option<MemSlice>,
        bytes: u64,
        event: LocalEvent,
    ) -> (Self, Option<LocalEvent>) {
        let (held, now) = if slot.is_some() { (Some(event), None) } else { (None, Some(event)) };
        (Self { collective, slot, bytes, arrived: 0, held }, now)
    }

    /// Returns the collective.
    pub fn collective(&self) -> GroupCollective {
        self.collective
    }

    /// Returns the first byte of the contribution that has not come; `None` once all have.
    pub fn missing_from(&self) -> Option<u64> {
        (self.arrived < self.bytes).then_some(self.arrived)
    }

    /// Returns the text for a trainer that sends another request in place of the next piece.
    pub fn interruption_text(&self) -> String {
        let (arrived, sequence) = (self.arrived, self.collective.1);
        format!("another request behind {arrived} bytes of collective {sequence}")
    }

    /// Keeps nothing of what is still to come, since the collective has ended.
    pub fn stop_reading_post(&mut self) {
        self.slot = None;
    }

    /// Returns the place of the next piece in the arena; `None` for bytes that nobody reads. `offset`
    /// counts from the first byte of the contribution.
    ///
    /// # Errors
    /// The text for the trainer: the piece is not the next one.
    pub fn place_of_piece(&self, offset: u64, bytes: u32) -> Result<Option<MemSlice>, String> {
        let (arrived, whole) = (self.arrived, self.bytes);
        if offset != arrived {
            return Err(format!("a piece at {offset}, though {arrived} bytes have come"));
        }
        let end = arrived + u64::from(bytes);
        if end > whole {
            return Err(format!(
                "a piece at {offset} reaches beyond the contribution of {whole} bytes"
            ));
        }
        Ok(self.slot.as_ref().map(|slot| slot.slice(arrived..end)))
    }

    /// Notes that a piece has come. Returns the post if the engine has not got it yet, and whether the
    /// engine is to hear of the piece at all.
    pub fn note_piece(&mut self, bytes: u32) -> PieceNews {
        self.arrived += u64::from(bytes);
        let missing = self.missing_from();
        match self.held.take() {
            Some(mut event) => {
                if let LocalEvent::Post { transport, .. } = &mut event {
                    transport.missing_from = missing;
                }
                PieceNews::Post(event)
            }
            None if self.slot.is_some() => PieceNews::MissingFrom(missing),
            None => PieceNews::None,
        }
    }
}

/// The news for the engine when a piece has come.
#[derive(Debug)]
pub(in crate::local) enum PieceNews {
    /// The post itself.
    Post(LocalEvent),
    /// The first byte that is missing now; `None` once all are here.
    MissingFrom(Option<u64>),
    /// None: nobody reads the contribution.
    None,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::GroupNumber;
    use crate::memory::arena::Arena;
    use hier_collectives::ids::Sequence;

    #[test]
    fn pieces_come_in_order_and_end_with_the_contribution() {
        let arena = Arena::anonymous(4096).expect("a page");
        let slot = MemSlice::whole(&arena).slice(64..164);
        let collective = (GroupNumber::JOB, Sequence(3));
        let (bytes, arrived, held) = (100, 0, None);
        let mut post = StreamedPost { collective, slot: Some(slot), bytes, arrived, held };
        for (offset, bytes) in [(1, 1), (64, 1), (u64::MAX, 1), (4096, 1)] {
            let why = post.place_of_piece(offset, bytes).expect_err("not the next byte");
            assert!(why.contains("0 bytes have come"), "{why}");
        }
        for bytes in [101, u32::MAX] {
            let why = post.place_of_piece(0, bytes).expect_err("too long");
            assert!(why.contains("beyond the contribution of 100 bytes"), "{why}");
        }
        let place = post.place_of_piece(0, 60).expect("the first").expect("read");
        place.copy_from_bytes(0, &[7; 60]);
        assert!(matches!(post.note_piece(60), PieceNews::MissingFrom(Some(60))));
        assert!(post.place_of_piece(0, 60).is_err(), "it was here");
        assert!(post.place_of_piece(60, 41).is_err(), "one byte of another slot");
        // Its collective has failed: the rest has no place.
        post.stop_reading_post();
        assert!(post.place_of_piece(60, 40).expect("the next").is_none());
        assert!(matches!(post.note_piece(40), PieceNews::None));
        assert_eq!(post.missing_from(), None);
        assert!(post.place_of_piece(100, 1).is_err(), "all is here");
        let mut written = [0; 64];
        MemSlice::whole(&arena).slice(64..128).copy_to(&mut written);
        assert_eq!(written[..60], [7; 60]);
    }
}
