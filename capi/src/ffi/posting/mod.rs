//! The post of a collective: the end that all calls have in common.

pub(super) mod collective_calls;
mod post_arguments;
pub(super) mod send_calls;

use super::arguments::write_output_argument;
use crate::call_error::CallError;
use crate::operation_handle::OperationHandle;
use std::ptr;

/// Posts a collective by `post`, and writes the operation's handle to `operation`. Where that is
/// NULL, waits for the result instead.
///
/// # Safety
/// `operation` is NULL, or a handle can be written there.
pub(super) unsafe fn finish_posting_call(
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
