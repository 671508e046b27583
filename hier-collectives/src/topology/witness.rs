//! A witness: a region of one gateway without ranks, which counts in the quorum.
//!
//! It stands behind all regions with ranks, so that theirs and all other numbers are as without it.

use super::error::FabricError;
use super::fabric::Fabric;
use super::fabric_spec::{FabricLinkSpec, FabricRegionSpec};
use crate::ids::RegionId;

impl Fabric {
    /// Adds a witness to a fabric that has none, and its links, which lead to every region.
    ///
    /// # Errors
    /// All faults at once, so that a config can be corrected in one pass.
    pub fn with_witness(
        self,
        witness: FabricRegionSpec,
        links: Vec<FabricLinkSpec>,
    ) -> Result<Self, Vec<FabricError>> {
        let (mut fabric, name) = (self, witness.name.clone());
        let bad = |text: String| FabricError::BadWitness { region: name.clone(), text };
        let mut faults = Vec::new();
        if let Some(other) = fabric.witness() {
            let other = &fabric.region(fabric.gateway(other).region).name;
            faults.push(bad(format!("a fabric has one witness at most, and `{other}` is one")));
        }
        if fabric.ranked_region_count() < 2 {
            faults.push(bad("a witness is for two regions or more".to_owned()));
        }
        match &witness.gateways[..] {
            [only] => {
                if only.ranks > 0 || !witness.speeds.is_empty() {
                    faults.push(bad("a witness has no ranks".to_owned()));
                }
                if only.wan.is_none() {
                    faults.push(FabricError::NoPort(name.clone()));
                }
                if fabric.gateway_named(&only.name).is_some() {
                    faults.push(FabricError::NameTwice(only.name.clone()));
                }
            }
            several => {
                faults.push(bad(format!("a witness is one gateway, not {}", several.len())));
            }
        }
        if fabric.regions().iter().any(|region| region.name == name) {
            faults.push(FabricError::NameTwice(name.clone()));
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        fabric.append_witness(witness, links, &mut faults);
        let region = RegionId(u16::try_from(fabric.ranked_region_count()).unwrap_or(u16::MAX));
        for (number, other) in (0..region.0).zip(fabric.regions()) {
            if fabric.link(RegionId(number), region).is_none() {
                let text =
                    format!("a witness has a link to each region, and none to `{}`", other.name);
                faults.push(FabricError::BadWitness { region: name.clone(), text });
            }
        }
        if faults.is_empty() { Ok(fabric) } else { Err(faults) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::GatewayId;
    use crate::testing::{FabricBuilder, lossless_link, mbit, symmetric_port};
    use crate::topology::{FabricGatewaySpec, QuorumSpec};
    use std::collections::BTreeSet;

    fn two_regions() -> Fabric {
        let gateways = [(1, Some(symmetric_port(mbit(1))))];
        let builder = FabricBuilder::default().region("east", gateways).region("west", gateways);
        builder.all_pairs(lossless_link(mbit(1), 80)).build()
    }

    fn witness(gateways: &[(&str, u32)]) -> FabricRegionSpec {
        let wan = Some(symmetric_port(mbit(1)));
        let gateway = |(name, ranks): &(&str, u32)| FabricGatewaySpec::new(*name, *ranks, wan);
        let gateways = gateways.iter().map(gateway).collect();
        FabricRegionSpec { name: "nigh".to_owned(), speeds: vec![], gateways }
    }

    fn links_to(regions: &[&str]) -> Vec<FabricLinkSpec> {
        let state = lossless_link(mbit(1), 10);
        let link = |region: &&str| FabricLinkSpec {
            between: ((*region).to_owned(), "nigh".to_owned()),
            rate: state.rate,
            rtt: state.rtt,
            loss: state.loss,
        };
        regions.iter().map(link).collect()
    }

    #[test]
    fn a_witness_stands_last_and_counts_in_the_quorum() {
        let plain = two_regions();
        let whole = plain.clone().with_witness(witness(&[("a-0", 0)]), links_to(&["west", "east"]));
        let whole = whole.expect("valid").with_quorum(&QuorumSpec::Majority).expect("two of three");
        assert_eq!(whole.witness(), Some(GatewayId(2)));
        assert_eq!((whole.regions()[2].name.as_str(), whole.world_size()), ("nigh", 2));
        assert_eq!(whole.without_witness(), plain);
        let set = |ids: &[u16]| ids.iter().copied().map(RegionId).collect::<BTreeSet<_>>();
        for quorum in [&[0, 1][..], &[0, 2], &[1, 2]] {
            assert!(whole.is_quorum(&set(quorum)), "{quorum:?}");
        }
        assert!((0..3).all(|one| !whole.is_quorum(&set(&[one]))));
        let survived = |ids: &[u16]| whole.losses_survived(&set(ids));
        assert_eq!(
            [survived(&[0, 1, 2]), survived(&[0, 2]), survived(&[0])],
            [Some(1), Some(0), None]
        );
    }

    #[test]
    fn a_witness_that_is_none_is_refused() {
        let refuse = |gateways: &[(&str, u32)], links: &[&str]| {
            let faults = two_regions().with_witness(witness(gateways), links_to(links));
            faults.expect_err("refused").iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let both = ["east", "west"];
        for (gateways, links, words) in [
            (&[("w-0", 1)][..], &both[..], "no ranks"),
            (&[("w-0", 0), ("w-1", 0)], &both, "one gateway, not 2"),
            (&[], &both, "one gateway, not 0"),
            (&[("east-0", 0)], &both, "`east-0` is used twice"),
            (&[("w-0", 0)], &["east"], "none to `west`"),
        ] {
            let faults = refuse(gateways, links);
            assert!(faults.len() == 1 && faults[0].contains(words), "{faults:?}");
        }
        let whole = two_regions().with_witness(witness(&[("w-0", 0)]), links_to(&both));
        let whole = whole.expect("valid");
        let second = whole.clone().with_witness(witness(&[("w-1", 0)]), links_to(&both));
        assert!(second.expect_err("a second")[0].to_string().contains("one witness at most"));
        for idle in [QuorumSpec::All, QuorumSpec::Count(3), QuorumSpec::Named(vec!["east".into()])]
        {
            let error = whole.clone().with_quorum(&idle).expect_err("decides nothing").to_string();
            assert!(error.contains("quorum = \"majority\""), "{error}");
        }
    }
}
