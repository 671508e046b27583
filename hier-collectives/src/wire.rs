//! What gateways say to each other: segment headers and control messages.
//!
//! All numbers are big-endian. docs/protocol.md lists the layouts. Control messages state
//! facts that only grow (an epoch, a limit, a receipt), so that they may be repeated, and
//! after the loss of the lane that they went over all of them are.

use crate::codec::{
    DecodeError, Reader, put_descriptor, put_failure, put_text, put_u16, put_u32, put_u64,
};
use crate::descriptor::Descriptor;
use crate::ids::{
    BootId, Epoch, GatewayId, GroupId, RankId, RegionId, SegmentIndex, Sequence, Step, TreeIndex,
};
use crate::plan::{Algorithm, Carries, Plan, Tree};
use crate::post::{Committed, Failure};
use crate::repair::parity_max;
use crate::topology::LinkState;
use std::collections::BTreeMap;
use std::ops::Range;
use units::{BitRate, ByteCount, Fraction, Span};

/// The version of everything in this module; peers of another one are refused.
pub const WIRE_VERSION: u16 = 1;

/// Longest control message, in bytes, without its length prefix.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// Names one segment within a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentKey {
    /// The collective.
    pub sequence: Sequence,
    /// The tree.
    pub tree: TreeIndex,
    /// The segment of the tree.
    pub segment: SegmentIndex,
}

/// The first bytes of a segment's stream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SegmentHeader {
    /// The epoch it belongs to; data of any other are dropped.
    pub epoch: Epoch,
    /// Which segment.
    pub key: SegmentKey,
    /// Payload bytes that follow.
    pub bytes: u32,
    /// Digest of the collective's descriptor.
    pub digest: u64,
    /// Weight of the partial in an average.
    pub weight: f64,
    /// Shards of parity that follow the payload.
    pub parity: u16,
}

/// A lane's first message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// [`WIRE_VERSION`] of the sender.
    pub version: u16,
    /// Digest of the fabric's names and shape.
    pub fabric: [u8; 32],
    /// The sender's name.
    pub gateway: String,
    /// The sender's boot id.
    pub boot: BootId,
    /// Which of its lanes this is.
    pub lane: u16,
}

