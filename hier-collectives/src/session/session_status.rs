//! The state of a session: its fabric, plan and drain, and snapshots of the work that it waits for.

use super::collective::commits::PendingCommit;
use super::collective::live_collective::{LiveCollective, Phase};
use super::collective::local_rank::LocalRank;
use super::session_events::Session;
use super::session_progress::SessionProgress;
use super::transfer::missing::MissingBytes;
use crate::descriptor::Descriptor;
use crate::ids::{Epoch, GatewayId, RankId, Sequence, Step};
use crate::plan::{PayloadFlows, Plan};
use crate::topology::Fabric;
use units::TimeNs;

/// A snapshot of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionStatus {
    /// The last epoch this gateway was in.
    pub epoch: Epoch,
    /// The plan, while the epoch lives.
    pub plan: Option<Plan>,
    /// Every other gateway.
    pub peers: Vec<PeerStatus>,
    /// Local ranks, and whether each is attached.
    pub ranks: Vec<(RankId, bool)>,
    /// Collectives under way, oldest first.
    pub collectives: Vec<CollectiveStatus>,
    /// Commits that wait.
    pub commits: Vec<CommitStatus>,
    /// Set while this gateway shuts down in order.
    pub draining: Option<DrainStatus>,
}

/// The work that a drain waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainStatus {
    /// The time when it ends at the latest.
    pub until: TimeNs,
    /// Collectives that are to be finished.
    pub collectives: Vec<Sequence>,
    /// Ranks that commit their steps and have not committed the last one.
    pub uncommitted: Vec<RankId>,
}

/// A peer as the session sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerStatus {
    /// The gateway.
    pub gateway: GatewayId,
    /// Whether it can be reached, over other gateways if need be.
    pub up: bool,
    /// Whether it is in our epoch.
    pub ready: bool,
}

/// A collective under way.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectiveStatus {
    /// Its number.
    pub sequence: Sequence,
    /// Its descriptor, once somebody posted it.
    pub descriptor: Option<Descriptor>,
    /// `waiting`, `running`, `ready` or `failed`.
    pub state: &'static str,
    /// Local ranks that have not posted.
    pub awaited_local_ranks: Vec<RankId>,
    /// Gateways some of whose ranks have not posted, as far as is known.
    pub awaited_gateways: Vec<GatewayId>,
    /// Ranks of other gateways that are not known to have posted.
    pub awaited_remote_ranks: Vec<RankId>,
    /// The time of the first post that is known here: since then the rest is awaited.
    pub begun: TimeNs,
}

/// A commit that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitStatus {
    /// The rank that asked.
    pub rank: RankId,
    /// The step.
    pub step: Step,
    /// Gateways that have not reported the step's collectives.
    pub awaited_gateways: Vec<GatewayId>,
    /// The time when the rank asked: since then they are awaited.
    pub begun: TimeNs,
}

impl Session {
    /// Returns a snapshot of the session for status output.
    pub fn status(&self) -> SessionStatus {
        let members = self.epoch.members();
        let peer = |gateway| PeerStatus {
            gateway,
            up: members.is_up(gateway),
            ready: self.epoch.has_member(gateway),
        };
        let collectives = self.collectives.iter();
        SessionStatus {
            epoch: self.epoch.number(),
            plan: self.epoch.plan().cloned(),
            peers: members.peer_ids().map(peer).collect(),
            ranks: self
                .collectives
                .local_ranks()
                .map(|(rank, local)| (rank, local.attached))
                .collect(),
            collectives: collectives
                .map(|(sequence, c)| self.collective_status(sequence, c))
                .collect(),
            commits: self
                .commits
                .pending()
                .map(|(rank, commit)| self.commit_status(rank, commit))
                .chain(self.in_doubt_statuses())
                .collect(),
            draining: self.drain_status(),
        }
    }

    /// Builds the status of a collective under way.
    fn collective_status(
        &self,
        sequence: Sequence,
        collective: &LiveCollective,
    ) -> CollectiveStatus {
        CollectiveStatus {
            sequence,
            descriptor: collective.descriptor.map(|(_, descriptor)| descriptor),
            state: match collective.phase {
                Phase::Waiting => "waiting",
                Phase::Running => "running",
                Phase::Ready | Phase::Leaving => "ready",
                Phase::Failing | Phase::Failed => "failed",
            },
            awaited_local_ranks: self.collectives.awaited_local_ranks(collective),
            awaited_gateways: self.collectives.awaited_gateways(collective, &self.epoch),
            awaited_remote_ranks: self.collectives.awaited_remote_ranks(collective, &self.epoch),
            begun: collective.begun.unwrap_or_default(),
        }
    }

    /// Builds the status of a commit that waits.
    fn commit_status(&self, rank: RankId, commit: &PendingCommit) -> CommitStatus {
        CommitStatus {
            rank,
            step: commit.step,
            awaited_gateways: self.commits.unreported_gateways(&commit.range, self.epoch.local()),
            begun: commit.begun,
        }
    }

