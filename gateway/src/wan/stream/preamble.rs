//! The preamble of a segment's stream: its group and header, sent twice.
//!
//! Parity restores a payload with missing packets, but not the header that names it. So the
//! preamble stands at the begin of the stream, and again after 16 KiB, in another packet. One copy is
//! enough.
//!
//! The sender writes both copies (`wan/stream/segment_sender.rs`). The receiver of a stream gathers chunks until
//! one copy is complete, and passes on the payload that came before it (`wan/stream/segment_receiver.rs`). All
//! streams of a connection share a bound on bytes without a preamble.

use super::chunk_reader::ChunkReader;
use bytes::Bytes;
use hier_collectives::codec::DecodeError;
use hier_collectives::ids::GroupId;
use hier_collectives::wire::SegmentHeader;
use quinn::Chunk;
use std::sync::atomic::{AtomicU64, Ordering};

/// 52 bytes: the length of a preamble, the job's group id and the segment header with which the
/// stream of a segment begins. A stream without a complete preamble is of no segment.
pub(super) const PREAMBLE_BYTES: usize = GroupId::BYTES + SegmentHeader::BYTES;
/// 16 KiB: the offset in a segment's stream at which the preamble is sent a second time; shorter
/// streams have one copy. The second copy lies in another packet than the first, jumbo packets
/// included, and little waits for it.
/// Tested by `either_copy_is_enough`.
const SECOND_PREAMBLE_OFFSET: u64 = 16 << 10;
/// The offsets in bytes, 0 and 16 KiB, at which the receiver of a segment's stream looks for the
/// two copies of the preamble. One complete copy is enough.
const PREAMBLE_OFFSETS: [u64; 2] = [0, SECOND_PREAMBLE_OFFSET];
/// 4 times the longest stream of a segment: a connection whose streams hold more bytes without a
/// complete preamble is closed as a violation of the protocol. Both copies of a preamble are rarely
/// lost at once.
/// Tested by `streams_without_a_preamble_share_one_bound`.
const STREAMS_WITHOUT_PREAMBLE_MAX: u64 = 4;
/// 2 KiB: a received chunk of a stream counts as at least so many bytes in the bound on streams
/// without a preamble. Even a short chunk keeps the whole datagram in memory.
const CHUNK_MEMORY_BYTES_MIN: u64 = 2048;

/// The encoded group and header.
pub(super) type Preamble = [u8; PREAMBLE_BYTES];

/// Encodes a job's group and a segment's header as the preamble of the segment's stream.
pub(super) fn encode_preamble(group: GroupId, header: &SegmentHeader) -> Preamble {
    let mut preamble = [0; PREAMBLE_BYTES];
    let (of_group, rest) = preamble.split_at_mut(GroupId::BYTES);
    of_group.copy_from_slice(&group.0.to_be_bytes());
    rest.copy_from_slice(&header.encode());
    preamble
}

/// Decodes the preamble of a segment's stream into the job's group and the segment's header.
///
/// # Errors
/// [`DecodeError`]: the header is invalid, which is always the peer's fault.
pub(super) fn decode_preamble(
    preamble: &Preamble,
) -> Result<(GroupId, SegmentHeader), DecodeError> {
    let (group, header) = preamble.split_at(GroupId::BYTES);
    let group = GroupId(u64::from_be_bytes(group.try_into().expect("split there")));
    Ok((group, SegmentHeader::decode(header.try_into().expect("the rest"))?))
}

/// Splits payload and parity that begin at `offset` at the place of the preamble's second copy.
/// There is no second part if the copy does not lie within them.
pub(super) fn split_at_second_preamble(offset: u64, mut bytes: Bytes) -> (Bytes, Option<Bytes>) {
    let before = (SECOND_PREAMBLE_OFFSET - PREAMBLE_BYTES as u64).checked_sub(offset);
    let before = before.and_then(|before| usize::try_from(before).ok());
    match before.filter(|before| *before < bytes.len()) {
        Some(before) => {
            let after = bytes.split_off(before);
            (bytes, Some(after))
        }
        None => (bytes, None),
    }
}

/// Bytes of payload or parity, with their place.
#[derive(Debug, PartialEq)]
pub(super) struct PayloadChunk {
    /// The offset from the payload's first byte.
    pub offset: u64,
    pub bytes: Bytes,
}

/// The memory that a connection's streams hold without a preamble, and its bound.
#[derive(Debug)]
pub(super) struct BytesWithoutPreamble {
    bytes: AtomicU64,
    bytes_max: u64,
}

