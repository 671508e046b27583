//! Numbers of sends: the sends of a rank to another with one tag are a series, in an order of its own.
//!
//! A send and its receive are one collective of a group of two ranks. Its number has the series in the
//! high bits and the place in the series in the low ones. So both ranks know the number without a
//! word, and no send waits for one with another tag. All other collectives of a group are in one
//! order, and their numbers are places.

use crate::ids::{RankId, Sequence, Tag};
use crate::mutant::{self, Mutant};
use std::fmt;

/// 44 low bits of the number of a send: its place in its series, the sends of one rank to another
/// with one tag. The tag stands in the 16 bits above. A series of a million sends a second lasts
/// for half a year.
const PLACE_BITS: u32 = 44;
/// 60: the bit in the number of a send that names the sender by its rank, 0 or 1, in the group of
/// two. The 16 bits of the tag stand below this bit.
const SENDER_SHIFT: u32 = PLACE_BITS + 16;
/// Bit 61 of a collective's number, which is set for a send and clear for all other collectives. No
/// number uses the two bits above.
const SEND_BIT: u64 = 1 << 61;

/// The sends from one of two ranks to the other with one tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SendSeries {
    /// The rank that sends: 0 or 1, by its number in the group of the two.
    pub from: RankId,
    /// The tag.
    pub tag: Tag,
}

impl SendSeries {
    /// Returns the sequence number of the send at a place of the series. Place and sender are cut to
    /// their bits.
    pub fn sequence_at(self, place: u64) -> Sequence {
        let from = u64::from(self.from.0 & 1) << SENDER_SHIFT;
        let mixed = u16::from(mutant::is_mutant_active(Mutant::MixTags));
        let tag = u64::from(self.tag.0 & !mixed) << PLACE_BITS;
        Sequence(SEND_BIT | from | tag | place & ((1 << PLACE_BITS) - 1))
    }
}

impl Sequence {
    /// 2^44 places: above the place of any send in its series. A peer's epoch whose first
    /// collective has this number or a higher one is refused.
    pub const PLACES_BOUND: u64 = 1 << PLACE_BITS;

    /// Returns the series of a send; `None` for other collectives, which are in one order.
    pub fn series(self) -> Option<SendSeries> {
        let (from, tag) = (self.0 >> SENDER_SHIFT & 1, self.0 >> PLACE_BITS);
        let (from, tag) = (RankId(u32::from(from == 1)), Tag((tag & 0xffff) as u16));
        (self.0 & !(SEND_BIT - 1) == SEND_BIT).then_some(SendSeries { from, tag })
    }

    /// Returns the place in the series, or among the collectives that are in one order.
    pub fn place(self) -> u64 {
        if self.series().is_some() { self.0 % Self::PLACES_BOUND } else { self.0 }
    }

    /// Returns the number of the collective behind this one, in its series if it is a send.
    #[must_use]
    pub fn following(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Sequence {
    /// Prints the place: `3`. Of a send it prints tag and sender, too: `3 of the sends with tag 7 from the
    /// lower rank`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.series() {
            None => self.0.fmt(f),
            Some(SendSeries { from, tag }) => {
                let sender = if from.0 == 0 { "lower" } else { "higher" };
                write!(f, "{} of the sends with tag {tag} from the {sender} rank", self.place())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_number_names_series_and_place(from in 0u32..2, tag: u16, place in 0..Sequence::PLACES_BOUND) {
            let series = SendSeries { from: RankId(from), tag: Tag(tag) };
            let number = series.sequence_at(place);
            prop_assert_eq!((number.series(), number.place()), (Some(series), place));
            prop_assert!(number.0 < 1 << 62);
            let sender = ["lower", "higher"][from as usize];
            let text = format!("{place} of the sends with tag {tag} from the {sender} rank");
            prop_assert_eq!(number.to_string(), text);
            let other = Sequence(place);
            prop_assert_eq!((other.series(), other.place()), (None, place));
        }

        #[test]
        fn numbers_of_peers_have_at_most_one_series(number: u64) {
            if let Some(series) = Sequence(number).series() {
                prop_assert_eq!(series.sequence_at(Sequence(number).place()), Sequence(number));
            }
        }
    }
}
