//! Numbers of leaders, and of the states that they made.

use crate::codec::{DecodeError, FieldReader, write_u64};
use crate::ids::BootId;
use crate::store::limits::STORE_NUMBERS_BOUND;

/// A time of leading: later starts of the first gateway choose greater ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct StoreBallot {
    /// The number, above all that any gateway knew; 0 is none.
    pub number: u64,
    /// The start of the first gateway, so that two starts never choose one ballot.
    pub boot: BootId,
}

/// A state of a store. Equal versions are equal states, and the greater one is the later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct StoreBallotVersion {
    /// The ballot under which the state was made.
    pub ballot: StoreBallot,
    /// The number of entries in it.
    pub index: u64,
}

impl StoreBallot {
    /// Appends the ballot to the message `out`: number, start.
    pub(super) fn write_to(self, out: &mut Vec<u8>) {
        write_u64(out, self.number);
        write_u64(out, self.boot.0);
    }

    /// Reads a ballot: number, start.
    pub(super) fn read_from(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let number = reader.read_u64()?;
        if number >= STORE_NUMBERS_BOUND {
            return Err(DecodeError::Invalid("ballot"));
        }
        Ok(Self { number, boot: BootId(reader.read_u64()?) })
    }
}

impl StoreBallotVersion {
    /// Appends the version to the message `out`: ballot, index.
    pub(super) fn write_to(self, out: &mut Vec<u8>) {
        self.ballot.write_to(out);
        write_u64(out, self.index);
    }

    /// Reads a version: ballot, index.
    pub(super) fn read_from(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let ballot = StoreBallot::read_from(reader)?;
        let index = reader.read_u64()?;
        if index >= STORE_NUMBERS_BOUND {
            return Err(DecodeError::Invalid("version"));
        }
        Ok(Self { ballot, index })
    }
}
