//! The signal that a collective has failed for a reason at which an operator should look.
//!
//! The engine's task raises it where it counts the failure. Whoever writes dumps waits for it, on the
//! same thread or another. One signal is kept until somebody waits; further ones are the same.

use hier_collectives::post::FailureCode;
use std::sync::Arc;
use tokio::sync::Notify;

/// The signal of failures. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct FailureSignal(Arc<Notify>);

impl FailureSignal {
    /// Raises the signal for a failure, unless somebody asked for its reason, or it follows another one.
    pub fn note_failure(&self, code: FailureCode) {
        if is_failure_to_look_at(code) {
            self.0.notify_one();
        }
    }

    /// Waits until the signal is raised, and takes it away.
    pub async fn wait_for_failure(&self) {
        self.0.notified().await;
    }
}

/// Returns whether an operator should look at a failure of this code.
pub(crate) const fn is_failure_to_look_at(code: FailureCode) -> bool {
    match code {
        FailureCode::Disagreement
        | FailureCode::TimedOut
        | FailureCode::RankLost
        | FailureCode::RegionLost
        | FailureCode::Stalled => true,
        // The poster knows, an operator asked, or another failure came first.
        FailureCode::BadPost
        | FailureCode::EpochEnded
        | FailureCode::ShuttingDown
        | FailureCode::GatewayLost
        | FailureCode::MembershipChanged => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    /// Returns whether the signal is raised, and takes it away.
    fn is_raised(signal: &FailureSignal) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        pin!(signal.wait_for_failure()).poll(&mut context) == Poll::Ready(())
    }

    #[test]
    fn a_failure_is_signalled_once_until_somebody_waits() {
        let signal = FailureSignal::default();
        assert!(!is_raised(&signal));
        signal.note_failure(FailureCode::ShuttingDown);
        assert!(!is_raised(&signal), "an operator asked for it");
        signal.note_failure(FailureCode::Stalled);
        signal.note_failure(FailureCode::RankLost);
        assert!(is_raised(&signal.clone()));
        assert!(!is_raised(&signal));
    }
}
