//! What gateways say to each other of their links and lanes, whatever the jobs; docs/protocol.md
//! section 2.

use hier_collectives::codec::{DecodeError, Reader, put_u16, put_u64};
use hier_collectives::ids::{GroupId, RegionId};
use units::BitRate;

/// Stands where a control message has its group. No job has this number.
pub const LINK_GROUP: GroupId = GroupId(0);

/// What stands behind [`LINK_GROUP`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// Of a link.
    Link(LinkWord),
    /// The sender's control messages come over this connection from here on, until it says a
    /// higher number on another.
    Turn(u64),
}

/// A fact about a link. The sender says it anew when a lane comes up or is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkWord {
    /// The regions at its ends, in number order.
    pub ends: (RegionId, RegionId),
    /// Grows with each change, so that a word that comes late over a lost lane has no effect.
    pub number: u64,
    /// What the sender's operator holds the link to; `None` without an operator's word.
    pub rate: Option<BitRate>,
}

impl Word {
    /// The wire form, behind the group.
    pub fn encode(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(21);
        match self {
            Self::Link(word) => {
                out.push(RATE);
                put_u16(&mut out, word.ends.0.0);
                put_u16(&mut out, word.ends.1.0);
                put_u64(&mut out, word.number);
                put_u64(&mut out, word.rate.map_or(0, BitRate::bits_per_second));
            }
            Self::Turn(number) => {
                out.push(TURN);
                put_u64(&mut out, number);
            }
        }
        out
    }

    /// Reads the wire form.
    ///
    /// # Errors
    /// [`DecodeError`]: the peer's fault.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader(bytes);
        let word = match reader.u8()? {
            RATE => Self::Link(LinkWord::read(&mut reader)?),
            TURN => Self::Turn(reader.u64()?),
            _ => return Err(DecodeError::Unknown("word")),
        };
        reader.end(word)
    }
}

impl LinkWord {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let ends = (RegionId(reader.u16()?), RegionId(reader.u16()?));
        if ends.0 >= ends.1 {
            return Err(DecodeError::Invalid("link"));
        }
        let (number, bits) = (reader.u64()?, reader.u64()?);
        let rate = match bits {
            0 => None,
            bits if bits >= crate::wan::RATE_MIN_BITS => Some(BitRate::from_bits_per_second(bits)),
            _ => return Err(DecodeError::Invalid("rate")),
        };
        Ok(Self { ends, number, rate })
    }
}

const RATE: u8 = 1;
const TURN: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn words_survive_the_wire(
            a in 0u16..100,
            number: u64,
            bits in 8_000u64..,
            some: bool,
        ) {
            let rate = some.then(|| BitRate::from_bits_per_second(bits));
            let word = LinkWord { ends: (RegionId(a), RegionId(a + 1)), number, rate };
            for word in [Word::Link(word), Word::Turn(number)] {
                prop_assert_eq!(Word::decode(&word.encode()), Ok(word));
            }
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(word) = Word::decode(&bytes) {
                prop_assert_eq!(word.encode(), bytes);
            }
        }
    }
}
