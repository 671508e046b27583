//! Every request, answer and message survives the wire, and no bytes cause a panic.

use hier_collectives::codec::FieldReader;
use hier_collectives::ids::{BootId, GatewayId};
use hier_collectives::store::limits::{KEY_BYTES_MAX, REQUEST_BYTES_MAX, REQUEST_KEYS_MAX};
use hier_collectives::store::{
    StoreBallot, StoreBallotVersion, StoreCommand, StoreEntry, StoreMessage, StoreQuery,
    StoreRequest, StoreState, read_request_answer, write_request_answer,
};
use hier_collectives::wire::{MESSAGE_BYTES_MAX, Message};
use proptest::collection::vec;
use proptest::prelude::*;

fn keys() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 1..20)
}

fn values() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..100)
}

fn commands() -> impl Strategy<Value = StoreCommand> {
    prop_oneof![
        vec((keys(), values()), 1..5).prop_map(StoreCommand::Set),
        (keys(), any::<i64>()).prop_map(|(key, amount)| StoreCommand::Add { key, amount }),
        (keys(), values(), values()).prop_map(|(key, expected, desired)| {
            StoreCommand::CompareSet { key, expected, desired }
        }),
        keys().prop_map(StoreCommand::Delete),
        (keys(), values()).prop_map(|(key, bytes)| StoreCommand::Append { key, bytes }),
        (keys(), values()).prop_map(|(key, item)| StoreCommand::Push { key, item }),
        keys().prop_map(StoreCommand::Pop),
    ]
}

fn requests() -> impl Strategy<Value = StoreRequest> {
    let queries = prop_oneof![
        vec(keys(), 1..5).prop_map(StoreQuery::Get),
        vec(keys(), 1..5).prop_map(StoreQuery::Wait),
        vec(keys(), 1..5).prop_map(StoreQuery::Check),
        Just(StoreQuery::Count),
        (values(), values()).prop_map(|(prefix, after)| StoreQuery::List { prefix, after }),
        (keys(), any::<u32>()).prop_map(|(key, least)| StoreQuery::QueueLength { key, least }),
    ];
    prop_oneof![commands().prop_map(StoreRequest::Command), queries.prop_map(StoreRequest::Query),]
}

fn entries() -> impl Strategy<Value = StoreEntry> {
    (any::<u16>(), any::<u64>(), 0_u64..1 << 60, 0_u64..64, commands()).prop_map(
        |(origin, boot, below, ahead, command)| StoreEntry {
            origin: GatewayId(origin),
            boot: BootId(boot),
            number: below + ahead,
            below,
            command,
        },
    )
}

fn messages() -> impl Strategy<Value = StoreMessage> {
    let version =
        (0_u64..1 << 62, any::<u64>(), 0_u64..1 << 62).prop_map(|(number, boot, index)| {
            StoreBallotVersion { ballot: StoreBallot { number, boot: BootId(boot) }, index }
        });
    let facts = (0..10, version, any::<u64>(), any::<u64>(), any::<bool>(), values());
    (facts, entries()).prop_map(|((kind, version, boot, probe, flag, bytes), entry)| {
        let (boot, ballot) = (BootId(boot), version.ballot);
        let StoreEntry { number, below, command, .. } = entry.clone();
        let held = flag.then_some(version);
        match kind {
            0 => StoreMessage::Present { boot },
            1 => StoreMessage::Command { boot, number, below, command },
            2 => StoreMessage::Prepare { ballot, probe },
            3 => StoreMessage::Promise { asked: ballot, probe, boot, promised: ballot, held },
            4 => StoreMessage::Offer { to: boot, version, content: held },
            5 => StoreMessage::Fetch { to: boot, version, offset: 3 << 16 },
            6 => {
                let total = bytes.len() as u32;
                StoreMessage::Piece { to: boot, version, offset: 0, total, bytes }
            }
            7 => StoreMessage::Append { to: boot, version, commit: probe, entry },
            8 => StoreMessage::Held { boot, version },
            _ => StoreMessage::Commit { to: boot, version },
        }
    })
}

fn encoded(request: &StoreRequest) -> Vec<u8> {
    let mut out = Vec::new();
    request.write_encoding(&mut out);
    out
}

