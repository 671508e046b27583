//! Targets for messages about stores of jobs, with their seeds; docs/protocol.md section 7.

use crate::bounds::AllocationBound;
use hier_collectives::codec::FieldReader;
use hier_collectives::ids::{BootId, GatewayId};
use hier_collectives::store::{
    StoreBallot, StoreBallotVersion, StoreCommand, StoreEntry, StoreFailure, StoreFailureCode,
    StoreMessage, StoreOutcome, StoreQuery, StoreRefusal, StoreRequest, StoreState,
    read_request_answer, write_request_answer,
};

/// Decodes `bytes` as a message about a store; panics when the decoder breaks a promise.
pub fn store_message(bytes: &[u8]) {
    let mut reader = FieldReader(bytes);
    let Ok(message) = MESSAGE_BOUND.enforce(bytes, || StoreMessage::read_encoding(&mut reader))
    else {
        return;
    };
    let mut again = Vec::new();
    message.write_encoding(&mut again);
    assert_eq!(again, bytes[..bytes.len() - reader.0.len()], "another encoding");
}

/// Decodes `bytes` as a request to a store; panics when the decoder breaks a promise.
pub fn store_request(bytes: &[u8]) {
    let mut reader = FieldReader(bytes);
    let Ok(request) = MESSAGE_BOUND.enforce(bytes, || StoreRequest::read_encoding(&mut reader))
    else {
        return;
    };
    assert!(request.check().is_ok(), "beyond the limits: {request:?}");
    let mut again = Vec::new();
    request.write_encoding(&mut again);
    assert_eq!(again, bytes[..bytes.len() - reader.0.len()], "another encoding");
}

/// Decodes `bytes` as an answer of a store; panics when the decoder breaks a promise.
pub fn store_answer(bytes: &[u8]) {
    let mut reader = FieldReader(bytes);
    let Ok(answer) = MESSAGE_BOUND.enforce(bytes, || read_request_answer(&mut reader)) else {
        return;
    };
    let mut again = Vec::new();
    write_request_answer(&answer, &mut again);
    assert_eq!(again, bytes[..bytes.len() - reader.0.len()], "another encoding");
}

/// Decodes `bytes` as a snapshot of a store; panics when the decoder breaks a promise.
pub fn store_snapshot(bytes: &[u8]) {
    let Ok(state) = SNAPSHOT_BOUND.enforce(bytes, || StoreState::decode_snapshot(bytes)) else {
        return;
    };
    assert_eq!(state.encode_snapshot(), bytes, "another encoding");
}

/// Each kind of request, with a long key and an empty value among them.
fn requests() -> Vec<StoreRequest> {
    let key = || b"rdzv/round".to_vec();
    let keys = || vec![vec![b'k'; 300], key()];
    let commands = [
        StoreCommand::Set(vec![(key(), b"value".to_vec()), (b"b".to_vec(), vec![])]),
        StoreCommand::Add { key: key(), amount: -1 },
        StoreCommand::CompareSet { key: key(), expected: vec![], desired: vec![0; 9] },
        StoreCommand::Delete(key()),
        StoreCommand::Append { key: key(), bytes: vec![7; 70] },
        StoreCommand::Push { key: key(), item: b"item".to_vec() },
        StoreCommand::Pop(key()),
    ];
    let queries = [
        StoreQuery::Get(keys()),
        StoreQuery::Wait(keys()),
        StoreQuery::Check(keys()),
        StoreQuery::Count,
        StoreQuery::List { prefix: b"rdzv/".to_vec(), after: vec![] },
        StoreQuery::QueueLength { key: key(), least: 3 },
    ];
    let commands = commands.into_iter().map(StoreRequest::Command);
    commands.chain(queries.into_iter().map(StoreRequest::Query)).collect()
}

/// The commands among the requests.
fn commands() -> impl Iterator<Item = StoreCommand> {
    requests().into_iter().filter_map(|request| match request {
        StoreRequest::Command(command) => Some(command),
        StoreRequest::Query(_) => None,
    })
}

