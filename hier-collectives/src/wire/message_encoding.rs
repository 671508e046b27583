//! The wire form of control messages.

use super::group_facts::GroupFacts;
use super::job_facts::JobFacts;
use super::message::Message;
use crate::codec::{DecodeError, FieldReader, write_u16, write_u32, write_u64};
use crate::descriptor::{AgreedCounts, Descriptor, read_counts, write_counts};
use crate::ids::{BootId, Epoch, RankId, RegionId, Sequence, Step, TreeIndex};
use crate::membership::TermMessage;
use crate::plan::Plan;
use crate::post::{Committed, Failure, PreparedSteps};
use crate::store::StoreMessage;
use crate::topology::LinkState;
use std::ops::Range;

impl Message {
    /// Returns the wire form of the control message, without a length prefix: its code, then its
    /// fields.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(48);
        out.push(self.encoding_code());
        match self {
            Self::Join { boot, last, next, committed, prepared } => {
                [boot.0, last.0, next.0].into_iter().for_each(|n| write_u64(&mut out, n));
                Committed::write_optional(*committed, &mut out);
                prepared.write_to(&mut out);
            }
            Self::Begin { epoch, next, boots, plan, committed } => {
                write_u64(&mut out, epoch.0);
                write_u64(&mut out, next.0);
                write_u16(&mut out, u16::try_from(boots.len()).unwrap_or(u16::MAX));
                boots.iter().for_each(|boot| write_u64(&mut out, boot.0));
                plan.write_encoding(&mut out);
                Committed::write_optional(*committed, &mut out);
            }
            Self::Ready { epoch, link } => {
                write_u64(&mut out, epoch.0);
                out.push(u8::from(link.is_some()));
                link.iter().for_each(|state| state.write_to(&mut out));
            }
            Self::Announce { epoch, sequence, rank, descriptor, all, sent } => {
                write_u64(&mut out, epoch.0);
                write_u64(&mut out, sequence.0);
                write_u32(&mut out, rank.0);
                descriptor.write_to(&mut out);
                out.push(u8::from(*all));
                if descriptor.counts == AgreedCounts::ByPair {
                    write_counts(sent.as_deref().unwrap_or_default(), &mut out);
                }
            }
            Self::Grant { epoch, sequence, tree, limit } => {
                write_u64(&mut out, epoch.0);
                write_u64(&mut out, sequence.0);
                write_u16(&mut out, tree.0);
                write_u32(&mut out, *limit);
            }
            Self::Receipt { epoch, sequence, tree, segments } => {
                write_u64(&mut out, epoch.0);
                write_u64(&mut out, sequence.0);
                write_u16(&mut out, tree.0);
                write_u32(&mut out, segments.start);
                write_u32(&mut out, segments.end);
            }
            Self::Fail { epoch, sequence, failure } => {
                write_u64(&mut out, epoch.0);
                write_u64(&mut out, sequence.0);
                failure.write_to(&mut out);
            }
            Self::End { epoch, failure } => {
                write_u64(&mut out, epoch.0);
                failure.write_to(&mut out);
            }
            Self::Done { epoch, from, below } => {
                [epoch.0, from.0, below.0].into_iter().for_each(|n| write_u64(&mut out, n));
            }
            Self::Ask { epoch, from, below, rank, step } => {
                [epoch.0, from.0, below.0].into_iter().for_each(|n| write_u64(&mut out, n));
                write_u32(&mut out, rank.0);
                write_u64(&mut out, step.0);
            }
            Self::Drain { epoch, from } => {
                [epoch.0, from.0].into_iter().for_each(|n| write_u64(&mut out, n));
            }
            Self::Moving { epoch } => write_u64(&mut out, epoch.0),
            other => other.write_other_fields(&mut out),
        }
        out
    }

    /// Appends the fields of a message about plans, links, jobs, groups, boundaries, terms or stores to
    /// the message `out`; nothing for other messages.
    fn write_other_fields(&self, out: &mut Vec<u8>) {
        match self {
            Self::Pause { epoch, change } => {
                write_u64(out, epoch.0);
                write_u32(out, *change);
            }
            Self::Paused { epoch, change, from } => {
                write_u64(out, epoch.0);
                write_u32(out, *change);
                write_u64(out, from.0);
            }
            Self::Change { epoch, change, from, plan } => {
                write_u64(out, epoch.0);
                write_u32(out, *change);
                write_u64(out, from.0);
                plan.write_encoding(out);
            }
            Self::Link { epoch, to, state } => {
                write_u64(out, epoch.0);
                write_u16(out, to.0);
                state.write_to(out);
            }
            Self::Serves { boot, job } => {
                write_u64(out, boot.0);
                job.write_to(out);
            }
            Self::Unserved { boot } => write_u64(out, boot.0),
            Self::Member { boot, facts, takes_part } => {
                write_u64(out, boot.0);
                out.push(u8::from(*takes_part));
                facts.write_to(out);
            }
            Self::Disband { failure } => failure.write_to(out),
            Self::Boundary { epoch, from, ends_step, failure } => {
                write_u64(out, epoch.0);
                write_u64(out, from.0);
                out.push(u8::from(*ends_step));
                failure.write_to(out);
            }
            Self::Term(message) => message.write_to(out),
            Self::Store(message) => message.write_encoding(out),
            _ => {}
        }
    }

    /// Returns the wire code of the message's kind.
    fn encoding_code(&self) -> u8 {
        match self {
            Self::Join { .. } => 1,
            Self::Begin { .. } => 2,
            Self::Ready { .. } => 3,
            Self::Announce { .. } => 4,
            Self::Grant { .. } => 5,
            Self::Receipt { .. } => 6,
            Self::Fail { .. } => 7,
            Self::End { .. } => 8,
            Self::Done { .. } => 9,
            Self::Ask { .. } => 10,
            Self::Drain { .. } => 11,
            Self::Repeat => 12,
            Self::Pause { .. } => 13,
            Self::Paused { .. } => 14,
            Self::Change { .. } => 15,
            Self::Link { .. } => 16,
            Self::Moving { .. } => 17,
            Self::Serves { .. } => 18,
            Self::Unserved { .. } => 19,
            Self::Member { .. } => 20,
            Self::Disband { .. } => 21,
            Self::Boundary { .. } => 22,
            Self::Store(_) => 32,
            Self::Term(_) => 33,
        }
    }

    /// Decodes the wire form of a control message, without a length prefix.
    ///
    /// # Errors
    /// [`DecodeError`] when the bytes are a malformed message.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader(bytes);
        let message = match reader.read_u8()? {
            1 => Self::Join {
                boot: BootId(reader.read_u64()?),
                last: Epoch(reader.read_u64()?),
                next: Sequence(reader.read_u64()?),
                committed: Committed::read_optional(&mut reader)?,
                prepared: PreparedSteps::read_from(&mut reader)?,
            },
            2 => Self::Begin {
                epoch: Epoch(reader.read_u64()?),
                next: Sequence(reader.read_u64()?),
                boots: read_message_boot_ids(&mut reader)?,
                plan: Plan::read_encoding(&mut reader)?,
                committed: Committed::read_optional(&mut reader)?,
            },
            3 => Self::Ready {
                epoch: Epoch(reader.read_u64()?),
                link: reader.read_flag()?.then(|| LinkState::read_from(&mut reader)).transpose()?,
            },
            4 => {
                let (epoch, sequence) = (Epoch(reader.read_u64()?), Sequence(reader.read_u64()?));
                let rank = RankId(reader.read_u32()?);
                let descriptor = Descriptor::read_from(&mut reader)?;
                let all = reader.read_flag()?;
                let by_pair = descriptor.counts == AgreedCounts::ByPair;
                let sent = by_pair.then(|| read_counts(&mut reader)).transpose()?;
                Self::Announce { epoch, sequence, rank, descriptor, all, sent }
            }
            5 => Self::Grant {
                epoch: Epoch(reader.read_u64()?),
                sequence: Sequence(reader.read_u64()?),
                tree: TreeIndex(reader.read_u16()?),
                limit: reader.read_u32()?,
            },
            6 => Self::Receipt {
                epoch: Epoch(reader.read_u64()?),
                sequence: Sequence(reader.read_u64()?),
                tree: TreeIndex(reader.read_u16()?),
                segments: read_message_segment_range(&mut reader)?,
            },
            7 => Self::Fail {
                epoch: Epoch(reader.read_u64()?),
                sequence: Sequence(reader.read_u64()?),
                failure: Failure::read_from(&mut reader)?,
            },
            8 => Self::End {
                epoch: Epoch(reader.read_u64()?),
                failure: Failure::read_from(&mut reader)?,
            },
            9 => {
                let (epoch, (from, below)) =
                    (Epoch(reader.read_u64()?), read_message_collective_range(&mut reader)?);
                Self::Done { epoch, from, below }
            }
            10 => {
                let (epoch, (from, below)) =
                    (Epoch(reader.read_u64()?), read_message_collective_range(&mut reader)?);
                let (rank, step) = (RankId(reader.read_u32()?), Step(reader.read_u64()?));
                Self::Ask { epoch, from, below, rank, step }
            }
            kind => read_other_fields(&mut reader, kind)?,
        };
        reader.check_end(message)
    }
}

