//! Committed steps, and their encoding in messages between gateways.

use super::EpochId;
use crate::codec::{DecodeError, FieldReader, write_u64};
use crate::ids::{Sequence, Step};

/// A step whose collectives are complete in every region.
///
/// The order is that of time, since collectives are numbered through all epochs. Trainers choose
/// the numbers of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Committed {
    /// One past the last collective of the step.
    pub below: Sequence,
    /// The step.
    pub step: Step,
    /// The epoch of these collectives.
    pub epoch: EpochId,
}

impl Committed {
    /// Appends an optional committed step to the message `out`: a flag, then the step, the
    /// collective behind it and the epoch.
    pub(crate) fn write_optional(committed: Option<Self>, out: &mut Vec<u8>) {
        match committed {
            None => out.push(0),
            Some(Self { step, below, epoch }) => {
                out.push(1);
                write_u64(out, step.0);
                write_u64(out, below.0);
                epoch.write_to(out);
            }
        }
    }

    /// Reads an optional committed step: a flag, then the step, the collective behind it and the
    /// epoch.
    pub(crate) fn read_optional(reader: &mut FieldReader<'_>) -> Result<Option<Self>, DecodeError> {
        if !reader.read_flag()? {
            return Ok(None);
        }
        let (step, below) = (Step(reader.read_u64()?), Sequence(reader.read_u64()?));
        Ok(Some(Self { step, below, epoch: EpochId::read_from(reader)? }))
    }
}
