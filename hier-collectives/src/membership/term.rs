//! Terms: the regions that a job goes on with, and the numbers that order them.

use super::fabric_version::FabricVersion;
use crate::codec::{DecodeError, FieldReader, write_u16, write_u64};
use crate::ids::{BootId, RegionId};
use std::collections::BTreeSet;

/// The number of a term, and the start of the gateway that proposed it. No two terms have one id, and
/// the greater number is the later term.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct TermId {
    /// The number; 0 is no term.
    pub number: u64,
    /// The start of the gateway that proposed the term.
    pub boot: BootId,
}

/// A term: the regions that make up the world of every job while it lasts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    /// Its id.
    pub id: TermId,
    /// Its members. All gateways of a member have voted for the term.
    pub regions: BTreeSet<RegionId>,
    /// The fabric that is in force while it lasts. All its gateways have it.
    pub fabric: FabricVersion,
}

impl TermId {
    /// 2^62: a peer's message with the number of a term, or of an operator's intent, from 2^62 on is
    /// refused as malformed. No deployment counts so far, and the numbers that follow fit 64 bits.
    pub(super) const NUMBERS_BOUND: u64 = 1 << 62;

    /// Appends the id to the message `out`: number, start.
    pub(super) fn write_to(self, out: &mut Vec<u8>) {
        write_u64(out, self.number);
        write_u64(out, self.boot.0);
    }

    /// Reads an id: number, start.
    pub(super) fn read_from(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let number = reader.read_u64()?;
        if number >= Self::NUMBERS_BOUND {
            return Err(DecodeError::Invalid("number of a term"));
        }
        Ok(Self { number, boot: BootId(reader.read_u64()?) })
    }
}

impl Term {
    /// Appends the term to the message `out`: its id, its regions, its fabric.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        self.id.write_to(out);
        write_term_regions(out, &self.regions);
        self.fabric.write_to(out);
    }

    /// Reads a term: its id, its regions, its fabric. An id of number 0 is an error.
    pub(super) fn read_from(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let (id, regions) = (TermId::read_from(reader)?, read_term_regions(reader)?);
        if id.number == 0 {
            return Err(DecodeError::Invalid("term"));
        }
        Ok(Self { id, regions, fabric: FabricVersion::read_from(reader)? })
    }
}

/// Appends regions to the message `out`: a 16-bit count, then their numbers.
pub(super) fn write_term_regions(out: &mut Vec<u8>, regions: &BTreeSet<RegionId>) {
    write_u16(out, u16::try_from(regions.len()).unwrap_or(u16::MAX));
    regions.iter().for_each(|region| write_u16(out, region.0));
}

/// Reads regions: a 16-bit count, at least 1, then their numbers, ascending.
pub(super) fn read_term_regions(
    reader: &mut FieldReader<'_>,
) -> Result<BTreeSet<RegionId>, DecodeError> {
    let count = usize::from(reader.read_u16()?);
    let mut fields = FieldReader(reader.read_bytes(2 * count)?);
    let mut regions = BTreeSet::new();
    for _ in 0..count {
        let region = RegionId(fields.read_u16()?);
        if regions.last().is_some_and(|last| *last >= region) {
            return Err(DecodeError::Invalid("regions of a term"));
        }
        regions.insert(region);
    }
    if regions.is_empty() {
        return Err(DecodeError::Invalid("term"));
    }
    Ok(regions)
}