impl BytesWithoutPreamble {
    /// Creates the counter of a connection's bytes without a preamble, and its bound:
    /// [`STREAMS_WITHOUT_PREAMBLE_MAX`] streams of `longest_stream` bytes.
    pub fn new(longest_stream: u64) -> Self {
        let bytes_max = STREAMS_WITHOUT_PREAMBLE_MAX * longest_stream;
        Self { bytes: AtomicU64::new(0), bytes_max }
    }
}

/// Reads a stream up to its first complete preamble, and returns the preamble with the payload that
/// came before. Returns `None` if the stream ends first.
///
/// # Errors
/// The peer's fault: its streams hold more bytes without a preamble than they may.
pub(super) async fn read_preamble(
    reader: &mut ChunkReader,
    without_preamble: &BytesWithoutPreamble,
) -> Result<Option<(Preamble, Vec<PayloadChunk>)>, String> {
    let mut gathered = GatheredPreamble::new(without_preamble);
    while let Ok(Some(chunk)) = reader.read_one_chunk().await {
        if let Some(preamble) = gathered.add_chunk(chunk) {
            return Ok(Some((preamble, std::mem::take(&mut gathered.early))));
        }
        if gathered.has_too_many_bytes() {
            let most = without_preamble.bytes_max;
            return Err(format!("streams without a complete preamble hold more than {most} bytes"));
        }
    }
    Ok(None)
}

/// The start of a stream before either copy of the preamble is complete.
#[derive(Debug)]
struct GatheredPreamble<'h> {
    copies: [PreambleCopy; 2],
    early: Vec<PayloadChunk>,
    /// The memory of the gathered chunks.
    bytes: u64,
    without_preamble: &'h BytesWithoutPreamble,
}

