//! What a trainer and its gateway say to each other; docs/protocol.md section 5.

use crate::bounds::Bound;
use gateway::events::RateChange;
use gateway::local::operator::OperatorRequest;
use gateway::local::protocol::{Request, Response};

/// From a trainer, without the frame's length.
pub fn local_request(bytes: &[u8]) {
    let Ok(request) = MESSAGE.hold(bytes, || Request::decode(bytes)) else { return };
    // Bytes, not values: a weight may be no number, which the session refuses.
    assert_eq!(request.encode(), bytes, "another encoding");
}

/// To a trainer, without the frame's length.
pub fn local_response(bytes: &[u8]) {
    let Ok(response) = MESSAGE.hold(bytes, || Response::decode(bytes)) else { return };
    assert_eq!(response.encode(), bytes, "another encoding");
    assert_eq!(Response::decode(bytes), Ok(response), "another response");
}

/// From an operator, and what its wish comes to.
pub fn operator_wish(bytes: &[u8]) {
    let wish = JSON.hold(bytes, || serde_json::from_slice::<OperatorRequest>(bytes));
    let Ok(wish) = wish else { return };
    let _ = RateChange::from(&wish);
    let again = serde_json::to_vec(&wish).expect("keys are strings");
    assert_eq!(
        serde_json::from_slice::<OperatorRequest>(&again).expect("its own"),
        wish,
        "another wish"
    );
}

/// A refusal quotes a part of what was said, and escapes it.
const JSON: Bound = Bound { fixed: 1024, per_byte: 16 };

/// A text is copied once.
const MESSAGE: Bound = Bound { fixed: 0, per_byte: 1 };
