//! One attached rank: it attaches, attaches again, and meets all other ranks.
//!
//! All groups of the rank share it. Threads of the program call it. It is detached once the last of its
//! groups is dropped.

use crate::call_error::CallError;
use crate::call_status::CallStatus;
use crate::connect_settings::ConnectSettings;
use crate::rank_memory::{RankMemory, RankMemoryBuffers};
use crate::rank_poster::{CollectiveCall, RankPoster};
use crate::waits::{PostingTurn, time_left};
use crate::worker::Worker;
use gateway::client::{AttachOptions, Client, CollectiveSpec};
use gateway::lock::lock_ignoring_poison;
use hier_collectives::descriptor::{Counts, Dtype, Pattern, ReduceOp};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// 100 ms: the pause of a rank between two attempts to meet all other ranks at a barrier. An epoch
/// takes about 100 ms to end. A deadline within this pause ends the attempts.
const MEET_PAUSE: Duration = Duration::from_millis(100);
/// 2 s: how long after a barrier's timeout a rank still waits for its gateway to report the
/// timeout. A running gateway does so by then, as docs/failures.md says. After that time the call
/// fails, since no gateway answers.
const TIMEOUT_REPORT_DELAY_MAX: Duration = Duration::from_secs(2);

/// An attached rank.
pub struct AttachedRank {
    attach: AttachOptions,
    /// The turn of a thread that posts a collective of the job, or recovers.
    pub posting_turn: PostingTurn,
    /// The client of the job, which another attachment replaces.
    job: Mutex<Client>,
    /// Memory and thread of the rank, which end after all clients.
    pub poster: RankPoster,
}

impl AttachedRank {
    /// Attaches a rank to its gateway by `settings`, and waits until all ranks of the job have
    /// attached.
    ///
    /// # Errors
    /// The rank is not attached.
    pub fn connect(settings: ConnectSettings) -> Result<Self, CallError> {
        let ConnectSettings { address, world_size, attach } = settings;
        let deadline = Instant::now().checked_add(attach.gateway_timeout.duration());
        let worker = Worker::start()?;
        let options = attach.clone();
        let attaching = async move { Client::attach(&address, options).await };
        let job = worker.run(attaching)??;
        let size = job.world_size();
        if let Some(wanted) = world_size.filter(|wanted| *wanted != size) {
            let text = format!(
                "gateway and program have different fabrics: {size} ranks at the gateway, \
                 {wanted} in the config"
            );
            return Err(CallError::new(CallStatus::Refused, text));
        }
        let start = job.reserve(0)?.address() as usize;
        let bytes = usize::try_from(attach.arena_bytes).unwrap_or(usize::MAX);
        let memory = RankMemory::new(start..start.saturating_add(bytes));
        let poster = RankPoster { owner: std::process::id(), memory, worker };
        let (posting_turn, job) = (PostingTurn::default(), Mutex::new(job));
        let rank = Self { attach, posting_turn, job, poster };
        rank.meet_all_ranks(deadline)?;
        Ok(rank)
    }

    /// Returns the client of the job that the current attachment of the rank has made.
    pub fn job(&self) -> Client {
        lock_ignoring_poison(&self.job).clone()
    }

    /// Waits until all ranks are ready to begin a step again, and attaches this rank anew where its
    /// connection or an agreed epoch stands in the way. Other threads wait with their posts.
    ///
    /// # Errors
    /// Some rank is not ready by `deadline`, or never will be; or another thread posts until then.
    pub fn recover(&self, deadline: Option<Instant>) -> Result<(), CallError> {
        let _posting = self.posting_turn.take(deadline)?;
        self.meet_all_ranks(deadline)
    }

    /// Attaches again if the connection or an agreed epoch stands in the way. Then meets all ranks
    /// at a barrier of an epoch in which none has posted before. Tries again after a failure,
    /// unless posts are at fault or `deadline` is near.
    fn meet_all_ranks(&self, deadline: Option<Instant>) -> Result<(), CallError> {
        loop {
            let job = self.job();
            // An epoch in which this rank may have posted ends when the rank attaches again.
            if job.disconnect_reason().is_some() || job.is_epoch_agreed() {
                self.attach_again(job, deadline)?;
            }
            self.job().agree_to_epoch();
            let Err(error) = self.meet_at_barrier(deadline) else { return Ok(()) };
            let is_late = deadline.is_some_and(|deadline| Instant::now() + MEET_PAUSE >= deadline);
            if error.status.is_fault_of_posts() || is_late {
                return Err(error);
            }
            std::thread::sleep(MEET_PAUSE);
        }
    }

    /// Attaches again, with the same arena, and replaces the client of the job. Tries until
    /// `deadline` while the gateway does not answer.
    fn attach_again(&self, job: Client, deadline: Option<Instant>) -> Result<(), CallError> {
        let left = time_left(deadline);
        let options =
            AttachOptions { gateway_timeout: left, epoch_timeout: left, ..self.attach.clone() };
        let attaching = async move { job.attach_again(options).await };
        let attached = self.poster.worker.run(attaching)??;
        *lock_ignoring_poison(&self.job) = attached;
        Ok(())
    }

    /// Waits at a barrier of the job until every rank has come to it, until `deadline` at most.
    fn meet_at_barrier(&self, deadline: Option<Instant>) -> Result<(), CallError> {
        let spec = CollectiveSpec {
            timeout: time_left(deadline),
            ..CollectiveSpec::new(Pattern::Barrier, ReduceOp::Sum)
        };
        let buffers = RankMemoryBuffers::empty(Dtype::U8);
        let call = CollectiveCall { spec, counts: Counts::Even, buffers };
        let patience = deadline.and_then(|at| at.checked_add(TIMEOUT_REPORT_DELAY_MAX));
        let posted = self.poster.post(&self.job(), call, deadline)?;
        posted.wait(patience).map_err(|error| match error.status {
            CallStatus::WaitTimeout => {
                let text = "the gateway does not answer; is it stopped, or its host overloaded?";
                CallError::new(CallStatus::NoGateway, text)
            }
            _ => error,
        })
    }
}
