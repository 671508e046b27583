//! `landbridge quickstart`: trains a small network data-parallel across two regions.
//!
//! [`runner`] makes the [`deployment`] in a folder of its own and removes it at the end. Two
//! gateways, a relay and the ranks are [`processes`] of this binary. Each [`rank`] does the
//! [`training`] and then all-reduces. The [`report`] checks both.

mod all_reduce_times;
mod deployment;
mod error;
mod messages;
mod options;
mod processes;
mod progress;
mod rank;
pub(crate) mod report;
mod runner;
pub(crate) mod training;

pub(crate) use error::QuickstartError;
pub(crate) use options::QuickstartOptions;
pub(crate) use rank::RankTask;
pub(crate) use runner::run_quickstart;
