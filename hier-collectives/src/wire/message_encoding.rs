//! The wire form of control messages.

use super::message::Message;
use crate::codec::{DecodeError, Reader, put_u16, put_u32, put_u64};
use crate::descriptor::put_descriptor;
use crate::ids::{BootId, Epoch, RankId, RegionId, Sequence, TreeIndex};
use crate::plan::put_plan;
use crate::post::{put_committed, put_failure};
use crate::topology::put_link_state;
use std::ops::Range;

impl Message {
    /// The wire form, without a length prefix.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(48);
        out.push(self.kind());
        match self {
            Self::Join { boot, last, next, committed } => {
                [boot.0, last.0, next.0].into_iter().for_each(|n| put_u64(&mut out, n));
                put_committed(&mut out, *committed);
            }
            Self::Begin { epoch, next, boots, plan, committed } => {
                put_u64(&mut out, epoch.0);
                put_u64(&mut out, next.0);
                put_u16(&mut out, u16::try_from(boots.len()).unwrap_or(u16::MAX));
                boots.iter().for_each(|boot| put_u64(&mut out, boot.0));
                put_plan(&mut out, plan);
                put_committed(&mut out, *committed);
            }
            Self::Ready { epoch, link } => {
                put_u64(&mut out, epoch.0);
                out.push(u8::from(link.is_some()));
                link.iter().for_each(|state| put_link_state(&mut out, *state));
            }
            Self::Announce { epoch, sequence, rank, descriptor, all } => {
                put_u64(&mut out, epoch.0);
                put_u64(&mut out, sequence.0);
                put_u32(&mut out, rank.0);
                put_descriptor(&mut out, descriptor);
                out.push(u8::from(*all));
            }
            Self::Grant { epoch, sequence, tree, limit } => {
                put_u64(&mut out, epoch.0);
                put_u64(&mut out, sequence.0);
                put_u16(&mut out, tree.0);
                put_u32(&mut out, *limit);
            }
            Self::Receipt { epoch, sequence, tree, segments } => {
                put_u64(&mut out, epoch.0);
                put_u64(&mut out, sequence.0);
                put_u16(&mut out, tree.0);
                put_u32(&mut out, segments.start);
                put_u32(&mut out, segments.end);
            }
            Self::Fail { epoch, sequence, failure } => {
                put_u64(&mut out, epoch.0);
                put_u64(&mut out, sequence.0);
                put_failure(&mut out, failure);
            }
            Self::End { epoch, failure } => {
                put_u64(&mut out, epoch.0);
                put_failure(&mut out, failure);
            }
            Self::Done { epoch, from, below } | Self::Ask { epoch, from, below } => {
                [epoch.0, from.0, below.0].into_iter().for_each(|n| put_u64(&mut out, n));
            }
            Self::Drain { epoch, from } => {
                [epoch.0, from.0].into_iter().for_each(|n| put_u64(&mut out, n));
            }
            Self::Moving { epoch } => put_u64(&mut out, epoch.0),
            other => other.put_plan_message(&mut out),
        }
        out
    }

    /// Appends the fields of messages about plans, links and forwarding.
    fn put_plan_message(&self, out: &mut Vec<u8>) {
        match self {
            Self::Pause { epoch, change } => {
                put_u64(out, epoch.0);
                put_u32(out, *change);
            }
            Self::Paused { epoch, change, from } => {
                put_u64(out, epoch.0);
                put_u32(out, *change);
                put_u64(out, from.0);
            }
            Self::Change { epoch, change, from, plan } => {
                put_u64(out, epoch.0);
                put_u32(out, *change);
                put_u64(out, from.0);
                put_plan(out, plan);
            }
            Self::Link { epoch, to, state } => {
                put_u64(out, epoch.0);
                put_u16(out, to.0);
                put_link_state(out, *state);
            }
            _ => {}
        }
    }

    /// The wire code of the message's type.
    fn kind(&self) -> u8 {
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
        }
    }

    /// Reads the wire form.
    ///
    /// # Errors
    /// [`DecodeError`] when the bytes are a malformed message.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader(bytes);
        let message = match reader.u8()? {
            1 => Self::Join {
                boot: BootId(reader.u64()?),
                last: Epoch(reader.u64()?),
                next: Sequence(reader.u64()?),
                committed: reader.committed()?,
            },
            2 => Self::Begin {
                epoch: Epoch(reader.u64()?),
                next: Sequence(reader.u64()?),
                boots: reader.boots()?,
                plan: reader.plan()?,
                committed: reader.committed()?,
            },
            3 => Self::Ready {
                epoch: Epoch(reader.u64()?),
                link: if reader.flag()? { Some(reader.link_state()?) } else { None },
            },
            4 => Self::Announce {
                epoch: Epoch(reader.u64()?),
                sequence: Sequence(reader.u64()?),
                rank: RankId(reader.u32()?),
                descriptor: reader.descriptor()?,
                all: reader.flag()?,
            },
            5 => Self::Grant {
                epoch: Epoch(reader.u64()?),
                sequence: Sequence(reader.u64()?),
                tree: TreeIndex(reader.u16()?),
                limit: reader.u32()?,
            },
            6 => Self::Receipt {
                epoch: Epoch(reader.u64()?),
                sequence: Sequence(reader.u64()?),
                tree: TreeIndex(reader.u16()?),
                segments: reader.segments()?,
            },
            7 => Self::Fail {
                epoch: Epoch(reader.u64()?),
                sequence: Sequence(reader.u64()?),
                failure: reader.failure()?,
            },
            8 => Self::End { epoch: Epoch(reader.u64()?), failure: reader.failure()? },
            9 => {
                let (epoch, (from, below)) = (Epoch(reader.u64()?), reader.range()?);
                Self::Done { epoch, from, below }
            }
            10 => {
                let (epoch, (from, below)) = (Epoch(reader.u64()?), reader.range()?);
                Self::Ask { epoch, from, below }
            }
            kind => reader.plan_message(kind)?,
        };
        reader.end(message)
    }
}

