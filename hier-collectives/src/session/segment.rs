//! One tree's part of a collective, segment by segment.

use super::action::{Buffer, Input, LeaseId, View};
use crate::ids::GatewayId;
use crate::plan::{Operation, Phases, Role, Tree, Upstream};
use crate::shard::Part;
use std::collections::{BTreeMap, BTreeSet};

/// A tree's part under way.
#[derive(Debug)]
pub(super) struct PartState {
    pub part: Part,
    pub role: Role,
    pub phases: Phases,
    /// The root's results are those of the part before it.
    pub follows: bool,
    pub segments: Vec<Segment>,
    /// The first segment whose local reduction has not started.
    pub next_local: u32,
    /// The first segment whose local partial is not there yet.
    pub local_prefix: u32,
    /// The first segment without a result.
    pub result_prefix: u32,
    /// The first segment that holds memory of ours, or may come to.
    pub done_prefix: u32,
    /// Per peer that we send to: how far we are, what it holds.
    pub out: BTreeMap<GatewayId, Outbound>,
    /// Segments in place on every local rank.
    pub delivered: u32,
}

/// What a collective does along a tree.
#[derive(Debug, Clone, Copy)]
pub(super) struct Task {
    phases: Phases,
    follows: bool,
}

impl Task {
    pub fn of(operation: Operation, tree: &Tree) -> Self {
        let phases = operation.along(tree);
        let follows = phases.down && !phases.up && operation.goes_up();
        Self { phases, follows }
    }
}

/// The state of one segment. `None` means not there yet.
#[derive(Debug, Default, Clone)]
pub(super) struct Segment {
    /// The local ranks' partial.
    pub local: Option<Input>,
    /// The partial of the whole subtree, as it goes up or across.
    pub partial: Option<Input>,
    /// The result is in the first slot for it; where none is due, the partial is handed over.
    pub result: bool,
    /// A job that makes the partial or the result is under way.
    pub combining: bool,
    /// Receipts not in yet.
    pub receipts_due: u16,
    /// Those of them that are for its partial.
    pub partial_due: u16,
    /// Scratch of ours to release once the result is in, and the receipts for the partial.
    pub scratch: Vec<View>,
}

/// What goes to one peer.
#[derive(Debug)]
pub(super) struct Outbound {
    pub what: Outgoing,
    pub next: u32,
    /// Those given out that no receipt has come for.
    pub due: BTreeSet<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outgoing {
    Partial,
    Result,
}

/// What came, or is coming, from one peer for one segment.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    /// Streams that may write now.
    pub leases: BTreeSet<LeaseId>,
    /// Where the bytes are; `None` when they were combined straight into the result.
    pub landed_in: Option<View>,
    pub landed: bool,
    pub receipted: bool,
    /// Charged to the peer's early room.
    pub early_bytes: u64,
    pub bytes: u32,
    pub digest: u64,
    pub weight: f64,
    /// Its payload may be restored from parity, so that it must land as it is.
    pub parity: bool,
    #[cfg(feature = "mutants")]
    pub tried: bool,
}

impl Incoming {
    /// What every header of it says: payload bytes, digest, and whether there is parity.
    pub fn shape(&self) -> (u32, u64, bool) {
        (self.bytes, self.digest, self.parity)
    }
}

impl Segment {
    /// Whether it will need no memory of ours any more.
    fn is_done(&self) -> bool {
        self.result && self.partial_due == 0
    }
}

impl PartState {
    pub fn new(part: Part, role: Role, task: Task, me: GatewayId) -> Self {
        let Task { phases, follows } = task;
        let part = if phases.up || phases.down { part } else { part.emptied() };
        let mut out = BTreeMap::new();
        let mut add = |peer, what| {
            out.insert(peer, Outbound { what, next: 0, due: BTreeSet::new() });
        };
        match &role.upstream {
            Upstream::Parent(parent) if phases.up => add(*parent, Outgoing::Partial),
            Upstream::RootSet(roots) if phases.up => {
                roots.iter().filter(|id| **id != me).for_each(|id| add(*id, Outgoing::Partial));
            }
            Upstream::Parent(_) | Upstream::RootSet(_) => {}
        }
        if phases.down {
            role.children.iter().for_each(|child| add(*child, Outgoing::Result));
        }
        let due = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
        let partials = out.values().filter(|outbound| outbound.what == Outgoing::Partial);
        let (receipts_due, partial_due) = (due(out.len()), due(partials.count()));
        let segment = Segment { receipts_due, partial_due, ..Segment::default() };
        let part_segments = part.segments();
        let segments = vec![segment; usize::try_from(part_segments).unwrap_or(0)];
        Self {
            part,
            role,
            phases,
            follows,
            // What follows is no rank's own.
            next_local: if follows { part_segments } else { 0 },
            segments,
            local_prefix: 0,
            result_prefix: 0,
            done_prefix: 0,
            out,
            delivered: 0,
        }
    }

