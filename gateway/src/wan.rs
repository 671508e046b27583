//! The long haul: mutually authenticated QUIC connections between gateways.

pub mod probe;
pub mod tls;
