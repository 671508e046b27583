//! Quorums: which regions of a fabric go on without the others.
//!
//! Any two quorums of a fabric have a region in common. So of the parts of a partition at most one
//! has a quorum.

use super::error::FabricError;
use super::region::Region;
use crate::ids::RegionId;
use std::collections::BTreeSet;

/// A quorum as a fabric's author states it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum QuorumSpec {
    /// All regions.
    #[default]
    All,
    /// More than half of the regions.
    Majority,
    /// This number of regions.
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
    /// The sets with all of these regions, of which there is one or more.
    Named(BTreeSet<RegionId>),
}

impl Quorum {
    /// Checks a quorum of these regions, which are in name order, a witness last, and returns it.
    ///
    /// # Errors
    /// [`FabricError::BadQuorum`]: two parts of a partition could both have it, or no part could.
    pub(super) fn of_regions(
        spec: &QuorumSpec,
        regions: &[Region],
        has_witness: bool,
    ) -> Result<Self, FabricError> {
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
            Self::Named(named) => regions.intersection(named).next().copied(),
        }
    }

    /// Whether the regions are a quorum, of a fabric with `all` regions.
    pub fn is_met_by(&self, regions: &BTreeSet<RegionId>, all: usize) -> bool {
        match self {
            Self::All => regions.len() == all,
            Self::Count(least) => regions.len() >= usize::from(*least),
            Self::Named(named) => named.is_subset(regions),
        }
    }
}