    /// Builds the statuses of commits in doubt, which wait for all gateways in the next epoch.
    fn in_doubt_statuses(&self) -> impl Iterator<Item = CommitStatus> {
        let peers = self.epoch.members().peer_ids();
        let awaited: Vec<GatewayId> = peers.filter(|id| !self.epoch.has_member(*id)).collect();
        self.in_doubt.pending().filter_map(move |(number, commit)| {
            Some(CommitStatus {
                rank: self.fabric().rank_numbered(number)?,
                step: commit.step,
                awaited_gateways: awaited.clone(),
                begun: commit.begun,
            })
        })
    }

    /// Builds the status of a drain and of the work that it waits for; none without a drain.
    fn drain_status(&self) -> Option<DrainStatus> {
        let until = self.epoch.drain_end()?;
        let ranks = self.collectives.local_ranks();
        let owing = ranks
            .filter(|(rank, posts)| self.commits.is_commit_due(*rank, posts, &self.collectives));
        Some(DrainStatus {
            until,
            collectives: self.collectives.unfinished().collect(),
            uncommitted: owing.map(|(rank, _)| rank).collect(),
        })
    }

    /// Returns the bytes of a collective under way for which this gateway waits, by peer; none for a
    /// collective that has not started. It looks at every segment.
    pub fn missing_bytes(&self, sequence: Sequence) -> Vec<MissingBytes> {
        let peers = self.epoch.members().peer_ids();
        self.transfer.missing_bytes(peers, sequence, self.epoch.local().id())
    }

    /// Returns the fabric of the session's job or group.
    pub fn fabric(&self) -> &Fabric {
        self.epoch.local().fabric()
    }

    /// Returns the number of the last epoch that this session was in.
    pub fn epoch_number(&self) -> Epoch {
        self.epoch.number()
    }

    /// Whether no collective is under way, so that nothing uses memory or streams.
    pub fn is_idle(&self) -> bool {
        self.collectives.is_empty()
    }

    /// Returns the plan in force; `None` outside an epoch.
    pub fn plan(&self) -> Option<&Plan> {
        self.epoch.plan()
    }

    /// Returns the bytes that the large operations under way, or the last ones, send between gateways
    /// on a nominal buffer; `None` outside an epoch.
    pub fn traffic_flows(&self) -> Option<PayloadFlows> {
        let plans = self.epoch.plans()?;
        Some(plans.mixed_flows(self.epoch.local().fabric(), self.transfer.traffic_mix()))
    }

    /// Returns the bytes that the large operations under way send between gateways, once peers have sent
    /// or granted segments; none outside an epoch.
    pub fn moving_flows(&self) -> PayloadFlows {
        let fabric = self.epoch.local().fabric();
        let plans = self.epoch.plans();
        let flows = plans.map(|plans| {
            plans.flows_of_operations(fabric, self.transfer.moving_operations(fabric))
        });
        flows.unwrap_or_default()
    }

    /// Whether nothing is left to do after [`Session::handle_drain`], so that the process may end.
    pub fn is_drained(&self) -> bool {
        let draining = self.epoch.drain_end().is_some();
        draining && !self.epoch.is_active() && self.collectives.is_empty()
    }

    /// Whether a drain has begun.
    pub fn is_draining(&self) -> bool {
        self.epoch.drain_end().is_some()
    }

    /// Returns the time at which a drain ends: time zero when all work is finished, else the
    /// drain's bound. None without a drain, or outside an epoch.
    pub(super) fn drain_deadline(&self) -> Option<TimeNs> {
        let until = self.epoch.drain_end().filter(|_| self.epoch.is_active())?;
        let is_commit_due =
            |(rank, posts)| self.commits.is_commit_due(rank, posts, &self.collectives);
        let done = self.collectives.unfinished().next().is_none()
            && self.commits.is_idle()
            && !self.collectives.local_ranks().any(is_commit_due);
        Some(if done { TimeNs::default() } else { until })
    }

    /// Whether nothing is under way before the boundary of the epoch, or there is no epoch. A rank that
    /// commits steps has then committed the one that ends there.
    pub fn is_at_boundary(&self) -> bool {
        let Some(boundary) = self.epoch.boundary() else { return !self.epoch.is_active() };
        let is_awaited =
            |sequence: &Sequence| sequence.series().is_none() && *sequence < boundary.from;
        let is_commit_awaited = |(rank, posts): (RankId, &LocalRank)| match boundary.ends_step {
            true => posts.attached && !self.commits.has_covered(rank, boundary.from),
            false => self.commits.is_commit_due(rank, posts, &self.collectives),
        };
        self.collectives.unfinished().find(is_awaited).is_none()
            && self.commits.is_idle()
            && !self.collectives.local_ranks().any(is_commit_awaited)
    }

    /// Returns how far the job has come here.
    pub fn progress(&self) -> SessionProgress {
        SessionProgress {
            epoch: self.epoch.number(),
            next: self.collectives.next_sequence(),
            committed: self.commits.committed(),
            prepared: self.commits.prepared().clone(),
            ended: self.epoch.last_end().cloned(),
        }
    }
}
