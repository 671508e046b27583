//! An in-memory UDP network in virtual time.
//!
//! Deterministic: state lives in ordered maps, packets due at one instant arrive in the
//! order they were sent. Under [`VirtualExecutor`](crate::VirtualExecutor) they arrive to the nanosecond.
//! Under tokio's clock, paused and on a current-thread runtime, a waiting reader wakes up to 1 ms
//! late, for tokio rounds timers up to whole milliseconds.

mod datagram;
mod error;
mod medium;
mod net;
mod net_clock;
mod net_state;
#[cfg(feature = "topology")]
mod sites;
mod virtual_socket;

pub use error::{BindError, INBOX_BYTES_MAX, NoLink, Undelivered};
pub use net::{EPHEMERAL_PORT_FIRST, VirtualNet};
pub use net_state::SocketChoice;
