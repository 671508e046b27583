//! Intents of operators: regions leave the world of all jobs, or join it again.
//!
//! Each gateway keeps the last intent for each region, in memory alone, and gateways tell each other
//! theirs. Of two intents for one region the higher version holds; of equal versions, the one to leave.
//!
//! The term that begins next settles an intent: it is made if the term meets it. A leave that is
//! *overdue*, since its time is over, is called off by a term that has the region: whoever enters that
//! term replaces the leave by the intent that follows it, alike everywhere.

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
    /// The seconds for which the change still waits for a step's boundary, at least 1; 0 once the
    /// sender is in a term that has the region, or lacks it, as intended.
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
#[derive(Debug, Clone)]
struct KnownIntent {
    intent: RegionIntent,
    /// When the change is made without a boundary; `None` once it is made.
    until: Option<TimeNs>,
    /// Whether that time is over, and the change was not made by then.
    is_overdue: bool,
    /// Why the leave before it was called off, if it was.
    called_off: Option<String>,
}

impl RegionIntents {
    /// Returns an intent that follows all known ones for the region; `None` if it is known already.
    pub fn following(&self, region: RegionId, leaves: bool, within: Span) -> Option<RegionIntent> {
        let (version, before) = match self.known.get(&region) {
            Some(KnownIntent { intent, .. }) => (intent.version, intent.leaves),
            None => (0, false),
        };
        let within_s = seconds_of_intent(within);
        let version = version + 1;
        (leaves != before).then_some(RegionIntent { region, version, leaves, within_s })
    }

    /// Records an intent; returns whether it is newer than the known one for its region. Of one
    /// intent the earliest end counts.
    pub fn record(&mut self, intent: RegionIntent, now: TimeNs) -> bool {
        let until = now + Span::from_secs(u64::from(intent.within_s));
        let until = (intent.within_s > 0).then_some(until);
        match self.known.get_mut(&intent.region) {
            Some(known) if known.intent.order() == intent.order() => {
                // Whoever is in such a term knows that the change is made.
                known.until = known.until.zip(until).map(|(mine, theirs)| mine.min(theirs));
                known.is_overdue &= known.until.is_some();
                false
            }
            Some(known) if known.intent.order() > intent.order() => false,
            _ => {
                let new = KnownIntent { intent, until, is_overdue: false, called_off: None };
                self.known.insert(intent.region, new);
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
    /// Returns whether there are new ones.
    pub fn note_term(&mut self, regions: &BTreeSet<RegionId>) -> bool {
        let met = self.known.iter_mut().filter(|(region, known)| {
            known.until.is_some() && known.intent.leaves != regions.contains(region)
        });
        met.map(|(_, known)| (known.until, known.is_overdue) = (None, false)).count() > 0
    }

    /// Calls the overdue leaves of these regions off; returns whether there are any.
    pub fn call_off(&mut self, regions: &BTreeSet<RegionId>, why: &str) -> bool {
        let known = self.known.iter_mut().filter(|(region, _)| regions.contains(region));
        let overdue = known.filter(|(_, known)| known.is_overdue);
        overdue.map(|(_, known)| known.call_off(why)).count() > 0
    }

    /// Calls the leaves of all regions off, made or not.
    pub fn call_all_off(&mut self, why: &str) {
        let leaves = self.known.values_mut().filter(|known| known.intent.leaves);
        leaves.for_each(|known| known.call_off(why));
    }

    /// Brings the end of these regions' changes forward to `until`; returns whether one was later.
    pub fn bring_forward(&mut self, regions: &BTreeSet<RegionId>, until: TimeNs) -> bool {
        let known = self.known.iter_mut().filter(|(region, _)| regions.contains(region));
        let later = known.filter_map(|(_, known)| known.until.as_mut().filter(|at| **at > until));
        later.map(|at| *at = until).count() > 0
    }

    /// Notes the leaves whose time is over now and that are not made.
    pub fn note_time(&mut self, now: TimeNs) {
        for known in self.known.values_mut().filter(|known| known.intent.leaves) {
            known.is_overdue |= known.until.is_some_and(|until| until <= now);
        }
    }

    /// Returns when the time of a leave is over next; `None` if none waits.
    pub fn next_deadline(&self) -> Option<TimeNs> {
        let waits = |known: &&KnownIntent| known.intent.leaves && !known.is_overdue;
        self.known.values().filter(waits).filter_map(|known| known.until).min()
    }

    /// Returns the regions that were to leave by now and have not.
    pub fn overdue(&self) -> BTreeSet<RegionId> {
        let known = self.known.iter().filter(|(_, known)| known.is_overdue);
        known.map(|(region, _)| *region).collect()
    }

    /// Returns the regions whose last leave was called off here, each with the reason.
    pub fn called_off(&self) -> Vec<(RegionId, String)> {
        let known = self.known.iter();
        known.filter_map(|(region, known)| Some((*region, known.called_off.clone()?))).collect()
    }

    /// Returns all intents, for another gateway, each with the time that is left of it.
    pub fn to_send(&self, now: TimeNs) -> Vec<RegionIntent> {
        let sent = |known: &KnownIntent| {
            let left = known.until.map(|until| seconds_of_intent(until.since(now)));
            RegionIntent { within_s: left.unwrap_or(0), ..known.intent }
        };
        self.known.values().map(sent).collect()
    }

    /// Returns the regions that have left: a term without them has begun.
    pub fn made_leaves(&self) -> BTreeSet<RegionId> {
        let made = |known: &KnownIntent| known.intent.leaves && known.until.is_none();
        let known = self.known.iter().filter(|(_, known)| made(known));
        known.map(|(region, _)| *region).collect()
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

impl KnownIntent {
    /// Replaces a leave by the intent that follows it, which all gateways make alike: the region takes
    /// part, as if it had joined.
    fn call_off(&mut self, why: &str) {
        let version = self.intent.version + 1;
        self.intent = RegionIntent { version, leaves: false, ..self.intent };
        (self.until, self.is_overdue, self.called_off) = (None, false, Some(why.to_owned()));
    }
}

/// Returns a time in whole seconds, at least 1.
fn seconds_of_intent(time: Span) -> u32 {
    let seconds = time.ns().div_ceil(Span::from_secs(1).ns()).max(1);
    u32::try_from(seconds).unwrap_or(u32::MAX)
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
            assert_eq!(one.to_send(at(0)), [intent(2, true)], "from {first} on");
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
        assert!(!intents.note_term(&[RegionId(0), WEST].into()));
        assert_eq!(intents.deadline([WEST].into_iter()), Some(at(9)), "it is still there");
        assert!(intents.note_term(&[RegionId(0)].into()));
        assert_eq!(intents.deadline([WEST].into_iter()), None);
        let mut late = RegionIntents::default();
        intents.to_send(at(9)).into_iter().for_each(|intent| assert!(late.record(intent, at(50))));
        assert_eq!((late.has_left(WEST), late.deadline([WEST].into_iter())), (true, None));
        let join = intents.following(WEST, false, Span::from_secs(9)).expect("news");
        assert!(intents.record(join, at(60)) && join.version == 2);
        assert_eq!((intents.joining(at(60)), intents.joining(at(69))), ([WEST].into(), [].into()));
        assert_eq!(intents.not_joined(), [WEST].into());
    }
}
