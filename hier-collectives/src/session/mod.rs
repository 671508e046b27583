//! The protocol of one job on one gateway, without I/O: epochs, collectives, transfers.
//!
//! [`Session`] owns its parts and routes events between them:
//!
//! ```text
//!              Session (events, messages, lifecycle)
//!             /            |                |         \
//!      EpochState     Collectives        Commits    Transfer
//!      members, plan  posts, outcomes    steps      segments, grants, windows
//! ```
//!
//! The epoch knows none of the other parts; collectives, commits and transfers read it through a
//! `Context`. All of them emit [`Action`]s into one queue. The gateway's engine drains the queue
//! and does the I/O. A session handles names and numbers, never bytes, and runs on whatever thread
//! calls it.

mod action;
mod action_queue;
mod collective;
mod context;
mod epoch;
mod in_doubt;
mod local_gateway;
mod session_collectives;
mod session_config;
mod session_connections;
mod session_epochs;
mod session_events;
mod session_messages;
mod session_progress;
mod session_status;
mod transfer;

pub use action::{
    Action, ArrivalPlace, Buffer, BufferView, ContributionMisfit, Discard, LeaseId, PeerError,
    PostTransport, ReduceInput, ScratchId, SegmentPriority, SessionNote, TaskId,
};
pub use collective::commits::COMMITS_MAX;
pub use collective::deadlines::PROGRESS_REPORT_INTERVAL;
pub use in_doubt::InDoubtCommits;
pub use session_config::SessionConfig;
pub use session_events::Session;
pub use session_progress::SessionProgress;
pub use session_status::{CollectiveStatus, CommitStatus, DrainStatus, PeerStatus, SessionStatus};
pub use transfer::missing::MissingBytes;
pub use transfer::partials_pool::PartialsPool;

#[cfg(test)]
mod tests;
