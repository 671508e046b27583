//! The transfer of a collective's bytes: local reduction, segments out and in, grants, receipts.
//!
//! [`transfer_state::Transfer`] owns all of it. The session calls it with events; it reads the
//! epoch and knows nothing of posts, failures or commits. The outcome of a call tells the session
//! what arrived, and the getters of [`transfer_state::Transfer`] whether a collective is delivered
//! or at rest.

#[cfg(test)]
mod inspect;
mod local_reduce;
pub(super) mod missing;
mod part;
pub(super) mod partials_pool;
mod receive;
mod segment_tasks;
pub(super) mod send;
mod start;
pub(super) mod transfer_flow;
mod transfer_handles;
pub(super) mod transfer_state;
mod windows;
