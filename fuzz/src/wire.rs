//! What gateways say to each other; docs/protocol.md sections 1 to 4.

use crate::bounds::Bound;
use gateway::memory::arena::Arena;
use gateway::wan::link::message::LinkMessage;
use gateway::wan::stream::fec::{self, ReceivedShards};
use hier_collectives::fec::{SHARD_BYTES, parity_max};
use hier_collectives::ids::GroupId;
use hier_collectives::plan::TreeDirection;
use hier_collectives::shard;
use hier_collectives::wire::{Envelope, Hello, Message, SegmentHeader, WIRE_VERSION};

/// A group and a segment's header, as they begin a stream.
pub fn segment_header(bytes: &[u8]) {
    let Some((_, rest)) = bytes.split_first_chunk::<{ GroupId::BYTES }>() else { return };
    let Some((header, _)) = rest.split_first_chunk() else { return };
    let decoded = Bound { fixed: 0, per_byte: 0 }.hold(bytes, || SegmentHeader::decode(header));
    if let Ok(decoded) = decoded {
        assert_eq!(decoded.encode(), *header, "another encoding");
    }
}

/// An envelope and a control message, without the frame's length.
pub fn control_message(bytes: &[u8]) {
    let Ok((envelope, body)) = Envelope::decode(bytes) else { return };
    assert_eq!([&envelope.encode(), body].concat(), bytes, "another envelope");
    let Ok(message) = MESSAGE.hold(body, || Message::decode(body)) else { return };
    assert_eq!(message.encode(), body, "another encoding");
    assert_eq!(Message::decode(body).as_ref(), Ok(&message), "another message");
    match message {
        Message::Announce { descriptor, .. } => {
            descriptor.digest();
            // Shown before anybody here has posted the same.
            assert!(descriptor.bytes() >= descriptor.elements);
        }
        Message::Begin { boots, plan, .. } => {
            let gateways = u16::try_from(boots.len()).expect("counted by 16 bits");
            plan.hash();
            if plan.prove(gateways.min(GATEWAYS_PROVED)).is_ok() {
                let parts = shard::parts(&plan, BUFFER_BYTES);
                let own = parts.iter().zip(&plan.trees).enumerate();
                let end = own.fold(0, |end, (index, (part, tree))| {
                    if tree.direction == TreeDirection::Results {
                        assert_eq!(part, &parts[index - 1], "results of other partials");
                    } else {
                        assert_eq!(part.range.start, end, "a gap before {part:?}");
                    }
                    part.range.end
                });
                assert_eq!((parts.len(), end), (plan.trees.len(), BUFFER_BYTES));
            }
        }
        _ => {}
    }
}

/// A word on a link or lane, behind the group.
pub fn link_word(bytes: &[u8]) {
    let decoded = Bound { fixed: 0, per_byte: 0 }.hold(bytes, || LinkMessage::decode(bytes));
    if let Ok(word) = decoded {
        assert_eq!(word.encode(), bytes, "another encoding");
        if let LinkMessage::Rate(word) = word {
            assert!(word.ends.0 < word.ends.1, "{word:?}");
        }
    }
}

/// A segment with parity as it arrives: in pieces, in any order, with some missing, and its parity
/// the sender's or anybody's.
pub fn parity_stream(bytes: &[u8]) {
    let Some((head, rest)) = bytes.split_first_chunk::<PARITY_HEAD>() else { return };
    let length = u64::from(u16::from_be_bytes([head[0], head[1]]) % PAYLOAD_BYTES).max(1);
    let most = parity_max(length);
    let count = u16::from(head[2]) % most + 1;
    let (honest, piece) = (head[3] & 1 == 0, usize::from(u16::from_be_bytes([0, head[4]])) * 8 + 1);
    let (order, content) = rest.split_at(rest.len() / 2);
    let byte = |at: usize| content.get(at % content.len().max(1)).copied().unwrap_or(0);
    let payload: Vec<u8> = (0..length as usize).map(|at| byte(at) ^ (at / 251) as u8).collect();
    let made = fec::encode_parity(&payload.clone().into(), count);
    let strange = || made.iter().enumerate().map(|(at, made)| made ^ byte(at)).collect();
    let stream = [payload.clone(), if honest { made.clone() } else { strange() }].concat();
    // Which pieces come, one after the other: each byte comes once, as QUIC has it.
    let mut left: Vec<usize> = (0..stream.len().div_ceil(piece)).collect();
    let into = Arena::anonymous(length).expect("memory").whole().slice(0..length);
    let bound = Bound { fixed: 1024 + stream.len(), per_byte: 0 };
    let mut received = bound.hold(bytes, || ReceivedShards::new(length, count));
    let mut here = vec![false; payload.len()];
    for pick in order {
        if left.is_empty() || received.is_complete() || received.can_restore() {
            break;
        }
        let start = left.swap_remove(usize::from(*pick) % left.len()) * piece;
        let bytes = &stream[start..(start + piece).min(stream.len())];
        assert!(
            !received.put(stream.len() as u64 - bytes.len() as u64 + 1, bytes),
            "beyond the end"
        );
        assert!(received.put(start as u64, bytes), "within the stream");
        if start < payload.len() {
            let end = (start + bytes.len()).min(payload.len());
            into.copy_from_bytes(start as u64, &bytes[..end - start]);
            here[start..end].fill(true);
        }
    }
    let whole = here.iter().all(|here| *here);
    assert_eq!(received.is_complete(), whole, "whole or not");
    if !whole && !received.can_restore() {
        return;
    }
    if !whole {
        received.restore(&into);
    }
    let mut restored = vec![0; payload.len()];
    into.copy_to(&mut restored);
    if honest || whole {
        assert!(restored == payload, "another payload");
    }
    // Parity of anybody's makes no difference to shards that came whole.
    let shards = SHARD_BYTES as usize;
    for (at, here) in here.chunks(shards).enumerate().filter(|(_, here)| here.iter().all(|h| *h)) {
        let range = at * shards..at * shards + here.len();
        assert!(restored[range.clone()] == payload[range], "shard {at} came and was changed");
    }
}

/// A lane's first message.
pub fn hello(bytes: &[u8]) {
    let Ok(hello) = MESSAGE.hold(bytes, || Hello::decode(bytes)) else { return };
    // Of another version nothing but its number is read.
    if hello.version == WIRE_VERSION {
        assert_eq!(hello.encode(), bytes, "another encoding");
    } else {
        assert!(bytes.starts_with(&hello.version.to_be_bytes()));
    }
}

/// A tree of 12 bytes is 56 in memory, thrice that while the vector of trees grows.
const MESSAGE: Bound = Bound { fixed: 512, per_byte: 16 };
/// Gateways for which a plan is proved: the time it takes grows with their square.
const GATEWAYS_PROVED: u16 = 64;
/// The longest buffer that a session accepts.
const BUFFER_BYTES: u64 = 1 << 48;
/// Length, parity, whose it is, and the length of pieces.
const PARITY_HEAD: usize = 5;
/// Payloads are shorter: longer ones take more time and reach no other code.
const PAYLOAD_BYTES: u16 = 8_000;
