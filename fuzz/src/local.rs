//! What a trainer and its gateway say to each other; docs/protocol.md section 5.

use crate::bounds::Bound;
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

/// A text is copied once.
const MESSAGE: Bound = Bound { fixed: 0, per_byte: 1 };
