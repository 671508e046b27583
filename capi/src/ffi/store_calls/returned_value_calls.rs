//! Calls that read and free values which the store returned.

use crate::store_values::StoreValues;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

/// Returns the number of values that a handle has; 0 for NULL.
///
/// # Safety
/// `values` is NULL, or comes from the library and is not freed before the call ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_store_values_count(values: *const StoreValues) -> usize {
    // SAFETY: the caller's promise.
    unsafe { find_returned_values(values) }.map_or(0, StoreValues::count)
}

/// Returns the address of value number `at`, counted from 0, and writes its length to `bytes`
/// unless that is NULL. Without such a value these are NULL and 0.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_store_value(
    values: *const StoreValues,
    at: usize,
    bytes: *mut usize,
) -> *const c_void {
    // SAFETY: the caller's promise, here and below.
    let found = unsafe { find_returned_values(values) }.and_then(|values| values.terminated(at));
    if !bytes.is_null() && bytes.is_aligned() {
        // SAFETY: as above.
        unsafe { bytes.write(found.map_or(0, |value| value.len() - 1)) };
    }
    found.map_or(ptr::null(), |value| value.as_ptr().cast())
}

/// Frees a handle of values; does nothing for NULL.
///
/// # Safety
/// `values` is NULL, or comes from the library and is used no more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_store_values_free(values: *mut StoreValues) {
    // SAFETY: the caller's promise.
    if unsafe { find_returned_values(values) }.is_none() {
        return;
    }
    // SAFETY: as above; the box is the one that a call to the store gave away.
    let values = unsafe { Box::from_raw(values) };
    // Nobody is there to hear of a panic.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(values)));
}

/// Returns the values of a handle; `None` if it is NULL or misaligned.
///
/// # Safety
/// Any other handle comes from the library, and its values live for `'a`.
unsafe fn find_returned_values<'a>(values: *const StoreValues) -> Option<&'a StoreValues> {
    if values.is_null() || !values.is_aligned() {
        return None;
    }
    // SAFETY: the caller's promise, and the check above.
    Some(unsafe { &*values })
}
