//! Parity behind the payload of a segment: made by the sender, and used by the receiver to
//! restore what is missing without waiting a round trip for it.

use crate::memory::arena::MemSlice;
use bytes::Bytes;
use hier_collectives::fec::{SHARD_BYTES, shards};
use reed_solomon_simd::{Error, ReedSolomonDecoder, ReedSolomonEncoder};
use std::borrow::Cow;

const SHARD: usize = SHARD_BYTES as usize;

/// The parity of a payload, shard after shard.
///
/// # Panics
/// When `parity` is 0 or above `parity_max`.
pub fn make(payload: &Bytes, parity: u16) -> Vec<u8> {
    let encode = || -> Result<Vec<u8>, Error> {
        let count = payload.len().div_ceil(SHARD);
        let mut encoder = ReedSolomonEncoder::new(count, usize::from(parity), SHARD)?;
        for shard in payload.chunks(SHARD) {
            encoder.add_original_shard(filled(shard))?;
        }
        Ok(encoder.encode()?.recovery_iter().collect::<Vec<_>>().concat())
    };
    encode().expect("counts within what the code can encode")
}

/// A shard of a payload; the last one is filled up with zeros.
fn filled(shard: &[u8]) -> Cow<'_, [u8]> {
    if shard.len() == SHARD {
        return shard.into();
    }
    let mut whole = shard.to_vec();
    whole.resize(SHARD, 0);
    whole.into()
}

/// What has arrived of a segment with parity.
#[derive(Debug)]
pub struct Arrived {
    bytes: u64,
    /// Bytes still missing of each shard of the payload, and then of each of parity.
    missing: Vec<u16>,
    /// Shards of the payload, and of all, that are whole.
    whole_payload: usize,
    whole: usize,
    parity: Vec<u8>,
}

impl Arrived {
    /// Nothing yet of a payload of `bytes` and so many shards of parity.
    pub fn new(bytes: u64, parity: u16) -> Self {
        let count = shards(bytes);
        let last = bytes - (count - 1) * SHARD_BYTES;
        let mut missing = vec![SHARD_BYTES as u16; count as usize + usize::from(parity)];
        missing[count as usize - 1] = last as u16;
        let parity = vec![0; usize::from(parity) * SHARD];
        Self { bytes, missing, whole_payload: 0, whole: 0, parity }
    }

