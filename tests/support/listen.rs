//! Hearing what is logged on one thread.

use tracing::Dispatch;
use tracing::dispatcher::{DefaultGuard, set_default};

/// Until both are dropped, this thread's logs go to a listener that was made by the caller.
/// With one listener alone, whichever thread comes first by a line of code that logs decides for
/// all whether anybody listens there: so there are two.
pub fn listen(listener: impl Fn() -> Dispatch) -> (Dispatch, DefaultGuard) {
    let other = listener();
    let guard = set_default(&listener());
    (other, guard)
}
