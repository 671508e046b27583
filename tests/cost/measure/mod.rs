//! One run of a row: gateways with ranks, exchanges, streams; and programs that watch them.

pub mod exchanges;
pub mod gateways;
pub mod profile;
pub mod running;
pub mod streams;
pub mod system_calls;
pub mod watcher;
