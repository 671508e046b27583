//! The long haul: mutually authenticated QUIC connections between gateways.

pub mod tls;
