//! The state of one collective.

use crate::descriptor::{AgreedCounts, Descriptor, KnownCounts};
use crate::ids::{Epoch, GatewayId, RankId, Sequence};
use crate::post::{Failure, Timing};
use crate::wire::Message;
use std::collections::{BTreeMap, BTreeSet};
use units::TimeNs;

/// A collective under way, as far as its ranks are concerned.
#[derive(Debug)]
pub(in crate::session) struct LiveCollective {
    pub epoch: Epoch,
    pub phase: Phase,
    /// The descriptor, and the first rank known to have posted it.
    pub descriptor: Option<(RankId, Descriptor)>,
    /// The counts of its blocks, as far as they are known here.
    pub counts: KnownCounts,
    /// Local ranks that posted, with their weights.
    pub posts: BTreeMap<RankId, f64>,
    /// The time of the first post here, or of the first that a peer announced.
    pub begun: Option<TimeNs>,
    /// Ranks elsewhere that are known to have posted.
    pub announced: BTreeSet<RankId>,
    /// Gateways all of whose ranks are known to have posted.
    pub posted: BTreeSet<GatewayId>,
    /// Gateways not all of whose ranks were known to have posted when the last local rank had.
    pub awaited: Vec<GatewayId>,
    /// The time when the last post anywhere became known.
    pub all_posted_at: Option<TimeNs>,
    /// The time when the first of the posters' timeouts ends.
    pub expiry: Option<TimeNs>,
    pub failure: Option<Failure>,
    pub timing: Timing,
}

/// The phases of a collective on one gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::session) enum Phase {
    /// Some local rank has not posted, or a change of the plan holds the collective back.
    Waiting,
    /// Segments are moving.
    Running,
    /// The result is ready; receipts may be missing.
    Ready,
    /// The result is ready and the epoch over, but streams may still read memory.
    Leaving,
    /// It failed, but something may still touch memory.
    Failing,
    /// It failed, and the ranks that posted were notified.
    Failed,
}

impl LiveCollective {
    /// Creates a collective that no rank has posted.
    pub fn new(epoch: Epoch) -> Self {
        Self {
            epoch,
            phase: Phase::Waiting,
            descriptor: None,
            counts: KnownCounts::default(),
            posts: BTreeMap::new(),
            begun: None,
            announced: BTreeSet::new(),
            posted: BTreeSet::new(),
            awaited: Vec::new(),
            all_posted_at: None,
            expiry: None,
            failure: None,
            timing: Timing::default(),
        }
    }

    /// Builds the announcements of posts, or of the failure, that bring a peer up to date about
    /// this collective. `ranks` is the number of local ranks; without any, the announcement is of a
    /// rank elsewhere.
    pub fn catch_up_messages(&self, sequence: Sequence, ranks: usize) -> Vec<Message> {
        let epoch = self.epoch;
        if let Some(failure) = &self.failure {
            return vec![Message::Fail { epoch, sequence, failure: failure.clone() }];
        }
        let Some((first, descriptor)) = self.descriptor else { return vec![] };
        if ranks == 0 {
            // It asks for receipts that are lost, of a send that is over where it was received.
            let (rank, all, sent) = (first, false, None);
            return vec![Message::Announce { epoch, sequence, rank, descriptor, all, sent }];
        }
        // Once all ranks have posted, one announcement is enough, unless each has its own counts.
        let all = self.posts.len() == ranks;
        let is_one_enough = all && descriptor.counts != AgreedCounts::ByPair;
        let posts = self.posts.keys().take(if is_one_enough { 1 } else { usize::MAX });
        let announce = |rank: &RankId| {
            let (rank, sent) = (*rank, self.counts.sent_by(*rank).cloned());
            Message::Announce { epoch, sequence, rank, descriptor, all, sent }
        };
        posts.map(announce).collect()
    }

    /// Describes in words what the ranks' buffers hold if the collective ends now.
    pub fn buffer_state_text(&self) -> &'static str {
        match self.phase {
            Phase::Ready | Phase::Leaving => "result ready here",
            _ => "contributions intact",
        }
    }
}
