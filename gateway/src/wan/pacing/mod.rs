//! Pacing: the payload to a peer leaves no faster than the rate limit of the link.
//!
//! | file | type | subject |
//! |---|---|---|
//! | `pair_pacer.rs` | `PairPacer` | one pair of gateways: its share of the link's rate limit |
//! | `pacer.rs` | `Pacer` | waiters of all lanes, released in order |
//! | `token_bucket.rs` | `TokenBucket` | tokens, bursts and the loss debt |
//!
//! The engine task sets the limit (`wan/link/link_limits.rs` and `wan/link/capacity` decide it).
//! The sender tasks of all lanes wait for tokens (`wan/stream/segment_sender.rs`). The tuner task of a lane
//! charges retransmissions that the limit does not allow for (`wan/congestion/lane_tuner.rs`).

pub(crate) mod pacer;
pub mod pair_pacer;
mod token_bucket;
