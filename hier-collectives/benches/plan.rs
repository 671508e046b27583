//! Time to plan large fabrics: `cargo bench -p hier-collectives --bench plan`.
//!
//! It prints seconds, trees and the planned time over the bound. It fails where 64 regions with
//! unequal ports and 30 % of the pairs missing take more than a second, or end more than 1 % above
//! the bound. That holds also with loss, and with asymmetric ports.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use hier_collectives::plan::{self, Operation};
use hier_collectives::testing::mbit;
use hier_collectives::topology::{
    Fabric, FabricGatewaySpec, FabricLinkSpec, FabricRegionSpec, WanPort,
};
use std::process::ExitCode;
use std::time::Instant;
use units::{ByteCount, Fraction, Span};

/// 3 fabrics: the first three of the bench must be planned within [`PLANNING_SECONDS_MAX`] and
/// [`TIME_RATIO_MAX`]. The others are only shown.
const JUDGED_FABRICS: usize = 3;

/// 1 s: the longest time that making a plan may take for the bench to pass.
const PLANNING_SECONDS_MAX: f64 = 1.0;

/// 1.01: the largest ratio of a plan's predicted time to the lower bound for the bench to pass.
const TIME_RATIO_MAX: f64 = 1.01;

fn main() -> ExitCode {
    let mut good = true;
    let none = Fraction::default();
    let some = Fraction::from_ppb(1_000_000).expect("0.1 %");
    let cases = [
        ("64 regions, unequal ports, 30 % of pairs missing", 64, 30, Limit::Ports, none),
        ("64 regions, unequal ports, 30 % missing, 0.1 % loss", 64, 30, Limit::Ports, some),
        ("64 regions, ports unequal each way, 30 % missing", 64, 30, Limit::Directions, none),
        ("64 regions, unequal ports, all pairs", 64, 0, Limit::Ports, none),
        ("64 regions, unequal ports, 90 % of pairs missing", 64, 90, Limit::Ports, none),
        ("128 regions, unequal ports, 30 % of pairs missing", 128, 30, Limit::Ports, none),
        ("64 regions, unequal pairs, 30 % missing", 64, 30, Limit::Pairs, none),
        ("16 regions, unequal pairs, all pairs", 16, 0, Limit::Pairs, none),
    ];
    for (index, (name, regions, missing, limit, loss)) in cases.into_iter().enumerate() {
        let fabric = fabric(regions, missing, limit, loss);
        let begun = Instant::now();
        let plan = plan::make_plan(&fabric).expect("small enough");
        let seconds = begun.elapsed().as_secs_f64();
        let forecast = plan.forecast(&fabric, Operation::AllReduce, ByteCount::new(1 << 44));
        let ratio = forecast.predicted.as_secs_f64() / forecast.bound.as_secs_f64();
        let trees = plan.trees.len();
        let wanted =
            index >= JUDGED_FABRICS || (seconds <= PLANNING_SECONDS_MAX && ratio <= TIME_RATIO_MAX);
        let verdict = if index >= JUDGED_FABRICS {
            ""
        } else if wanted {
            "met"
        } else {
            "NOT MET"
        };
        good &= wanted;
        println!(
            "| {name} | {} of {trees} trees | {seconds:.3} | {ratio:.4} | {verdict} |",
            plan.algorithm.name()
        );
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The values of a fabric that are unequal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Limit {
    /// The ports.
    Ports,
    /// The ports, and the two directions of each.
    Directions,
    /// The links between pairs.
    Pairs,
}

/// A fabric whose regions have one gateway each; `missing` percent of the pairs have no link.
fn fabric(regions: u32, missing: u64, limit: Limit, loss: Fraction) -> Fabric {
    let mut state = 1u64;
    let mut roll = |low: u64, high: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        low + (state >> 33) % (high - low + 1)
    };
    let name = |region: u32| format!("r{region:03}");
    let mut region = |number: u32| {
        let rate = if limit == Limit::Pairs { 1_000_000 } else { roll(500, 1_000) };
        let inward = if limit == Limit::Directions { roll(500, 1_000) } else { rate };
        let wan = Some(WanPort { egress: mbit(rate), ingress: mbit(inward) });
        let gateways = vec![FabricGatewaySpec::new(format!("g{number:03}"), 1, wan)];
        FabricRegionSpec { name: name(number), speeds: vec![1.0], gateways }
    };
    let specs: Vec<FabricRegionSpec> = (0..regions).map(&mut region).collect();
    let mut links = Vec::new();
    for one in 0..regions {
        for other in one + 1..regions {
            if other == one + 1 || roll(1, 100) > missing {
                let rate = if limit == Limit::Pairs { roll(100, 1000) } else { 1_000 };
                let between = (name(one), name(other));
                let (rate, rtt) = (mbit(rate), Span::from_ms(roll(5, 200)));
                links.push(FabricLinkSpec { between, rate, rtt, loss });
            }
        }
    }
    Fabric::new("bench", 1500, specs, links).expect("valid")
}
