//! The Landbridge gateway.

pub mod quickstart;
