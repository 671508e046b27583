//! The state that every gateway of a job holds: the keys, and the commands that made them.
//!
//! Equal commands in equal order make equal states, so it knows no time and no gateway of its own.

mod executed_commands;
mod snapshot;
mod store_keys;
mod store_state;

pub use store_state::{StoreEntry, StoreState};