/// An entry with each command, by two gateways.
fn entries() -> Vec<StoreEntry> {
    let entry = |(number, command)| {
        let (origin, boot) = (GatewayId((number % 2) as u16), BootId(9));
        StoreEntry { origin, boot, number, below: 0, command }
    };
    (0..).zip(commands()).map(entry).collect()
}

/// Returns seeds of requests of every kind.
pub fn store_request_seeds() -> Vec<Vec<u8>> {
    let encode = |request: StoreRequest| {
        let mut out = Vec::new();
        request.write_encoding(&mut out);
        out
    };
    requests().into_iter().map(encode).collect()
}

/// Returns seeds of answers of every kind.
pub fn store_answer_seeds() -> Vec<Vec<u8>> {
    let outcomes = [
        StoreOutcome::Done,
        StoreOutcome::Flag(false),
        StoreOutcome::Number(1 << 40),
        StoreOutcome::Values(vec![vec![], b"value".to_vec()]),
        StoreOutcome::Keys { keys: vec![b"a".to_vec(), b"b".to_vec()], is_last: true },
        StoreOutcome::Refused(StoreRefusal::Full),
    ];
    let failures = StoreFailureCode::ALL.map(|code| {
        let text = "the store waited 5 s for gateway west-0".to_owned();
        Err(StoreFailure { code, text })
    });
    let answers = outcomes.into_iter().map(Ok).chain(failures);
    let encode = |answer| {
        let mut out = Vec::new();
        write_request_answer(&answer, &mut out);
        out
    };
    answers.map(encode).collect()
}

/// Returns seeds of snapshots: of an empty store, and after each command.
pub fn store_snapshot_seeds() -> Vec<Vec<u8>> {
    let mut state = StoreState::default();
    let mut seeds = vec![state.encode_snapshot()];
    for entry in entries() {
        state.apply(&entry);
        seeds.push(state.encode_snapshot());
    }
    seeds
}

/// Returns one message about a store of each kind.
pub(crate) fn store_messages() -> Vec<StoreMessage> {
    let (to, boot) = (BootId(9), BootId(8));
    let ballot = StoreBallot { number: 3, boot };
    let version = StoreBallotVersion { ballot, index: 41 };
    let mut messages = vec![
        StoreMessage::Present { boot },
        StoreMessage::Prepare { ballot, probe: 7 },
        StoreMessage::Promise { asked: ballot, probe: 7, boot, promised: ballot, held: None },
        StoreMessage::Promise {
            asked: ballot,
            probe: 8,
            boot,
            promised: ballot,
            held: Some(version),
        },
        StoreMessage::Offer { to, version, content: None },
        StoreMessage::Offer { to, version, content: Some(version) },
        StoreMessage::Fetch { to, version, offset: 64 << 10 },
        StoreMessage::Piece { to, version, offset: 0, total: 5, bytes: vec![1; 5] },
        StoreMessage::Held { boot, version },
        StoreMessage::Commit { to, version },
    ];
    messages.extend(entries().into_iter().map(|entry| {
        let (number, below, command) = (entry.number, 0, entry.command.clone());
        match entry.number % 2 {
            0 => StoreMessage::Command { boot, number, below, command },
            _ => StoreMessage::Append { to, version, commit: 40, entry },
        }
    }));
    messages
}

/// Returns seeds of messages about a store of every kind.
pub fn store_message_seeds() -> Vec<Vec<u8>> {
    let encode = |message: StoreMessage| {
        let mut out = Vec::new();
        message.write_encoding(&mut out);
        out
    };
    store_messages().into_iter().map(encode).collect()
}

/// 10 bytes for each byte of input: the most memory that decoding a message about a store may
/// allocate. A key of 1 byte takes 3 bytes on the wire and 25 bytes of memory.
const MESSAGE_BOUND: AllocationBound = AllocationBound { fixed: 0, per_byte: 10 };
/// 8 KiB, and 64 bytes for each byte of input: the most memory that decoding a snapshot may allocate.
/// Trees keep keys and outcomes in nodes that are half full at least.
const SNAPSHOT_BOUND: AllocationBound = AllocationBound { fixed: 8 << 10, per_byte: 64 };