    /// Takes note of bytes of the stream behind the header, and keeps those of parity. Each
    /// byte comes once. False when they reach beyond the stream's end.
    pub fn put(&mut self, offset: u64, bytes: &[u8]) -> bool {
        let end = offset.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > self.bytes + self.parity.len() as u64) {
            return false;
        }
        let payload = self.bytes.saturating_sub(offset).min(bytes.len() as u64) as usize;
        let (payload, parity) = bytes.split_at(payload);
        self.count(offset, payload.len() as u64, 0);
        if !parity.is_empty() {
            let at = (offset + payload.len() as u64 - self.bytes) as usize;
            self.parity[at..at + parity.len()].copy_from_slice(parity);
            self.count(at as u64, parity.len() as u64, self.payload_shards());
        }
        true
    }

    fn count(&mut self, mut offset: u64, mut length: u64, first: usize) {
        let payload_shards = self.payload_shards();
        while length > 0 {
            let index = first + (offset / SHARD_BYTES) as usize;
            let piece = length.min(SHARD_BYTES - offset % SHARD_BYTES);
            let missing = &mut self.missing[index];
            *missing = missing.saturating_sub(piece as u16);
            if *missing == 0 {
                self.whole += 1;
                self.whole_payload += usize::from(index < payload_shards);
            }
            (offset, length) = (offset + piece, length - piece);
        }
    }

    fn payload_shards(&self) -> usize {
        shards(self.bytes) as usize
    }

    /// All of the payload has arrived.
    pub fn is_whole(&self) -> bool {
        self.whole_payload == self.payload_shards()
    }

    /// What is missing can be restored.
    pub fn can_restore(&self) -> bool {
        self.whole >= self.payload_shards()
    }

    /// Writes what is missing of the payload into `into`, where the rest is already.
    ///
    /// # Panics
    /// Unless [`Arrived::can_restore`].
    pub fn restore(self, into: &MemSlice) {
        let count = self.payload_shards();
        let decode = || -> Result<(), Error> {
            let mut decoder = ReedSolomonDecoder::new(count, self.parity.len() / SHARD, SHARD)?;
            let payload = into.clone().into_bytes();
            for (index, shard) in payload.chunks(SHARD).enumerate() {
                if self.missing[index] == 0 {
                    decoder.add_original_shard(index, filled(shard))?;
                }
            }
            // It is written below.
            drop(payload);
            for (index, shard) in self.parity.chunks(SHARD).enumerate() {
                if self.missing[count + index] == 0 {
                    decoder.add_recovery_shard(index, shard)?;
                }
            }
            for (index, shard) in decoder.decode()?.restored_original_iter() {
                let start = index as u64 * SHARD_BYTES;
                let slice = into.slice(start..(start + SHARD_BYTES).min(self.bytes));
                slice.copy_from_bytes(0, &shard[..slice.len() as usize]);
            }
            Ok(())
        };
        decode().expect("as many shards as can be restored from");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::arena::Arena;
    use proptest::prelude::*;

    fn memory(bytes: u64) -> MemSlice {
        Arena::anonymous(bytes.max(1)).expect("memory").whole().slice(0..bytes)
    }

    /// Delivers the stream without some packets, in turn; returns what came of the payload.
    fn deliver(
        payload: &[u8],
        parity: u16,
        packet: usize,
        lost: &[usize],
        turn: usize,
    ) -> Option<Vec<u8>> {
        let bytes = Bytes::copy_from_slice(payload);
        let stream = [payload, &make(&bytes, parity)].concat();
        let (into, mut arrived) =
            (memory(payload.len() as u64), Arrived::new(payload.len() as u64, parity));
        let mut packets: Vec<(usize, &[u8])> = stream.chunks(packet).enumerate().collect();
        let turn = turn % packets.len();
        packets.rotate_left(turn);
        for (index, chunk) in packets {
            if lost.contains(&index) {
                continue;
            }
            let offset = index * packet;
            assert!(arrived.put(offset as u64, chunk));
            let end = (offset + chunk.len()).min(payload.len());
            if offset < end {
                into.copy_from_bytes(offset as u64, &chunk[..end - offset]);
            }
        }
        if !arrived.is_whole() {
            if !arrived.can_restore() {
                return None;
            }
            arrived.restore(&into);
        }
        let mut out = vec![0; payload.len()];
        into.copy_to(&mut out);
        Some(out)
    }

    proptest! {
        /// Any three shards of parity make good any lost packet.
        #[test]
        fn lost_packets_are_restored(
            length in 1usize..40_000,
            packet in 600usize..1500,
            lost in proptest::collection::btree_set(0usize..40, 0..4),
            turn: usize,
        ) {
            let payload: Vec<u8> = (0..length).map(|i| (i * 31 + i / 251) as u8).collect();
            let parity = 4 * 3;
            let lost: Vec<usize> = lost.into_iter().collect();
            let got = deliver(&payload, parity, packet, &lost, turn);
            prop_assert_eq!(got, Some(payload));
        }
    }

    #[test]
    fn too_much_loss_is_seen() {
        let payload = vec![7; 20_000];
        assert_eq!(deliver(&payload, 3, 1400, &[1, 4, 7], 0), None);
        assert_eq!(deliver(&payload, 9, 1400, &[1, 4, 7], 0), Some(payload));
    }

    #[test]
    fn bytes_beyond_the_end_are_refused() {
        let mut arrived = Arrived::new(1000, 1);
        assert!(!arrived.put(1000 + SHARD_BYTES, &[0]));
        assert!(!arrived.put(u64::MAX, &[0]));
        assert!(arrived.put(999 + SHARD_BYTES, &[0]));
    }
}
