//! One collective's state.

use super::LocalRank;
use super::action::Buffer;
use super::segment::{Incoming, PartState};
use crate::descriptor::{Descriptor, Pattern};
use crate::ids::{Epoch, GatewayId, RankId, SegmentIndex, Sequence, TreeIndex};
use crate::post::{Failure, Timing};
use crate::size_class::SizeClass;
use crate::wire::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use units::TimeNs;

#[derive(Debug)]
pub(super) struct Collective {
    pub epoch: Epoch,
    pub phase: Phase,
    /// The shape, and the first rank known to have posted it.
    pub descriptor: Option<(RankId, Descriptor)>,
    /// Local ranks that posted, with their weights.
    pub posts: BTreeMap<RankId, f64>,
    /// The first post here, or the first that a peer told of.
    pub begun: Option<TimeNs>,
    /// Ranks elsewhere that are known to have posted.
    pub announced: BTreeSet<RankId>,
    /// Gateways all of whose ranks are known to have posted.
    pub posted: BTreeSet<GatewayId>,
    /// When the last post anywhere became known.
    pub complete: Option<TimeNs>,
    /// When the first of the posters' timeouts ends.
    pub expiry: Option<TimeNs>,
    pub failure: Option<Failure>,
    pub timing: Timing,
    pub parts: Vec<PartState>,
    pub incoming: BTreeMap<(GatewayId, TreeIndex, SegmentIndex), Incoming>,
    /// What peers allow us to send.
    pub grants: BTreeMap<(GatewayId, TreeIndex), u32>,
    /// What we allowed them.
    pub granted: BTreeMap<(GatewayId, TreeIndex), u32>,
    /// Jobs and leases that may touch memory.
    pub busy: u32,
    /// Streams out are being stopped, and may still read memory.
    pub cancelling: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Some local rank has not posted.
    Waiting,
    /// Segments are moving.
    Running,
    /// The result is ready; receipts may be missing.
    Ready,
    /// The result is ready and the epoch over, but streams may still read memory.
    Leaving,
    /// Failed, but something may still touch memory.
    Failing,
    /// Failed, and the ranks that posted were told.
    Failed,
}

impl Collective {
    pub fn new(epoch: Epoch) -> Self {
        Self {
            epoch,
            phase: Phase::Waiting,
            descriptor: None,
            posts: BTreeMap::new(),
            begun: None,
            announced: BTreeSet::new(),
            posted: BTreeSet::new(),
            complete: None,
            expiry: None,
            failure: None,
            timing: Timing::default(),
            parts: Vec::new(),
            incoming: BTreeMap::new(),
            grants: BTreeMap::new(),
            granted: BTreeMap::new(),
            busy: 0,
            cancelling: false,
        }
    }

    /// The class of its buffer; that of large ones until it is known.
    pub fn class(&self) -> SizeClass {
        self.descriptor.map_or(SizeClass::Large, |(_, descriptor)| descriptor.size_class())
    }

    /// The bytes of subtrees' partials that are held here, or may come to be.
    pub fn held_on_the_way(&self, me: GatewayId) -> u64 {
        let held = |part: &PartState| {
            let done = part.waits_from(me, me);
            let rest = if done < part.count() { part.part.segment(done).start } else { u64::MAX };
            part.part.range.end.saturating_sub(rest)
        };
        self.parts.iter().filter(|part| part.waits_with(me, me)).map(held).sum()
    }

    /// Everything a peer should know of this collective.
    pub fn facts_for(
        &self,
        peer: GatewayId,
        sequence: Sequence,
        ranks: &BTreeMap<RankId, LocalRank>,
    ) -> Vec<Message> {
        let epoch = self.epoch;
        if let Some(failure) = &self.failure {
            return vec![Message::Fail { epoch, sequence, failure: failure.clone() }];
        }
        let mut facts = Vec::new();
        if let Some((_, descriptor)) = self.descriptor {
            // Of all of them one says as much as each would.
            let all = self.posts.len() == ranks.len();
            let posts = self.posts.keys().take(if all { 1 } else { usize::MAX });
            facts.extend(posts.map(|rank| {
                let rank = *rank;
                Message::Announce { epoch, sequence, rank, descriptor, all }
            }));
        }
        for ((to, tree), limit) in &self.granted {
            if *to == peer {
                facts.push(Message::Grant { epoch, sequence, tree: *tree, limit: *limit });
            }
        }
        facts.extend(self.receipted(peer).into_iter().map(|(tree, segments)| Message::Receipt {
            epoch,
            sequence,
            tree,
            segments,
        }));
        facts
    }

    /// What came from a peer and has its receipt: a few ranges of each tree, however much it is.
    fn receipted(&self, peer: GatewayId) -> Vec<(TreeIndex, Range<u32>)> {
        let mut ranges: Vec<(TreeIndex, Range<u32>)> = Vec::new();
        let theirs = self.incoming.iter().filter(|((from, ..), i)| *from == peer && i.receipted);
        for ((_, tree, SegmentIndex(segment)), _) in theirs {
            match ranges.last_mut() {
                Some((last, range)) if last == tree && range.end == *segment => range.end += 1,
                _ => ranges.push((*tree, *segment..segment.saturating_add(1))),
            }
        }
        ranges
    }

    /// Local ranks that get the result; it is made in the first one's slot.
    pub fn result_ranks(&self) -> Vec<RankId> {
        match self.descriptor.map(|(_, descriptor)| descriptor.pattern) {
            Some(Pattern::Reduce { to }) => {
                self.posts.contains_key(&to).then_some(to).into_iter().collect()
            }
            _ => self.posts.keys().copied().collect(),
        }
    }

    /// The slot in which the result is made; nothing is made where no local rank gets it.
    pub fn result_slot(&self, sequence: Sequence) -> Buffer {
        Buffer::Result(sequence, self.result_ranks().first().copied().unwrap_or_default())
    }

    /// All local ranks posted and all parts stand in every local result slot.
    pub fn is_delivered(&self) -> bool {
        self.phase == Phase::Running
            && self.busy == 0
            && self.parts.iter().all(|part| part.delivered == part.count())
    }

    /// Whether something was given out to be sent that no receipt has come for.
    pub fn sends_due(&self) -> bool {
        let outs = self.parts.iter().flat_map(|part| part.out.values());
        outs.into_iter().any(|out| !out.due.is_empty())
    }

    /// What the buffers of local ranks hold if it ends now, in words.
    pub fn buffers(&self) -> &'static str {
        match self.phase {
            Phase::Ready | Phase::Leaving => "result ready here",
            _ => "contributions intact",
        }
    }

    pub fn receipts_due(&self) -> bool {
        let due = |part: &PartState| part.segments.iter().any(|s| s.receipts_due > 0);
        self.parts.iter().any(due)
    }
}