proptest! {
    #[test]
    fn store_messages_survive_the_wire(message in messages(), cut in 0.0..1.0f64) {
        let message = Message::Store(Box::new(message));
        let bytes = message.encode();
        prop_assert_eq!(Message::decode(&bytes), Ok(message));
        let end = (bytes.len() as f64 * cut) as usize;
        prop_assert!(Message::decode(&bytes[..end]).is_err(), "a prefix is no message");
    }

    #[test]
    fn store_requests_survive_the_wire(request in requests(), cut in 0.0..1.0f64) {
        let bytes = encoded(&request);
        let mut reader = FieldReader(&bytes);
        prop_assert_eq!(StoreRequest::read_encoding(&mut reader), Ok(request));
        prop_assert!(reader.0.is_empty());
        let end = (bytes.len() as f64 * cut) as usize;
        prop_assert!(StoreRequest::read_encoding(&mut FieldReader(&bytes[..end])).is_err());
    }

    #[test]
    fn outcomes_and_snapshots_survive_the_wire(entries in vec(entries(), 0..20)) {
        let mut state = StoreState::default();
        for mut entry in entries {
            entry.origin = GatewayId(entry.origin.0 % 3);
            state.apply(&entry);
            let outcome = state.outcome(entry.origin, entry.boot, entry.number).cloned();
            let answer = Ok(outcome.expect("carried out"));
            let mut bytes = Vec::new();
            write_request_answer(&answer, &mut bytes);
            prop_assert_eq!(read_request_answer(&mut FieldReader(&bytes)), Ok(answer));
        }
        let bytes = state.encode_snapshot();
        prop_assert_eq!(StoreState::decode_snapshot(&bytes), Ok(state));
        prop_assert!(StoreState::decode_snapshot(&bytes[..bytes.len() - 1]).is_err());
    }

    #[test]
    fn no_bytes_of_a_store_cause_a_panic(bytes in vec(any::<u8>(), 0..200)) {
        let _ = StoreState::decode_snapshot(&bytes);
        let _ = StoreMessage::read_encoding(&mut FieldReader(&bytes));
        let _ = StoreRequest::read_encoding(&mut FieldReader(&bytes));
        let _ = read_request_answer(&mut FieldReader(&bytes));
    }
}

/// 64 KiB: the longest message between trainer and gateway, of which 17 bytes are others.
const LOCAL_MESSAGE_BYTES: usize = 64 << 10;

#[test]
fn requests_at_the_limits_fit_a_local_message() {
    let count = REQUEST_KEYS_MAX;
    let length = REQUEST_BYTES_MAX / count;
    let many: Vec<_> = (0..count).map(|n| format!("{n:0length$}").into_bytes()).collect();
    let pairs: Vec<_> = many.iter().map(|key| (key.clone(), vec![])).collect();
    let value = vec![7; REQUEST_BYTES_MAX / 2 - KEY_BYTES_MAX / 2];
    let (expected, desired, key) = (value.clone(), value, vec![b'k'; KEY_BYTES_MAX]);
    let at_limits = [
        StoreRequest::Query(StoreQuery::Get(many)),
        StoreRequest::Command(StoreCommand::Set(pairs)),
        StoreRequest::Command(StoreCommand::CompareSet { key, expected, desired }),
    ];
    for request in at_limits {
        assert_eq!(request.check(), Ok(()));
        let bytes = encoded(&request);
        assert!(bytes.len() + 17 <= LOCAL_MESSAGE_BYTES, "{} bytes", bytes.len());
        assert!(bytes.len() < MESSAGE_BYTES_MAX / 2);
        assert_eq!(StoreRequest::read_encoding(&mut FieldReader(&bytes)), Ok(request.clone()));
        if let StoreRequest::Command(StoreCommand::CompareSet { key, expected, mut desired }) =
            request
        {
            desired.push(1);
            let longer = StoreCommand::CompareSet { key, expected, desired };
            assert!(longer.check().is_err());
            let bytes = encoded(&StoreRequest::Command(longer));
            assert!(StoreRequest::read_encoding(&mut FieldReader(&bytes)).is_err());
        }
    }
}
