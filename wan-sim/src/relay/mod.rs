//! A UDP relay that puts a link between real sockets, without privileges.
//!
//! Each forward listens on one address; every client address that sends there gets a
//! socket of its own towards the forward's target. All forwards share one pair of links.
//! One thread carries all packets; the [`RunningRelay`] is its handle.

mod datagram_batch;
mod forward;
mod loop_check;
mod pipe;
mod queued_datagrams;
mod relay_pump;
mod relay_socket;
mod relay_state;
mod running_relay;

pub use forward::{Forward, ForwardError, RelaySpec};
pub use relay_state::{FLOWS_MAX, OwnDrops, RelayCounters};
pub use running_relay::{Listening, RelayError, RunningRelay};
