//! Intents of operators: regions leave the world of all jobs, or join it again.
//!
//! Each gateway keeps the last intent for each region, in memory alone, and gateways tell each other
//! theirs. Of two intents for one region the higher version holds; of equal versions, the one to leave.

use super::term::TermId;
use crate::codec::{DecodeError, FieldReader, write_u16, write_u32, write_u64};
use crate::ids::RegionId;
use std::collections::{BTreeMap, BTreeSet};
use units::{Span, TimeNs};

/// An operator's intent for a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionIntent {
    /// The region.
    pub region: RegionId,
    /// The number of the intent, above those of all that its author knew for the region.
    pub version: u64,
    /// Whether the region leaves, or has left; otherwise it joins, or has joined.
    pub leaves: bool,
    /// The seconds for which the change waits for a step's boundary; 0 once the sender is in a term
    /// that has the region, or lacks it, as intended.
    pub within_s: u32,
}

impl RegionIntent {
    /// Returns the order of intents for one region, of which the highest holds.
    fn order(&self) -> (u64, bool) {
        (self.version, self.leaves)
    }
}

/// Why a region may not leave or join.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegionIntentError {
    /// Nobody goes on here, so that nobody could go on without the region.
    #[error("no regions go on together here now: try again once `landbridge status` shows members")]
    NoTerm,
    /// The other regions could not go on.
    #[error(
        "without it, {0} are left, which are no quorum of this fabric: nobody would go on; let other \
         regions join first, or write another `quorum`"
    )]
    NoQuorum(String),
    /// The other regions could not reach each other.
    #[error(
        "without it, {0} have no way to each other: let another region leave, or add a link between them"
    )]
    Unlinked(String),
    /// The region of this gateway is out of the world.
    #[error("the region of this gateway has left: ask a gateway of another region")]
    LeftItself,
}

/// The last intent for each region.
#[derive(Debug, Default)]
pub(super) struct RegionIntents {
    known: BTreeMap<RegionId, KnownIntent>,
}

/// An intent as one gateway knows it.
#[derive(Debug, Clone, Copy)]
struct KnownIntent {
    intent: RegionIntent,
    /// When the change is made without a boundary; `None` once it is made.
    until: Option<TimeNs>,
}

impl RegionIntents {
    /// Returns an intent that follows all known ones for the region; `None` if it is known already.
    pub fn following(&self, region: RegionId, leaves: bool, within: Span) -> Option<RegionIntent> {
        let (version, before) = match self.known.get(&region) {
            Some(KnownIntent { intent, .. }) => (intent.version, intent.leaves),
            None => (0, false),
        };
        let seconds = u32::try_from(within.ns().div_ceil(Span::from_secs(1).ns()));
        let within_s = seconds.unwrap_or(u32::MAX).max(1);
        let version = version + 1;
        (leaves != before).then_some(RegionIntent { region, version, leaves, within_s })
    }

    /// Records an intent; returns whether it is newer than the known one for its region.
    pub fn record(&mut self, intent: RegionIntent, now: TimeNs) -> bool {
        let until = now + Span::from_secs(u64::from(intent.within_s));
        let until = (intent.within_s > 0).then_some(until);
        match self.known.get_mut(&intent.region) {
            Some(known) if known.intent.order() == intent.order() => {
                // Whoever is in such a term knows that the change is made.
                known.until = known.until.filter(|_| until.is_some());
                false
            }
            Some(known) if known.intent.order() > intent.order() => false,
            _ => {
                self.known.insert(intent.region, KnownIntent { intent, until });
                true
            }
        }
    }

    /// Whether another gateway that sent these intents lacks some that are known here.
    pub fn has_news_for(&self, theirs: &[RegionIntent]) -> bool {
        self.known.iter().any(|(region, known)| {
            let theirs = theirs.iter().find(|intent| intent.region == *region);
            theirs.is_none_or(|intent| intent.order() < known.intent.order())
        })
    }

    /// Notes that this gateway is in a term of these regions: the intents that it meets are made.
    pub fn note_term(&mut self, regions: &BTreeSet<RegionId>) {
        for (region, known) in &mut self.known {
            if known.intent.leaves != regions.contains(region) {
                known.until = None;
            }
        }
    }

    /// Returns all intents, for another gateway.
    pub fn to_send(&self) -> Vec<RegionIntent> {
        let sent = |known: &KnownIntent| match known.until {
            Some(_) => known.intent,
            None => RegionIntent { within_s: 0, ..known.intent },
        };
        self.known.values().map(sent).collect()
    }

    /// Returns the regions that have left, or are to leave.
    pub fn left(&self) -> BTreeSet<RegionId> {
        let known = self.known.iter().filter(|(_, known)| known.intent.leaves);
        known.map(|(region, _)| *region).collect()
    }

