//! Epochs told from those of other terms, and their encoding in messages between gateways.

use crate::codec::{DecodeError, FieldReader, write_u64};
use crate::ids::Epoch;

/// An epoch of a job, told from all others.
///
/// The number alone is not enough. A gateway may begin an epoch as its links break, and the others, in
/// a later term, begin one of the same number. Two terms that begin have different numbers, since some
/// gateway votes for both of them. So the order is that of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct EpochId {
    /// The number of the term; 0 where the quorum is all regions.
    pub term: u64,
    /// The number of the epoch.
    pub number: Epoch,
}

impl EpochId {
    /// Appends the epoch to the message `out`: the term's number, then its own.
    pub(super) fn write_to(self, out: &mut Vec<u8>) {
        write_u64(out, self.term);
        write_u64(out, self.number.0);
    }

    /// Reads an epoch: the term's number, then its own.
    pub(super) fn read_from(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { term: reader.read_u64()?, number: Epoch(reader.read_u64()?) })
    }
}
