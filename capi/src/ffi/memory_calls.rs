//! Calls that allocate and free memory of the arena.

use super::arguments::{group_argument, write_output_argument};
use super::report::{ErrorReport, report};
use crate::attached_group::AttachedGroup;
use std::ffi::{c_int, c_void};
use std::ptr;

/// Reserves `bytes` bytes of the rank's arena, and writes their address to `memory`. Writes NULL
/// after a failure.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_alloc(
    group: *mut AttachedGroup,
    bytes: usize,
    memory: *mut *mut c_void,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        // SAFETY: the caller's promise, here and below.
        unsafe { write_output_argument(memory, ptr::null_mut(), "memory") }?;
        // SAFETY: as above.
        let address = unsafe { group_argument(group) }?.allocate(bytes)?;
        // SAFETY: as above.
        unsafe { write_output_argument(memory, address.cast(), "memory") }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Frees memory that [`landbridge_alloc`] reserved; does nothing for NULL.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_free(
    group: *mut AttachedGroup,
    memory: *mut c_void,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        // SAFETY: the caller's promise.
        let group = unsafe { group_argument(group) }?;
        if memory.is_null() { Ok(()) } else { group.free(memory as usize) }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}
