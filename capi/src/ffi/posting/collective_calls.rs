//! Calls that post commits and collectives. Arguments stand in the order of NCCL.

use super::finish_posting_call;
use super::post_arguments::{PostArgumentElements, PostArguments};
use crate::attached_group::AttachedGroup;
use crate::ffi::arguments::{
    call_options_argument, dtype_argument, group_argument, reduction_argument,
};
use crate::ffi::report::{ErrorReport, report};
use crate::ffi::types::CallOptions;
use crate::operation_handle::OperationHandle;
use hier_collectives::descriptor::{Dtype, Pattern, ReduceOp};
use hier_collectives::ids::RankId;
use std::ffi::{c_int, c_void};
use std::ptr;

/// Posts an all-reduce of `count` elements. Writes the operation's handle to `operation`; where
/// that is NULL, waits for the result.
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
    group: *mut AttachedGroup,
    options: *const CallOptions,
    operation: *mut *mut OperationHandle,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        let dtype = dtype_argument(dtype_code)?;
        let op = reduction_argument(op_code, dtype)?;
        let elements = PostArgumentElements::Whole(count);
        let arguments =
            PostArguments { contribution, result, elements, dtype, op, group, options, operation };
        // SAFETY: the caller's promise.
        unsafe { arguments.post(Pattern::AllReduce) }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Posts a reduce of `count` elements to rank `root`. Writes the operation's handle to `operation`;
/// where that is NULL, waits for the result.
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
    group: *mut AttachedGroup,
    options: *const CallOptions,
    operation: *mut *mut OperationHandle,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        let dtype = dtype_argument(dtype_code)?;
        let op = reduction_argument(op_code, dtype)?;
        let elements = PostArgumentElements::Whole(count);
        let arguments =
            PostArguments { contribution, result, elements, dtype, op, group, options, operation };
        // SAFETY: the caller's promise.
        unsafe { arguments.post(Pattern::Reduce { to: RankId(root) }) }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Posts a broadcast of `count` elements from rank `root`. Writes the operation's handle to
/// `operation`; where that is NULL, waits for the result.
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
    group: *mut AttachedGroup,
    options: *const CallOptions,
    operation: *mut *mut OperationHandle,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        let (dtype, op) = (dtype_argument(dtype_code)?, ReduceOp::Sum);
        let elements = PostArgumentElements::Whole(count);
        let arguments =
            PostArguments { contribution, result, elements, dtype, op, group, options, operation };
        // SAFETY: the caller's promise.
        unsafe { arguments.post(Pattern::Broadcast { from: RankId(root) }) }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Posts a barrier. Writes the operation's handle to `operation`; where that is NULL, waits for the
/// result.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_barrier(
    group: *mut AttachedGroup,
    options: *const CallOptions,
    operation: *mut *mut OperationHandle,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        let (contribution, result, count) = (ptr::null(), ptr::null_mut(), 0);
        let (dtype, op) = (Dtype::U8, ReduceOp::Sum);
        let elements = PostArgumentElements::Whole(count);
        let arguments =
            PostArguments { contribution, result, elements, dtype, op, group, options, operation };
        // SAFETY: the caller's promise.
        unsafe { arguments.post(Pattern::Barrier) }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Starts the commit of a step. Writes the operation's handle to `operation`; where that is NULL,
/// waits for the commit's end instead.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_commit(
    group: *mut AttachedGroup,
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
        unsafe { finish_posting_call(operation, || group.commit(step, timeout)) }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Posts an all-gather, in which this rank has `count` elements. `counts` has the number of each
/// rank, or is NULL if all are equal. Writes the operation's handle to `operation`; where that is
/// NULL, waits for the result.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_all_gather(
    contribution: *const c_void,
    result: *mut c_void,
    count: usize,
    counts: *const usize,
    dtype_code: c_int,
    group: *mut AttachedGroup,
    options: *const CallOptions,
    operation: *mut *mut OperationHandle,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        let (dtype, op) = (dtype_argument(dtype_code)?, ReduceOp::Sum);
        let elements = PostArgumentElements::Blocks { own: count, each: counts };
        let arguments =
            PostArguments { contribution, result, elements, dtype, op, group, options, operation };
        // SAFETY: the caller's promise.
        unsafe { arguments.post(Pattern::AllGather) }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Posts a reduce-scatter, in which this rank gets `count` elements. `counts` has the number of
