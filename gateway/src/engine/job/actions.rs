//! Performs the actions that a job's session and its store ask for.
//!
//! Messages and segments go to peers, events to trainers' tasks. Reductions and copies run on the
//! compute threads unless they are short, plans on a blocking thread; each reports back with an
//! event.

use super::Job;
use crate::engine::peers::Peers;
use crate::events::{Event, EventSender};
use crate::host::{Host, INLINE_COMPUTE_BYTES_MAX, Task, TaskPanicked};
use crate::memory::mem_slice::MemSlice;
use crate::wan::stream::trace::trace_segment;
use hier_collectives::bound::LowerBound;
use hier_collectives::ids::Sequence;
use hier_collectives::plan;
use hier_collectives::post::RankEvent;
use hier_collectives::session::{Action, SessionNote, TaskId};
use hier_collectives::store::{StoreAction, StoreCaller};
use hier_collectives::topology::Fabric;
use hier_collectives::wire::Message;
use std::sync::{Arc, OnceLock};
use tokio::sync::oneshot;

/// The parts of the engine that all jobs share.
pub(crate) struct EngineShared {
    pub host: Arc<dyn Host>,
    pub peers: Peers,
    pub events: EventSender,
    /// The lower bound of an all-reduce on the fabric, once it is computed.
    pub bound: Arc<OnceLock<LowerBound>>,
}

impl Job {
    /// Performs every action that the session and the store ask for.
    pub fn perform_actions(&mut self, shared: &EngineShared) {
        loop {
            self.metrics.set_scratch_bytes(self.buffers.scratch_bytes());
            let Some(action) = self.session.poll_action() else { break };
            self.perform_action(action, shared);
        }
        while let Some(action) = self.store.poll_action() {
            match action {
                StoreAction::Message { to, message } => {
                    let message = Message::Store(Box::new(message));
                    shared.peers.send_job_message(to, self.group, &message);
                }
                StoreAction::Answer { caller, answer } => {
                    let StoreCaller { attachment, number } = caller;
                    let event = RankEvent::StoreAnswered { number, answer };
                    self.ranks.notify_attachment(attachment, event);
                }
            }
        }
    }

    /// Performs one action of the session.
    fn perform_action(&mut self, action: Action, shared: &EngineShared) {
        let peers = &shared.peers;
        match action {
            Action::Introduce { to } => {
                peers.send_job_message(to, self.group, &self.introduction());
            }
            Action::Message { to, message } => peers.send_job_message(to, self.group, &message),
            Action::Send { to, header, source, priority, tail } => {
                trace_segment("sent", self.group, to, header.key, u64::from(header.bytes));
                let payload = self.buffers.view_memory(&source);
                peers.queue_segment(to, self.group, (header, priority, tail), payload);
            }
            Action::Reduce { task: id, op, dtype, inputs, out } => {
                let buffers = &mut self.buffers;
                let inputs: Vec<(MemSlice, f64)> = inputs
                    .iter()
                    .map(|input| (buffers.view_memory(&input.view), input.weight))
                    .collect();
                let out = buffers.view_memory(&out);
                let bytes = out.len() * inputs.len() as u64;
                let reduce = move || out.reduce(op, dtype, &inputs);
                self.run_reduction(shared, id, bytes, Box::new(reduce));
            }
            Action::Copy { task: id, from, to } => {
                let from = self.buffers.view_memory(&from);
                let to: Vec<MemSlice> =
                    to.iter().map(|view| self.buffers.view_memory(view)).collect();
                let bytes = from.len() * to.len() as u64;
                let copy = move || to.iter().for_each(|slice| from.copy_to_slice(slice));
                self.run_reduction(shared, id, bytes, Box::new(copy));
            }
            Action::Release(scratch) => self.buffers.release_scratch(scratch),
            Action::Receipted { from, key } => {
                trace_segment("receipted", self.group, from, key, 0);
                peers.handle_receipt(from, self.group, key);
            }
            Action::Cancel(sequence) => {
                let leases = self.leases.values().filter(|lease| lease.sequence == sequence);
                leases.for_each(|lease| lease.cancel.cancel());
                self.cancel_sends(shared, sequence);
            }
            Action::CancelLease(lease) => {
                if let Some(lease) = self.leases.get(&lease) {
                    lease.cancel.cancel();
                }
            }
            Action::Notify { rank, event } => {
                if let RankEvent::ContributionFree { sequence }
                | RankEvent::Failed { sequence, .. } = event
                {
                    self.buffers.remove_slots(sequence, rank);
                }
                self.ranks.notify(rank, event);
            }
            Action::Plan(as_measured) => self.start_planning(shared, as_measured),
            Action::Note(note) => {
                let another = matches!(
                    note,
                    SessionNote::EpochBegan { .. } | SessionNote::PlanChanged { .. }
                );
                if let Some(plan) = self.session.plan().filter(|_| another) {
                    peers.divide_rates(self.group, plan);
                }
                self.report_note(note, shared.bound.get(), shared.host.now());
            }
        }
    }

    /// Stops sending a collective's segments, and tells the session when none is being written.
    fn cancel_sends(&mut self, shared: &EngineShared, sequence: Sequence) {
        let writing = shared.peers.cancel_segments(self.group, sequence);
        if writing.is_empty() {
            return self.session.handle_streams_cancelled(sequence, shared.host.now());
        }
        let (group, events) = (self.group, shared.events.clone());
        shared.host.spawn(Box::pin(async move {
            for released in writing {
                released.cancelled().await;
            }
            let _ = events.send(Event::SendsCancelled { group, sequence }).await;
        }));
    }

    /// Starts to make a plan for the fabric as measured, on a blocking thread, since a large fabric
    /// takes a while. The result comes back as an event.
    fn start_planning(&self, shared: &EngineShared, as_measured: Arc<Fabric>) {
        let (group, events) = (self.group, shared.events.clone());
        let (done, planned) = oneshot::channel();
        let fabric = Arc::clone(&as_measured);
        let planning = shared.host.run_blocking(Box::new(move || {
            let _ = done.send(plan::make_plan(&fabric).ok());
        }));
        shared.host.spawn(Box::pin(async move {
            let event = match planning.await {
                Ok(()) => {
                    let plan = planned.await.ok().flatten();
                    Event::Planned { group, as_measured, plan }
                }
                Err(TaskPanicked) => Event::TaskPanicked,
            };
            let _ = events.send(event).await;
        }));
    }

    /// Runs a reduction or copy that reads `bytes`: at once if it is short, else on a compute
    /// thread.
    fn run_reduction(&mut self, shared: &EngineShared, id: TaskId, bytes: u64, task: Task) {
        if bytes <= INLINE_COMPUTE_BYTES_MAX {
            task();
            return self.session.handle_task_done(id, shared.host.now());
        }
        let done = shared.host.run_compute(task);
        let (group, events) = (self.group, shared.events.clone());
        shared.host.spawn(Box::pin(async move {
            let event = match done.await {
                Ok(()) => Event::ReduceDone { group, task: id },
                Err(TaskPanicked) => Event::TaskPanicked,
            };
            let _ = events.send(event).await;
        }));
    }
}