impl Drop for GatheredPreamble<'_> {
    /// Takes the gathered bytes off the connection's bytes without a preamble.
    fn drop(&mut self) {
        self.without_preamble.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// One copy of the preamble.
#[derive(Debug)]
struct PreambleCopy {
    bytes: Preamble,
    /// Bytes that have arrived; quinn delivers no byte twice.
    arrived: usize,
}

impl Default for PreambleCopy {
    /// Makes a copy of which no byte has arrived.
    fn default() -> Self {
        Self { bytes: [0; PREAMBLE_BYTES], arrived: 0 }
    }
}

impl<'h> GatheredPreamble<'h> {
    /// Creates the start of a stream without bytes; its memory counts in `without_preamble`.
    fn new(without_preamble: &'h BytesWithoutPreamble) -> Self {
        Self { copies: Default::default(), early: Vec::new(), bytes: 0, without_preamble }
    }

    /// Returns whether the connection's streams hold more bytes without a preamble than they may.
    fn has_too_many_bytes(&self) -> bool {
        self.without_preamble.bytes.load(Ordering::Relaxed) > self.without_preamble.bytes_max
    }

    /// Adds a chunk of the stream; returns the preamble if a copy is complete with it.
    fn add_chunk(&mut self, chunk: Chunk) -> Option<Preamble> {
        let memory = CHUNK_MEMORY_BYTES_MIN.max(chunk.bytes.len() as u64);
        self.bytes += memory;
        self.without_preamble.bytes.fetch_add(memory, Ordering::Relaxed);
        let mut complete = None;
        for (begin, copy) in PREAMBLE_OFFSETS.into_iter().zip(&mut self.copies) {
            let (first, part) =
                preamble_chunk_part_within(&chunk, begin, begin + PREAMBLE_BYTES as u64);
            let at = (first - begin) as usize;
            copy.bytes[at..at + part.len()].copy_from_slice(&part);
            copy.arrived += part.len();
            complete = complete.or((copy.arrived == PREAMBLE_BYTES).then_some(copy.bytes));
        }
        self.early.extend(chunks_without_preamble(chunk));
        complete
    }
}

/// Returns the parts of a stream's chunk that belong to neither copy of the preamble.
pub(super) fn chunks_without_preamble(chunk: Chunk) -> impl Iterator<Item = PayloadChunk> {
    let copy = PREAMBLE_BYTES as u64;
    let parts = if chunk.offset >= SECOND_PREAMBLE_OFFSET + copy {
        // Most chunks are whole behind both copies, and need no second reference to their datagram.
        [None, Some((chunk.offset, chunk.bytes))]
    } else {
        let part = |begin, end| Some(preamble_chunk_part_within(&chunk, begin + copy, end));
        [part(0, SECOND_PREAMBLE_OFFSET), part(SECOND_PREAMBLE_OFFSET, u64::MAX)]
    };
    parts.into_iter().zip(1..).filter_map(move |(part, copies)| {
        let (first, bytes) = part?;
        (!bytes.is_empty()).then(|| PayloadChunk { offset: first - copies * copy, bytes })
    })
}

/// Returns the part of a chunk within `begin..end` of the stream, and the offset of its first byte.
fn preamble_chunk_part_within(chunk: &Chunk, begin: u64, end: u64) -> (u64, Bytes) {
    let length = chunk.bytes.len() as u64;
    let from = begin.saturating_sub(chunk.offset).min(length);
    let to = end.saturating_sub(chunk.offset).min(length).max(from);
    (begin.max(chunk.offset).min(end), chunk.bytes.slice(from as usize..to as usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The whole stream of a segment.
    fn stream(preamble: &Preamble, payload: &[u8]) -> Vec<u8> {
        let (before, after) = split_at_second_preamble(0, Bytes::copy_from_slice(payload));
        let again = after.map(|after| [&preamble[..], &after].concat()).unwrap_or_default();
        [&preamble[..], &before, &again].concat()
    }

    proptest! {
        #[test]
        fn a_stream_in_any_chunks_and_order_is_restored(
            length in prop_oneof![0_usize..40_000, 16_330_usize..16_335, 16_382_usize..16_438],
            cuts in proptest::collection::vec(any::<usize>(), 0..20),
            rotation in any::<usize>(),
        ) {
            let preamble: Preamble = std::array::from_fn(|i| i as u8 + 100);
            let payload: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
            let sent = stream(&preamble, &payload);
            let is_long = length + PREAMBLE_BYTES > SECOND_PREAMBLE_OFFSET as usize;
            prop_assert_eq!(sent.len(), length + PREAMBLE_BYTES * (1 + usize::from(is_long)));
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (sent.len() + 1)).collect();
            cuts.extend([0, sent.len()]);
            cuts.sort_unstable();
            let chunk = |ends: &[usize]| Chunk {
                offset: ends[0] as u64,
                bytes: Bytes::copy_from_slice(&sent[ends[0]..ends[1]]),
            };
            let mut chunks: Vec<Chunk> = cuts.windows(2).map(chunk).collect();
            let rotation = rotation % chunks.len();
            chunks.rotate_left(rotation);
            let without_preamble = BytesWithoutPreamble::new(1);
            let (mut gathered, mut first) = (GatheredPreamble::new(&without_preamble), None);
            for chunk in chunks {
                let complete = gathered.add_chunk(chunk);
                first = first.or(complete);
            }
            prop_assert_eq!(first, Some(preamble));
            let mut got = vec![0; length];
            for PayloadChunk { offset, bytes } in &gathered.early {
                let offset = *offset;
                let at = offset as usize;
                got[at..at + bytes.len()].copy_from_slice(bytes);
            }
            prop_assert!(got == payload);
        }
    }

    #[test]
    fn either_copy_is_enough() {
        let preamble: Preamble = std::array::from_fn(|i| i as u8);
        let sent = stream(&preamble, &[7; 40_000]);
        for lost in PREAMBLE_OFFSETS.map(|at| at as usize) {
            let without_preamble = BytesWithoutPreamble::new(1);
            let mut gathered = GatheredPreamble::new(&without_preamble);
            let chunk = |offset: usize, bytes: &[u8]| Chunk {
                offset: offset as u64,
                bytes: Bytes::copy_from_slice(bytes),
            };
            let here = [chunk(0, &sent[..lost]), chunk(lost + 1, &sent[lost + 1..])];
            let complete = here.into_iter().find_map(|here| gathered.add_chunk(here));
            assert_eq!(complete, Some(preamble), "without byte {lost}");
        }
    }

    /// However short a chunk is, it holds the datagram that it arrived in.
    #[test]
    fn streams_without_a_preamble_share_one_bound() {
        let without_preamble = BytesWithoutPreamble::new(CHUNK_MEMORY_BYTES_MIN);
        let mut streams =
            [GatheredPreamble::new(&without_preamble), GatheredPreamble::new(&without_preamble)];
        for offset in 100..102 {
            for stream in &mut streams {
                let bytes = Bytes::from_static(&[0]);
                assert_eq!(stream.add_chunk(Chunk { offset, bytes }), None);
            }
            assert!(!streams[1].has_too_many_bytes());
        }
        streams[0].add_chunk(Chunk { offset: 200, bytes: Bytes::from_static(&[0]) });
        assert!(streams[1].has_too_many_bytes());
        drop(streams);
        assert!(!GatheredPreamble::new(&without_preamble).has_too_many_bytes());
    }
}
