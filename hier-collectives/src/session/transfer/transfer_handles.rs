//! The numbers of leases, tasks and scratch buffers that are in use.

use crate::ids::GatewayId;
use crate::mutant::{self, Mutant};
use crate::session::action::{Buffer, BufferView, LeaseId, ScratchId, TaskId};
use crate::wire::SegmentKey;
use std::collections::BTreeMap;

/// The purpose of a task that the gateway's engine carries out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReduceTask {
    /// Makes the partial of several local ranks.
    Local,
    /// Makes the partial of a subtree.
    Partial,
    /// Makes the result in the first local rank's slot.
    Result,
    /// Copies the result to the other local ranks.
    Deliver,
}

/// Names given to the gateway's engine: tasks, leases and scratch.
#[derive(Debug, Default)]
pub(super) struct TransferHandles {
    last: u64,
    tasks: BTreeMap<TaskId, (SegmentKey, ReduceTask)>,
    leases: BTreeMap<LeaseId, (GatewayId, SegmentKey)>,
}

impl TransferHandles {
    /// Returns a number that no task, lease or scratch has had.
    fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Returns a name for a new lease.
    pub fn new_lease_id(&mut self) -> LeaseId {
        LeaseId(self.next_number())
    }

    /// Whether no task and no lease is held.
    #[cfg(test)]
    pub fn are_free(&self) -> bool {
        self.tasks.is_empty() && self.leases.is_empty()
    }

    /// Registers a lease of a peer's stream on one segment.
    pub fn hold_lease(&mut self, lease: LeaseId, from: GatewayId, key: SegmentKey) {
        self.leases.insert(lease, (from, key));
    }

    /// Whether a lease is registered.
    pub fn holds_lease(&self, lease: LeaseId) -> bool {
        self.leases.contains_key(&lease)
    }

    /// Ends a lease. Returns the peer and segment of its stream; none if the lease is not
    /// registered.
    pub fn end_lease(&mut self, lease: LeaseId) -> Option<(GatewayId, SegmentKey)> {
        self.leases.remove(&lease)
    }

    /// Registers a task on one segment and returns its name.
    pub fn begin_task(&mut self, key: SegmentKey, task: ReduceTask) -> TaskId {
        let id = TaskId(self.next_number());
        self.tasks.insert(id, (key, task));
        id
    }

    /// Ends a task. Returns its segment and purpose; none if the task is not registered.
    pub fn end_task(&mut self, id: TaskId) -> Option<(SegmentKey, ReduceTask)> {
        self.tasks.remove(&id)
    }

    /// Names new gateway memory of so many bytes.
    pub fn new_scratch(&mut self, bytes: u64) -> BufferView {
        BufferView { buffer: Buffer::Scratch(ScratchId(self.next_number())), range: 0..bytes }
    }

    /// Names new gateway memory, in which a segment lands before a task adds it.
    pub fn new_landing_scratch(&mut self, bytes: u64) -> BufferView {
        if mutant::is_mutant_active(Mutant::ShareLanding) {
            let shared = Buffer::Scratch(ScratchId(u64::MAX - bytes));
            return BufferView { buffer: shared, range: 0..bytes };
        }
        self.new_scratch(bytes)
    }
}
