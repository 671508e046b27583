//! The Landbridge gateway.

pub mod certs;
pub mod cli;
pub mod config;
pub mod doctor;
pub mod observe;
pub mod wan;
