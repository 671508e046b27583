//! Connections: endpoints and lanes, the handshake, TLS, packet sizes, and liveness.

pub mod addresses;
pub mod connection;
pub mod endpoint;
pub mod gso_limit;
pub mod liveness;
pub(crate) mod packet_size;
pub mod path_probe;
pub(crate) mod quic_config;
pub mod tls;
