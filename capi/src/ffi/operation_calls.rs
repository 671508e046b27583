//! Calls that wait for operations.

use super::arguments::{deadline_argument, operation_argument, write_output_argument};
use super::report::ErrorReport;
use super::report::report;
use crate::operation_handle::OperationHandle;
use std::ffi::{c_double, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Waits for the result of an operation, at most `timeout_s` seconds, and copies it to plain memory
/// of the program where it belongs there.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_wait(
    operation: *mut OperationHandle,
    timeout_s: c_double,
    error: *mut ErrorReport,
) -> c_int {
    // SAFETY: the caller's promise.
    let call = || unsafe { operation_argument(operation) }?.wait(deadline_argument(timeout_s)?);
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Waits until the operation uses no memory of the program any more, at most `timeout_s` seconds.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_wait_free(
    operation: *mut OperationHandle,
    timeout_s: c_double,
    error: *mut ErrorReport,
) -> c_int {
    // SAFETY: the caller's promise.
    let call =
        || unsafe { operation_argument(operation) }?.wait_free(deadline_argument(timeout_s)?);
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Writes 1 to `is_done` if [`landbridge_wait`] would return without waiting, else 0. A result is
/// in place with 1. A failed operation gives 1 and no error.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_test(
    operation: *mut OperationHandle,
    is_done: *mut c_int,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        // SAFETY: the caller's promise, here and below.
        let operation = unsafe { operation_argument(operation) }?;
        // SAFETY: as above.
        unsafe { write_output_argument(is_done, 0, "is_done") }?;
        // SAFETY: as above.
        unsafe { write_output_argument(is_done, c_int::from(operation.test()), "is_done") }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Frees the handle of an operation, which goes on. Does nothing for NULL, and in a process that
/// was forked from the one that posted.
///
/// # Safety
/// `operation` is NULL, or comes from a posting function and is used no more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_operation_free(operation: *mut OperationHandle) {
    // SAFETY: the caller's promise. A forked process leaves it alone, as it does with the group.
    if unsafe { operation_argument(operation) }.is_err() {
        return;
    }
    // SAFETY: as above; the box is the one that a posting function gave away.
    let operation = unsafe { Box::from_raw(operation) };
    // Nobody is there to hear of a panic.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(operation)));
}
