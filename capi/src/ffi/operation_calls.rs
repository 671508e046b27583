//! Calls that wait for operations.

use super::arguments::{deadline_argument, operation_argument, write_output_argument};
use super::report::ErrorReport;
use super::report::report;
use crate::operation_handle::OperationHandle;
use std::ffi::{c_double, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Waits for the result of an operation.
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

/// Waits until the operation uses no memory of the program any more.
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

/// Writes whether a wait would return at once to `is_done`.
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

/// Frees the handle of an operation.
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
