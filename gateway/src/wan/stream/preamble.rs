//! What stands ahead of a segment's payload, and a second time further on: parity restores a payload
//! in which packets are missing, but nobody knows what it is of without this.

use bytes::Bytes;
use hier_collectives::codec::DecodeError;
use hier_collectives::ids::GroupId;
use hier_collectives::wire::SegmentHeader;
use quinn::{Chunk, RecvStream};
use std::sync::atomic::{AtomicU64, Ordering};

/// Its length.
pub(crate) const AHEAD_BYTES: usize = GroupId::BYTES + SegmentHeader::BYTES;
/// Where it stands again in a stream that goes on beyond: in another packet than the first, up to
/// jumbo ones.
const AGAIN_AT: u64 = 16 << 10;
const PLACES: [u64; 2] = [0, AGAIN_AT];

/// The group and the header, as they are sent.
pub(crate) type Ahead = [u8; AHEAD_BYTES];

pub(crate) fn encode(group: GroupId, header: &SegmentHeader) -> Ahead {
    let mut ahead = [0; AHEAD_BYTES];
    let (of_group, rest) = ahead.split_at_mut(GroupId::BYTES);
    of_group.copy_from_slice(&group.0.to_be_bytes());
    rest.copy_from_slice(&header.encode());
    ahead
}

pub(crate) fn decode(ahead: &Ahead) -> Result<(GroupId, SegmentHeader), DecodeError> {
    let (group, header) = ahead.split_at(GroupId::BYTES);
    let group = GroupId(u64::from_be_bytes(group.try_into().expect("split there")));
    Ok((group, SegmentHeader::decode(header.try_into().expect("the rest"))?))
}

/// The bytes of payload and parity from `offset` on, before and after the second copy; all are before
/// it if none follows.
pub(crate) fn around(offset: u64, mut bytes: Bytes) -> (Bytes, Option<Bytes>) {
    let before = (AGAIN_AT - AHEAD_BYTES as u64).checked_sub(offset);
    let before = before.and_then(|before| usize::try_from(before).ok());
    match before.filter(|before| *before < bytes.len()) {
        Some(before) => {
            let after = bytes.split_off(before);
            (bytes, Some(after))
        }
        None => (bytes, None),
    }
}

/// What follows both copies, where it belongs.
#[derive(Debug, PartialEq)]
pub(crate) struct Piece {
    /// From the payload's first byte on.
    pub offset: u64,
    pub bytes: Bytes,
}

/// What a connection's streams hold of segments whose header is missing.
#[derive(Debug)]
pub(crate) struct Unheaded {
    bytes: AtomicU64,
    most: u64,
}

/// Segments of the longest kind of which a connection may hold all but the header: in a fair peer's
/// both copies are rarely missing at once.
const UNHEADED_MAX: u64 = 4;
/// What a chunk holds at least: the datagram that it came in.
const CHUNK_BYTES: u64 = 2048;

impl Unheaded {
    /// Of a connection whose longest stream is as long.
    pub fn new(longest: u64) -> Self {
        Self { bytes: AtomicU64::new(0), most: UNHEADED_MAX * longest }
    }
}

/// The first copy that was whole, and what came before that; `None` when the stream ends first.
///
/// # Errors
/// The peer's fault: its streams hold more than they may without a header.
pub(crate) async fn read(
    stream: &mut RecvStream,
    unheaded: &Unheaded,
) -> Result<Option<(Ahead, Vec<Piece>)>, String> {
    let mut gathered = Gathered::new(unheaded);
    while let Ok(Some(chunk)) = stream.read_chunk(usize::MAX, false).await {
        let whole = gathered.put(chunk);
        if let Some(ahead) = whole {
            return Ok(Some((ahead, std::mem::take(&mut gathered.early))));
        }
        if gathered.is_too_much() {
            return Err("too much of segments without a header".to_owned());
        }
    }
    Ok(None)
}

/// As much as is here before either copy is.
#[derive(Debug)]
struct Gathered<'u> {
    copies: [Copy; 2],
    early: Vec<Piece>,
    bytes: u64,
    unheaded: &'u Unheaded,
}

