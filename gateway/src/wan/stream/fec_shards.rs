//! Forward error correction (FEC) of a segment: Reed-Solomon parity behind its payload.
//!
//! The sender makes the parity (`wan/stream/segment_sender.rs`). With it the receiver restores lost packets
//! without waiting a round trip for a retransmission (`wan/stream/segment_receiver.rs`).

use crate::memory::mem_slice::MemSlice;
use bytes::Bytes;
use hier_collectives::tail_fec::{SHARD_BYTES, tail_fec_shard_count};
use reed_solomon_simd::{Error, ReedSolomonDecoder, ReedSolomonEncoder};
use std::borrow::Cow;

/// 704 bytes: the length of a shard of FEC, a piece of a segment's payload or of its parity;
/// `SHARD_BYTES` as an index type. A payload's short last shard is filled with zeros for the code.
const SHARD_LENGTH: usize = SHARD_BYTES as usize;

/// Computes the parity of a segment's payload: `parity` shards, one after the other.
///
/// # Panics
/// If `parity` is 0 or above `parity_max`.
pub fn encode_fec_parity_shards(payload: &Bytes, parity: u16) -> Vec<u8> {
    let encode = || -> Result<Vec<u8>, Error> {
        let count = payload.len().div_ceil(SHARD_LENGTH);
        let mut encoder = ReedSolomonEncoder::new(count, usize::from(parity), SHARD_LENGTH)?;
        for shard in payload.chunks(SHARD_LENGTH) {
            encoder.add_original_shard(padded_fec_shard(shard))?;
        }
        Ok(encoder.encode()?.recovery_iter().collect::<Vec<_>>().concat())
    };
    encode().expect("counts within what the code can encode")
}

/// Returns a shard of a payload, padded with zeros if it is the last and short.
fn padded_fec_shard(shard: &[u8]) -> Cow<'_, [u8]> {
    if shard.len() == SHARD_LENGTH {
        return shard.into();
    }
    let mut whole = shard.to_vec();
    whole.resize(SHARD_LENGTH, 0);
    whole.into()
}

/// The received shards of a segment with parity.
#[derive(Debug)]
pub struct FecShards {
    /// Bytes of the payload.
    payload_bytes: u64,
    /// Missing bytes of each payload shard, then of each parity shard.
    missing: Vec<u16>,
    /// The number of complete payload shards.
    complete_payload: usize,
    /// The number of complete shards of both kinds.
    complete: usize,
    /// The received parity, shard after shard.
    parity: Vec<u8>,
}

impl FecShards {
    /// Creates the record of a segment with `payload_bytes` bytes of payload and `parity` parity
    /// shards, before any byte arrives.
    pub fn new(payload_bytes: u64, parity: u16) -> Self {
        let count = tail_fec_shard_count(payload_bytes);
        let last = payload_bytes - (count - 1) * SHARD_BYTES;
        let mut missing = vec![SHARD_BYTES as u16; count as usize + usize::from(parity)];
        missing[count as usize - 1] = last as u16;
        let parity = vec![0; usize::from(parity) * SHARD_LENGTH];
        Self { payload_bytes, missing, complete_payload: 0, complete: 0, parity }
    }

