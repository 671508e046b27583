//! Random fabrics, from a seed that every failure prints.

use hier_collectives::testing::{self, SplitMix64, mbit};
use hier_collectives::topology::{
    Fabric, FabricGatewaySpec, FabricLinkSpec, FabricRegionSpec, WanPort,
};
use units::{Fraction, Span};

pub fn port(rate: u64) -> WanPort {
    testing::symmetric_port(mbit(rate))
}

/// A region by its number and its gateways' ranks and ports.
pub fn region(number: usize, gateways: &[(u32, Option<WanPort>)]) -> FabricRegionSpec {
    let ranks: u32 = gateways.iter().map(|(ranks, _)| ranks).sum();
    let gateway = |(index, (ranks, wan)): (usize, &(u32, Option<WanPort>))| {
        FabricGatewaySpec::new(format!("g{number:03}-{index}"), *ranks, *wan)
    };
    FabricRegionSpec {
        name: region_name(number),
        speeds: vec![1.0; ranks as usize],
        gateways: gateways.iter().enumerate().map(gateway).collect(),
    }
}

pub fn link(one: usize, other: usize, rate: u64, rtt_ms: u64) -> FabricLinkSpec {
    FabricLinkSpec {
        between: (region_name(one), region_name(other)),
        rate: mbit(rate),
        rtt: Span::from_ms(rtt_ms),
        loss: Fraction::default(),
    }
}

pub fn fabric(regions: Vec<FabricRegionSpec>, links: Vec<FabricLinkSpec>) -> Fabric {
    Fabric::new("random", 1500, regions, links).expect("valid")
}

fn region_name(number: usize) -> String {
    format!("r{number:03}")
}

/// One gateway in each region, with these ports. `pair` gives the rate of each link, if any.
pub fn simple(
    ports: &[u64],
    rtt_ms: u64,
    mut pair: impl FnMut(usize, usize) -> Option<u64>,
) -> Fabric {
    let regions = ports.iter().enumerate().map(|(i, rate)| region(i, &[(1, Some(port(*rate)))]));
    let regions = regions.collect();
    let mut links = Vec::new();
    for one in 0..ports.len() {
        for other in one + 1..ports.len() {
            links.extend(pair(one, other).map(|rate| link(one, other, rate, rtt_ms)));
        }
    }
    fabric(regions, links)
}

/// One gateway in each region, with ports of these Mbit/s out and in. All pairs have a link of 40
/// ms.
pub fn unlike(ports: &[(u64, u64)], pair: u64) -> Fabric {
    let wan = |(out, inward): (u64, u64)| WanPort { egress: mbit(out), ingress: mbit(inward) };
    let regions = ports.iter().enumerate().map(|(i, port)| region(i, &[(1, Some(wan(*port)))]));
    let pairs = (0..ports.len()).flat_map(|one| (one + 1..ports.len()).map(move |two| (one, two)));
    let links = pairs.map(|(one, other)| link(one, other, pair, 40)).collect();
    fabric(regions.collect(), links)
}

/// A random fabric. Regions have one gateway or up to three, some of them without a port. Half of
/// the fabrics have asymmetric ports. Links have any rate and delay, or are wider than ports, and
/// about `missing` percent of them are left out.
pub fn wild(dice: &mut SplitMix64, regions: usize, missing: u64) -> Fabric {
    let (alike, wide, single) = (dice.chance(50), dice.chance(30), dice.chance(50));
    let (least_port, least_link) = if wide { (2_000, 10_000) } else { (50, 20) };
    let gateway = |dice: &mut SplitMix64, ported: bool| {
        let mut some = || mbit(dice.range(least_port, 5000));
        let (egress, other) = (some(), some());
        let wan = WanPort { egress, ingress: if alike { egress } else { other } };
        (u32::try_from(dice.range(1, 4)).expect("small"), ported.then_some(wan))
    };
    let specs = (0..regions).map(|number| {
        let gateways: Vec<_> = (0..dice.range(1, if single { 1 } else { 3 }))
            .map(|i| {
                let ported = i == 0 || dice.chance(60);
                gateway(dice, ported)
            })
            .collect();
        region(number, &gateways)
    });
    let specs = specs.collect();
    let mut links = Vec::new();
    for one in 0..regions {
        for other in one + 1..regions {
            // A chain keeps the regions connected.
            if other == one + 1 || !dice.chance(missing) {
                links.push(link(one, other, dice.range(least_link, 20_000), dice.range(1, 200)));
            }
        }
    }
    fabric(specs, links)
}
