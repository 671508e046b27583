//! The first bytes of the stream of a packet train, and of its report; docs/protocol.md section 3.

use crate::wan::link::link_message::LINK_GROUP;
use crate::wan::stream::preamble::PREAMBLE_BYTES;
use hier_collectives::codec::{DecodeError, FieldReader};

/// 1: the tag of a packet train.
const TRAIN_TAG: u8 = 1;
/// 2: the tag of a report on a packet train.
const REPORT_TAG: u8 = 2;
/// 1 MiB: the longest packet train, without its preamble. It takes 0.8 ms at 10 Gbit/s.
pub const TRAIN_BYTES_MAX: u32 = 1 << 20;

/// A preamble that belongs to no segment: in the place of a job's group it has [`LINK_GROUP`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrainMessage {
    /// A packet train follows.
    Train {
        /// The number of the train, which the report repeats.
        number: u32,
        /// Bytes behind the preamble, at most [`TRAIN_BYTES_MAX`].
        bytes: u32,
    },
    /// The report on a train, behind which nothing follows.
    Report {
        /// The number of the train.
        number: u32,
        /// Bytes that arrived after the first moment.
        bytes: u32,
        /// Nanoseconds from the first moment to the last of these bytes.
        span_ns: u64,
    },
}

impl TrainMessage {
    /// Encodes the message in the length of a segment's preamble.
    pub fn encode(&self) -> [u8; PREAMBLE_BYTES] {
        let (tag, number, bytes, span_ns) = match *self {
            Self::Train { number, bytes } => (TRAIN_TAG, number, bytes, 0),
            Self::Report { number, bytes, span_ns } => (REPORT_TAG, number, bytes, span_ns),
        };
        let mut out = LINK_GROUP.0.to_be_bytes().to_vec();
        out.push(tag);
        out.extend(number.to_be_bytes());
        out.extend(bytes.to_be_bytes());
        out.extend(span_ns.to_be_bytes());
        out.resize(PREAMBLE_BYTES, 0);
        out.try_into().expect("as long as a preamble")
    }

    /// Decodes a preamble; `None` if it is that of a segment.
    ///
    /// # Errors
    /// [`DecodeError`]: always the peer's fault.
    pub fn decode(preamble: &[u8; PREAMBLE_BYTES]) -> Result<Option<Self>, DecodeError> {
        let mut reader = FieldReader(preamble);
        if reader.read_u64()? != LINK_GROUP.0 {
            return Ok(None);
        }
        let (tag, number) = (reader.read_u8()?, reader.read_u32()?);
        let (bytes, span_ns) = (reader.read_u32()?, reader.read_u64()?);
        if bytes > TRAIN_BYTES_MAX {
            return Err(DecodeError::Invalid("length of a packet train"));
        }
        let message = match (tag, span_ns) {
            (TRAIN_TAG, 0) => Self::Train { number, bytes },
            (REPORT_TAG, span_ns) => Self::Report { number, bytes, span_ns },
            _ => return Err(DecodeError::Unknown("packet train message")),
        };
        if reader.0.iter().any(|byte| *byte != 0) {
            return Err(DecodeError::Invalid("packet train message"));
        }
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn train_messages_are_decoded_as_they_were_encoded(
            is_report: bool,
            number: u32,
            bytes in 0..=TRAIN_BYTES_MAX,
            span_ns: u64,
        ) {
            let message = match is_report {
                true => TrainMessage::Report { number, bytes, span_ns },
                false => TrainMessage::Train { number, bytes },
            };
            prop_assert_eq!(TrainMessage::decode(&message.encode()), Ok(Some(message)));
        }
    }

    #[test]
    fn broken_train_messages_are_refused() {
        let train = TrainMessage::Train { number: 7, bytes: 14_000 }.encode();
        let with = |at: usize, byte: u8| {
            let mut broken = train;
            broken[at] = byte;
            TrainMessage::decode(&broken)
        };
        assert_eq!(with(0, 1), Ok(None), "the group of a job");
        for (at, byte) in [(8, 0), (8, 3), (13, 255), (24, 1), (51, 1)] {
            assert!(with(at, byte).is_err(), "byte {at}");
        }
    }
}
