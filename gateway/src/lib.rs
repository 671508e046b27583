//! The Landbridge gateway.

pub mod config;
