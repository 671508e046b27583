//! The arguments of calls that post a collective, and its numbers of elements.

use super::finish_posting_call;
use crate::attached_group::AttachedGroup;
use crate::call_error::CallError;
use crate::ffi::arguments::{
    call_options_argument, count_argument_bytes, counts_argument, group_argument,
};
use crate::ffi::types::CallOptions;
use crate::operation_handle::OperationHandle;
use crate::rank_memory::RankMemoryBuffers;
use crate::rank_poster::CollectiveCall;
use crate::raw::ForeignMemory;
use gateway::client::CollectiveSpec;
use hier_collectives::descriptor::{
    ArrayShape, Counts, Descriptor, Dtype, Pattern, ReduceOp, SlotElements,
};
use hier_collectives::ids::RankId;
use std::ffi::c_void;

/// The arguments that all collectives share, as the caller gave them.
pub(crate) struct PostArguments {
    pub contribution: *const c_void,
    pub result: *mut c_void,
    pub elements: PostArgumentElements,
    pub dtype: Dtype,
    pub op: ReduceOp,
    pub group: *mut AttachedGroup,
    pub options: *const CallOptions,
    pub operation: *mut *mut OperationHandle,
}

/// Numbers of elements of a collective, as the caller gave them.
#[derive(Clone, Copy)]
pub(crate) enum PostArgumentElements {
    /// Those of the whole buffer.
    Whole(usize),
    /// Those of blocks.
    Blocks {
        /// The elements of this rank's block; in an all-to-all those for each rank.
        own: usize,
        /// The elements of each rank's block; NULL where all have as many.
        each: *const usize,
    },
    /// Those of blocks between pairs of ranks.
    Pairs {
        /// The elements for each rank.
        to: *const usize,
        /// The elements from each rank.
        from: *const usize,
    },
}

impl PostArgumentElements {
    /// Returns the elements that all ranks agree on, and the counts that this rank posts.
    ///
    /// # Errors
    /// A list is missing or misaligned, or has another number for this rank than the call.
    ///
    /// # Safety
    /// Lists are NULL, or have a number for each of `ranks` ranks.
    unsafe fn read(self, rank: RankId, ranks: u32) -> Result<(u64, Counts), CallError> {
        // SAFETY: the caller's promise.
        let list = |list, name| unsafe { counts_argument(list, ranks, name) };
        let missing = |name: &str| CallError::invalid(format!("{name} is NULL"));
        match self {
            Self::Whole(count) => Ok((count as u64, Counts::Even)),
            Self::Blocks { own, each } => match list(each, "counts")? {
                None => Ok(((own as u64).saturating_mul(u64::from(ranks)), Counts::Even)),
                Some(each) if each.get(rank.0 as usize) == Some(&(own as u64)) => {
                    let sum = each.iter().fold(0u64, |sum, count| sum.saturating_add(*count));
                    Ok((sum, Counts::ByRank(each)))
                }
                Some(_) => {
                    let text = format!("count {own}: not the one of rank {rank} in counts");
                    Err(CallError::invalid(text))
                }
            },
            Self::Pairs { to, from } => {
                let to = list(to, "send_counts")?.ok_or_else(|| missing("send_counts"))?;
                let from =
                    list(from, "receive_counts")?.ok_or_else(|| missing("receive_counts"))?;
                Ok((0, Counts::ByPair { to, from }))
            }
        }
    }
}

impl PostArguments {
    /// Posts a collective of this pattern with the arguments of a C function, and ends the call as
    /// [`finish_posting_call`] does.
    ///
    /// # Safety
    /// Pointers are NULL, or lead to what the header says.
    pub(super) unsafe fn post(self, pattern: Pattern) -> Result<(), CallError> {
        // SAFETY: the caller's promise, for each pointer.
        let group = unsafe { group_argument(self.group) }?;
        // SAFETY: as above.
        let (timeout, weight) = unsafe { call_options_argument(self.options) }?;
        let info = group.info();
        let root = pattern.root();
        if let Some(root) = root.filter(|root| root.0 >= info.size) {
            let last = info.size - 1;
            return Err(CallError::invalid(format!("root {root}: there are ranks 0 to {last}")));
        }
        let rank = RankId(info.rank);
        // SAFETY: as above.
        let (elements, counts) = unsafe { self.elements.read(rank, info.size) }?;
        let Self { contribution, result, dtype, op, operation, .. } = self;
        let (shape, agreed) = (ArrayShape::FLAT, counts.agreed());
        let descriptor =
            Descriptor { op, dtype, elements, layout_hash: 0, shape, pattern, counts: agreed };
        descriptor.check_slot_elements(&counts, info.size).map_err(CallError::invalid)?;
        let slots = descriptor.slot_elements(&counts, rank, info.size).unwrap_or_default();
        let SlotElements { contribution: given, result: got } = slots;
        let (given_bytes, got_bytes) =
            (count_argument_bytes(given, dtype)?, count_argument_bytes(got, dtype)?);
        let is_root = root == Some(rank);
        let contributes = is_root || !matches!(pattern, Pattern::Broadcast { .. });
        let gets_result = is_root || !matches!(pattern, Pattern::Reduce { .. });
        // SAFETY: as above; a contribution is only read.
        let given =
            unsafe { ForeignMemory::new(contribution.cast_mut(), given_bytes, "contribution") };
        // SAFETY: as above.
        let wanted = unsafe { ForeignMemory::new(result, got_bytes, "result") };
        let buffers = RankMemoryBuffers {
            dtype,
            contribution_bytes: given_bytes as u64,
            result_bytes: got_bytes as u64,
            contribution: if contributes { given? } else { None },
            result: if gets_result { wanted? } else { None },
        };
        let spec = CollectiveSpec { pattern, op, weight, timeout };
        let call = CollectiveCall { spec, counts, buffers };
        // SAFETY: as above.
        unsafe { finish_posting_call(operation, || group.post(call)) }
    }
}
