//! Calls that make groups of the ranks of another one, and tell about a group.

use super::arguments::{
    check_pointer_argument, group_argument, number_argument, sized_argument, timeout_argument,
    write_output_argument,
};
use super::report::{ErrorReport, report};
use super::types::Info;
use crate::attached_group::AttachedGroup;
use crate::call_error::CallError;
use std::ffi::{c_double, c_int};
use std::ptr;

/// Makes a group of the `count` ranks of `group` in `ranks`; all ranks of `group` call it, in one
/// order. Writes its handle to `made`: NULL where this rank is not in it.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_new_group(
    group: *mut AttachedGroup,
    ranks: *const u32,
    count: usize,
    timeout_s: c_double,
    made: *mut *mut AttachedGroup,
    error: *mut ErrorReport,
) -> c_int {
    let making = |parent: &AttachedGroup| {
        // SAFETY: the caller's promise.
        let ranks = unsafe { group_call_ranks_argument(ranks, count, parent) }?;
        parent.new_group(ranks, None, timeout_argument(timeout_s)?)
    };
    // SAFETY: as above.
    let call = || unsafe { finish_new_group_call(group, made, making) };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Makes a group of the `count` ranks of `group` in `ranks`; only these need call it. They give one
/// `tag`, which none of them uses for another group of `group` until all have closed this one.
/// Writes the group's handle to `made`, or NULL at once where the caller is not in `ranks`.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_new_group_with_tag(
    group: *mut AttachedGroup,
    ranks: *const u32,
    count: usize,
    tag: u32,
    timeout_s: c_double,
    made: *mut *mut AttachedGroup,
    error: *mut ErrorReport,
) -> c_int {
    let making = |parent: &AttachedGroup| {
        // SAFETY: the caller's promise.
        let ranks = unsafe { group_call_ranks_argument(ranks, count, parent) }?;
        parent.new_group(ranks, Some(tag), timeout_argument(timeout_s)?)
    };
    // SAFETY: as above.
    let call = || unsafe { finish_new_group_call(group, made, making) };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Makes a group of all ranks of `group` that give the same color; all ranks of `group` call it.
/// Writes its handle to `made`: NULL on a rank without a color.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_split(
    group: *mut AttachedGroup,
    color: u32,
    key: i32,
    timeout_s: c_double,
    made: *mut *mut AttachedGroup,
    error: *mut ErrorReport,
) -> c_int {
    let making = |parent: &AttachedGroup| {
        parent.split(number_argument(color), key, timeout_argument(timeout_s)?)
    };
    // SAFETY: the caller's promise.
    let call = || unsafe { finish_new_group_call(group, made, making) };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Writes the number that `rank` of `group` has in the job to `rank_in_job`.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_rank_in_job(
    group: *const AttachedGroup,
    rank: u32,
    rank_in_job: *mut u32,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        // SAFETY: the caller's promise, here and below.
        let found = unsafe { group_argument(group) }?.rank_in_job(rank)?;
        // SAFETY: as above.
        unsafe { write_output_argument(rank_in_job, found, "rank_in_job") }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Makes a group of ranks of `group` by `making`, and writes its handle to `made`: NULL where this
/// rank is not in it.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
unsafe fn finish_new_group_call(
    group: *mut AttachedGroup,
    made: *mut *mut AttachedGroup,
    making: impl FnOnce(&AttachedGroup) -> Result<Option<AttachedGroup>, CallError>,
) -> Result<(), CallError> {
    // SAFETY: the caller's promise, here and below.
    unsafe { write_output_argument(made, ptr::null_mut(), "made") }?;
    // SAFETY: as above.
    let outcome = making(unsafe { group_argument(group) }?)?;
    let group = outcome.map_or(ptr::null_mut(), |group| Box::into_raw(Box::new(group)));
    // SAFETY: as above.
    unsafe { write_output_argument(made, group, "made") }
}

/// Returns the `count` ranks of a new group, numbered as in `parent`.
///
/// # Errors
/// The list is empty, longer than the parent has ranks, NULL or misaligned.
///
/// # Safety
/// Any other pointer leads to as many numbers.
unsafe fn group_call_ranks_argument(
    list: *const u32,
    count: usize,
    parent: &AttachedGroup,
) -> Result<Vec<u32>, CallError> {
    let size = parent.info().size;
    if count == 0 || count > size as usize {
        let text =
            format!("count {count}: accepted: 1 to {size}, which are the ranks of the group");
        return Err(CallError::invalid(text));
    }
    check_pointer_argument(list, "ranks")?;
    // SAFETY: the caller's promise, and the check above.
    Ok(unsafe { std::slice::from_raw_parts(list, count) }.to_vec())
}

/// Writes rank, size, epoch, last committed step and present status of a group to `info`.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_get_info(
    group: *const AttachedGroup,
    info: *mut Info,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        // SAFETY: the caller's promise.
        let group = unsafe { group_argument(group) }?;
        // SAFETY: as above.
        let struct_bytes = unsafe { sized_argument(info.cast_const(), "info") }?.struct_bytes;
        let found = group.info();
        let written = Info {
            struct_bytes,
            rank: found.rank,
            size: found.size,
            epoch: found.epoch,
            committed_step: found.committed.unwrap_or_default(),
            has_committed_step: i32::from(found.committed.is_some()),
            state: found.state as c_int,
        };
        // SAFETY: as above.
        unsafe { write_output_argument(info, written, "info") }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}
