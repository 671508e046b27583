//! Targets for messages between a trainer, an operator and the gateway; docs/protocol.md section 5.

use crate::bounds::AllocationBound;
use gateway::events::RateChange;
use gateway::local::operator::OperatorRequest;
use gateway::local::protocol::{Request, Response};

/// Decodes `bytes` as a request of a trainer, without the frame's length, and panics when the
/// decoder breaks a promise.
pub fn local_request(bytes: &[u8]) {
    let Ok(request) = LOCAL_MESSAGE_BOUND.enforce(bytes, || Request::decode(bytes)) else { return };
    // Compares bytes and not values: a weight may be NaN, which the session refuses later.
    assert_eq!(request.encode(), bytes, "another encoding");
}

/// Decodes `bytes` as a response to a trainer, without the frame's length, and panics when the
/// decoder breaks a promise.
pub fn local_response(bytes: &[u8]) {
    let Ok(response) = LOCAL_MESSAGE_BOUND.enforce(bytes, || Response::decode(bytes)) else {
        return;
    };
    assert_eq!(response.encode(), bytes, "another encoding");
    assert_eq!(Response::decode(bytes), Ok(response), "another response");
}

/// Decodes `bytes` as an operator's request, and the change of rate that follows from it; panics
/// when a promise is broken.
pub fn operator_request(bytes: &[u8]) {
    let request =
        OPERATOR_REQUEST_BOUND.enforce(bytes, || serde_json::from_slice::<OperatorRequest>(bytes));
    let Ok(request) = request else { return };
    let _ = RateChange::from(&request);
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

/// 1 byte for each byte of input: the most memory that decoding a message between trainer and
/// gateway may allocate. A text is copied once.
const LOCAL_MESSAGE_BOUND: AllocationBound = AllocationBound { fixed: 0, per_byte: 1 };
