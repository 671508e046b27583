//! Targets for messages between a trainer, an operator and the gateway; docs/protocol.md section 5.

use crate::bounds::Bound;
use gateway::events::RateChange;
use gateway::local::operator::OperatorRequest;
use gateway::local::protocol::{Request, Response};

/// Decodes a request of a trainer, without the frame's length.
pub fn local_request(bytes: &[u8]) {
    let Ok(request) = MESSAGE.enforce(bytes, || Request::decode(bytes)) else { return };
    // Compares bytes and not values: a weight may be NaN, which the session refuses later.
    assert_eq!(request.encode(), bytes, "another encoding");
}

/// Decodes a response to a trainer, without the frame's length.
pub fn local_response(bytes: &[u8]) {
    let Ok(response) = MESSAGE.enforce(bytes, || Response::decode(bytes)) else { return };
    assert_eq!(response.encode(), bytes, "another encoding");
    assert_eq!(Response::decode(bytes), Ok(response), "another response");
}

/// Decodes an operator's request, and the change of rate that follows from it.
pub fn operator_wish(bytes: &[u8]) {
    let request = JSON.enforce(bytes, || serde_json::from_slice::<OperatorRequest>(bytes));
    let Ok(request) = request else { return };
    let _ = RateChange::from(&request);
    let again = serde_json::to_vec(&request).expect("keys are strings");
    assert_eq!(
        serde_json::from_slice::<OperatorRequest>(&again).expect("its own"),
        request,
        "another request"
    );
}

/// Bound of an operator's request: a refusal quotes a part of the input and escapes it.
const JSON: Bound = Bound { fixed: 1024, per_byte: 16 };

/// Bound of a trainer's message: a text is copied once.
const MESSAGE: Bound = Bound { fixed: 0, per_byte: 1 };
