//! A collective begins: local contributions become local partials, in order.

use super::segment::{Incoming, PartState, Task};
use super::*;
use crate::descriptor::Pattern;
use crate::ids::{SegmentIndex, TreeIndex};
use crate::plan::Operation;
use crate::post::Timing;
use crate::shard;
use crate::size_class::SizeClass;

impl Session {
    /// Starts a collective that every local rank has posted.
    pub(super) fn activate_if_posted(&mut self, sequence: Sequence, now: TimeNs) {
        let (Some(active), Some(collective)) = (&self.active, self.live.get(&sequence)) else {
            return;
        };
        if collective.failure.is_some() || collective.posts.len() < self.ranks.len() {
            return;
        }
        let Some((_, descriptor)) = collective.descriptor else {
            return;
        };
        let me = self.config.me;
        if self.is_held(sequence) {
            return;
        }
        let parts = self.parts_of((active, sequence), &descriptor);
        let Some(collective) = self.live.get_mut(&sequence) else { return };
        collective.parts = parts;
        collective.phase = Phase::Running;
        collective.timing = Timing { posted: now, ..Timing::default() };
        self.note_if_complete(sequence, now);
        let digest = descriptor.digest();
        self.drop_other_shapes(sequence, digest);
        let Some(collective) = self.live.get(&sequence) else { return };
        if let Some(from) = misfit(collective, me) {
            let text = format!(
                "collective {sequence}: gateway {} sent segments of another shape",
                self.gateway_name(from)
            );
            return self.fail(sequence, Failure::new(FailureCode::Disagreement, text), None, now);
        }
        self.start_locals(now);
        let arrived: Vec<_> = self
            .live
            .get(&sequence)
            .into_iter()
            .flat_map(|c| &c.incoming)
            .filter(|(_, incoming)| incoming.landed)
            .map(|((_, tree, segment), _)| SegmentKey { sequence, tree: *tree, segment: *segment })
            .collect();
        for key in arrived {
            self.advance(key, now);
        }
        self.send_everywhere(now);
        self.settle(sequence, now);
    }

    /// What this gateway does for a collective, tree by tree. Who alone gives or gets stands at
    /// the top of all trees.
    pub(super) fn parts_of(
        &self,
        (active, sequence): (&Active, Sequence),
        descriptor: &Descriptor,
    ) -> Vec<PartState> {
        let me = self.config.me;
        let (plan, roles) = active.plan_of(sequence);
        let parts = shard::parts(plan, descriptor.bytes()).into_iter();
        let operation = descriptor.pattern.over(&self.config.fabric);
        let operation = operation.unwrap_or(Operation::AllReduce);
        let roles = match operation {
            Operation::AllReduce | Operation::Barrier => roles.to_vec(),
            rooted => plan.rooted_for(rooted).roles(me),
        };
        let tasks = plan.trees.iter().map(|tree| Task::of(operation, tree));
        let parts = parts.zip(tasks).zip(roles);
        parts.map(|((part, task), role)| PartState::new(part, role, task, me)).collect()
    }

    /// Forgets what came early under another descriptor: the announcement that says in what it
    /// differs, and fails the collective, is on its way.
    fn drop_other_shapes(&mut self, sequence: Sequence, digest: u64) {
        let Some(collective) = self.live.get_mut(&sequence) else { return };
        let strange = |incoming: &Incoming| incoming.digest != digest;
        for ((from, _, _), incoming) in
            collective.incoming.extract_if(.., |_, incoming| strange(incoming))
        {
            for lease in incoming.leases {
                self.core.actions.push_back(Action::CancelLease(lease));
            }
            if let Some(view) = &incoming.landed_in {
                self.core.release(view);
            }
            if let Some(peer) = self.peers.get_mut(&from) {
                peer.early_in -= incoming.early_bytes;
            }
        }
    }

