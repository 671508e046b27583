//! The local plane: trainers on this host, their memory and their requests.

mod attachments;
pub mod job;
pub mod listener;
pub mod operator;
pub mod protocol;
pub mod server;
pub mod token_file;