/// each rank, or is NULL if all are equal. Writes the operation's handle to `operation`; where that
/// is NULL, waits for the result.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_reduce_scatter(
    contribution: *const c_void,
    result: *mut c_void,
    count: usize,
    counts: *const usize,
    dtype_code: c_int,
    op_code: c_int,
    group: *mut AttachedGroup,
    options: *const CallOptions,
    operation: *mut *mut OperationHandle,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        let dtype = dtype_argument(dtype_code)?;
        let op = reduction_argument(op_code, dtype)?;
        let elements = PostArgumentElements::Blocks { own: count, each: counts };
        let arguments =
            PostArguments { contribution, result, elements, dtype, op, group, options, operation };
        // SAFETY: the caller's promise.
        unsafe { arguments.post(Pattern::ReduceScatter) }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Posts a gather to rank `root`, in which this rank has `count` elements. `counts` has the number
/// of each rank, or is NULL if all are equal. Writes the operation's handle to `operation`; where
/// that is NULL, waits for the result.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_gather(
    contribution: *const c_void,
    result: *mut c_void,
    count: usize,
    counts: *const usize,
    dtype_code: c_int,
    root: u32,
    group: *mut AttachedGroup,
    options: *const CallOptions,
    operation: *mut *mut OperationHandle,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        let (dtype, op) = (dtype_argument(dtype_code)?, ReduceOp::Sum);
        let elements = PostArgumentElements::Blocks { own: count, each: counts };
        let arguments =
            PostArguments { contribution, result, elements, dtype, op, group, options, operation };
        // SAFETY: the caller's promise.
        unsafe { arguments.post(Pattern::Gather { to: RankId(root) }) }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Posts a scatter from rank `root`, in which this rank gets `count` elements. `counts` has the
/// number of each rank, or is NULL if all are equal. Writes the operation's handle to `operation`;
/// where that is NULL, waits for the result.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_scatter(
    contribution: *const c_void,
    result: *mut c_void,
    count: usize,
    counts: *const usize,
    dtype_code: c_int,
    root: u32,
    group: *mut AttachedGroup,
    options: *const CallOptions,
    operation: *mut *mut OperationHandle,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        let (dtype, op) = (dtype_argument(dtype_code)?, ReduceOp::Sum);
        let elements = PostArgumentElements::Blocks { own: count, each: counts };
        let arguments =
            PostArguments { contribution, result, elements, dtype, op, group, options, operation };
        // SAFETY: the caller's promise.
        unsafe { arguments.post(Pattern::Scatter { from: RankId(root) }) }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Posts an all-to-all of blocks of `count` elements each. Writes the operation's handle to
/// `operation`; where that is NULL, waits for the result.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_all_to_all(
    contribution: *const c_void,
    result: *mut c_void,
    count: usize,
    dtype_code: c_int,
    group: *mut AttachedGroup,
    options: *const CallOptions,
    operation: *mut *mut OperationHandle,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        let (dtype, op) = (dtype_argument(dtype_code)?, ReduceOp::Sum);
        let elements = PostArgumentElements::Blocks { own: count, each: ptr::null() };
        let arguments =
            PostArguments { contribution, result, elements, dtype, op, group, options, operation };
        // SAFETY: the caller's promise.
        unsafe { arguments.post(Pattern::AllToAll) }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Posts an all-to-all of blocks of any lengths: `send_counts` and `receive_counts` have the number
/// of elements to and from each rank. Writes the operation's handle to `operation`; where that is
/// NULL, waits for the result.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_all_to_all_v(
    contribution: *const c_void,
    send_counts: *const usize,
    result: *mut c_void,
    receive_counts: *const usize,
    dtype_code: c_int,
    group: *mut AttachedGroup,
    options: *const CallOptions,
    operation: *mut *mut OperationHandle,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        let (dtype, op) = (dtype_argument(dtype_code)?, ReduceOp::Sum);
        let elements = PostArgumentElements::Pairs { to: send_counts, from: receive_counts };
        let arguments =
            PostArguments { contribution, result, elements, dtype, op, group, options, operation };
        // SAFETY: the caller's promise.
        unsafe { arguments.post(Pattern::AllToAll) }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}
