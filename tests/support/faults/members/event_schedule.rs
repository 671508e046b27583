//! The deployment and the events of a run, drawn from its seed.

use crate::collectives::data::SplitMix64;
use crate::lab::mesh::Mesh;
use hier_collectives::topology::QuorumSpec;
use std::collections::BTreeSet;
use units::Span;

/// 8 events: the most in a run.
const EVENTS_MAX: u64 = 8;

/// A drawn run.
#[derive(Debug)]
pub(super) struct EventSchedule {
    pub mesh: Mesh,
    /// The number of regions with ranks.
    pub ranked: u64,
    /// Whether gateways are cut off.
    pub cuts: bool,
    /// Whether a rank now and then posts another length than the others, so that a step fails and is
    /// begun again in the same epoch.
    pub slips: bool,
    /// The events, each with the time since the one before.
    pub events: Vec<(Span, MembersEvent)>,
}

/// Something that happens in a run.
#[derive(Debug, Clone, Copy)]
pub(super) enum MembersEvent {
    /// An operator asks at a gateway, among those that are not cut off, for a change.
    Ask { at: u64, region: u64, leaves: bool, within: Span },
    /// A gateway is cut off from all others; one that was is not any more.
    CutOff(u64),
    /// A link is cut.
    CutLink(u64, u64),
    /// Everything is whole again.
    Mend,
}

impl EventSchedule {
    /// Draws the run of a seed.
    pub fn draw(seed: u64) -> Self {
        let mut dice = SplitMix64(seed);
        let mut pick = |choices: u64| dice.roll() % choices;
        let (ranks, quorum): (&[u32], QuorumSpec) = match pick(5) {
            0 | 1 => (&[2, 1, 1], QuorumSpec::Majority),
            2 => (&[1, 2, 1, 1], QuorumSpec::Majority),
            3 => (&[1, 1, 1], QuorumSpec::Named(vec!["b".to_owned()])),
            _ => (&[2, 1, 0], QuorumSpec::Majority),
        };
        let ranked = ranks.iter().filter(|ranks| **ranks > 0).count() as u64;
        let gateways = ranks.len() as u64;
        let cuts = pick(2) == 0;
        let slips = pick(2) == 0;
        let count = 2 + pick(EVENTS_MAX - 1);
        let mut left = BTreeSet::new();
        let events = (0..count).map(|_| {
            let within = Span::from_secs(if cuts { 2 + pick(30) } else { 600 });
            let (at, region) = (pick(gateways), pick(ranked));
            // Mostly the opposite of the last request for the region.
            let leaves = left.contains(&region) == (pick(5) == 0);
            let ask = MembersEvent::Ask { at, region, leaves, within };
            let event = match pick(6) {
                0 | 1 if cuts => MembersEvent::CutOff(pick(gateways)),
                2 if cuts => MembersEvent::CutLink(pick(gateways), pick(gateways)),
                3 if cuts => MembersEvent::Mend,
                _ => {
                    let _ = if leaves { left.insert(region) } else { left.remove(&region) };
                    ask
                }
            };
            // A change is known everywhere, and a step has been committed since, before the next one.
            let gap = if cuts { 2_000 + pick(20_000) } else { 6_000 + pick(4_000) };
            (Span::from_ms(gap), event)
        });
        let events = events.collect();
        let mesh = Mesh { quorum, ..Mesh::of_ranks(ranks) };
        Self { mesh, ranked, cuts, slips, events }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_draw_every_kind_of_event() {
        let mut kinds = BTreeSet::new();
        for seed in 0..200 {
            for (_, event) in EventSchedule::draw(seed).events {
                kinds.insert(match event {
                    MembersEvent::Ask { leaves: true, .. } => "leave",
                    MembersEvent::Ask { leaves: false, .. } => "join",
                    MembersEvent::CutOff(_) => "cut off",
                    MembersEvent::CutLink(..) => "cut link",
                    MembersEvent::Mend => "mend",
                });
            }
        }
        assert_eq!(kinds.len(), 5, "{kinds:?}");
    }
}
