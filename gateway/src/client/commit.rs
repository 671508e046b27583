//! Committing steps: waiting until every region has the results of a step.

use super::client_handle::Client;
use super::collective_spec::DEFAULT_TIMEOUT;
use super::connection::call_deadline::CallDeadline;
use super::connection::group_state::PendingCommit;
use super::connection::lost_client_connection_failure;
use crate::local::protocol::ProtocolRequest;
use hier_collectives::ids::Step;
use hier_collectives::post::{Commit, Failure, FailureCode};
use tokio::sync::oneshot;
use units::Span;

/// A commit under way.
#[derive(Debug)]
pub struct StartedCommit {
    answered: oneshot::Receiver<Result<(), Failure>>,
}

impl StartedCommit {
    /// Waits until the commit is confirmed: every region has the results.
    ///
    /// # Errors
    /// The errors of [`Client::commit_with`].
    pub async fn confirmed(self) -> Result<(), Failure> {
        self.answered
            .await
            .unwrap_or_else(|_| Err(lost_client_connection_failure("the client was dropped")))
    }
}

impl Client {
    /// Commits a step with [`DEFAULT_TIMEOUT`]; see [`Client::commit_with`].
    ///
    /// # Errors
    /// The errors of [`Client::commit_with`].
    pub async fn commit(&self, step: Step) -> Result<(), Failure> {
        self.commit_with(step, DEFAULT_TIMEOUT).await
    }

    /// Waits until every region has the results of all collectives that this rank posted since its
    /// last commit, on all ranks.
    ///
    /// `step` is the caller's number for these collectives. Ranks that commit after the same
    /// collective must name the same one: else the epoch ends, with both steps in the failure. A
    /// commit without collectives of its own is not compared. A collective that failed can be posted
    /// again before the commit. When an epoch ended and nothing was posted after it, the commit
    /// fails as well.
    ///
    /// # Errors
    /// [`Failure`]: this rank does not know whether every region has the results; the text says
    /// which region completed which collectives. After a change of epoch, [`Client::committed`]
    /// says whether some region knows. The next commit does not cover the collectives of one that
    /// failed. Buffers are not affected.
    pub async fn commit_with(&self, step: Step, timeout: Span) -> Result<(), Failure> {
        self.start_commit(step, timeout).await?.confirmed().await
    }

    /// Starts a commit of everything that was posted before this call; see [`Client::commit_with`].
    /// A wait for room is part of the timeout.
    ///
    /// # Errors
    /// [`Failure`]: nothing was started.
    pub async fn start_commit(&self, step: Step, timeout: Span) -> Result<StartedCommit, Failure> {
        let deadline = CallDeadline::after(timeout);
        let reserved = deadline.wait(self.connection.requests.reserve()).await;
        let permit = reserved.ok_or_else(|| {
            let text = "the gateway reads no more requests until the timeout; no commit was begun";
            Failure::new(FailureCode::TimedOut, text)
        })?;
        let permit = permit.map_err(|_| self.connection.lock_state().disconnect_failure())?;
        let mut state = self.connection.lock_state();
        let number = self.group.number;
        let state = state.group_mut(number);
        if let Some(failure) = state.over.clone() {
            return Err(failure);
        }
        // The gateway knows whether the results of an epoch that is over make a complete step.
        if let Some(failure) = state.epoch_failure().filter(|_| state.uncommitted.is_none()) {
            return Err(failure);
        }
        // Answers name the step, so that two commits of one step could not be distinguished.
        if state.commits.iter().any(|commit| commit.step == step) {
            let text = format!("step {step} is being committed already");
            return Err(Failure::new(FailureCode::BadPost, text));
        }
        let (answer, answered) = oneshot::channel();
        // The current epoch has no collective of an earlier one to confirm.
        let epoch = state.uncommitted.take().unwrap_or(state.epoch);
        state.commits.push_back(PendingCommit { epoch, step, answer });
        let commit = Commit { epoch, step, timeout: deadline.left() };
        permit.send(ProtocolRequest::Commit(commit).in_group(number));
        Ok(StartedCommit { answered })
    }

    /// Returns the last step known to be complete in every region: one that this rank committed, or
    /// one that some region knew when the epoch began.
    pub fn committed(&self) -> Option<Step> {
        self.connection.lock_state().group_mut(self.group.number).committed
    }
}
