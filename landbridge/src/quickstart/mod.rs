//! `landbridge quickstart`: trains a small network data-parallel across two regions.
//!
//! [`quickstart_runner`] makes the [`deployment`] in a folder of its own and removes it at the end. Two
//! gateways, a relay and the ranks are [`child_process`] of this binary. Each [`rank_task`] does the
//! [`training`] and then all-reduces. The [`report`] checks both.

mod all_reduce_times;
mod child_process;
mod deployment;
mod error;
mod messages;
mod progress_terminal;
mod quickstart_options;
mod quickstart_runner;
mod rank_task;
pub(crate) mod report;

pub(crate) use error::QuickstartError;
pub(crate) use quickstart_options::QuickstartOptions;
pub(crate) use quickstart_runner::run_quickstart;
pub(crate) use rank_task::RankTask;
