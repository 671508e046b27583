//! A builder of fabrics for tests and benches, and the ports and links that it takes.

use crate::topology::{
    Fabric, FabricGatewaySpec, FabricLinkSpec, FabricRegionSpec, LinkState, WanPort,
};
use units::{BitRate, Fraction, Span};

/// Builds a fabric region by region and link by link, with an MTU of 1,500 bytes.
#[derive(Debug, Clone)]
pub struct FabricBuilder {
    mtu: u16,
    regions: Vec<FabricRegionSpec>,
    links: Vec<FabricLinkSpec>,
}

impl Default for FabricBuilder {
    /// Makes a builder without regions and links, with an MTU of 1,500 bytes.
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
    /// is the region's, a hyphen and its index. All ranks have speed 1.
    pub fn region(
        mut self,
        name: &str,
        gateways: impl IntoIterator<Item = (u32, Option<WanPort>)>,
    ) -> Self {
        let gateway =
            |(index, (ranks, wan))| FabricGatewaySpec::new(format!("{name}-{index}"), ranks, wan);
        let gateways: Vec<FabricGatewaySpec> =
            gateways.into_iter().enumerate().map(gateway).collect();
        let ranks: u32 = gateways.iter().map(|gateway| gateway.ranks).sum();
        let speeds = vec![1.0; ranks as usize];
        self.regions.push(FabricRegionSpec { name: name.to_owned(), speeds, gateways });
        self
    }

    /// Adds a link between two regions, by name.
    pub fn link(mut self, one: &str, other: &str, state: LinkState) -> Self {
        let LinkState { rate, rtt, loss } = state;
        self.links.push(FabricLinkSpec {
            between: (one.to_owned(), other.to_owned()),
            rate,
            rtt,
            loss,
        });
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
