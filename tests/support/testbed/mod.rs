//! Real processes at sites of this machine: gateways, ranks, and the programs that they are
//! compared with. The benches `wan` and `cost` say how a program is started at a site.

pub mod collective_runs;
pub mod controls;
pub mod counters;
pub mod error;
pub mod gateways;
pub mod interrupt;
pub mod metrics;
pub mod processes;
pub mod programs;
pub mod run_times;
pub mod site;