/// Reads the fields of a message about drains, boundaries, plans, links, jobs, groups, terms or stores, of wire
/// code `kind`.
fn read_other_fields(reader: &mut FieldReader<'_>, kind: u8) -> Result<Message, DecodeError> {
    Ok(match kind {
        11 => {
            Message::Drain { epoch: Epoch(reader.read_u64()?), from: Sequence(reader.read_u64()?) }
        }
        12 => Message::Repeat,
        13 => Message::Pause { epoch: Epoch(reader.read_u64()?), change: reader.read_u32()? },
        14 => Message::Paused {
            epoch: Epoch(reader.read_u64()?),
            change: reader.read_u32()?,
            from: Sequence(reader.read_u64()?),
        },
        16 => Message::Link {
            epoch: Epoch(reader.read_u64()?),
            to: RegionId(reader.read_u16()?),
            state: LinkState::read_from(reader)?,
        },
        15 => Message::Change {
            epoch: Epoch(reader.read_u64()?),
            change: reader.read_u32()?,
            from: Sequence(reader.read_u64()?),
            plan: Plan::read_encoding(reader)?,
        },
        17 => Message::Moving { epoch: Epoch(reader.read_u64()?) },
        18 => {
            Message::Serves { boot: BootId(reader.read_u64()?), job: JobFacts::read_from(reader)? }
        }
        19 => Message::Unserved { boot: BootId(reader.read_u64()?) },
        20 => Message::Member {
            boot: BootId(reader.read_u64()?),
            takes_part: reader.read_flag()?,
            facts: GroupFacts::read_from(reader)?,
        },
        21 => Message::Disband { failure: Failure::read_from(reader)? },
        22 => Message::Boundary {
            epoch: Epoch(reader.read_u64()?),
            from: Sequence(reader.read_u64()?),
            ends_step: reader.read_flag()?,
            failure: Failure::read_from(reader)?,
        },
        33 => Message::Term(TermMessage::read_from(reader)?),
        32 => Message::Store(Box::new(StoreMessage::read_encoding(reader)?)),
        _ => return Err(DecodeError::Unknown("message")),
    })
}

/// Reads a range of collectives, which must not be empty: the first, and one past the last.
fn read_message_collective_range(
    reader: &mut FieldReader<'_>,
) -> Result<(Sequence, Sequence), DecodeError> {
    let (from, below) = (Sequence(reader.read_u64()?), Sequence(reader.read_u64()?));
    if from < below { Ok((from, below)) } else { Err(DecodeError::Invalid("range")) }
}

/// Reads a range of segments, which must not be empty: the first, and one past the last.
fn read_message_segment_range(reader: &mut FieldReader<'_>) -> Result<Range<u32>, DecodeError> {
    let segments = reader.read_u32()?..reader.read_u32()?;
    if segments.is_empty() { Err(DecodeError::Invalid("range")) } else { Ok(segments) }
}

/// Reads the boot ids of gateways: a 16-bit count, then the ids.
fn read_message_boot_ids(reader: &mut FieldReader<'_>) -> Result<Vec<BootId>, DecodeError> {
    let count = usize::from(reader.read_u16()?);
    let mut fields = FieldReader(reader.read_bytes(count * 8)?);
    (0..count).map(|_| fields.read_u64().map(BootId)).collect()
}
