//! Groups of one job share its memory: they hold no more than the job may, and all of them go on.

use super::members::{Members, post_sum};
use hier_collectives::ids::GatewayId;
use scenarios::lab::mesh::Mesh;
use scenarios::{JOB, Lab, simulate};
use units::{BitRate, ByteCount, Span};

/// 163,840 numbers: 1.25 MiB, which is a large buffer.
const ELEMENTS: u64 = 160 << 10;
/// 64 groups, as many as one job uses at once.
const GROUPS: u32 = 64;
const RATE: BitRate = BitRate::from_bits_per_second(200_000_000);

/// Four regions of two ranks each, far apart.
fn mesh(memory: ByteCount) -> Mesh {
    let mut mesh = Mesh::of_ranks(&[2, 2, 2, 2]);
    for link in &mut mesh.links {
        (link.rate, link.rtt) = (RATE, Span::from_ms(40));
    }
    mesh.memory = memory;
    mesh
}

/// Returns the ranks of a group: one of each region, and both of one region.
fn ranks_of(tag: u32) -> Vec<u32> {
    let both = (tag / 2) % 4;
    let one_or_both = |region: u32| {
        let first = 2 * region;
        if region == both { vec![first, first + 1] } else { vec![first + tag % 2] }
    };
    (0..4).flat_map(one_or_both).collect()
}

/// Returns the most bytes that the groups of the job have held at each gateway.
fn most_held(lab: &Lab) -> Vec<u64> {
    let most = |id: GatewayId| lab.metrics(id).job_metrics(JOB).scratch_bytes_max.get();
    lab.fabric.gateway_ids().map(|id| u64::try_from(most(id)).expect("not negative")).collect()
}

/// Posts large sums in all groups at once, those of the last region later than the others, checks the
/// results, and returns the most that each gateway held.
fn held_by_groups_under_way(memory: ByteCount, late: Span) -> Vec<u64> {
    simulate(async move {
        let lab = mesh(memory).start(1).await;
        let clients = lab.clients(128 << 20).await;
        let mut groups = Vec::new();
        for tag in 0..GROUPS {
            groups.push(Members::make(&clients, &ranks_of(tag), tag).await);
        }
        let mut operations = Vec::new();
        for Members(members) in &groups {
            let mut posted = Vec::new();
            for member in &members[..members.len() - 2] {
                posted.push(post_sum(member, ELEMENTS).await);
            }
            operations.push(posted);
        }
        lab.sleep(late).await;
        for (Members(members), posted) in groups.iter().zip(&mut operations).rev() {
            for member in &members[members.len() - 2..] {
                posted.push(post_sum(member, ELEMENTS).await);
            }
        }
        for (members, posted) in groups.iter().zip(operations) {
            members.check_sums(posted, ELEMENTS).await;
        }
        most_held(&lab)
    })
}

#[test]
fn groups_under_way_hold_no_more_than_their_job_may() {
    let memory = ByteCount::new(64 << 20);
    let held = held_by_groups_under_way(memory, Span::from_secs(2));
    println!("{held:?}");
    assert!(held.iter().all(|held| *held <= memory.get()), "{held:?} of {memory}");
    assert!(held.iter().any(|held| 16 * held > memory.get()), "{held:?} of {memory}");
}
