//! What gateways say to each other; docs/protocol.md sections 1 to 4.

use crate::bounds::Bound;
use gateway::wan::word::LinkWord;
use hier_collectives::ids::GroupId;
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
                let end = parts.iter().fold(0, |end, part| {
                    assert_eq!(part.range.start, end, "a gap before {part:?}");
                    part.range.end
                });
                assert_eq!((parts.len(), end), (plan.trees.len(), BUFFER_BYTES));
            }
        }
        _ => {}
    }
}

/// A word on a link, behind the group.
pub fn link_word(bytes: &[u8]) {
    let decoded = Bound { fixed: 0, per_byte: 0 }.hold(bytes, || LinkWord::decode(bytes));
    if let Ok(word) = decoded {
        assert_eq!(word.encode(), bytes, "another encoding");
        assert!(word.ends.0 < word.ends.1, "{word:?}");
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
