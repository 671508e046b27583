//! The regions that go on together, in the status of a gateway. The engine writes it.

use hier_collectives::ids::{GatewayId, RegionId};
use hier_collectives::membership::{TermAgreement, TermWitness};
use hier_collectives::topology::{Fabric, Quorum};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// The members, the quorum and the losses that are survived, as one gateway sees them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembershipReport {
    /// The quorum in words, such as `2 of 3 regions`.
    pub quorum: String,
    /// The number of the term; `None` between terms, at a witness, and where the quorum is all.
    pub term: Option<u64>,
    /// The regions with ranks that go on together; none between terms and at a witness.
    pub members: Vec<String>,
    /// The other regions with ranks.
    pub away: Vec<String>,
    /// The regions that an operator has taken out: they wait until they join again.
    #[serde(default)]
    pub left: Vec<String>,
    /// The regions that leave at the next step's boundary.
    #[serde(default)]
    pub leaving: Vec<String>,
    /// The regions whose last leave was called off, since it could not be made in time.
    #[serde(default)]
    pub called_off: Vec<CalledOffReport>,
    /// The regions that join at a step's boundary once they are reached.
    #[serde(default)]
    pub joining: Vec<String>,
    /// The witness, if the fabric has one.
    pub witness: Option<WitnessReport>,
    /// How many more regions, whichever they are, can be lost before nobody goes on; `None` while
    /// nobody does here, and at a witness.
    pub losses_survived: Option<u32>,
}

/// A leave that was called off, as one gateway sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalledOffReport {
    /// The region, which has stayed.
    pub region: String,
    /// Why the others could not go on without it.
    pub reason: String,
}

/// The witness, as one gateway sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WitnessReport {
    /// The name of its region.
    pub region: String,
    /// Whether its vote counts: it is reached, and knows who goes on.
    pub counts: bool,
}

impl MembershipReport {
    /// Reports the membership at a gateway with ranks. `is_reached` tells which gateways it reaches,
    /// and `terms` is its agreement, if the fabric has terms.
    pub fn of_member(
        fabric: &Fabric,
        terms: Option<&TermAgreement>,
        is_reached: impl Fn(GatewayId) -> bool,
    ) -> Self {
        let ranked = 0..u16::try_from(fabric.ranked_region_count()).unwrap_or(u16::MAX);
        let all_reached = |id: &RegionId| {
            fabric.region(*id).gateways.clone().all(|number| is_reached(GatewayId(number)))
        };
        let term = terms.and_then(TermAgreement::term);
        let members: BTreeSet<RegionId> = match terms {
            Some(_) => term.map(|term| term.regions.clone()).unwrap_or_default(),
            None => ranked.clone().map(RegionId).filter(all_reached).collect(),
        };
        let counts = terms.is_some_and(TermAgreement::is_witness_ready);
        let witness = fabric.witness().map(|id| fabric.gateway(id).region);
        let present = members.iter().copied().chain(witness.filter(|_| counts)).collect();
        let name = |id: RegionId| fabric.region(id).name.clone();
        let names = |of: fn(&TermAgreement) -> BTreeSet<RegionId>| -> Vec<String> {
            terms.map(of).unwrap_or_default().into_iter().map(name).collect()
        };
        let called_off = terms.map(TermAgreement::called_off_leaves).unwrap_or_default();
        let called_off = called_off.into_iter();
        Self {
            left: names(TermAgreement::left_regions),
            leaving: names(TermAgreement::leaving_regions),
            called_off: called_off
                .map(|(id, reason)| CalledOffReport { region: name(id), reason })
                .collect(),
            joining: names(TermAgreement::joining_regions),
            quorum: quorum_in_words(fabric),
            term: term.map(|term| term.id.number),
            away: ranked.map(RegionId).filter(|id| !members.contains(id)).map(name).collect(),
            losses_survived: match members.is_empty() {
                true => None,
                false => fabric.losses_survived(&present),
            },
            members: members.into_iter().map(name).collect(),
            witness: witness.map(|id| WitnessReport { region: name(id), counts }),
        }
    }

    /// Reports the membership at the witness, which is no member.
    pub fn of_witness(fabric: &Fabric, region: RegionId, witness: &TermWitness) -> Self {
        Self {
            quorum: quorum_in_words(fabric),
            term: None,
            members: vec![],
            away: vec![],
            left: vec![],
            leaving: vec![],
            called_off: vec![],
            joining: vec![],
            witness: Some(WitnessReport {
                region: fabric.region(region).name.clone(),
                counts: witness.remembers(),
            }),
            losses_survived: None,
        }
    }
}

impl fmt::Display for MembershipReport {
    /// Prints members, witness, quorum and the losses that are survived, in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.members.is_empty() {
            write!(f, "{}; ", self.members.join(", "))?;
        } else if !self.away.is_empty() {
            write!(f, "none; ")?;
        }
        let away = self.away.iter().filter(|region| !self.left.contains(region));
        let away: Vec<String> = away.cloned().collect();
        for (word, regions) in [
            ("away", &away),
            ("left", &self.left),
            ("leaving", &self.leaving),
            ("joining", &self.joining),
        ] {
            if !regions.is_empty() {
                write!(f, "{word}: {}; ", regions.join(", "))?;
            }
        }
        if let Some(witness) = &self.witness {
            let counts = if witness.counts { "counts" } else { "does not count now" };
            write!(f, "witness {} {counts}; ", witness.region)?;
        }
        write!(f, "quorum: {}", self.quorum)?;
        match self.losses_survived {
            None => Ok(()),
            Some(0) => write!(f, "; no loss of any region is survived"),
            Some(1) => write!(f, "; the loss of any one region is survived"),
            Some(more) => write!(f, "; the loss of any {more} regions is survived"),
        }
    }
}

/// Returns the quorum of a fabric in words.
fn quorum_in_words(fabric: &Fabric) -> String {
    match fabric.quorum() {
        Quorum::All => "all regions".to_owned(),
        Quorum::Count(least) => format!("{least} of {} regions", fabric.regions().len()),
        Quorum::Votes { least, votes } => {
            let named = fabric.regions().iter().zip(votes);
            let named = named.map(|(region, votes)| format!("{} {votes}", region.name));
            let (total, named) = (votes.iter().sum::<u32>(), named.collect::<Vec<_>>().join(", "));
            format!("{least} of {total} votes: {named}")
        }
        Quorum::Named(named) => {
            let names: Vec<&str> = named.iter().map(|id| &*fabric.region(*id).name).collect();
            format!("{}, with or without the others", names.join(", "))
        }
    }
}
