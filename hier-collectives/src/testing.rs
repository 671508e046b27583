//! Fabrics and seeded numbers for tests and benches.
//!
//! It is built for this crate's own tests, and for other crates under the feature `testing`, which
//! only dev-dependencies turn on.

use crate::topology::{Fabric, LinkSpec, LinkState, RegionGateway, RegionSpec, WanPort};
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

/// Builds a fabric region by region and link by link, with an MTU of 1,500 bytes.
#[derive(Debug, Clone)]
pub struct FabricBuilder {
    mtu: u16,
    regions: Vec<RegionSpec>,
    links: Vec<LinkSpec>,
}

impl Default for FabricBuilder {
    fn default() -> Self {
        Self { mtu: 1500, regions: Vec::new(), links: Vec::new() }
    }
}

impl FabricBuilder {
    /// Sets the MTU of the fabric, in bytes.
    pub fn mtu(self, mtu: u16) -> Self {
        Self { mtu, ..self }
    }

    /// Adds a region by the number of ranks and the port of each of its gateways. A gateway's name
    /// is the region's and its index.
    pub fn region(
        mut self,
        name: &str,
        gateways: impl IntoIterator<Item = (u32, Option<WanPort>)>,
    ) -> Self {
        let gateway =
            |(index, (ranks, wan))| RegionGateway::new(format!("{name}-{index}"), ranks, wan);
        let gateways: Vec<RegionGateway> = gateways.into_iter().enumerate().map(gateway).collect();
        let ranks: u32 = gateways.iter().map(|gateway| gateway.ranks).sum();
        let speeds = vec![1.0; ranks as usize];
        self.regions.push(RegionSpec { name: name.to_owned(), speeds, gateways });
        self
    }

    /// Adds a link between two regions, by name.
    pub fn link(mut self, one: &str, other: &str, state: LinkState) -> Self {
        let LinkState { rate, rtt, loss } = state;
        self.links.push(LinkSpec { between: (one.to_owned(), other.to_owned()), rate, rtt, loss });
        self
    }

    /// Adds a link with `state` between each pair of the regions added so far.
    pub fn all_pairs(mut self, state: LinkState) -> Self {
        let names: Vec<String> = self.regions.iter().map(|region| region.name.clone()).collect();
        for (index, one) in names.iter().enumerate() {
            for other in &names[index + 1..] {
                self = self.link(one, other, state);
            }
        }
        self
    }

    /// Builds the fabric, which is called "test".
    ///
    /// # Panics
    /// When the fabric is invalid.
    pub fn build(self) -> Fabric {
        Fabric::new("test", self.mtu, self.regions, self.links).expect("a valid fabric")
    }
}

/// The SplitMix64 generator: the same seed gives the same numbers on every machine.
#[derive(Debug, Clone)]
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    /// Returns the next 64-bit random number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a random number from `low` to `high`, both included.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.next_u64() % (high - low + 1)
    }

    /// Returns true in `percent` of 100 calls on average.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.range(1, 100) <= percent
    }
}
