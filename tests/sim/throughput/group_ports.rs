//! Groups of some regions use all of their ports, and share those that several use.

use crate::groups::members::Members;
use crate::groups::sends::simulate_ranks;
use gateway::client::Client;
use hier_collectives::bound::payload_rate;
use hier_collectives::ids::RegionId;
use scenarios::lab::mesh::{Mesh, MeshGateway};
use scenarios::{Lab, mbit};
use units::Span;

/// 100 Mbit/s: the port of each region.
const PORT_MBIT: u64 = 100;

/// 8 MiB: 10 to 30 BDP of the port over the RTTs of the links, 30 to 90 ms.
const ELEMENTS: u64 = 1 << 20;

/// 4 regions of one rank each.
fn four_regions() -> Mesh {
    Mesh::of_gateways(vec![vec![MeshGateway::with_port(1, mbit(PORT_MBIT))]; 4])
}

/// Sums as many elements in each of these groups at once, and returns the seconds of the last.
async fn seconds_at_once(lab: &Lab, groups: &[Members], elements: u64) -> f64 {
    // The first operation of a group makes it.
    for group in groups {
        group.sum(1).await;
    }
    let begin = lab.host.now();
    let mut posted = Vec::new();
    for group in groups {
        posted.push(group.post_sums(elements).await);
    }
    for (group, operations) in groups.iter().zip(posted) {
        group.check_sums(operations, elements).await;
    }
    lab.host.now().since(begin).as_secs_f64()
}

/// Checks groups of these ranks at once: the port that most of them use is full until all are done.
fn check(name: &'static str, groups: &'static [&'static [u32]], least: f64) {
    simulate_ranks(&four_regions(), move |lab, clients: Vec<Client>| async move {
        let mut made = Vec::new();
        for (tag, ranks) in (1..).zip(groups) {
            made.push(Members::make(&clients, ranks, tag).await);
        }
        lab.sleep(Span::from_secs(1)).await;
        let seconds = seconds_at_once(&lab, &made, ELEMENTS).await;
        let users = |rank: u32| groups.iter().filter(|ranks| ranks.contains(&rank)).count();
        let most = (0..4).map(users).max().expect("ranks");
        // Two regions swap their partials, which take a one-way delay.
        let bytes = most as u64 * 8 * ELEMENTS;
        let between = |ranks: &&[u32]| {
            let [one, other] = [ranks[0], ranks[1]].map(|rank| RegionId(rank as u16));
            lab.fabric.link(one, other).expect("linked").rtt
        };
        let longest = groups.iter().map(between).max().expect("groups");
        let delay = longest.as_secs_f64() / 2.0;
        let least_seconds = bytes as f64 / payload_rate(mbit(PORT_MBIT), 1500) + delay;
        let eta = least_seconds / seconds;
        println!("{name}: {seconds:.3} s, eta {eta:.3}");
        assert!(eta >= least, "{name}: eta {eta:.3}");
    });
}

#[test]
fn a_group_of_two_of_four_regions_fills_their_ports() {
    check("one group", &[&[0, 1]], 0.91);
    // A receiver tells its sender what its port leaves once a segment comes, so that the sender knows it
    // after a round trip; that of the second group is 90 ms.
    check("two groups apart", &[&[0, 1], &[2, 3]], 0.83);
}

#[test]
fn groups_that_share_a_port_fill_it() {
    check("two groups at one port", &[&[0, 1], &[0, 2]], 0.92);
    check("three groups at one port", &[&[0, 1], &[2, 0], &[0, 3]], 0.92);
}
