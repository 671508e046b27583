//! The Unix socket at which a gateway listens: who may make it, replace it and remove it.
//!
//! `landbridge run` opens a [`UnixSocketListener`], and [`super::local_server`] accepts from it, in
//! the same task in which it looks after its file. A lock file beside the socket (`socket_lock`)
//! keeps two gateways apart, and proves which socket file a gateway has left behind.

mod error;
mod gateway_socket;
mod socket_lock;
mod unix_listener;

#[cfg(test)]
mod tests;

pub use error::ListenError;
pub use gateway_socket::{
    GatewaySocketMode, GatewaySocketSpec, check_gateway_socket_folder_mode,
    check_gateway_socket_path,
};
pub use unix_listener::UnixSocketListener;
