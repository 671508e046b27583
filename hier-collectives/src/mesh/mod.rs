//! The mesh of direct connections between gateways: which of them are up, and the routes over them.
//!
//! Every gateway reports its own connections to all others (link-state routing), so that all know
//! one graph. Control messages take routes over that graph, and plans use its links alone. A
//! connection that is missing in the fabric and one that is down are the same to routes and plans.
//! The gateway's engine owns a [`MeshTable`]; each session reads the [`MeshGraph`].

mod graph;
mod report;
mod routes;
mod table;

#[cfg(test)]
mod tests;

pub use graph::{GatewayPair, MeshConnectionState, MeshGraph};
pub use report::MeshReport;
pub use routes::{Routes, route_delays_to};
pub use table::{DOWN_AFTER_MIN, InvalidReport, MeshTable};
