//! The way out of every call: errors and panics become a status and a text.

use super::types::ErrorReport;
use crate::status::{CallError, Status};
use std::any::Any;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a call, and returns its status. Writes the text to `error`, unless that is NULL.
///
/// # Safety
/// `error` is NULL, or an error can be written there.
pub unsafe fn report(
    error: *mut ErrorReport,
    call: impl FnOnce() -> Result<(), CallError>,
) -> c_int {
    // What a panic leaves behind is only what locks guard, and those are changed in one step.
    let outcome = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text = format!("fault of the library, please report it: {}", panic_text(&*panic));
        Err(CallError::new(Status::Internal, text))
    });
    let (status, text) = match outcome {
        Ok(()) => (Status::Ok, String::new()),
        Err(error) => (error.status, error.text),
    };
    if !error.is_null() && error.is_aligned() {
        // SAFETY: the caller's promise.
        unsafe { error.write(ErrorReport::new(status, &text)) };
    }
    status as c_int
}

/// Returns the message of a panic.
fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic")
}