/// A control message.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// To the first gateway: this member is here, outside any epoch after `last`.
    Join {
        /// The member's boot id.
        boot: BootId,
        /// The last epoch it was in.
        last: Epoch,
        /// The first sequence it has not seen.
        next: Sequence,
        /// The last step that it knows to be complete in every region.
        committed: Option<Committed>,
    },
    /// From the first gateway: an epoch begins.
    Begin {
        /// The epoch.
        epoch: Epoch,
        /// The number of its first collective.
        next: Sequence,
        /// Boot id of each gateway, in gateway order.
        boots: Vec<BootId>,
        /// The plan.
        plan: Plan,
        /// The last step that some member knows to be complete in every region.
        committed: Option<Committed>,
    },
    /// The sender is in this epoch, and ready for its messages and data.
    Ready {
        /// The epoch.
        epoch: Epoch,
        /// The link between both, as the sender's fabric has it: it keeps room by it.
        link: Option<LinkState>,
    },
    /// A rank of the sender's posted a collective of this shape.
    Announce {
        /// The epoch.
        epoch: Epoch,
        /// The collective.
        sequence: Sequence,
        /// A rank that posted it there.
        rank: RankId,
        /// Its shape.
        descriptor: Descriptor,
        /// Whether all ranks of the sender's have posted it.
        all: bool,
    },
    /// The receiver may send the segments of this tree below `limit`.
    Grant {
        /// The epoch.
        epoch: Epoch,
        /// The collective.
        sequence: Sequence,
        /// The tree.
        tree: TreeIndex,
        /// The first segment not granted.
        limit: u32,
    },
    /// The sender holds these segments for good.
    Receipt {
        /// The epoch.
        epoch: Epoch,
        /// The collective.
        sequence: Sequence,
        /// The tree.
        tree: TreeIndex,
        /// Which of its segments: not none.
        segments: Range<u32>,
    },
    /// The collective failed.
    Fail {
        /// The epoch.
        epoch: Epoch,
        /// The collective.
        sequence: Sequence,
        /// Why.
        failure: Failure,
    },
    /// The sender left the epoch.
    End {
        /// The epoch.
        epoch: Epoch,
        /// Why.
        failure: Failure,
    },
    /// All ranks of the sender's have the results of these collectives.
    Done {
        /// The epoch.
        epoch: Epoch,
        /// The first of them.
        from: Sequence,
        /// One past the last.
        below: Sequence,
    },
    /// A rank of the sender's waits for a `Done` of these collectives.
    Ask {
        /// The epoch.
        epoch: Epoch,
        /// The first of them.
        from: Sequence,
        /// One past the last.
        below: Sequence,
    },
    /// The sender is shutting down in order: its ranks post nothing from `from` on.
    Drain {
        /// The epoch.
        epoch: Epoch,
        /// The first collective that not all of its ranks have posted.
        from: Sequence,
    },
    /// Messages that the sender was to pass on may be lost: say everything again to those that
    /// others pass messages on to.
    Repeat,
    /// From the first gateway: start no collective that has not been started, and say so.
    Pause {
        /// The epoch.
        epoch: Epoch,
        /// Which change of the plan it is for; the first of an epoch is 1.
        change: u32,
    },
    /// To the first gateway: the sender starts nothing from `from` on before the change.
    Paused {
        /// The epoch.
        epoch: Epoch,
        /// The change.
        change: u32,
        /// The first collective that it has not started.
        from: Sequence,
    },
    /// From the first gateway: collectives from `from` on follow this plan.
    Change {
        /// The epoch.
        epoch: Epoch,
        /// The change.
        change: u32,
        /// The first collective of the plan.
        from: Sequence,
        /// The plan.
        plan: Plan,
    },
    /// To the first gateway: what the sender finds a link of its region to be.
    Link {
        /// The epoch.
        epoch: Epoch,
        /// The region at the other end.
        to: RegionId,
        /// What the link is like.
        state: LinkState,
    },
    /// Bytes of a segment still arrive at the sender.
    Moving {
        /// The epoch.
        epoch: Epoch,
    },
}

/// What stands ahead of a control message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Envelope {
    /// The group it is for.
    pub group: GroupId,
    /// Who says it.
    pub from: GatewayId,
    /// Whom it is said to; whoever else receives it passes it on.
    pub to: GatewayId,
}

impl Envelope {
    /// Encoded length.
    pub const BYTES: usize = GroupId::BYTES + 4;

    /// The wire form.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = Vec::with_capacity(Self::BYTES);
        put_u64(&mut out, self.group.0);
        put_u16(&mut out, self.from.0);
        put_u16(&mut out, self.to.0);
        let mut fixed = [0; Self::BYTES];
        fixed.copy_from_slice(&out);
        fixed
    }

    /// Reads the wire form off the front of a frame; the rest is the message.
    ///
    /// # Errors
    /// [`DecodeError`] when the frame is shorter.
    pub fn decode(frame: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        let mut reader = Reader(frame);
        let (group, from) = (GroupId(reader.u64()?), GatewayId(reader.u16()?));
        let to = GatewayId(reader.u16()?);
        Ok((Self { group, from, to }, reader.0))
    }
}

impl SegmentHeader {
    /// Encoded length.
    pub const BYTES: usize = 44;

    /// The wire form.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = Vec::with_capacity(Self::BYTES);
        put_u64(&mut out, self.epoch.0);
        put_key(&mut out, self.key);
        put_u32(&mut out, self.bytes);
        put_u64(&mut out, self.digest);
        put_u64(&mut out, self.weight.to_bits());
        put_u16(&mut out, self.parity);
        let mut fixed = [0; Self::BYTES];
        fixed.copy_from_slice(&out);
        fixed
    }

    /// Reads the wire form.
    ///
    /// # Errors
    /// [`DecodeError`] when a field is out of range.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, DecodeError> {
        let mut reader = Reader(bytes);
        let header = Self {
            epoch: Epoch(reader.u64()?),
            key: reader.key()?,
            bytes: reader.u32()?,
            digest: reader.u64()?,
            weight: reader.weight()?,
            parity: reader.u16()?,
        };
        if header.parity > parity_max(u64::from(header.bytes)) {
            return Err(DecodeError::Invalid("parity"));
        }
        // A receipt names the one behind it.
        if header.key.segment.0 == u32::MAX {
            return Err(DecodeError::Invalid("segment"));
        }
        Ok(header)
    }
}

