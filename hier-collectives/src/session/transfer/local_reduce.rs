//! Local reductions: local contributions become local partials, in order.

use super::part::TransferPart;
use super::transfer_flow::{FlowStage, TransferFlow};
use super::transfer_handles::ReduceTask;
use super::transfer_state::Transfer;
use crate::ids::{SegmentIndex, Sequence, TreeIndex};
use crate::session::action::{Action, ReduceInput};
use crate::session::context::Context;
use crate::size_class::SizeClass;
use crate::wire::SegmentKey;

impl Transfer {
    /// Starts local reductions in order, as far as the memory for partials allows. The contribution
    /// of a single local rank is the partial itself and takes no memory.
    ///
    /// No two gateways wait for each other's memory, since all have the same order: a lower
    /// sequence first, then the segment that is less far into its tree's part. All gateways cut the
    /// buffer into the same parts, whatever they do in a tree. Take the first segment that some
    /// gateway has not released: all before it are released everywhere, and none behind it is
    /// started where it waits for memory itself. There the memory is empty, and takes it.
    ///
    /// Each class has an order and memory of its own. So a small operation does not wait until a
    /// large one has started, and no class can hold memory that another waits for.
    pub fn start_local_reductions(&mut self, cx: &mut Context<'_>) {
        let moving = self.flows.iter().filter(|(_, flow)| flow.stage == FlowStage::Moving);
        let moving: Vec<_> =
            moving.map(|(sequence, flow)| (*sequence, flow.size_class())).collect();
        for class in SizeClass::ALL {
            'class: for (sequence, _) in moving.iter().filter(|(_, of)| *of == class) {
                while let Some(tree) = self.flows.get(sequence).and_then(next_local_reduction_tree)
                {
                    // Never a later one instead: each could hold memory that another waits for.
                    if !self.start_local_reduction(*sequence, tree, cx) {
                        break 'class;
                    }
                }
            }
        }
    }

    /// Starts the next local reduction of a tree. Returns false when there is no memory for its
    /// partial, or bytes of a contribution have not come.
    fn start_local_reduction(
        &mut self,
        sequence: Sequence,
        tree: TreeIndex,
        cx: &mut Context<'_>,
    ) -> bool {
        let Some(flow) = self.flows.get_mut(&sequence) else { return false };
        let class = flow.size_class();
        if !has_next_local_bytes(flow, &flow.parts[usize::from(tree.0)]) {
            return false;
        }
        let TransferFlow { work: Some(work), parts, busy, .. } = flow else { return false };
        let part = &mut parts[usize::from(tree.0)];
        let index = part.next_local;
        let key = SegmentKey { sequence, tree, segment: SegmentIndex(index) };
        let contributions = work.weights.iter().map(|(rank, weight)| ReduceInput {
            view: part.contribution_view(index, sequence, *rank),
            weight: *weight,
        });
        let mut inputs: Vec<ReduceInput> = contributions.collect();
        if let [_] = inputs[..] {
            part.next_local += 1;
            part.segment_mut(index).local = inputs.pop();
            self.advance_segment_tasks(key, cx);
            return true;
        }
        let bytes = part.segment_bytes(index);
        if !self.partials.try_take(class, bytes) {
            return false;
        }
        part.next_local += 1;
        let out = self.handles.new_scratch(bytes);
        part.segment_mut(index).scratch.push(out.clone());
        *busy += 1;
        let task = self.handles.begin_task(key, ReduceTask::Local);
        let (op, dtype) = (work.descriptor.op, work.descriptor.dtype);
        cx.actions.push(Action::Reduce { task, op, dtype, inputs, out });
        true
    }
}

/// Returns the tree whose next local reduction starts: the one that is least far into its part, or
/// `None` when all have started. So all owners' ports are in use at once, however little memory
/// there is. A single contribution takes no memory, so that trees whose bytes have not come are
/// passed over.
fn next_local_reduction_tree(flow: &TransferFlow) -> Option<TreeIndex> {
    let is_next = |part: &TransferPart| {
        part.next_local < part.segment_count()
            && (flow.has_partials() || has_next_local_bytes(flow, part))
    };
    let under_way = (0..).map(TreeIndex).zip(&flow.parts).filter(|(_, part)| is_next(part));
    let far = |p: &TransferPart, count: u32| u64::from(p.next_local) * u64::from(count);
    let least = under_way
        .min_by(|(_, a), (_, b)| far(a, b.segment_count()).cmp(&far(b, a.segment_count())));
    least.map(|(tree, _)| tree)
}

/// Whether the bytes of a part's next local reduction have come, of every local contribution.
fn has_next_local_bytes(flow: &TransferFlow, part: &TransferPart) -> bool {
    let range = part.contribution_range(part.next_local);
    let mut ranks = flow.work.iter().flat_map(|work| work.weights.keys());
    ranks.all(|rank| flow.arriving.has_contribution_bytes(*rank, &range))
}
