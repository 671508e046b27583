//! The engine: one task that owns the sessions of all jobs, and performs their actions.
//!
//! Trainers' tasks, lanes, reductions and the planner send it events over one queue. It never
//! waits: lanes pull from send queues, reductions report back, and a trainer whose queue is full is
//! disconnected. It handles segments, never bytes.
//!
//! [`Engine`] is the event loop, `engine_peers` its handling of lanes and peers,
//! `engine_connections` of the connections between all gateways. `job` is one job: its session,
//! buffers and attached ranks. `peers` are the other gateways and the lanes to them, of which
//! `control_channel` selects the one for control messages. `engine_links` applies rate limits and
//! reports measured links, `straggler_monitor` names what delays a job, `lost_time` sums what that
//! costs. `engine_jobs` adds and removes jobs and exchanges them with other gateways, of which
//! `peer_jobs` keeps what they say. `terms` are what gateways agree on where a part of the regions
//! may go on. `health` checks paths and logs problems, and `status_report` shows all of it.

mod attached_ranks;
mod control_channel;
mod engine_connections;
mod engine_jobs;
mod engine_links;
mod engine_peers;
mod engine_task;
mod health;
mod job;
mod lost_time;
mod peer_jobs;
mod peers;
mod status_report;
mod straggler_monitor;
mod terms;

pub use engine_task::{Engine, EngineSpec};
