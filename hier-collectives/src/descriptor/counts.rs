//! Numbers of elements of the blocks that ranks exchange.

use crate::codec::{DecodeError, FieldReader, fnv1a_hash, write_u32, write_u64};
use crate::ids::RankId;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// 2^33 elements, at most 64 GiB: the most that a rank may send, or receive, in one all-to-all with
/// counts by pair. A post with more is refused, since gateways that pass blocks on keep a state for
/// each segment.
/// Tested by `counts_that_do_not_fit_are_refused`.
pub(super) const PAIR_ELEMENTS_MAX: u64 = 1 << 33;

/// Numbers of elements of a collective's blocks, as one rank posts them.
///
/// An all-gather, a reduce-scatter, a gather and a scatter have one block for each rank; an
/// all-to-all has one for each pair of ranks. Other operations have no blocks, and their counts are
/// even.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Counts {
    /// All blocks have as many elements.
    #[default]
    Even,
    /// The elements of each rank's block. All ranks post the same list.
    ByRank(Arc<[u64]>),
    /// An all-to-all's counts on one rank. Each rank posts lists of its own.
    ByPair {
        /// The elements that this rank sends to each rank.
        to: Arc<[u64]>,
        /// The elements that this rank receives from each rank.
        from: Arc<[u64]>,
    },
}

/// The part of the counts on which all ranks must agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum AgreedCounts {
    /// All blocks have as many elements.
    #[default]
    Even,
    /// Each rank's block has its own number of elements.
    ByRank {
        /// FNV-1a digest of the list.
        digest: u64,
    },
    /// Each pair of ranks has its own number of elements.
    ByPair,
}

impl Counts {
    /// Returns the part of the counts on which all ranks must agree.
    pub fn agreed(&self) -> AgreedCounts {
        match self {
            Self::Even => AgreedCounts::Even,
            Self::ByPair { .. } => AgreedCounts::ByPair,
            Self::ByRank(list) => {
                let mut bytes = Vec::with_capacity(8 * list.len());
                list.iter().for_each(|count| write_u64(&mut bytes, *count));
                AgreedCounts::ByRank { digest: fnv1a_hash(&bytes) }
            }
        }
    }

    /// Appends the counts to the message `out`: a code, then the lists.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        out.push(self.agreed().wire_code());
        match self {
            Self::Even => {}
            Self::ByRank(list) => write_counts(list, out),
            Self::ByPair { to, from } => {
                write_counts(to, out);
                write_counts(from, out);
            }
        }
    }

    /// Reads counts: a code, then the lists.
    ///
    /// # Errors
    /// [`DecodeError`] when the code is unknown or bytes are missing.
    pub fn read_from(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        match reader.read_u8()? {
            0 => Ok(Self::Even),
            1 => Ok(Self::ByRank(read_counts(reader)?)),
            2 => Ok(Self::ByPair { to: read_counts(reader)?, from: read_counts(reader)? }),
            _ => Err(DecodeError::Unknown("counts")),
        }
    }
}

impl AgreedCounts {
    /// Returns the code on the wire.
    const fn wire_code(self) -> u8 {
        match self {
            Self::Even => 0,
            Self::ByRank { .. } => 1,
            Self::ByPair => 2,
        }
    }

    /// Appends the agreed counts to the message `out`: a code, and the digest of the list by rank,
    /// else 0.
    pub(super) fn write_to(self, out: &mut Vec<u8>) {
        out.push(self.wire_code());
        write_u64(out, if let Self::ByRank { digest } = self { digest } else { 0 });
    }

    /// Reads agreed counts: a code, and the digest of the list by rank, else 0.
    pub(super) fn read_from(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        match (reader.read_u8()?, reader.read_u64()?) {
            (0, 0) => Ok(Self::Even),
            (1, digest) => Ok(Self::ByRank { digest }),
            (2, 0) => Ok(Self::ByPair),
            _ => Err(DecodeError::Unknown("counts")),
        }
    }
}

impl fmt::Display for AgreedCounts {
    /// Prints the kind, with the digest of a list by rank.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Even => f.write_str("even"),
            Self::ByRank { digest } => write!(f, "by rank with digest {digest:016x}"),
            Self::ByPair => f.write_str("by pair"),
        }
    }
}

/// Returns the sum of a list of counts by pair; `None` above [`PAIR_ELEMENTS_MAX`].
pub(super) fn sum_of_pair_counts(list: &[u64]) -> Option<u64> {
    let sum = list.iter().try_fold(0u64, |sum, count| sum.checked_add(*count));
    sum.filter(|sum| *sum <= PAIR_ELEMENTS_MAX)
}

/// Appends a list of counts to the message `out`: its length, then the counts.
pub fn write_counts(list: &[u64], out: &mut Vec<u8>) {
    write_u32(out, u32::try_from(list.len()).unwrap_or(u32::MAX));
    list.iter().for_each(|count| write_u64(out, *count));
}

/// Reads a list of counts: its length, then the counts.
///
/// # Errors
/// [`DecodeError::Truncated`] when bytes are missing.
pub fn read_counts(reader: &mut FieldReader<'_>) -> Result<Arc<[u64]>, DecodeError> {
    let length = reader.read_u32()? as usize;
    let bytes = length.checked_mul(8).ok_or(DecodeError::Truncated)?;
    let mut fields = FieldReader(reader.read_bytes(bytes)?);
    (0..length).map(|_| fields.read_u64()).collect()
}

