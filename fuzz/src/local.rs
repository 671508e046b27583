//! Targets for messages between a trainer, an operator and the gateway; docs/protocol.md section 5.

use crate::bounds::AllocationBound;
use gateway::local::operator::OperatorRequest;
use gateway::local::protocol::{ProtocolRequest, ProtocolResponse, read_protocol_message};
use gateway::local::remote::pieces::PieceReceiver;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// Decodes `bytes` as a request of a trainer, without the frame's length, and panics when the
/// decoder breaks a promise.
pub fn local_request(bytes: &[u8]) {
    let Ok(request) = LOCAL_MESSAGE_BOUND.enforce(bytes, || ProtocolRequest::decode(bytes)) else {
        return;
    };
    // Compares bytes and not values: a weight may be NaN, which the session refuses later.
    assert_eq!(request.encode(), bytes, "another encoding");
}

/// Decodes `bytes` as a response to a trainer, without the frame's length, and panics when the
/// decoder breaks a promise.
pub fn local_response(bytes: &[u8]) {
    let Ok(response) = LOCAL_MESSAGE_BOUND.enforce(bytes, || ProtocolResponse::decode(bytes))
    else {
        return;
    };
    assert_eq!(response.encode(), bytes, "another encoding");
    assert_eq!(ProtocolResponse::decode(bytes), Ok(response), "another response");
}

/// 4 KiB: the arena of [`piece_stream`], so that mutated offsets lie in it and beyond it.
pub const PIECE_STREAM_ARENA: u64 = 4096;

/// Reads `bytes` as the stream of a trainer without shared memory, with an arena of
/// [`PIECE_STREAM_ARENA`] bytes, and panics when bytes of a piece are lost, added or changed.
pub fn piece_stream(bytes: &[u8]) {
    PIECE_STREAM_BOUND.enforce(bytes, || {
        let (mut stream, mut pieces) = (bytes, PieceReceiver::new());
        while let Ok(message) = ready(read_protocol_message(&mut stream)) {
            let request = ProtocolRequest::decode(&message);
            let Ok(ProtocolRequest::ContributionPiece { offset, bytes: length }) = request else {
                continue;
            };
            if offset.checked_add(length.into()).is_none_or(|end| end > PIECE_STREAM_ARENA) {
                return;
            }
            let (sent, mut arrived) = (stream, Vec::<u8>::new());
            let put = |at: u64, part: &[u8]| {
                assert_eq!(at, arrived.len() as u64, "parts in order");
                arrived.extend(part);
            };
            let received = ready(pieces.receive(&mut stream, length, put));
            assert_eq!(received.is_ok(), arrived.len() == length as usize, "whole or an error");
            assert_eq!(arrived, sent[..arrived.len()], "other bytes");
            assert_eq!(stream.len(), sent.len() - arrived.len(), "bytes of the next message");
        }
    });
}

/// Returns the output of a future that waits for nothing.
fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("a slice of bytes is always ready"),
    }
}

/// Decodes `bytes` as an operator's request, and the change of members that follows from it; panics
/// when a promise is broken.
pub fn operator_request(bytes: &[u8]) {
    let request =
        OPERATOR_REQUEST_BOUND.enforce(bytes, || serde_json::from_slice::<OperatorRequest>(bytes));
    let Ok(request) = request else { return };
    let _ = request.clone().membership_change();
    let again = serde_json::to_vec(&request).expect("keys are strings");
    assert_eq!(
        serde_json::from_slice::<OperatorRequest>(&again).expect("its own"),
        request,
        "another request"
    );
}

/// 1,024 bytes, and 16 bytes for each byte of input: the most memory that decoding an operator's
/// request may allocate. An error quotes and escapes a part of the input.
const OPERATOR_REQUEST_BOUND: AllocationBound = AllocationBound { fixed: 1024, per_byte: 16 };

/// 10 bytes for each byte of input: the most memory that decoding a message between trainer and
/// gateway may allocate. A text is copied once; a key of the store, of 3 bytes, takes 25 bytes.
const LOCAL_MESSAGE_BOUND: AllocationBound = AllocationBound { fixed: 0, per_byte: 10 };

/// 144 KiB, and 4 bytes for each byte of input: the most memory that reading a trainer's stream may
/// take at once. It has a buffer of 64 KiB, one message of at most 64 KiB, and the pieces that this
/// target compares.
const PIECE_STREAM_BOUND: AllocationBound = AllocationBound { fixed: 144 << 10, per_byte: 4 };
