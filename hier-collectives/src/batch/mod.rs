//! The split of a global batch into whole samples for ranks of unequal speed.
//!
//! The trainer's client calls it at the start and after each step; `landbridge plan batch` prints
//! it.

mod batch_shares;
mod batch_split;

pub use batch_shares::{BATCH_MAX, BatchError, batch_shares, batch_shares_within};
pub use batch_split::BatchSplit;
