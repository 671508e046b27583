//! A global batch in whole samples, split among ranks of unequal speed.

mod rebalance;
mod shares;

pub use rebalance::BatchSplit;
pub use shares::{BATCH_MAX, BatchError, batch_shares, batch_shares_within};