/// The counts of one collective, as far as one gateway knows them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KnownCounts {
    by_rank: Option<Arc<[u64]>>,
    /// The elements that a rank sends to each rank.
    to: BTreeMap<RankId, Arc<[u64]>>,
    /// The elements that a rank receives from each rank.
    from: BTreeMap<RankId, Arc<[u64]>>,
}

impl KnownCounts {
    /// Adds the counts that a rank posted.
    pub fn add_post(&mut self, rank: RankId, counts: &Counts) {
        match counts {
            Counts::Even => {}
            Counts::ByRank(list) => self.by_rank = Some(Arc::clone(list)),
            Counts::ByPair { to, from } => {
                self.to.insert(rank, Arc::clone(to));
                self.from.insert(rank, Arc::clone(from));
            }
        }
    }

    /// Adds the elements that a rank elsewhere sends to each of `ranks` ranks, as its gateway
    /// announced them, unless its list is known. A list that no rank can post is added as zeros.
    pub fn add_announced(&mut self, rank: RankId, to: &Arc<[u64]>, ranks: u32) {
        let possible = to.len() == ranks as usize && sum_of_pair_counts(to).is_some();
        let known = || if possible { Arc::clone(to) } else { vec![0; ranks as usize].into() };
        self.to.entry(rank).or_insert_with(known);
    }

    /// Returns the elements that a rank sends to each rank, if they are known.
    pub fn sent_by(&self, rank: RankId) -> Option<&Arc<[u64]>> {
        self.to.get(&rank)
    }

    /// Returns the list by rank, if there is one.
    pub fn by_rank(&self) -> Option<&Arc<[u64]>> {
        self.by_rank.as_ref()
    }

    /// Returns the elements that a rank sends, or those that it receives if they are more, of
    /// counts by pair. A list that is unknown or too large adds up to 0.
    pub fn elements_at(&self, rank: RankId) -> u64 {
        let sum = |list: Option<&Arc<[u64]>>| {
            list.map_or(0, |list| sum_of_pair_counts(list).unwrap_or(0))
        };
        u64::max(sum(self.to.get(&rank)), sum(self.from.get(&rank)))
    }

    /// Returns the elements from one rank to another: by the sender's list, or else by the
    /// receiver's; `None` if neither list is known.
    pub fn between(&self, from: RankId, to: RankId) -> Option<u64> {
        let sent = self.to.get(&from).and_then(|list| list.get(to.0 as usize));
        let received = || self.from.get(&to).and_then(|list| list.get(from.0 as usize));
        sent.or_else(received).copied()
    }

    /// Returns the first pair with rank `of`, as sender or else as receiver, of which both ends'
    /// lists are known and differ. It is sender, receiver, and the elements that each of them
    /// posted; `None` while all agree.
    pub fn contradiction(&self, of: RankId) -> Option<(RankId, RankId, u64, u64)> {
        let at = |list: &Arc<[u64]>, rank: RankId| list.get(rank.0 as usize).copied();
        let sent = self.to.get(&of).into_iter().flat_map(|to| {
            let pairs =
                self.from.iter().map(move |(other, from)| (*other, at(to, *other), at(from, of)));
            pairs.map(move |(other, sent, received)| (of, other, sent, received))
        });
        let received = self.from.get(&of).into_iter().flat_map(|from| {
            let pairs =
                self.to.iter().map(move |(other, to)| (*other, at(to, of), at(from, *other)));
            pairs.map(move |(other, sent, received)| (other, of, sent, received))
        });
        let mut differing = sent.chain(received).filter(|(_, _, sent, received)| sent != received);
        differing
            .next()
            .map(|(from, to, sent, received)| (from, to, sent.unwrap_or(0), received.unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(counts: &[u64]) -> Arc<[u64]> {
        counts.into()
    }

    #[test]
    fn counts_survive_the_wire() {
        let pair = Counts::ByPair { to: list(&[0, u64::MAX]), from: list(&[]) };
        for counts in [Counts::Even, Counts::ByRank(list(&[1, 0, 7])), pair] {
            let mut bytes = Vec::new();
            counts.write_to(&mut bytes);
            counts.agreed().write_to(&mut bytes);
            let mut reader = FieldReader(&bytes);
            assert_eq!(Counts::read_from(&mut reader), Ok(counts.clone()));
            assert_eq!(AgreedCounts::read_from(&mut reader), Ok(counts.agreed()));
            assert!(reader.0.is_empty());
        }
        let truncated = [1, 255, 255, 255, 255, 0];
        assert_eq!(Counts::read_from(&mut FieldReader(&truncated)), Err(DecodeError::Truncated));
        assert_ne!(Counts::ByRank(list(&[1, 2])).agreed(), Counts::ByRank(list(&[2, 1])).agreed());
    }

    #[test]
    fn contradictions_name_sender_and_receiver() {
        let mut known = KnownCounts::default();
        known.add_post(RankId(0), &Counts::ByPair { to: list(&[1, 2]), from: list(&[1, 3]) });
        assert_eq!(known.contradiction(RankId(0)), None);
        known.add_announced(RankId(1), &list(&[3, 4]), 2);
        assert_eq!(
            (known.contradiction(RankId(1)), known.between(RankId(1), RankId(0))),
            (None, Some(3))
        );
        known.add_post(RankId(1), &Counts::ByPair { to: list(&[3, 4]), from: list(&[5, 4]) });
        let found = known.contradiction(RankId(1));
        assert_eq!(found, Some((RankId(0), RankId(1), 2, 5)));
        assert_eq!(found, known.contradiction(RankId(0)));
    }
}