    /// Whether a region has left, or is to leave.
    pub fn has_left(&self, region: RegionId) -> bool {
        self.known.get(&region).is_some_and(|known| known.intent.leaves)
    }

    /// Returns the regions that are to join at a boundary.
    pub fn joining(&self, now: TimeNs) -> BTreeSet<RegionId> {
        let waits = |known: &KnownIntent| known.until.is_some_and(|until| now < until);
        let known = self.known.iter().filter(|(_, known)| !known.intent.leaves && waits(known));
        known.map(|(region, _)| *region).collect()
    }

    /// Returns the regions that are to join and are not known to be in a term.
    pub fn not_joined(&self) -> BTreeSet<RegionId> {
        let awaited = |known: &KnownIntent| !known.intent.leaves && known.until.is_some();
        let known = self.known.iter().filter(|(_, known)| awaited(known));
        known.map(|(region, _)| *region).collect()
    }

    /// Returns the time at which changes of these regions are made without a boundary.
    pub fn deadline(&self, regions: impl Iterator<Item = RegionId>) -> Option<TimeNs> {
        regions.filter_map(|region| self.known.get(&region)?.until).max()
    }
}

/// Appends intents to the message `out`: a 16-bit count, then their fields.
pub(super) fn write_region_intents(out: &mut Vec<u8>, intents: &[RegionIntent]) {
    write_u16(out, u16::try_from(intents.len()).unwrap_or(u16::MAX));
    for RegionIntent { region, version, leaves, within_s } in intents {
        write_u16(out, region.0);
        write_u64(out, *version);
        out.push(u8::from(*leaves));
        write_u32(out, *within_s);
    }
}

/// Reads intents: a 16-bit count, then their fields, with regions ascending.
pub(super) fn read_region_intents(
    reader: &mut FieldReader<'_>,
) -> Result<Vec<RegionIntent>, DecodeError> {
    let count = usize::from(reader.read_u16()?);
    let mut intents: Vec<RegionIntent> = Vec::new();
    for _ in 0..count {
        let region = RegionId(reader.read_u16()?);
        let version = reader.read_u64()?;
        let (leaves, within_s) = (reader.read_flag()?, reader.read_u32()?);
        let is_ascending = intents.last().is_none_or(|last| last.region < region);
        if !is_ascending || version == 0 || version >= TermId::NUMBERS_BOUND {
            return Err(DecodeError::Invalid("intents for regions"));
        }
        intents.push(RegionIntent { region, version, leaves, within_s });
    }
    Ok(intents)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEST: RegionId = RegionId(1);

    fn at(second: u64) -> TimeNs {
        TimeNs::from_ns(1) + Span::from_secs(second)
    }

    #[test]
    fn all_gateways_end_with_one_intent_in_any_order() {
        let intent = |version, leaves| RegionIntent { region: WEST, version, leaves, within_s: 60 };
        let all = [intent(1, true), intent(2, true), intent(2, false), intent(1, false)];
        for first in 0..4 {
            let mut one = RegionIntents::default();
            (0..4).for_each(|more| {
                let _ = one.record(all[(first + more) % 4], at(0));
            });
            assert_eq!(one.to_send(), [intent(2, true)], "from {first} on");
            assert!(!one.record(intent(2, true), at(9)), "no news");
        }
    }

    #[test]
    fn a_change_that_is_made_waits_no_more() {
        let mut intents = RegionIntents::default();
        assert_eq!(intents.following(WEST, false, Span::from_secs(9)), None, "it has not left");
        let leave = intents.following(WEST, true, Span::from_secs(9)).expect("news");
        assert!(intents.record(leave, at(0)) && intents.has_left(WEST));
        assert_eq!(intents.deadline([WEST].into_iter()), Some(at(9)));
        intents.note_term(&[RegionId(0), WEST].into());
        assert_eq!(intents.deadline([WEST].into_iter()), Some(at(9)), "it is still there");
        intents.note_term(&[RegionId(0)].into());
        assert_eq!(intents.deadline([WEST].into_iter()), None);
        let mut late = RegionIntents::default();
        intents.to_send().into_iter().for_each(|intent| assert!(late.record(intent, at(50))));
        assert_eq!((late.has_left(WEST), late.deadline([WEST].into_iter())), (true, None));
        let join = intents.following(WEST, false, Span::from_secs(9)).expect("news");
        assert!(intents.record(join, at(60)) && join.version == 2);
        assert_eq!((intents.joining(at(60)), intents.joining(at(69))), ([WEST].into(), [].into()));
        assert_eq!(intents.not_joined(), [WEST].into());
    }
}
