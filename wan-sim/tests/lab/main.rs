//! Labs of network namespaces. Without the privilege for them, each test reports that it is
//! skipped.
#![expect(clippy::disallowed_types, reason = "programs at the sites use sockets")]
#![expect(clippy::disallowed_methods, reason = "a delay is measured by the clock")]

mod commands;
mod fidelity;
mod links;
mod remains;
#[path = "../skipping/mod.rs"]
mod skipping;
#[path = "../stopping/mod.rs"]
mod stopping;
mod support;