    /// Whether the result is made here: for its own tree, or for that of the part behind it.
    pub fn is_top(&self) -> bool {
        matches!(self.role.upstream, Upstream::RootSet(_))
    }

    /// Whether the partial goes up for good: no result comes down for it along this tree.
    pub fn only_hands_up(&self) -> bool {
        !self.phases.down && matches!(self.role.upstream, Upstream::Parent(_))
    }

    pub fn count(&self) -> u32 {
        u32::try_from(self.segments.len()).unwrap_or(u32::MAX)
    }

    /// What a segment held, when it is done.
    pub fn take_done(&mut self, index: u32) -> Vec<View> {
        let segment = self.segment(index);
        if !segment.is_done() {
            return vec![];
        }
        let scratch = std::mem::take(&mut segment.scratch);
        let more = self.segments[self.done_prefix as usize..].iter();
        let done = more.take_while(|segment| segment.is_done()).count();
        self.done_prefix += u32::try_from(done).unwrap_or(0);
        scratch
    }

    pub fn segment(&mut self, index: u32) -> &mut Segment {
        &mut self.segments[index as usize]
    }

    /// The peers whose input a segment's own reduction takes: children when it makes the
    /// partial, root set members when it makes the result.
    pub fn remote_operands(&self, me: GatewayId) -> Vec<GatewayId> {
        match &self.role.upstream {
            _ if !self.phases.up => vec![],
            Upstream::RootSet(roots) if roots.len() > 1 => {
                roots.iter().copied().filter(|id| *id != me).collect()
            }
            Upstream::RootSet(_) => self.role.children.clone(),
            Upstream::Parent(_) => vec![],
        }
    }

    /// The single remote operand of the result, when the other operand is one buffer here:
    /// then arriving bytes are combined straight into the result.
    pub fn streams_from(&self, me: GatewayId) -> Option<GatewayId> {
        match self.remote_operands(me)[..] {
            [peer] => Some(peer),
            _ => None,
        }
    }

    /// Whether the partial is more than the local ranks' and needs a reduction of its own.
    pub fn needs_partial_job(&self) -> bool {
        let root = matches!(&self.role.upstream, Upstream::RootSet(roots) if roots.len() == 1);
        self.phases.up && !root && !self.role.children.is_empty()
    }

    /// The operand with which a streamed segment is combined, once it is there.
    pub fn streaming_operand(&self, index: u32) -> Option<&Input> {
        self.segments[index as usize].partial.as_ref()
    }

    pub fn expects_from(&self, peer: GatewayId, me: GatewayId) -> bool {
        match &self.role.upstream {
            Upstream::Parent(parent) if *parent == peer => self.phases.down,
            Upstream::RootSet(roots) if peer != me && roots.contains(&peer) => self.phases.up,
            _ => self.phases.up && self.role.children.contains(&peer),
        }
    }

    /// Whether the peer's segments wait here for those of others; our own do where they are made
    /// of others' and wait for results.
    pub fn waits_with(&self, peer: GatewayId, me: GatewayId) -> bool {
        if peer == me {
            return self.needs_partial_job();
        }
        self.expects_from(peer, me)
            && !self.comes_down_from(peer)
            && self.streams_from(me) != Some(peer)
    }

    /// The first segment of a peer's, or of our own, that waits or may come to wait.
    pub fn waits_from(&self, peer: GatewayId, me: GatewayId) -> u32 {
        if peer == me { self.done_prefix } else { self.result_prefix }
    }

    pub fn comes_down_from(&self, peer: GatewayId) -> bool {
        self.phases.down && self.role.upstream == Upstream::Parent(peer)
    }

    pub fn view(&self, index: u32, buffer: Buffer) -> View {
        View { buffer, range: self.part.segment(index) }
    }
}
