//! Fabrics and seeded numbers for tests and benches.
//!
//! It is built for this crate's own tests, and for other crates under the feature `testing`, which
//! only dev-dependencies turn on.

mod fabric_builder;
mod split_mix64;

pub use fabric_builder::FabricBuilder;
pub use split_mix64::SplitMix64;

use crate::topology::{LinkState, WanPort};
use units::{BitRate, Fraction, Span};

/// Returns a rate of `rate` Mbit/s.
pub const fn mbit(rate: u64) -> BitRate {
    BitRate::from_bits_per_second(rate * 1_000_000)
}

/// Returns a WAN port with the same rate out and in.
pub const fn symmetric_port(rate: BitRate) -> WanPort {
    WanPort { egress: rate, ingress: rate }
}

/// Returns the state of a link without loss.
pub fn lossless_link(rate: BitRate, rtt_ms: u64) -> LinkState {
    LinkState { rate, rtt: Span::from_ms(rtt_ms), loss: Fraction::default() }
}
