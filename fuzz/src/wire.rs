//! Targets for messages between gateways; docs/protocol.md sections 1 to 4.

use crate::bounds::AllocationBound;
use gateway::memory::arena::Arena;
use gateway::memory::mem_slice::MemSlice;
use gateway::wan::link::link_message::LinkMessage;
use gateway::wan::stream::fec_shards::{self, FecShards};
use gateway::wan::stream::packet_train::train_message::TrainMessage;
use hier_collectives::buffer_part;
use hier_collectives::ids::{GatewayId, GroupId};
use hier_collectives::plan::TreeDirection;
use hier_collectives::tail_fec::{SHARD_BYTES, tail_fec_parity_max};
use hier_collectives::wire::{Envelope, Hello, Message, SegmentHeader, WireVersions};

/// Decodes `bytes` as a job id and a segment header, which begin a stream; panics when the decoder
/// breaks a promise.
pub fn segment_header(bytes: &[u8]) {
    let Some((_, rest)) = bytes.split_first_chunk::<{ GroupId::BYTES }>() else { return };
    let Some((header, _)) = rest.split_first_chunk() else { return };
    let decoded =
        AllocationBound { fixed: 0, per_byte: 0 }.enforce(bytes, || SegmentHeader::decode(header));
    if let Ok(decoded) = decoded {
        assert_eq!(decoded.encode(), *header, "another encoding");
    }
}

/// Decodes `bytes` as the preamble of a packet train or of a report on one; panics when the decoder
/// breaks a promise.
pub fn train_message(bytes: &[u8]) {
    let Some((preamble, _)) = bytes.split_first_chunk() else { return };
    let decoded =
        AllocationBound { fixed: 0, per_byte: 0 }.enforce(bytes, || TrainMessage::decode(preamble));
    if let Ok(Some(decoded)) = decoded {
        assert_eq!(decoded.encode(), *preamble, "another encoding");
    }
}

