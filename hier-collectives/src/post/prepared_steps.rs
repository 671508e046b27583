//! Prepared steps, which a lost gateway may have confirmed, and their encoding in messages.

use super::{Committed, EpochId};
use crate::codec::{DecodeError, FieldReader, write_u16, write_u64};
use crate::ids::{Sequence, Step};

/// 1,024 prepared steps: the most in a Join. A rank has 64 commits under way, so only ranks that commit
/// after different collectives have more. The limit of memory is chosen.
pub(crate) const PREPARED_STEPS_MAX: usize = 1024;

/// The steps that a gateway has prepared in the last epoch that it was in, the earliest first.
///
/// A gateway prepares a step as a participant of a two-phase commit does: all its ranks have the results
/// of the step, which it has told, or would tell, those that ask. A gateway confirms a step once all
/// gateways of the epoch have prepared it. So of those that go on, each has prepared every step that a
/// lost one may have confirmed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PreparedSteps {
    /// The epoch; that of number 0 for a gateway that has been in none since its start.
    pub epoch: EpochId,
    /// Each step after one past its last collective.
    pub steps: Vec<(Sequence, Step)>,
}

impl PreparedSteps {
    /// Returns the last step that all gateways which were in the latest epoch have prepared; `None`
    /// without one. It counts as complete in the next epoch.
    pub fn last_common<'p>(all: impl Iterator<Item = &'p Self> + Clone) -> Option<Committed> {
        let epoch = all.clone().map(|prepared| prepared.epoch).max()?;
        let mut members = all.filter(|prepared| prepared.epoch == epoch);
        let mut common = members.next()?.steps.clone();
        members.for_each(|member| common.retain(|step| member.steps.contains(step)));
        let (below, step) = common.into_iter().max()?;
        Some(Committed { below, step, epoch })
    }

    /// Appends the epoch, the number of steps, and each step after the collective behind it.
    pub(crate) fn write_to(&self, out: &mut Vec<u8>) {
        self.epoch.write_to(out);
        let last = &self.steps[self.steps.len().saturating_sub(PREPARED_STEPS_MAX)..];
        write_u16(out, u16::try_from(last.len()).unwrap_or(u16::MAX));
        for (below, step) in last {
            write_u64(out, step.0);
            write_u64(out, below.0);
        }
    }

    /// Reads prepared steps, of which there may be [`PREPARED_STEPS_MAX`].
    pub(crate) fn read_from(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let (epoch, count) = (EpochId::read_from(reader)?, usize::from(reader.read_u16()?));
        if count > PREPARED_STEPS_MAX {
            return Err(DecodeError::Unknown("number of prepared steps"));
        }
        let mut steps = Vec::new();
        for _ in 0..count {
            let step = Step(reader.read_u64()?);
            steps.push((Sequence(reader.read_u64()?), step));
        }
        Ok(Self { epoch, steps })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Epoch;

    fn epoch(number: u64) -> EpochId {
        EpochId { term: 7, number: Epoch(number) }
    }

    fn prepared(number: u64, steps: &[u64]) -> PreparedSteps {
        let steps = steps.iter().map(|step| (Sequence(10 * step), Step(*step))).collect();
        PreparedSteps { epoch: epoch(number), steps }
    }

    fn last_common(all: &[PreparedSteps]) -> Option<u64> {
        PreparedSteps::last_common(all.iter()).map(|last| last.step.0)
    }

    #[test]
    fn a_step_counts_once_all_of_the_epoch_prepared_it() {
        let none = PreparedSteps::default();
        assert_eq!(last_common(&[]), None);
        assert_eq!(last_common(&[none.clone(), none.clone()]), None);
        assert_eq!(last_common(&[prepared(3, &[7, 8]), prepared(3, &[7])]), Some(7));
        assert_eq!(last_common(&[prepared(3, &[7, 8]), prepared(3, &[])]), None);
        // One was started again, another one was away in that epoch.
        assert_eq!(last_common(&[prepared(3, &[7, 8]), none, prepared(2, &[4])]), Some(8));
        // The same step, which ended elsewhere.
        let again = PreparedSteps { epoch: epoch(3), steps: vec![(Sequence(99), Step(7))] };
        assert_eq!(last_common(&[prepared(3, &[7]), again]), None);
        // An epoch of that number which a gateway alone entered, in a term before.
        let alone = EpochId { term: 6, ..epoch(3) };
        let alone = PreparedSteps { epoch: alone, steps: vec![] };
        assert_eq!(last_common(&[alone, prepared(3, &[7])]), Some(7));
    }
}