impl Hello {
    /// Longest hello, in bytes, without its length prefix: it is read whole before its version
    /// is known.
    pub const MAX_BYTES: usize = 1024;

    /// The wire form, without a length prefix.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_u16(&mut out, self.version);
        out.extend(self.fabric);
        put_u64(&mut out, self.boot.0);
        put_u16(&mut out, self.lane);
        put_text(&mut out, &self.gateway);
        out
    }

    /// Reads the wire form. The version stands first and is checked by the caller, so that
    /// another version can be named even when the rest has another shape.
    ///
    /// # Errors
    /// [`DecodeError`] when the bytes are no hello of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader(bytes);
        let version = reader.u16()?;
        if version != WIRE_VERSION {
            let fabric = [0; 32];
            return Ok(Self { version, fabric, gateway: String::new(), boot: BootId(0), lane: 0 });
        }
        let mut fabric = [0; 32];
        fabric.copy_from_slice(reader.take(32)?);
        let (boot, lane) = (BootId(reader.u64()?), reader.u16()?);
        let gateway = reader.text()?;
        reader.end(Self { version, fabric, gateway, boot, lane })
    }
}

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
            of_plans => of_plans.put_of_plans(&mut out),
        }
        out
    }

    /// The fields of what is said of plans, and of what has none.
    fn put_of_plans(&self, out: &mut Vec<u8>) {
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

    /// The type that it travels with.
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
    /// [`DecodeError`] when the bytes are no message of this version.
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
            kind => reader.of_plans(kind)?,
        };
        reader.end(message)
    }
}

fn put_key(out: &mut Vec<u8>, key: SegmentKey) {
    put_u64(out, key.sequence.0);
    put_u16(out, key.tree.0);
    put_u32(out, key.segment.0);
}

fn put_committed(out: &mut Vec<u8>, committed: Option<Committed>) {
    match committed {
        None => out.push(0),
        Some(Committed { step, below }) => {
            out.push(1);
            put_u64(out, step.0);
            put_u64(out, below.0);
        }
    }
}

fn put_link_state(out: &mut Vec<u8>, state: LinkState) {
    put_u64(out, state.rate.bits_per_second());
    put_u64(out, state.rtt.ns());
    put_u32(out, state.loss.ppb());
}

fn put_plan(out: &mut Vec<u8>, plan: &Plan) {
    out.push(plan.algorithm as u8);
    put_u64(out, plan.segment.get());
    put_u64(out, plan.express_bytes.get());
    put_text(out, &plan.reason);
    put_u16(out, u16::try_from(plan.trees.len()).unwrap_or(u16::MAX));
    for tree in &plan.trees {
        put_u64(out, tree.share);
        out.push(tree.carries as u8);
        put_u16(out, u16::try_from(tree.crown.len()).unwrap_or(u16::MAX));
        tree.crown.iter().for_each(|id| put_u16(out, id.0));
        put_u16(out, u16::try_from(tree.parents.len()).unwrap_or(u16::MAX));
        for (child, parent) in &tree.parents {
            put_u16(out, child.0);
            put_u16(out, parent.0);
        }
    }
}

/// The wire form of a plan, for its hash.
pub(crate) fn plan_bytes(plan: &Plan) -> Vec<u8> {
    let mut out = Vec::new();
    put_plan(&mut out, plan);
    out
}

