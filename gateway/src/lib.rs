//! The Landbridge gateway.

pub mod certs;
pub mod config;
pub mod observe;
pub mod wan;
