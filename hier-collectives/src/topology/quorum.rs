//! Quorums: which regions of a fabric go on without the others.
//!
//! Any two quorums of a fabric have a region in common. So of the parts of a partition at most one
//! has a quorum.

use super::error::FabricError;
use super::region::Region;
use crate::ids::RegionId;
use crate::mutant::{self, Mutant};
use std::collections::{BTreeMap, BTreeSet};

/// A quorum as a fabric's author states it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum QuorumSpec {
    /// All regions.
    #[default]
    All,
    /// More than half of the regions, or of their votes where these differ.
    Majority,
    /// This number of regions, or of votes.
    Count(u16),
    /// The regions with these names, whatever others are there.
    Named(Vec<String>),
}

/// The sets of regions of a fabric that go on without the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Quorum {
    /// The set of all regions alone.
    All,
    /// The sets of at least this number of regions, which is more than half of them.
    Count(u16),
    /// The sets with at least so many votes, which is more than half of them. Regions have their votes
    /// by number.
    Votes {
        /// The votes that are needed.
        least: u32,
        /// The votes of each region.
        votes: Vec<u32>,
    },
    /// The sets with all of these regions, of which there is one or more.
    Named(BTreeSet<RegionId>),
}

impl Quorum {
    /// Checks a quorum of these regions, which are in name order, a witness last, and returns it.
    /// `votes` has the votes of regions by name; others have one.
    ///
    /// # Errors
    /// [`FabricError::BadQuorum`]: two parts of a partition could both have it, or no part could.
    pub(super) fn of_regions(
        spec: &QuorumSpec,
        regions: &[Region],
        has_witness: bool,
        votes: &BTreeMap<String, u16>,
    ) -> Result<Self, FabricError> {
        if votes.values().any(|votes| *votes != 1) {
            let votes = |region: &Region| votes.get(&region.name).map_or(1, |n| u32::from(*n));
            let votes = regions.iter().map(votes).collect();
            return Self::of_votes(spec, votes, has_witness).map_err(FabricError::BadQuorum);
        }
        let count = u16::try_from(regions.len()).unwrap_or(u16::MAX);
        let bad = |text: String| Err(FabricError::BadQuorum(text));
        let is_idle = match spec {
            QuorumSpec::All | QuorumSpec::Named(_) => true,
            QuorumSpec::Count(least) => *least == count,
            QuorumSpec::Majority => false,
        };
        if has_witness && is_idle {
            return bad(
                "the witness decides nothing here: write quorum = \"majority\", or leave the witness \
                 out"
                    .to_owned(),
            );
        }
        let least = match spec {
            QuorumSpec::All => count,
            QuorumSpec::Majority if count == 2 => {
                let names: Vec<&str> = regions.iter().map(|region| &*region.name).collect();
                return bad(format!(
                    "of two regions none is a majority: name the region that goes on without the \
                     other, as [\"{}\"] or [\"{}\"], or add a third region or a witness, which is a \
                     region with `witness = true`: one gateway without ranks",
                    names[0], names[1]
                ));
            }
            QuorumSpec::Majority => count / 2 + 1,
            QuorumSpec::Count(least) => *least,
            QuorumSpec::Named(names) => return Self::of_names(names, regions),
        };
        if least > count {
            return bad(format!("{least} regions are more than the {count} of the fabric"));
        }
        if least <= count / 2 {
            return bad(format!(
                "{least} of {count} regions are no more than half, so that two parts of a partition \
                 could both go on: at least {} are needed",
                count / 2 + 1
            ));
        }
        Ok(if least == count { Self::All } else { Self::Count(least) })
    }

