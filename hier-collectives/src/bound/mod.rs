//! The lower bound T*: the least time that any algorithm needs.

mod lower_bound;
mod min_cut;
mod payload_rate;
mod port_bits;

pub use lower_bound::{LowerBound, all_reduce_lower_bound, operation_lower_bound};
pub use min_cut::min_cut;
pub use payload_rate::{PACKET_OVERHEAD_BYTES, payload_rate, payload_rate_fraction};
