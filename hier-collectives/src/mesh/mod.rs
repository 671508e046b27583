//! The mesh of direct connections between gateways: which of them are up, and the routes over them.
//!
//! Every gateway reports its own connections to all others (link-state routing), so that all know
//! one graph. Control messages take routes over that graph, and plans use its links alone. A
//! connection that is missing in the fabric and one that is down are the same to routes and plans.
//! The gateway's engine owns a [`MeshTable`]; each session reads the [`MeshGraph`].

mod mesh_graph;
mod mesh_report;
mod mesh_table;
mod routes;

#[cfg(test)]
mod tests;

pub use mesh_graph::{GatewayPair, MeshConnectionState, MeshGraph};
pub use mesh_report::MeshReport;
pub use mesh_table::{InvalidReport, MeshTable};
pub use routes::{Routes, route_delays_to};
