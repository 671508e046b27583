//! Checks of arguments. Each error names the argument.

use super::types::{CallOptions, NO_NUMBER, SizedOptions};
use crate::attached_group::AttachedGroup;
use crate::call_error::CallError;
use crate::call_status::CallStatus;
use crate::operation_handle::OperationHandle;
use gateway::client::DEFAULT_TIMEOUT;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use units::Span;

/// 1e9 s, or 31 years: the longest timeout that a call accepts, so that no sum of times overflows.
/// A longer one is refused as an invalid argument.
const TIMEOUT_MAX_S: f64 = 1e9;

/// Returns a reference to the value that the pointer of the argument `name` leads to.
///
/// # Errors
/// The pointer is NULL or misaligned.
///
/// # Safety
/// Any other pointer leads to a value that lives for `'a`.
pub unsafe fn pointer_argument<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, CallError> {
    check_pointer_argument(pointer, name)?;
    // SAFETY: the caller's promise, and the check above.
    Ok(unsafe { &*pointer })
}

/// Writes `value` to the place that the caller's argument `name` points to.
///
/// # Errors
/// The pointer is NULL or misaligned.
///
/// # Safety
/// Any other pointer leads to memory that can be written.
pub unsafe fn write_output_argument<T>(
    pointer: *mut T,
    value: T,
    name: &str,
) -> Result<(), CallError> {
    check_pointer_argument(pointer.cast_const(), name)?;
    // SAFETY: the caller's promise, and the check above.
    unsafe { pointer.write(value) };
    Ok(())
}

/// A place where the caller wants a value, checked before the call does anything.
#[derive(Clone, Copy)]
pub struct OutputArgument<T>(*mut T);

impl<T> OutputArgument<T> {
    /// Checks the place for a value that the call returns later; `name` is the argument in errors.
    ///
    /// # Errors
    /// The pointer is NULL or misaligned.
    ///
    /// # Safety
    /// Any other pointer leads to memory that can be written while this value lives.
    pub unsafe fn new(pointer: *mut T, name: &str) -> Result<Self, CallError> {
        check_pointer_argument(pointer.cast_const(), name)?;
        Ok(Self(pointer))
    }

    /// Checks the place for a value that the caller may not want: then the pointer is NULL.
    ///
    /// # Errors
    /// The pointer is misaligned.
    ///
    /// # Safety
    /// As for [`OutputArgument::new`].
    pub unsafe fn optional(pointer: *mut T, name: &str) -> Result<Self, CallError> {
        if pointer.is_null() {
            return Ok(Self(pointer));
        }
        // SAFETY: the caller's promise.
        unsafe { Self::new(pointer, name) }
    }

    /// Writes the value to its place; does nothing where the caller gave NULL for it.
    pub fn write(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: `new` has checked the pointer, and its caller promised the rest.
            unsafe { self.0.write(value) };
        }
    }
}

/// Checks that a pointer is neither NULL nor misaligned; the error names the argument `name`.
pub fn check_pointer_argument<T>(pointer: *const T, name: &str) -> Result<(), CallError> {
    if pointer.is_null() {
        return Err(CallError::invalid(format!("{name} is NULL")));
    }
    if !pointer.is_aligned() {
        return Err(CallError::invalid(format!("{name} is misaligned")));
    }
    Ok(())
}

/// Returns a reference to the group that a handle of the program stands for.
///
/// # Errors
/// The handle is NULL, misaligned, or of the parent process.
///
/// # Safety
/// Any other handle comes from `landbridge_connect`, and is not closed before the call ends.
pub unsafe fn group_argument<'a>(
    group: *const AttachedGroup,
) -> Result<&'a AttachedGroup, CallError> {
    // SAFETY: the caller's promise.
    let group = unsafe { pointer_argument(group, "group") }?;
    check_handle_argument_owner(group.owner())?;
    Ok(group)
}

/// Returns a reference to the operation that a handle of the program stands for.
///
/// # Errors
/// The handle is NULL, misaligned, or of the parent process.
///
/// # Safety
/// Any other handle comes from a posting function, and is not freed before the call ends.
pub unsafe fn operation_argument<'a>(
    operation: *const OperationHandle,
) -> Result<&'a OperationHandle, CallError> {
    // SAFETY: the caller's promise.
    let operation = unsafe { pointer_argument(operation, "operation") }?;
    check_handle_argument_owner(operation.owner)?;
    Ok(operation)
}

/// Checks that this process made a handle: `owner` is the id of the process that did. A child after
/// a fork may not use handles of its parent.
fn check_handle_argument_owner(owner: u32) -> Result<(), CallError> {
    if owner == std::process::id() {
        return Ok(());
    }
    let text = format!("this process was forked from {owner}, which connected; connect here");
    Err(CallError::new(CallStatus::Forked, text))
}

/// Returns a copy of a structure of options, whose first field is its size in bytes. Fields that an
/// earlier version of the header lacks are 0. Programs of a later version are refused.
///
/// # Errors
/// The pointer is NULL or misaligned, or no version of the structure has its size.
///
/// # Safety
/// Any other pointer leads to at least the number of bytes that stands in its first field.
pub unsafe fn sized_argument<T: SizedOptions>(
    pointer: *const T,
    name: &str,
) -> Result<T, CallError> {
    check_pointer_argument(pointer, name)?;
    // SAFETY: every version of the structure begins with its size.
    let found = unsafe { pointer.cast::<usize>().read() };
    if !T::SIZES.contains(&found) {
        let known = T::SIZES.iter().map(usize::to_string).collect::<Vec<_>>().join(" and ");
        let text = format!("{name}: struct_bytes is {found}, and this library knows {known}");
        let text = format!("{text}: initialise it by its macro, with the header of this library");
        return Err(CallError::invalid(text));
    }
    let mut copy = MaybeUninit::<T>::zeroed();
    // SAFETY: the caller's structure has as many bytes, and the copy has those of the last version.
    unsafe { pointer.cast::<u8>().copy_to_nonoverlapping(copy.as_mut_ptr().cast(), found) };
    // SAFETY: every field takes any bits.
    Ok(unsafe { copy.assume_init() })
}

