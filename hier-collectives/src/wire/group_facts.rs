//! A group of ranks as gateways describe it to each other, and its encoding.

use crate::codec::{DecodeError, FieldReader, write_u32, write_u64};
use crate::ids::{GroupId, RankId};

/// The facts from which the id of a group follows. Ranks that differ in one of them make different
/// groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupFacts {
    /// The job.
    pub job: GroupId,
    /// The group of which its ranks are a part: the job itself, or another group.
    pub parent: GroupId,
    /// The place at which its ranks make it in the parent, or the caller's tag.
    pub place: u64,
    /// Its ranks by their numbers in the job, ascending.
    pub ranks: Vec<RankId>,
}

impl GroupFacts {
    /// Appends the facts to the message `out`: job, parent, place, ranks.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        [self.job.0, self.parent.0, self.place].into_iter().for_each(|n| write_u64(out, n));
        write_group_facts_ranks(&self.ranks, out);
    }

    /// Reads the facts: job, parent, place, ranks.
    pub(super) fn read_from(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let (job, parent) = (GroupId(reader.read_u64()?), GroupId(reader.read_u64()?));
        Ok(Self { job, parent, place: reader.read_u64()?, ranks: read_group_facts_ranks(reader)? })
    }
}

/// Appends a list of ranks to a message: a 32-bit count, then their numbers.
pub fn write_group_facts_ranks(ranks: &[RankId], out: &mut Vec<u8>) {
    write_u32(out, u32::try_from(ranks.len()).unwrap_or(u32::MAX));
    ranks.iter().for_each(|rank| write_u32(out, rank.0));
}

/// Reads a list of ranks: a 32-bit count, then their numbers, at least one, ascending.
///
/// # Errors
/// [`DecodeError`] when the list is malformed.
pub fn read_group_facts_ranks(reader: &mut FieldReader<'_>) -> Result<Vec<RankId>, DecodeError> {
    let count = reader.read_u32()? as usize;
    let bytes = count.checked_mul(4).ok_or(DecodeError::Invalid("ranks"))?;
    let mut fields = FieldReader(reader.read_bytes(bytes)?);
    let ranks: Vec<RankId> =
        (0..count).map(|_| fields.read_u32().map(RankId)).collect::<Result<_, _>>()?;
    let is_ascending = ranks.windows(2).all(|pair| pair[0] < pair[1]);
    if is_ascending && !ranks.is_empty() { Ok(ranks) } else { Err(DecodeError::Invalid("ranks")) }
}
