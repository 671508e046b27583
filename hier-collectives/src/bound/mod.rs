//! The lower bound T*: the least time that any algorithm needs.

mod lower_bound;
mod min_cut;
mod payload;
mod ports;

pub use lower_bound::{LowerBound, all_reduce_bound, operation_bound};
pub use min_cut::min_cut;
pub use payload::{PACKET_OVERHEAD_BYTES, payload_rate, payload_share};