    /// Checks a quorum of regions with these votes, not all of them one, and returns it. The votes of a
    /// witness are the last. The error says why there is none.
    fn of_votes(spec: &QuorumSpec, votes: Vec<u32>, has_witness: bool) -> Result<Self, String> {
        let total: u32 = votes.iter().sum();
        let least = match spec {
            QuorumSpec::All | QuorumSpec::Named(_) => {
                return Err(
                    "`votes` decide nothing here: write quorum = \"majority\" or a number of \
                            votes, or leave `votes` out"
                        .to_owned(),
                );
            }
            QuorumSpec::Majority => total / 2 + 1,
            QuorumSpec::Count(least) => u32::from(*least),
        };
        if least > total {
            return Err(format!("{least} votes are more than the {total} of all regions"));
        }
        if least <= total / 2 {
            return Err(format!(
                "{least} of {total} votes are no more than half, so that two parts of a partition \
                 could both go on: at least {} are needed",
                total / 2 + 1
            ));
        }
        let of_witness = votes.last().copied().filter(|_| has_witness);
        if of_witness.is_some_and(|votes| votes == 0 || votes >= least) {
            return Err(format!(
                "the witness decides nothing, or all alone: give it from 1 to {} votes",
                least - 1
            ));
        }
        let ranked = &votes[..votes.len() - usize::from(has_witness)];
        if ranked.iter().filter(|one| **one > 0).all(|one| total - one < least) {
            return Err(format!(
                "without any one region, {least} votes of {total} are not to be had: nobody would ever go \
                 on without the others; write quorum = \"all\", or give the regions other votes"
            ));
        }
        Ok(Self::Votes { least, votes })
    }

    /// Checks a quorum of named regions, and returns it. All regions together are [`Quorum::All`].
    /// A name that is unknown or given twice is an error, and so is an empty list.
    fn of_names(names: &[String], regions: &[Region]) -> Result<Self, FabricError> {
        let bad = |text: String| Err(FabricError::BadQuorum(text));
        let mut named = BTreeSet::new();
        for name in names {
            let Some(index) = regions.iter().position(|region| region.name == *name) else {
                return bad(format!("the fabric has no region `{name}`"));
            };
            if !named.insert(RegionId(u16::try_from(index).unwrap_or(u16::MAX))) {
                return bad(format!("region `{name}` is named twice"));
            }
        }
        if named.is_empty() {
            return bad("no region is named".to_owned());
        }
        Ok(if named.len() == regions.len() { Self::All } else { Self::Named(named) })
    }

    /// Returns the region without which the others are the furthest from a quorum.
    pub(super) fn worst_loss_of(&self, regions: &BTreeSet<RegionId>) -> Option<RegionId> {
        match self {
            Self::All | Self::Count(_) => regions.last().copied(),
            Self::Votes { votes, .. } => {
                regions.iter().max_by_key(|id| votes.get(usize::from(id.0))).copied()
            }
            Self::Named(named) => regions.intersection(named).next().copied(),
        }
    }

    /// Whether the regions are a quorum, of a fabric with `all` regions.
    pub fn is_met_by(&self, regions: &BTreeSet<RegionId>, all: usize) -> bool {
        let is_less = mutant::is_mutant_active(Mutant::NeedOneLess);
        match self {
            Self::All => regions.len() == all,
            Self::Count(least) => regions.len() + usize::from(is_less) >= usize::from(*least),
            Self::Votes { least, votes } => {
                let votes = regions.iter().filter_map(|id| votes.get(usize::from(id.0)));
                votes.sum::<u32>() + u32::from(is_less) >= *least
            }
            Self::Named(named) => named.is_subset(regions),
        }
    }

    /// Returns the quorums of `all` regions that are none without any one of theirs; `None` of more than
    /// 10 regions.
    pub fn smallest(&self, all: usize) -> Option<Vec<BTreeSet<RegionId>>> {
        if all > LISTED_REGIONS_MAX {
            return None;
        }
        let set = |bits: u32| -> BTreeSet<RegionId> {
            (0..all as u16).filter(|id| bits & (1 << id) != 0).map(RegionId).collect()
        };
        let is_quorum = |bits: u32| self.is_met_by(&set(bits), all);
        let is_smallest =
            |bits: &u32| (0..all).all(|id| bits & (1 << id) == 0 || !is_quorum(bits & !(1 << id)));
        let quorums = (1..1u32 << all).filter(|bits| is_quorum(*bits)).filter(is_smallest);
        Some(quorums.map(set).collect())
    }
}

