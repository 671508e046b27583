//! Calls that post collectives and commits. Arguments stand in the order of NCCL.

use super::arguments::{
    call_options_argument, count_argument_bytes, dtype_argument, group_argument,
    reduction_argument, write_output_argument,
};
use super::report::report;
use super::types::{CallOptions, ErrorReport};
use crate::group::{CollectiveCall, Group};
use crate::operation::OperationHandle;
use crate::raw::ForeignMemory;
use crate::status::CallError;
use gateway::client::CollectiveSpec;
use hier_collectives::descriptor::{Dtype, Pattern, ReduceOp};
use hier_collectives::ids::RankId;
use std::ffi::{c_int, c_void};
use std::ptr;

/// The arguments that all collectives share, as the caller gave them.
struct Arguments {
    contribution: *const c_void,
    result: *mut c_void,
    count: usize,
    dtype: Dtype,
    op: ReduceOp,
    group: *mut Group,
    options: *const CallOptions,
    operation: *mut *mut OperationHandle,
}

impl Arguments {
    /// Posts a collective of this pattern.
    ///
    /// # Safety
    /// Pointers are NULL, or lead to what the header says.
    unsafe fn post(self, pattern: Pattern) -> Result<(), CallError> {
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
        let is_root = root == Some(RankId(info.rank));
        let contributes = is_root || !matches!(pattern, Pattern::Broadcast { .. });
        let gets_result = is_root || !matches!(pattern, Pattern::Reduce { .. });
        let bytes = count_argument_bytes(self.count, self.dtype)?;
        let given = self.contribution.cast_mut();
        // SAFETY: as above; a contribution is only read.
        let given = unsafe { ForeignMemory::new(given, bytes, "contribution") };
        // SAFETY: as above.
        let wanted = unsafe { ForeignMemory::new(self.result, bytes, "result") };
        let call = CollectiveCall {
            spec: CollectiveSpec { pattern, op: self.op, weight, timeout },
            dtype: self.dtype,
            bytes: bytes as u64,
            contribution: if contributes { given? } else { None },
            result: if gets_result { wanted? } else { None },
        };
        // SAFETY: as above.
        unsafe { finish_collective_call(self.operation, || group.post(call)) }
    }
}

/// Posts, and hands over the operation or waits for it.
///
/// # Safety
/// `operation` is NULL, or a handle can be written there.
unsafe fn finish_collective_call(
    operation: *mut *mut OperationHandle,
    post: impl FnOnce() -> Result<OperationHandle, CallError>,
) -> Result<(), CallError> {
    if operation.is_null() {
        let posted = post()?;
        let outcome = posted.wait(None);
        // The caller gets no handle to wait for free memory.
        if posted.lies_in_arena {
            posted.wait_free(None)?;
        }
        return outcome;
    }
    // SAFETY: the caller's promise, here and below.
    unsafe { write_output_argument(operation, ptr::null_mut(), "operation") }?;
    let posted = Box::new(post()?);
    // SAFETY: as above.
    unsafe { write_output_argument(operation, Box::into_raw(posted), "operation") }
}

/// Posts an all-reduce.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_all_reduce(
    contribution: *const c_void,
    result: *mut c_void,
    count: usize,
    dtype_code: c_int,
    op_code: c_int,
    group: *mut Group,
    options: *const CallOptions,
    operation: *mut *mut OperationHandle,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        let dtype = dtype_argument(dtype_code)?;
        let op = reduction_argument(op_code, dtype)?;
        let arguments =
            Arguments { contribution, result, count, dtype, op, group, options, operation };
        // SAFETY: the caller's promise.
        unsafe { arguments.post(Pattern::AllReduce) }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Posts a reduce.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_reduce(
    contribution: *const c_void,
    result: *mut c_void,
    count: usize,
    dtype_code: c_int,
    op_code: c_int,
    root: u32,
    group: *mut Group,
    options: *const CallOptions,
    operation: *mut *mut OperationHandle,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        let dtype = dtype_argument(dtype_code)?;
        let op = reduction_argument(op_code, dtype)?;
        let arguments =
            Arguments { contribution, result, count, dtype, op, group, options, operation };
        // SAFETY: the caller's promise.
        unsafe { arguments.post(Pattern::Reduce { to: RankId(root) }) }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Posts a broadcast.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_broadcast(
    contribution: *const c_void,
    result: *mut c_void,
    count: usize,
    dtype_code: c_int,
    root: u32,
    group: *mut Group,
    options: *const CallOptions,
    operation: *mut *mut OperationHandle,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        let (dtype, op) = (dtype_argument(dtype_code)?, ReduceOp::Sum);
        let arguments =
            Arguments { contribution, result, count, dtype, op, group, options, operation };
        // SAFETY: the caller's promise.
        unsafe { arguments.post(Pattern::Broadcast { from: RankId(root) }) }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Posts a barrier.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_barrier(
    group: *mut Group,
    options: *const CallOptions,
    operation: *mut *mut OperationHandle,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        let (contribution, result, count) = (ptr::null(), ptr::null_mut(), 0);
        let (dtype, op) = (Dtype::U8, ReduceOp::Sum);
        let arguments =
            Arguments { contribution, result, count, dtype, op, group, options, operation };
        // SAFETY: the caller's promise.
        unsafe { arguments.post(Pattern::Barrier) }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Starts the commit of a step.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_commit(
    group: *mut Group,
    step: u64,
    options: *const CallOptions,
    operation: *mut *mut OperationHandle,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        // SAFETY: the caller's promise, for each pointer.
        let group = unsafe { group_argument(group) }?;
        // SAFETY: as above.
        let (timeout, _) = unsafe { call_options_argument(options) }?;
        // SAFETY: as above.
        unsafe { finish_collective_call(operation, || group.commit(step, timeout)) }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}
