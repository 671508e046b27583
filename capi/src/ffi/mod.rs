//! The functions that C calls.
//!
//! Each function checks its arguments, runs on the caller's thread, and turns errors and panics into a
//! status. The header says what the caller must hold to; what can be checked is checked.

#![expect(unsafe_code, reason = "callers hand over raw pointers")]

mod arguments;
mod connection_calls;
mod group_calls;
mod library_calls;
mod memory_calls;
mod operation_calls;
mod posting;
mod report;
mod store_calls;
#[cfg(test)]
mod tests;
mod types;
