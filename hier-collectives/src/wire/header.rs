//! The header of a segment, in front of its payload on a stream.

use crate::codec::{DecodeError, Reader, put_u16, put_u32, put_u64};
use crate::fec::parity_max;
use crate::ids::{Epoch, SegmentIndex, Sequence, TreeIndex};

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
    /// Encoded length in bytes.
    pub const BYTES: usize = 44;

    /// The wire form.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = Vec::with_capacity(Self::BYTES);
        put_u64(&mut out, self.epoch.0);
        put_key(&mut out, self.key);
        put_u32(&mut out, self.bytes);
        put_u64(&mut out, self.digest);
        put_u64(&mut out, self.weight.to_bits());
        put_u16(&mut out, self.parity);
        let mut fixed = [0; Self::BYTES];
        fixed.copy_from_slice(&out);
        fixed
    }

    /// Reads the wire form.
    ///
    /// # Errors
    /// [`DecodeError`] when a field is out of range.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, DecodeError> {
        let mut reader = Reader(bytes);
        let header = Self {
            epoch: Epoch(reader.u64()?),
            key: reader.key()?,
            bytes: reader.u32()?,
            digest: reader.u64()?,
            weight: reader.weight()?,
            parity: reader.u16()?,
        };
        if header.parity > parity_max(u64::from(header.bytes)) {
            return Err(DecodeError::Invalid("parity"));
        }
        // A receipt names the segment after the last, so the last index is reserved.
        if header.key.segment.0 == u32::MAX {
            return Err(DecodeError::Invalid("segment"));
        }
        Ok(header)
    }
}

/// Appends the key of a segment.
fn put_key(out: &mut Vec<u8>, key: SegmentKey) {
    put_u64(out, key.sequence.0);
    put_u16(out, key.tree.0);
    put_u32(out, key.segment.0);
}

impl Reader<'_> {
    /// Reads the key of a segment.
    fn key(&mut self) -> Result<SegmentKey, DecodeError> {
        let (sequence, tree) = (Sequence(self.u64()?), TreeIndex(self.u16()?));
        Ok(SegmentKey { sequence, tree, segment: SegmentIndex(self.u32()?) })
    }
}
