//! Scenarios under virtual time. They run the code of `landbridge run` on a simulated host.
//!
//! Each module holds the promises of one kind; each test is one promise.

mod correctness;
mod fabric_changes;
mod groups;
mod operations;
mod recovery;
mod throughput;
mod trace;
mod waiting;
