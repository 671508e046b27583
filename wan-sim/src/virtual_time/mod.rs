//! An executor whose time is virtual, to the nanosecond.
//!
//! One thread, tasks in the order they were woken, and a clock that jumps to the next timer
//! once no task can go on: a second of the network takes what its packets cost to compute.
//! tokio's paused clock does the same in steps of a millisecond, which distorts short round
//! trips and lets packets arrive in bursts.

mod executor;
mod sleep_timer;
mod virtual_clock;

pub use executor::{ExecutorStalled, VirtualExecutor};
pub use sleep_timer::SleepTimer;

#[cfg(test)]
mod tests;
