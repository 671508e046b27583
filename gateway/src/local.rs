//! The local plane: trainers on this host, their memory and their requests.

pub mod arena;
pub mod door;
pub mod operator;
mod places;
pub mod protocol;
pub mod server;
