//! Limits of what one gateway or trainer can do to others.

use hier_collectives::codec::FieldReader;
use hier_collectives::ids::{BootId, GatewayId};
use hier_collectives::store::limits::{
    BELIEVED_NUMBERS_BOUND, COMMAND_WINDOW, COMMAND_WINDOW_BYTES, VALUE_BYTES_MAX,
    WAITING_BYTES_MAX,
};
use hier_collectives::store::{
    JobStore, StoreAction, StoreBallot, StoreBallotVersion, StoreCaller, StoreCommand,
    StoreFailureCode, StoreMessage, StoreRequest,
};
use hier_collectives::testing::{FabricBuilder, lossless_link, mbit, symmetric_port};
use std::sync::Arc;
use units::{Span, TimeNs};

const NOW: TimeNs = TimeNs::from_ns(5);
const TIMEOUT: Span = Span::from_secs(60);

/// Makes the store of one of two gateways.
fn store_of(me: u16) -> JobStore {
    let port = Some(symmetric_port(mbit(100)));
    let fabric = FabricBuilder::default().region("a", [(1, port)]).region("b", [(1, port)]);
    let fabric = Arc::new(fabric.all_pairs(lossless_link(mbit(100), 10)).build());
    JobStore::new(fabric, GatewayId(me), BootId(u64::from(me) + 100))
}

/// Gives a store a request to push an item of so many bytes.
fn push(store: &mut JobStore, number: u64, bytes: usize) {
    let caller = StoreCaller { attachment: number % 2, number };
    let command = StoreCommand::Push { key: b"q".to_vec(), item: vec![7; bytes] };
    store.handle_request(caller, StoreRequest::Command(command), TIMEOUT, NOW);
}

fn messages(store: &mut JobStore) -> Vec<StoreMessage> {
    let actions = std::iter::from_fn(|| store.poll_action());
    let message = |action| match action {
        StoreAction::Message { message, .. } => Some(message),
        StoreAction::Answer { .. } => None,
    };
    actions.filter_map(message).collect()
}

/// Other gateways would close their connections to a leader whose numbers no message may have, and a
/// leader that closes connections for such numbers closes those of gateways that repeat them.
#[test]
fn numbers_that_no_leader_chose_are_ignored() {
    let mut leader = store_of(0);
    push(&mut leader, 1, 1);
    let asked = messages(&mut leader);
    let [StoreMessage::Prepare { ballot, probe }] = asked[..] else { panic!("{asked:?}") };
    for number in [BELIEVED_NUMBERS_BOUND, (1 << 62) - 1] {
        let great = StoreBallot { number, boot: BootId(9) };
        let version = StoreBallotVersion { ballot: ballot.min(great), index: number };
        for (promised, held) in [(great, None), (ballot, Some(version))] {
            let boot = BootId(101);
            let promise = StoreMessage::Promise { asked: ballot, probe, boot, promised, held };
            assert_eq!(leader.handle_message(GatewayId(1), promise, NOW), Ok(()), "{number}");
            assert!(messages(&mut leader).is_empty(), "{number}");
        }
    }
    // The greatest one below the limit is taken, and the leader counts on.
    let promised = StoreBallot { number: BELIEVED_NUMBERS_BOUND - 1, boot: BootId(9) };
    let boot = BootId(101);
    let promise = StoreMessage::Promise { asked: ballot, probe, boot, promised, held: None };
    assert_eq!(leader.handle_message(GatewayId(1), promise, NOW), Ok(()));
    let asked = messages(&mut leader);
    let [StoreMessage::Prepare { ballot, probe }] = asked[..] else { panic!("{asked:?}") };
    assert_eq!(ballot.number, BELIEVED_NUMBERS_BOUND);
    // A gateway without fault repeats it.
    let promise =
        StoreMessage::Promise { asked: ballot, probe, boot, promised: ballot, held: None };
    assert_eq!(leader.handle_message(GatewayId(1), promise, NOW), Ok(()));
    let sent = messages(&mut leader);
    assert!(sent.iter().any(|sent| matches!(sent, StoreMessage::Offer { .. })), "{sent:?}");
    for message in sent {
        let mut bytes = Vec::new();
        message.write_encoding(&mut bytes);
        let read = StoreMessage::read_encoding(&mut FieldReader(&bytes));
        assert_eq!(read.as_ref(), Ok(&message));
    }
}

#[test]
fn commands_on_their_way_have_bounded_bytes() {
    let mut store = store_of(1);
    (0..COMMAND_WINDOW).for_each(|number| push(&mut store, number, VALUE_BYTES_MAX));
    let sent = messages(&mut store);
    let is_command = |message: &&StoreMessage| matches!(message, StoreMessage::Command { .. });
    let commands = sent.iter().filter(is_command).count();
    assert_eq!(commands, COMMAND_WINDOW_BYTES / (VALUE_BYTES_MAX + 1));
}

#[test]
fn requests_that_wait_hold_bounded_bytes() {
    let mut store = store_of(1);
    let most = (WAITING_BYTES_MAX / (VALUE_BYTES_MAX + 1)) as u64;
    (0..most).for_each(|number| push(&mut store, number, VALUE_BYTES_MAX));
    let busy = |store: &mut JobStore| {
        push(store, most, VALUE_BYTES_MAX);
        let answers =
            std::iter::from_fn(|| store.poll_action()).filter_map(|action| match action {
                StoreAction::Answer { answer, .. } => Some(answer),
                StoreAction::Message { .. } => None,
            });
        let answers: Vec<_> = answers.collect();
        answers.iter().any(|answer| {
            answer.as_ref().is_err_and(|failure| failure.code == StoreFailureCode::Busy)
        })
    };
    assert!(busy(&mut store));
    // What a trainer leaves behind makes room for others.
    store.handle_detach(0, NOW);
    assert!(!busy(&mut store));
    store.handle_detach(0, NOW);
    store.handle_detach(1, NOW);
    (0..most).for_each(|number| push(&mut store, number, VALUE_BYTES_MAX));
    assert!(busy(&mut store));
}