/// Fields of messages between gateways.
trait Fields {
    /// What is said of plans, and of what has none.
    fn of_plans(&mut self, kind: u8) -> Result<Message, DecodeError>;
    fn key(&mut self) -> Result<SegmentKey, DecodeError>;
    fn committed(&mut self) -> Result<Option<Committed>, DecodeError>;
    fn flag(&mut self) -> Result<bool, DecodeError>;
    fn range(&mut self) -> Result<(Sequence, Sequence), DecodeError>;
    fn segments(&mut self) -> Result<Range<u32>, DecodeError>;
    fn boots(&mut self) -> Result<Vec<BootId>, DecodeError>;
    fn plan(&mut self) -> Result<Plan, DecodeError>;
    fn tree(&mut self) -> Result<Tree, DecodeError>;
    fn link_state(&mut self) -> Result<LinkState, DecodeError>;
}

impl Fields for Reader<'_> {
    fn of_plans(&mut self, kind: u8) -> Result<Message, DecodeError> {
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
    fn key(&mut self) -> Result<SegmentKey, DecodeError> {
        let (sequence, tree) = (Sequence(self.u64()?), TreeIndex(self.u16()?));
        Ok(SegmentKey { sequence, tree, segment: SegmentIndex(self.u32()?) })
    }
    fn committed(&mut self) -> Result<Option<Committed>, DecodeError> {
        if !self.flag()? {
            return Ok(None);
        }
        Ok(Some(Committed { step: Step(self.u64()?), below: Sequence(self.u64()?) }))
    }
    fn flag(&mut self) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Unknown("flag")),
        }
    }
    fn range(&mut self) -> Result<(Sequence, Sequence), DecodeError> {
        let (from, below) = (Sequence(self.u64()?), Sequence(self.u64()?));
        if from < below { Ok((from, below)) } else { Err(DecodeError::Invalid("range")) }
    }
    fn segments(&mut self) -> Result<Range<u32>, DecodeError> {
        let segments = self.u32()?..self.u32()?;
        if segments.is_empty() { Err(DecodeError::Invalid("range")) } else { Ok(segments) }
    }
    fn boots(&mut self) -> Result<Vec<BootId>, DecodeError> {
        let count = usize::from(self.u16()?);
        let mut fields = Reader(self.take(count * 8)?);
        (0..count).map(|_| fields.u64().map(BootId)).collect()
    }
    fn plan(&mut self) -> Result<Plan, DecodeError> {
        let algorithm =
            Algorithm::from_code(self.u8()?).ok_or(DecodeError::Unknown("algorithm"))?;
        let segment = ByteCount::new(self.u64()?);
        let express_bytes = ByteCount::new(self.u64()?);
        let reason = self.text()?;
        let count = self.u16()?;
        let trees = (0..count).map(|_| self.tree()).collect::<Result<_, _>>()?;
        Ok(Plan { algorithm, reason, segment, express_bytes, trees })
    }
    fn tree(&mut self) -> Result<Tree, DecodeError> {
        let share = self.u64()?;
        let carries = Carries::from_code(self.u8()?).ok_or(DecodeError::Unknown("tree"))?;
        let crown = usize::from(self.u16()?);
        let mut fields = Reader(self.take(crown * 2)?);
        let crown = (0..crown).map(|_| fields.u16().map(GatewayId)).collect::<Result<_, _>>()?;
        let count = usize::from(self.u16()?);
        let mut fields = Reader(self.take(count * 4)?);
        let mut parents = BTreeMap::new();
        for _ in 0..count {
            let (child, parent) = (GatewayId(fields.u16()?), GatewayId(fields.u16()?));
            // Ascending, so that a plan has one wire form and one hash.
            if parents.last_key_value().is_some_and(|(last, _)| *last >= child) {
                return Err(DecodeError::Invalid("order of parents"));
            }
            parents.insert(child, parent);
        }
        Ok(Tree { share, carries, crown, parents })
    }
    fn link_state(&mut self) -> Result<LinkState, DecodeError> {
        let (rate, rtt) = (BitRate::from_bits_per_second(self.u64()?), Span::from_ns(self.u64()?));
        let loss = Fraction::from_ppb(self.u32()?).ok_or(DecodeError::Invalid("loss"))?;
        let state = LinkState { rate, rtt, loss };
        if state.is_valid() { Ok(state) } else { Err(DecodeError::Invalid("link")) }
    }
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