impl Drop for Gathered<'_> {
    fn drop(&mut self) {
        self.unheaded.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Copy {
    bytes: Ahead,
    have: usize,
}

impl Default for Copy {
    fn default() -> Self {
        Self { bytes: [0; AHEAD_BYTES], have: 0 }
    }
}

impl<'u> Gathered<'u> {
    fn new(unheaded: &'u Unheaded) -> Self {
        Self { copies: Default::default(), early: Vec::new(), bytes: 0, unheaded }
    }

    fn is_too_much(&self) -> bool {
        self.unheaded.bytes.load(Ordering::Relaxed) > self.unheaded.most
    }

    /// One of the copies, if it is whole with this: quinn gives no byte twice.
    fn put(&mut self, chunk: Chunk) -> Option<Ahead> {
        let held = CHUNK_BYTES.max(chunk.bytes.len() as u64);
        self.bytes += held;
        self.unheaded.bytes.fetch_add(held, Ordering::Relaxed);
        let mut whole = None;
        for (place, copy) in PLACES.into_iter().zip(&mut self.copies) {
            let (first, part) = within(&chunk, place, place + AHEAD_BYTES as u64);
            let at = (first - place) as usize;
            copy.bytes[at..at + part.len()].copy_from_slice(&part);
            copy.have += part.len();
            whole = whole.or((copy.have == AHEAD_BYTES).then_some(copy.bytes));
        }
        self.early.extend(pieces(chunk));
        whole
    }
}

/// What of a chunk is neither copy.
pub(crate) fn pieces(chunk: Chunk) -> impl Iterator<Item = Piece> {
    let ends = [AGAIN_AT, u64::MAX];
    PLACES.into_iter().zip(ends).zip(1..).filter_map(move |((place, end), copies)| {
        let (first, bytes) = within(&chunk, place + AHEAD_BYTES as u64, end);
        let offset = first - copies * AHEAD_BYTES as u64;
        (!bytes.is_empty()).then_some(Piece { offset, bytes })
    })
}

/// What of a chunk lies from `begin` to before `end` in the stream, and where.
fn within(chunk: &Chunk, begin: u64, end: u64) -> (u64, Bytes) {
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
    fn stream(ahead: &Ahead, payload: &[u8]) -> Vec<u8> {
        let (before, after) = around(0, Bytes::copy_from_slice(payload));
        let again = after.map(|after| [&ahead[..], &after].concat()).unwrap_or_default();
        [&ahead[..], &before, &again].concat()
    }

    proptest! {
        #[test]
        fn what_is_cut_and_mixed_at_will_comes_together_again(
            length in prop_oneof![0_usize..40_000, 16_330_usize..16_335, 16_382_usize..16_438],
            cuts in proptest::collection::vec(any::<usize>(), 0..20),
            turn in any::<usize>(),
        ) {
            let ahead: Ahead = std::array::from_fn(|i| i as u8 + 100);
            let payload: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
            let sent = stream(&ahead, &payload);
            let is_long = length + AHEAD_BYTES > AGAIN_AT as usize;
            prop_assert_eq!(sent.len(), length + AHEAD_BYTES * (1 + usize::from(is_long)));
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (sent.len() + 1)).collect();
            cuts.extend([0, sent.len()]);
            cuts.sort_unstable();
            let chunk = |ends: &[usize]| Chunk {
                offset: ends[0] as u64,
                bytes: Bytes::copy_from_slice(&sent[ends[0]..ends[1]]),
            };
            let mut chunks: Vec<Chunk> = cuts.windows(2).map(chunk).collect();
            let turn = turn % chunks.len();
            chunks.rotate_left(turn);
            let unheaded = Unheaded::new(1);
            let (mut gathered, mut first) = (Gathered::new(&unheaded), None);
            for chunk in chunks {
                let whole = gathered.put(chunk);
                first = first.or(whole);
            }
            prop_assert_eq!(first, Some(ahead));
            let mut got = vec![0; length];
            for Piece { offset, bytes } in &gathered.early {
                let offset = *offset;
                let at = offset as usize;
                got[at..at + bytes.len()].copy_from_slice(bytes);
            }
            prop_assert!(got == payload);
        }
    }

    #[test]
    fn either_copy_is_enough() {
        let ahead: Ahead = std::array::from_fn(|i| i as u8);
        let sent = stream(&ahead, &[7; 40_000]);
        for lost in PLACES.map(|place| place as usize) {
            let unheaded = Unheaded::new(1);
            let mut gathered = Gathered::new(&unheaded);
            let chunk = |offset: usize, bytes: &[u8]| Chunk {
                offset: offset as u64,
                bytes: Bytes::copy_from_slice(bytes),
            };
            let here = [chunk(0, &sent[..lost]), chunk(lost + 1, &sent[lost + 1..])];
            let whole = here.into_iter().find_map(|here| gathered.put(here));
            assert_eq!(whole, Some(ahead), "without byte {lost}");
        }
    }

    /// However short what comes: it holds the datagram.
    #[test]
    fn streams_without_a_header_hold_so_much_together_and_give_it_back() {
        let unheaded = Unheaded::new(CHUNK_BYTES);
        let mut streams = [Gathered::new(&unheaded), Gathered::new(&unheaded)];
        for offset in 100..102 {
            for stream in &mut streams {
                let bytes = Bytes::from_static(&[0]);
                assert_eq!(stream.put(Chunk { offset, bytes }), None);
            }
            assert!(!streams[1].is_too_much());
        }
        streams[0].put(Chunk { offset: 200, bytes: Bytes::from_static(&[0]) });
        assert!(streams[1].is_too_much());
        drop(streams);
        assert!(!Gathered::new(&unheaded).is_too_much());
    }
}