/// 10 regions: of more, the smallest quorums are not listed, as there may be hundreds.
const LISTED_REGIONS_MAX: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FabricBuilder, lossless_link, mbit, symmetric_port};
    use crate::topology::Fabric;
    use proptest::prelude::*;

    const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

    fn fabric(regions: usize) -> Fabric {
        let wan = Some(symmetric_port(mbit(1)));
        let names = NAMES[..regions].iter();
        let builder =
            names.fold(FabricBuilder::default(), |to, name| to.region(name, vec![(1, wan)]));
        builder.all_pairs(lossless_link(mbit(1), 10)).build()
    }

    fn weighted(votes: &[u16], spec: &QuorumSpec) -> Result<Fabric, String> {
        let by_name = NAMES.iter().zip(votes).map(|(name, votes)| ((*name).to_owned(), *votes));
        let fabric = fabric(votes.len()).with_weighted_quorum(spec, &by_name.collect());
        fabric.map_err(|fault| fault.to_string())
    }

    proptest! {
        /// Of any partition into up to four parts, at most one goes on.
        #[test]
        fn of_any_parts_at_most_one_has_the_votes(
            votes in proptest::collection::vec(0u16..5, 2..=6),
            least in 0u16..20,
            is_majority: bool,
            parts in proptest::collection::vec(0usize..4, 6),
        ) {
            let spec = if is_majority { QuorumSpec::Majority } else { QuorumSpec::Count(least) };
            let Ok(fabric) = weighted(&votes, &spec) else { return Ok(()) };
            let part = |number: usize| -> BTreeSet<RegionId> {
                let all = (0..votes.len() as u16).map(RegionId);
                all.filter(|id| parts[usize::from(id.0)] == number).collect()
            };
            let going_on = (0..4).filter(|number| fabric.is_quorum(&part(*number))).count();
            prop_assert!(going_on <= 1, "{votes:?} {spec:?} {parts:?}");
            let all: BTreeSet<RegionId> = (0..votes.len() as u16).map(RegionId).collect();
            prop_assert!(fabric.is_quorum(&all));
            for quorum in fabric.quorum().smallest(votes.len()).expect("few") {
                prop_assert!(fabric.is_quorum(&quorum));
                let less = |id: &RegionId| fabric.is_quorum(&(&quorum - &[*id].into()));
                prop_assert!(!quorum.iter().any(less), "{quorum:?}");
            }
        }
    }

    #[test]
    fn votes_that_decide_nothing_or_twice_are_refused() {
        for (votes, spec, words) in [
            (&[2, 1, 1][..], QuorumSpec::Count(2), "at least 3 are needed"),
            (&[2, 1, 1], QuorumSpec::Count(5), "more than the 4"),
            (&[2, 1, 1], QuorumSpec::All, "decide nothing"),
            (&[2, 1, 1], QuorumSpec::Named(vec!["a".to_owned()]), "decide nothing"),
            (&[3, 3], QuorumSpec::Majority, "without any one region"),
            (&[0, 0, 0], QuorumSpec::Majority, "more than the 0"),
        ] {
            let refused = weighted(votes, &spec).expect_err(words);
            assert!(refused.contains(words), "{refused}");
        }
    }

    #[test]
    fn a_region_of_more_votes_goes_on_alone() {
        let two = weighted(&[2, 1], &QuorumSpec::Majority).expect("valid");
        let set = |ids: &[u16]| ids.iter().copied().map(RegionId).collect::<BTreeSet<_>>();
        assert!(two.is_quorum(&set(&[0])) && !two.is_quorum(&set(&[1])));
        assert_eq!(two.losses_survived(&set(&[0, 1])), Some(0), "the first may be the one");
        let five = weighted(&[2, 1, 1, 1], &QuorumSpec::Majority).expect("valid");
        let smallest = [set(&[0, 1]), set(&[0, 2]), set(&[1, 2, 3]), set(&[0, 3])];
        assert_eq!(five.quorum().smallest(4).map(BTreeSet::from_iter), Some(smallest.into()));
        assert_eq!(five.losses_survived(&set(&[0, 1, 2, 3])), Some(1));
        // Equal votes of one are a number of regions.
        let plain = weighted(&[1, 1, 1], &QuorumSpec::Majority).expect("valid");
        assert_eq!(plain.quorum(), &Quorum::Count(2));
    }
}