    /// Counts bytes at `offset` behind the preamble, and keeps those of the parity. Each byte comes
    /// once. Returns false if they reach beyond the stream's end.
    pub fn add_bytes(&mut self, offset: u64, bytes: &[u8]) -> bool {
        let end = offset.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > self.payload_bytes + self.parity.len() as u64) {
            return false;
        }
        let payload = self.payload_bytes.saturating_sub(offset).min(bytes.len() as u64) as usize;
        let (payload, parity) = bytes.split_at(payload);
        self.count_shard_bytes(offset, payload.len() as u64, 0);
        if !parity.is_empty() {
            let at = (offset + payload.len() as u64 - self.payload_bytes) as usize;
            self.parity[at..at + parity.len()].copy_from_slice(parity);
            self.count_shard_bytes(at as u64, parity.len() as u64, self.payload_shard_count());
        }
        true
    }

    /// Counts `length` received bytes at `offset` of the payload or of the parity, whose shards
    /// begin with the number `first`.
    fn count_shard_bytes(&mut self, mut offset: u64, mut length: u64, first: usize) {
        let payload_shards = self.payload_shard_count();
        while length > 0 {
            let index = first + (offset / SHARD_BYTES) as usize;
            let piece = length.min(SHARD_BYTES - offset % SHARD_BYTES);
            let missing = &mut self.missing[index];
            *missing = missing.saturating_sub(piece as u16);
            if *missing == 0 {
                self.complete += 1;
                self.complete_payload += usize::from(index < payload_shards);
            }
            (offset, length) = (offset + piece, length - piece);
        }
    }

    /// Returns the number of shards of the payload.
    fn payload_shard_count(&self) -> usize {
        tail_fec_shard_count(self.payload_bytes) as usize
    }

    /// Returns whether all of the payload has arrived.
    pub fn is_complete(&self) -> bool {
        self.complete_payload == self.payload_shard_count()
    }

    /// Returns whether the missing part of the payload can be restored from parity.
    pub fn can_restore(&self) -> bool {
        self.complete >= self.payload_shard_count()
    }

    /// Restores the missing part of the payload and writes it to `into`, which holds the rest.
    ///
    /// # Panics
    /// Unless [`FecShards::can_restore`].
    pub fn restore_payload(self, into: &MemSlice) {
        let count = self.payload_shard_count();
        let decode = || -> Result<(), Error> {
            let mut decoder =
                ReedSolomonDecoder::new(count, self.parity.len() / SHARD_LENGTH, SHARD_LENGTH)?;
            let payload = into.clone().into_bytes();
            for (index, shard) in payload.chunks(SHARD_LENGTH).enumerate() {
                if self.missing[index] == 0 {
                    decoder.add_original_shard(index, padded_fec_shard(shard))?;
                }
            }
            // The memory is written below.
            drop(payload);
            for (index, shard) in self.parity.chunks(SHARD_LENGTH).enumerate() {
                if self.missing[count + index] == 0 {
                    decoder.add_recovery_shard(index, shard)?;
                }
            }
            for (index, shard) in decoder.decode()?.restored_original_iter() {
                let start = index as u64 * SHARD_BYTES;
                let slice = into.slice(start..(start + SHARD_BYTES).min(self.payload_bytes));
                slice.copy_from_bytes(0, &shard[..slice.len() as usize]);
            }
            Ok(())
        };
        decode().expect("enough shards to restore from");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::arena::Arena;
    use proptest::prelude::*;

    fn memory(bytes: u64) -> MemSlice {
        MemSlice::whole(&Arena::anonymous(bytes.max(1)).expect("memory")).slice(0..bytes)
    }

    /// Delivers the stream of a payload without some packets, in a rotated order. Returns the payload,
    /// or `None` if it cannot be restored.
    fn deliver(
        payload: &[u8],
        parity: u16,
        packet: usize,
        lost: &[usize],
        rotation: usize,
    ) -> Option<Vec<u8>> {
        let bytes = Bytes::copy_from_slice(payload);
        let stream = [payload, &encode_fec_parity_shards(&bytes, parity)].concat();
        let (into, mut received) =
            (memory(payload.len() as u64), FecShards::new(payload.len() as u64, parity));
        let mut packets: Vec<(usize, &[u8])> = stream.chunks(packet).enumerate().collect();
        let rotation = rotation % packets.len();
        packets.rotate_left(rotation);
        for (index, chunk) in packets {
            if lost.contains(&index) {
                continue;
            }
            let offset = index * packet;
            assert!(received.add_bytes(offset as u64, chunk));
            let end = (offset + chunk.len()).min(payload.len());
            if offset < end {
                into.copy_from_bytes(offset as u64, &chunk[..end - offset]);
            }
        }
        if !received.is_complete() {
            if !received.can_restore() {
                return None;
            }
            received.restore_payload(&into);
        }
        let mut out = vec![0; payload.len()];
        into.copy_to(&mut out);
        Some(out)
    }

    proptest! {
        /// Three shards of parity replace a lost packet.
        #[test]
        fn lost_packets_are_restored(
            length in 1usize..40_000,
            packet in 600usize..1500,
            lost in proptest::collection::btree_set(0usize..40, 0..4),
            rotation: usize,
        ) {
            let payload: Vec<u8> = (0..length).map(|i| (i * 31 + i / 251) as u8).collect();
            let parity = 4 * 3;
            let lost: Vec<usize> = lost.into_iter().collect();
            let got = deliver(&payload, parity, packet, &lost, rotation);
            prop_assert_eq!(got, Some(payload));
        }
    }

    #[test]
    fn too_much_loss_cannot_be_restored() {
        let payload = vec![7; 20_000];
        assert_eq!(deliver(&payload, 3, 1400, &[1, 4, 7], 0), None);
        assert_eq!(deliver(&payload, 9, 1400, &[1, 4, 7], 0), Some(payload));
    }

    #[test]
    fn bytes_beyond_the_end_are_refused() {
        let mut received = FecShards::new(1000, 1);
        assert!(!received.add_bytes(1000 + SHARD_BYTES, &[0]));
        assert!(!received.add_bytes(u64::MAX, &[0]));
        assert!(received.add_bytes(999 + SHARD_BYTES, &[0]));
    }
}