impl Reader<'_> {
    /// Reads the fields of messages about plans, links and forwarding.
    fn plan_message(&mut self, kind: u8) -> Result<Message, DecodeError> {
        Ok(match kind {
            11 => Message::Drain { epoch: Epoch(self.u64()?), from: Sequence(self.u64()?) },
            12 => Message::Repeat,
            13 => Message::Pause { epoch: Epoch(self.u64()?), change: self.u32()? },
            14 => Message::Paused {
                epoch: Epoch(self.u64()?),
                change: self.u32()?,
                from: Sequence(self.u64()?),
            },
            16 => Message::Link {
                epoch: Epoch(self.u64()?),
                to: RegionId(self.u16()?),
                state: self.link_state()?,
            },
            15 => Message::Change {
                epoch: Epoch(self.u64()?),
                change: self.u32()?,
                from: Sequence(self.u64()?),
                plan: self.plan()?,
            },
            17 => Message::Moving { epoch: Epoch(self.u64()?) },
            _ => return Err(DecodeError::Unknown("message")),
        })
    }

    /// Reads a range of collectives that is not empty.
    fn range(&mut self) -> Result<(Sequence, Sequence), DecodeError> {
        let (from, below) = (Sequence(self.u64()?), Sequence(self.u64()?));
        if from < below { Ok((from, below)) } else { Err(DecodeError::Invalid("range")) }
    }

    /// Reads a range of segments that is not empty.
    fn segments(&mut self) -> Result<Range<u32>, DecodeError> {
        let segments = self.u32()?..self.u32()?;
        if segments.is_empty() { Err(DecodeError::Invalid("range")) } else { Ok(segments) }
    }

    /// Reads boot ids behind their number.
    fn boots(&mut self) -> Result<Vec<BootId>, DecodeError> {
        let count = usize::from(self.u16()?);
        let mut fields = Reader(self.take(count * 8)?);
        (0..count).map(|_| fields.u64().map(BootId)).collect()
    }
}