    /// Starts local reductions in order, as far as the memory for partials goes. A single
    /// local rank's contribution is the partial: nothing to do, nothing to hold.
    ///
    /// No two gateways wait for each other's memory, since the order is the same on all: a lower
    /// sequence first, then what is less far into its tree's part. All gateways cut the buffer
    /// into the same parts, whatever they do in a tree. So take the first segment of all that
    /// some gateway has not released: all before it are released everywhere, and none behind it
    /// is started where it waits for room itself. There the memory is empty, and takes it.
    ///
    /// Each class has an order, and memory, of its own: so a small operation does not wait for all of a
    /// large one to be started, and no class can hold what another waits for.
    pub(super) fn start_locals(&mut self, now: TimeNs) {
        let running = self.live.iter().filter(|(_, c)| c.phase == Phase::Running);
        let running: Vec<_> = running.map(|(sequence, c)| (*sequence, c.class())).collect();
        for class in SizeClass::ALL {
            let budget = class.partials(self.config.partials.get());
            'class: for (sequence, _) in running.iter().filter(|(_, of)| *of == class) {
                while let Some(tree) =
                    self.live.get(sequence).and_then(|c| next_local_tree(&c.parts))
                {
                    // Never a later one instead: each could hold what another waits for.
                    if !self.start_local(*sequence, tree, budget, now) {
                        break 'class;
                    }
                }
            }
        }
    }

    /// Starts the next local reduction of a tree; false when there is no room for it.
    fn start_local(
        &mut self,
        sequence: Sequence,
        tree: TreeIndex,
        budget: u64,
        now: TimeNs,
    ) -> bool {
        let Some(collective) = self.live.get_mut(&sequence) else { return false };
        let Some((_, descriptor)) = collective.descriptor else { return false };
        let (slot, class) = (collective.result_slot(sequence), collective.class());
        let part = &mut collective.parts[usize::from(tree.0)];
        let index = part.next_local;
        let key = SegmentKey { sequence, tree, segment: SegmentIndex(index) };
        if let Pattern::Broadcast { from } = descriptor.pattern {
            part.next_local += 1;
            if collective.posts.contains_key(&from) {
                let from = part.view(index, Buffer::Contribution(sequence, from));
                let to = part.view(index, slot);
                part.segment(index).combining = true;
                collective.busy += 1;
                let job = self.core.job(key, Job::Result);
                self.core.actions.push_back(Action::Copy { job, from, to: vec![to] });
            }
            return true;
        }
        let contribution = |(rank, weight): (&RankId, &f64)| Input {
            view: part.view(index, Buffer::Contribution(sequence, *rank)),
            weight: *weight,
        };
        let mut inputs: Vec<Input> = collective.posts.iter().map(contribution).collect();
        if let [_] = inputs[..] {
            part.next_local += 1;
            part.segment(index).local = inputs.pop();
            self.advance(key, now);
            return true;
        }
        let range = part.part.segment(index);
        let bytes = range.end - range.start;
        let held = &mut self.core.partial_bytes[class as usize];
        if *held > 0 && *held + bytes > budget {
            return false;
        }
        part.next_local += 1;
        *held += bytes;
        let out = self.core.scratch(bytes);
        part.segment(index).scratch.push(out.clone());
        collective.busy += 1;
        let job = self.core.job(key, Job::Local);
        let (op, dtype) = (descriptor.op, descriptor.dtype);
        self.core.actions.push_back(Action::Reduce { job, op, dtype, inputs, out });
        true
    }
}

/// The tree with the next local reduction: the one that is least far into its part, so that all
/// owners' ports are in use at once however little memory there is; of equals the first.
fn next_local_tree(parts: &[PartState]) -> Option<TreeIndex> {
    let under_way = (0..).map(TreeIndex).zip(parts).filter(|(_, p)| p.next_local < p.count());
    let far = |p: &PartState, count: u32| u64::from(p.next_local) * u64::from(count);
    let least = under_way.min_by(|(_, a), (_, b)| far(a, b.count()).cmp(&far(b, a.count())));
    least.map(|(tree, _)| tree)
}

/// A peer that sent, under our descriptor, a segment that the plan does not have.
fn misfit(collective: &Collective, me: GatewayId) -> Option<GatewayId> {
    let misfits =
        |((from, tree, segment), incoming): &(&(GatewayId, TreeIndex, SegmentIndex), &Incoming)| {
            let Some(part) = collective.parts.get(usize::from(tree.0)) else { return true };
            let range = part.part.segment(segment.0);
            segment.0 >= part.count()
                || !part.expects_from(*from, me)
                || range.end - range.start != u64::from(incoming.bytes)
        };
    collective.incoming.iter().find(misfits).map(|((from, _, _), _)| *from)
}