/// Decodes `bytes` as an envelope and a control message, without the frame's length; panics when a
/// decoder breaks a promise.
pub fn control_message(bytes: &[u8]) {
    let Ok((envelope, body)) = Envelope::decode(bytes) else { return };
    assert_eq!([&envelope.encode(), body].concat(), bytes, "another envelope");
    let Ok(message) = CONTROL_MESSAGE_BOUND.enforce(body, || Message::decode(body)) else { return };
    assert_eq!(message.encode(), body, "another encoding");
    assert_eq!(Message::decode(body).as_ref(), Ok(&message), "another message");
    match message {
        Message::Announce { descriptor, .. } => {
            descriptor.digest();
            // The length is shown before a rank here has posted the same collective.
            assert!(descriptor.bytes() >= descriptor.elements);
        }
        Message::Begin { boots, plan, .. } => {
            let gateways = u16::try_from(boots.len()).expect("counted by 16 bits");
            plan.encoding_hash();
            if plan.prove(gateways.min(PROVED_GATEWAYS_MAX)).is_ok() {
                let parts = buffer_part::divide_into_buffer_parts(&plan, BUFFER_BYTES);
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

/// Decodes `bytes` as a message about a link or lane, behind the job id; panics when the decoder
/// breaks a promise.
pub fn link_message(bytes: &[u8]) {
    let decoded = LINK_MESSAGE_BOUND.enforce(bytes, || LinkMessage::decode(bytes));
    if let Ok(message) = decoded {
        assert_eq!(message.encode(), bytes, "another encoding");
        match message {
            LinkMessage::Rate(rate) => assert!(rate.ends.0 < rate.ends.1, "{rate:?}"),
            LinkMessage::Connections(report) => {
                let is_up = |id: &GatewayId| report.up.contains(id);
                assert!(!report.down.iter().any(is_up), "{report:?}");
            }
            LinkMessage::Lanes(wish) => {
                assert!((1..=wish.most).contains(&wish.wanted), "{wish:?}");
            }
            LinkMessage::ControlGeneration(_) | LinkMessage::PortRate(_) => {}
        }
    }
}

/// Receives a segment with parity in pieces, in any order, with some missing. Panics when the
/// sender's parity restores another payload, or when forged parity changes a shard that arrived
/// whole.
///
/// `bytes` choose the payload, the pieces, and the sender's parity or forged parity.
pub fn parity_stream(bytes: &[u8]) {
    let Some((head, rest)) = bytes.split_first_chunk::<PARITY_HEAD_BYTES>() else { return };
    let length = u64::from(u16::from_be_bytes([head[0], head[1]]) % PAYLOAD_BYTES_BELOW).max(1);
    let most = tail_fec_parity_max(length);
    let count = u16::from(head[2]) % most + 1;
    let (honest, piece) = (head[3] & 1 == 0, usize::from(u16::from_be_bytes([0, head[4]])) * 8 + 1);
    let (order, content) = rest.split_at(rest.len() / 2);
    let byte = |at: usize| content.get(at % content.len().max(1)).copied().unwrap_or(0);
    let payload: Vec<u8> = (0..length as usize).map(|at| byte(at) ^ (at / 251) as u8).collect();
    let made = fec_shards::encode_fec_parity_shards(&payload.clone().into(), count);
    let forged = || made.iter().enumerate().map(|(at, made)| made ^ byte(at)).collect();
    let stream = [payload.clone(), if honest { made.clone() } else { forged() }].concat();
    // The pieces arrive in this order; each byte arrives once, as QUIC delivers it.
    let mut left: Vec<usize> = (0..stream.len().div_ceil(piece)).collect();
    let into = MemSlice::whole(&Arena::anonymous(length).expect("memory"));
    let bound = AllocationBound { fixed: 1024 + stream.len(), per_byte: 0 };
    let mut received = bound.enforce(bytes, || FecShards::new(length, count));
    let mut here = vec![false; payload.len()];
    for pick in order {
        if left.is_empty() || received.is_complete() || received.can_restore() {
            break;
        }
        let start = left.swap_remove(usize::from(*pick) % left.len()) * piece;
        let bytes = &stream[start..(start + piece).min(stream.len())];
        assert!(
            !received.add_bytes(stream.len() as u64 - bytes.len() as u64 + 1, bytes),
            "beyond the end"
        );
        assert!(received.add_bytes(start as u64, bytes), "within the stream");
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
        received.restore_payload(&into);
    }
    let mut restored = vec![0; payload.len()];
    into.copy_to(&mut restored);
    if honest || whole {
        assert!(restored == payload, "another payload");
    }
    // Forged parity does not change shards that arrived whole.
    let shards = SHARD_BYTES as usize;
    for (at, here) in here.chunks(shards).enumerate().filter(|(_, here)| here.iter().all(|h| *h)) {
        let range = at * shards..at * shards + here.len();
        assert!(
            restored[range.clone()] == payload[range],
            "shard {at} arrived whole and was changed"
        );
    }
}

/// Decodes `bytes` as a hello, the first message of a lane; panics when the decoder breaks a
/// promise.
pub fn hello(bytes: &[u8]) {
    let own = WireVersions::OWN;
    let decoded = CONTROL_MESSAGE_BOUND.enforce(bytes, || Hello::decode(bytes, own));
    let Ok((hello, version)) = decoded else { return };
    assert!(own.highest_common(hello.versions) == Ok(version), "another version");
    // Later versions may have more fields.
    let encoded = hello.encode();
    match hello.versions.newest() > own.newest() {
        true => assert!(bytes.starts_with(&encoded), "another beginning"),
        false => assert_eq!(encoded, bytes, "another encoding"),
    }
}

/// 512 bytes, and 16 bytes for each byte of input: the most memory that decoding a control message
/// or hello may allocate. A tree of 12 bytes takes 168 bytes while its vector grows.
const CONTROL_MESSAGE_BOUND: AllocationBound = AllocationBound { fixed: 512, per_byte: 16 };
/// 4 bytes for each byte of input: the most memory that decoding a link message may allocate, while
/// the vectors of a report grow.
const LINK_MESSAGE_BOUND: AllocationBound = AllocationBound { fixed: 0, per_byte: 4 };
/// 64 gateways: the most for which the fuzz target checks that a decoded plan is valid. The time of
/// the check grows with the square of the gateways.
const PROVED_GATEWAYS_MAX: u16 = 64;
/// 2^48 bytes: the longest buffer that a session accepts, which the fuzz target divides among the
/// trees of a plan.
const BUFFER_BYTES: u64 = 1 << 48;
/// 5 bytes at the front of a fuzz input: payload length (2), number of parity shards, whether
/// parity is forged, length of pieces.
const PARITY_HEAD_BYTES: usize = 5;
/// 8,000 bytes: payloads of the fuzz target for parity are shorter. Longer ones take more time and
/// reach no other code.
const PAYLOAD_BYTES_BELOW: u16 = 8_000;
