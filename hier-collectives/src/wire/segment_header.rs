//! The header of a segment, in front of its payload on a stream.

use crate::codec::{DecodeError, FieldReader, write_u16, write_u32, write_u64};
use crate::ids::{Epoch, SegmentIndex, Sequence, TreeIndex};
use crate::tail_fec::tail_fec_parity_max;

/// Key of a segment within a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentKey {
    /// The collective.
    pub sequence: Sequence,
    /// The tree.
    pub tree: TreeIndex,
    /// Index of the segment in the tree's part.
    pub segment: SegmentIndex,
}

/// The first bytes of a segment's stream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SegmentHeader {
    /// Epoch of the segment; data of another epoch are dropped.
    pub epoch: Epoch,
    /// Key of the segment.
    pub key: SegmentKey,
    /// Number of payload bytes that follow.
    pub bytes: u32,
    /// Digest of the collective's descriptor.
    pub digest: u64,
    /// Weight of the partial in an average.
    pub weight: f64,
    /// Number of parity shards that follow the payload.
    pub parity: u16,
}

impl SegmentHeader {
    /// 44 bytes: the encoded length of a segment header, which precedes the payload of each
    /// segment.
    pub const BYTES: usize = 44;

    /// Returns the wire form of the segment header: epoch, collective, tree, index, payload bytes,
    /// digest, weight, parity shards.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = Vec::with_capacity(Self::BYTES);
        write_u64(&mut out, self.epoch.0);
        self.key.write_to(&mut out);
        write_u32(&mut out, self.bytes);
        write_u64(&mut out, self.digest);
        write_u64(&mut out, self.weight.to_bits());
        write_u16(&mut out, self.parity);
        let mut fixed = [0; Self::BYTES];
        fixed.copy_from_slice(&out);
        fixed
    }

    /// Decodes the wire form of a segment header.
    ///
    /// # Errors
    /// [`DecodeError`]: a weight is negative or not finite, there are more parity shards than such
    /// a payload may have, or the index is `u32::MAX`.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader(bytes);
        let header = Self {
            epoch: Epoch(reader.read_u64()?),
            key: SegmentKey::read_from(&mut reader)?,
            bytes: reader.read_u32()?,
            digest: reader.read_u64()?,
            weight: reader.read_weight()?,
            parity: reader.read_u16()?,
        };
        if header.parity > tail_fec_parity_max(u64::from(header.bytes)) {
            return Err(DecodeError::Invalid("parity"));
        }
        // A receipt names the segment after the last, so the last index is reserved.
        if header.key.segment.0 == u32::MAX {
            return Err(DecodeError::Invalid("segment"));
        }
        Ok(header)
    }
}

impl SegmentKey {
    /// Appends the key of a segment to the message `out`: collective, tree, index.
    fn write_to(self, out: &mut Vec<u8>) {
        write_u64(out, self.sequence.0);
        write_u16(out, self.tree.0);
        write_u32(out, self.segment.0);
    }

    /// Reads the key of a segment: collective, tree, index.
    fn read_from(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let (sequence, tree) = (Sequence(reader.read_u64()?), TreeIndex(reader.read_u16()?));
        Ok(Self { sequence, tree, segment: SegmentIndex(reader.read_u32()?) })
    }
}
