//! Efficiency of operations on blocks behind several gateways, whose ports may be unequal.

use super::fabric_shapes::{check_filled, mesh_of};
use hier_collectives::descriptor::Pattern;
use hier_collectives::ids::RankId;
use hier_collectives::topology::Fabric;

/// 12 ranks: each region has as many, and each of its gateways an equal part of them.
const RANKS: u32 = 12;

/// Returns a fabric of regions whose gateways have ports of these Mbit/s. Links are as wide as the
/// widest region.
fn fabric(ports: &[&[u64]]) -> Fabric {
    let region = |ports: &&[u64]| {
        let ranks = RANKS / ports.len() as u32;
        ports.iter().map(|port| (ranks, *port)).collect::<Vec<_>>()
    };
    let widest = ports.iter().map(|ports| ports.iter().sum()).max().expect("regions");
    mesh_of(&ports.iter().map(region).collect::<Vec<_>>(), widest, None)
}

/// Runs every operation on blocks, on 20 BDP of the narrowest region. A rank of the last gateway is
/// the root of a scatter, and one of the first that of a gather.
fn check_blocks(ports: &[&[u64]]) {
    println!("ports of {ports:?} Mbit/s");
    check_blocks_of(&fabric(ports), ports);
}

/// Runs every operation on blocks, as [`check_blocks`] does, on a fabric with these ports.
fn check_blocks_of(fabric: &Fabric, ports: &[&[u64]]) {
    let last = RankId(fabric.world_size() - 1);
    let narrowest: u64 = ports.iter().map(|ports| ports.iter().sum()).min().expect("regions");
    for pattern in [
        Pattern::AllGather,
        Pattern::ReduceScatter,
        Pattern::Gather { to: RankId(1) },
        Pattern::Scatter { from: last },
    ] {
        check_filled(fabric, pattern, narrowest, 0.93);
    }
    // Each rank sends its whole buffer.
    check_filled(fabric, Pattern::AllToAll, narrowest / 4, 0.93);
}

#[test]
fn blocks_fill_the_ports_of_two_equal_gateways() {
    check_blocks(&[[125, 125].as_slice(); 3]);
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn blocks_fill_the_ports_of_any_number_of_equal_gateways() {
    for (regions, gateways) in [(2, 2), (2, 4), (3, 3), (4, 2)] {
        let ports = vec![240 / gateways; gateways as usize];
        check_blocks(&vec![&*ports; regions]);
    }
}

/// Ranks are divided among gateways unlike the ports.
#[test]
fn blocks_fill_the_ports_of_unequal_gateways() {
    check_blocks(&[&[200, 50], &[125, 125]]);
    check_blocks(&[&[250], &[125, 125], &[100, 100, 50]]);
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn blocks_fill_many_unequal_ports() {
    check_blocks(&[[200, 50].as_slice(); 4]);
    check_blocks(&[[1000, 500, 500, 500].as_slice(); 2]);
    check_blocks(&[&[500], &[250], &[125]]);
}

/// Checks regions of which each has its number of ranks, in gateways with equal ports.
fn check_ranks(regions: &[&[u32]]) {
    println!("ranks {regions:?}");
    let of_region = |ranks: &&[u32]| {
        let port = 240 / ranks.len() as u64;
        ranks.iter().map(|ranks| (*ranks, port)).collect::<Vec<_>>()
    };
    let regions: Vec<Vec<(u32, u64)>> = regions.iter().map(of_region).collect();
    let port = |gateways: &Vec<(u32, u64)>| gateways.iter().map(|(_, port)| *port).collect();
    let ports: Vec<Vec<u64>> = regions.iter().map(port).collect();
    let ports: Vec<&[u64]> = ports.iter().map(Vec::as_slice).collect();
    check_blocks_of(&mesh_of(&regions, 240, None), &ports);
}

/// A part of the blocks of the largest region is sent on by another one.
#[test]
fn blocks_fill_the_ports_of_regions_with_unequal_ranks() {
    check_ranks(&[&[1], &[8], &[2], &[5]]);
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn blocks_fill_the_ports_of_many_unequal_regions() {
    check_ranks(&[&[2], &[4], &[6]]);
    check_ranks(&[&[3], &[1], &[1]]);
    check_ranks(&[&[1], &[1], &[1], &[9]]);
    check_ranks(&[&[1, 1], &[4, 4], &[2, 1]]);
}
