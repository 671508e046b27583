//! The protocol of one group on one gateway, without I/O: epochs, collectives, transfers.
//!
//! [`Session`] owns the machines and routes events between them:
//!
//! ```text
//!              Session (dispatcher, messages, lifecycle)
//!             /            |                |         \
//!      EpochState     Collectives        Commits    Transfer
//!      members, plan  posts, outcomes    steps      segments, grants, windows
//! ```
//!
//! The epoch knows none of the others; collectives, commits and transfers read it through a
//! `Context`. All of them emit [`Action`]s into one queue. The caller, called the shell, drains it and does the
//! I/O: here, the gateway's engine. A
//! session handles names and numbers, never bytes, and runs on whatever thread calls it.

mod action;
mod action_queue;
mod collective;
mod context;
mod dispatcher;
mod epoch;
mod lifecycle;
mod local_gateway;
mod messages;
mod status;
mod transfer;

pub use action::{
    Action, Arrival, Buffer, Discard, Input, LeaseId, Note, PeerError, Priority, ScratchId, Tail,
    TaskId, View,
};
pub use collective::commits::COMMITS_MAX;
pub use collective::deadline::MOVING_EVERY;
pub use dispatcher::{Session, SessionConfig};
pub use status::{CollectiveStatus, CommitStatus, DrainStatus, PeerStatus, SessionStatus};

#[cfg(test)]
mod tests;
