//! The Landbridge gateway: the daemon as a library, and the trainer's side of its local plane.
//!
//! # Map, in the direction of the data
//!
//! | Module | Task or thread | Role |
//! |---|---|---|
//! | [`client`] | the trainer's process | attaches, posts collectives, awaits results |
//! | [`local`] | one task for the listener, one for each trainer | checks requests, maps arenas |
//! | [`engine`] | one task | owns the sessions of `hier-collectives`, performs their actions |
//! | [`wan`] | one thread for each lane, the engine's for the first | sends and receives segments over QUIC |
//! | [`observe`] | one task for the status server | metrics and status over HTTP |
//! | [`daemon`] | the caller's task | makes the queues, starts all tasks |
//!
//! Everything stands on [`host`], the seam to the operating system or to virtual time, and on
//! [`memory`], which several tasks read and write. [`events`] holds the types that tasks send to
//! each other. [`access`] judges who may use sockets and secret files, [`limits`] how much the system
//! allows. [`config`] and [`certs`] read and write files, [`simulate`] runs whole gateways in virtual
//! time.
//!
//! # Queues
//!
//! | From | To | Carries | Bound | When full |
//! |---|---|---|---|---|
//! | trainer's task, lanes, reductions, planner, operator | engine | [`events::Event`] | [`events::ENGINE_QUEUE_MAX`] (4,096) | the sender waits |
//! | one trainer's requests within that queue | engine | [`events::LocalEvent`] | `QUEUED_REQUESTS_MAX` (8 a rank) | the trainer's task stops reading its socket |
//! | engine | trainer's task | `RankEvent` by [`events::LocalRankEvents`] | `RANK_EVENTS_MAX` (17,408 a rank) | the trainer is disconnected |
//! | engine | trainer's task, of another host | parts of results in [`events::PlacedResults`] | segments of its collectives under way | cannot be: each is added once |
//! | status server | engine | [`observe::engine_status_request::StatusRequest`] | `STATUS_REQUESTS_MAX` (8) | the request fails as busy |
//! | engine | lane's control writer | control messages by [`wan::LaneHandle`] | `CONTROL_QUEUE_MAX` (262,144 a lane) and 256 MiB | the connection is closed |
//! | engine | lanes' senders | segments in [`wan::stream::segment_queue`] | the sessions' grants | cannot be: a session queues no more than was granted |
//! | in-process connector | listener | `AcceptedConnection` | `PENDING_ACCEPTS_MAX` (64) | the connector waits |
//! | client's callers | client's writer | requests | `CLIENT_REQUESTS_MAX` (64) | the caller waits |
//!
//! Single values travel by a oneshot (replies, ends of tasks), by a watch (credentials, jobs), or by a
//! cancellation token (shutdown, leases, slots).

// They panic or wait where a stream is closed, full or not read: use `stdio`.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod accept_errors;
pub mod access;
mod admission;
pub mod certs;
pub mod client;
pub mod config;
pub mod daemon;
pub mod dump_folder;
pub mod engine;
pub mod events;
pub mod failure_signal;
pub mod host;
pub mod limits;
pub mod local;
pub mod lock;
mod log_throttle;
pub mod loopback;
pub mod memory;
pub mod observe;
pub mod simulate;
pub mod wan;
pub mod warnings;