/// Returns the timeout and the weight of a call; the defaults for NULL.
///
/// # Errors
/// The options cannot be used.
///
/// # Safety
/// Those of [`sized_argument`], unless the pointer is NULL.
pub unsafe fn call_options_argument(options: *const CallOptions) -> Result<(Span, f64), CallError> {
    if options.is_null() {
        return Ok((DEFAULT_TIMEOUT, 1.0));
    }
    // SAFETY: the caller's promise.
    let options = unsafe { sized_argument(options, "options") }?;
    if !(options.weight.is_finite() && options.weight >= 0.0) {
        return Err(CallError::invalid(format!("weight {}: accepted: 0 or more", options.weight)));
    }
    Ok((timeout_argument(options.timeout_s)?, options.weight))
}

/// Converts a timeout from seconds; refuses numbers below 0, above [`TIMEOUT_MAX_S`], and NaN.
pub fn timeout_argument(seconds: f64) -> Result<Span, CallError> {
    if (0.0..=TIMEOUT_MAX_S).contains(&seconds) {
        return Ok(Span::from_secs_f64(seconds));
    }
    let text = format!("timeout_s {seconds}: accepted: 0 to {TIMEOUT_MAX_S}");
    Err(CallError::invalid(text))
}

/// Returns the moment at which a wait of `seconds` ends that begins now; `None` for infinity, a
/// wait without an end. Refuses what [`timeout_argument`] refuses.
pub fn deadline_argument(seconds: f64) -> Result<Option<Instant>, CallError> {
    if seconds == f64::INFINITY {
        return Ok(None);
    }
    let wait: Duration = timeout_argument(seconds)?.duration();
    Ok(Instant::now().checked_add(wait))
}

/// Returns the text of a C string in the argument `name`; `None` for NULL.
///
/// # Errors
/// The text is not UTF-8.
///
/// # Safety
/// Any other pointer leads to bytes that end with a 0, and live for `'a`.
pub unsafe fn text_argument<'a>(
    pointer: *const c_char,
    name: &str,
) -> Result<Option<&'a str>, CallError> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) }.to_str();
    text.map(Some).map_err(|_| CallError::invalid(format!("{name}: not UTF-8")))
}

/// Returns the path that a C string gives, in any bytes; `None` for NULL.
///
/// # Safety
/// As for [`text_argument`].
pub unsafe fn path_argument<'a>(pointer: *const c_char) -> Option<&'a Path> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { CStr::from_ptr(pointer) }.to_bytes();
    Some(Path::new(OsStr::from_bytes(bytes)))
}

/// Returns the number of a rank, user or color that an argument holds; `None` for [`NO_NUMBER`].
pub fn number_argument(value: u32) -> Option<u32> {
    (value != NO_NUMBER).then_some(value)
}

/// Returns the element type with the number `code` in the header; an error where it has none.
pub fn dtype_argument(code: c_int) -> Result<Dtype, CallError> {
    let found = u8::try_from(code).ok().and_then(Dtype::from_code);
    found.ok_or_else(|| CallError::invalid(format!("dtype {code}: there is none of this number")))
}

/// Returns the reduction, such as a sum, with the number `code` in the header.
///
/// # Errors
/// No reduction has this number, or it is not defined on the element type.
pub fn reduction_argument(code: c_int, dtype: Dtype) -> Result<ReduceOp, CallError> {
    let found = u8::try_from(code).ok().and_then(ReduceOp::from_code);
    let op = found
        .ok_or_else(|| CallError::invalid(format!("op {code}: there is none of this number")))?;
    op.check(dtype).map_err(|why| CallError::invalid(why.to_string()))?;
    Ok(op)
}

/// Returns the number of bytes of `count` elements; an error where memory cannot hold as many.
pub fn count_argument_bytes(count: u64, dtype: Dtype) -> Result<usize, CallError> {
    let bytes = count.checked_mul(dtype.size()).and_then(|bytes| usize::try_from(bytes).ok());
    let bytes = bytes.filter(|bytes| isize::try_from(*bytes).is_ok());
    bytes.ok_or_else(|| CallError::invalid(format!("count {count}: more than memory can hold")))
}

/// Returns a list of one number for each of `ranks` ranks; `None` for NULL.
///
/// # Errors
/// The pointer is misaligned.
///
/// # Safety
/// Any other pointer leads to as many numbers.
pub unsafe fn counts_argument(
    list: *const usize,
    ranks: u32,
    name: &str,
) -> Result<Option<Arc<[u64]>>, CallError> {
    if list.is_null() {
        return Ok(None);
    }
    check_pointer_argument(list, name)?;
    // SAFETY: the caller's promise, and the check above.
    let list = unsafe { std::slice::from_raw_parts(list, ranks as usize) };
    Ok(Some(list.iter().map(|count| *count as u64).collect()))
}
