//! The fabrics of runs: two to six regions with ranks, and every kind of quorum.

use crate::lab::mesh::{Mesh, MeshGateway};
use crate::mbit;
use hier_collectives::topology::QuorumSpec;
use units::Span;

/// 14 shapes, each with its quorum.
const SHAPES: u64 = 14;
/// 3 s, 5 s and the usual one: the times after which a silent gateway counts as lost. The shortest is the
/// least that a fabric may ask for.
const SILENCES: [Option<Span>; 3] = [Some(Span::from_secs(3)), Some(Span::from_secs(5)), None];

/// The ranks of each gateway of each region, of which a last one without ranks is the witness, the
/// quorum, and the votes of the first regions.
type Shape = (&'static [&'static [u32]], QuorumSpec, &'static [u16]);

/// Draws the fabric of a run. `pick` draws below a number.
pub(super) fn draw_members_shape(pick: &mut impl FnMut(u64) -> u64) -> Mesh {
    let (regions, quorum, votes) = shape(pick(SHAPES));
    let silence = SILENCES[pick(SILENCES.len() as u64) as usize];
    let gateway = |ranks: &u32| MeshGateway::with_port(*ranks, mbit(1000));
    let gateways = |region: &&[u32]| region.iter().map(gateway).collect();
    let regions = regions.iter().map(gateways).collect();
    Mesh { quorum, votes: votes.to_vec(), silence, ..Mesh::of_gateways(regions) }
}

/// Returns the shape of a number below [`SHAPES`].
fn shape(number: u64) -> Shape {
    use QuorumSpec::{All, Count, Majority};
    let named = |names: &[&str]| {
        let names = names.iter().map(|name| (*name).to_owned());
        QuorumSpec::Named(names.collect())
    };
    match number {
        0 => (&[&[2], &[1], &[1]], Majority, &[]),
        1 => (&[&[1], &[2], &[1], &[1]], Majority, &[]),
        2 => (&[&[1], &[1], &[1]], named(&["b"]), &[]),
        3 => (&[&[2], &[1], &[0]], Majority, &[]),
        4 => (&[&[1], &[1], &[1]], All, &[]),
        5 => (&[&[1], &[1], &[1], &[1], &[1]], Majority, &[]),
        6 => (&[&[1], &[1], &[1], &[1], &[1]], Count(4), &[]),
        7 => (&[&[1], &[1], &[1], &[1], &[1], &[1]], Majority, &[]),
        8 => (&[&[1], &[1], &[1], &[1], &[1], &[1]], named(&["a", "d"]), &[]),
        9 => (&[&[1], &[1], &[1], &[1]], Majority, &[2, 1, 1, 1]),
        10 => (&[&[1], &[1], &[1]], Count(4), &[2, 2, 1]),
        11 => (&[&[1], &[1], &[1], &[0]], Count(3), &[]),
        12 => (&[&[1], &[1], &[1], &[0]], Majority, &[2, 1, 1, 1]),
        _ => (&[&[1, 1], &[1], &[1]], Majority, &[]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collectives::data::SplitMix64;
    use hier_collectives::topology::Quorum;
    use std::collections::BTreeSet;

    #[test]
    fn seeds_draw_every_kind_of_quorum() {
        let (mut quorums, mut regions) = (BTreeSet::new(), BTreeSet::new());
        for seed in 0..200 {
            let mut dice = SplitMix64(seed);
            let fabric = draw_members_shape(&mut |choices| dice.roll() % choices).fabric();
            regions.insert(fabric.regions().len());
            quorums.insert((
                fabric.witness().is_some(),
                match fabric.quorum() {
                    Quorum::All => "all",
                    Quorum::Count(_) => "number",
                    Quorum::Votes { .. } => "votes",
                    Quorum::Named(_) => "names",
                },
            ));
        }
        assert_eq!(quorums.len(), 6, "{quorums:?}");
        assert_eq!(regions, [3, 4, 5, 6].into());
    }
}
