//! The way out of every call: errors and panics become a status and a text.

use std::ffi::c_char;

use crate::call_error::CallError;
use crate::call_status::CallStatus;
use std::any::Any;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the body of a C function, and returns its status. Writes status and text to `error`, unless
/// that is NULL. A panic of the body becomes an error.
///
/// # Safety
/// `error` is NULL, or an error can be written there.
pub unsafe fn report(
    error: *mut ErrorReport,
    call: impl FnOnce() -> Result<(), CallError>,
) -> c_int {
    // What a panic leaves behind is only what locks guard, and those are changed in one step.
    let outcome = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text =
            format!("fault of the library, please report it: {}", panic_report_text(&*panic));
        Err(CallError::new(CallStatus::Internal, text))
    });
    let (status, text) = match outcome {
        Ok(()) => (CallStatus::Ok, String::new()),
        Err(error) => (error.status, error.text),
    };
    if !error.is_null() && error.is_aligned() {
        // SAFETY: the caller's promise.
        unsafe { error.write(ErrorReport::new(status, &text)) };
    }
    status as c_int
}

/// Returns the message of a panic that was caught.
fn panic_report_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic")
}

/// 1,280 bytes: the room for an error's text in C, with the 0 at its end. A longer text is cut at a
/// character. The text of a failure has at most 1,024 bytes.
pub const ERROR_TEXT_BYTES: usize = 1280;

/// `landbridge_error`.
#[repr(C)]
pub struct ErrorReport {
    /// Status of the call.
    pub status: c_int,
    /// Text in UTF-8, with a 0 at its end.
    pub text: [c_char; ERROR_TEXT_BYTES],
}

impl ErrorReport {
    /// Returns the report of a call's outcome. A text that is too long ends at a character; a 0
    /// inside becomes a space.
    pub fn new(status: CallStatus, text: &str) -> Self {
        let mut report = Self { status: status as c_int, text: [0; ERROR_TEXT_BYTES] };
        let end = text.floor_char_boundary(ERROR_TEXT_BYTES - 1);
        // A 0 inside would end the text there.
        let bytes = text.bytes().take(end).map(|byte| if byte == 0 { b' ' } else { byte });
        for (place, byte) in report.text.iter_mut().zip(bytes) {
            *place = byte as c_char;
        }
        report
    }
}
