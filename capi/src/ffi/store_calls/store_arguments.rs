//! Arguments of calls that ask the store: keys, values, and the place of the values of an answer.

use crate::call_error::CallError;
use crate::ffi::arguments::{OutputArgument, check_pointer_argument, text_argument};
use crate::store_values::StoreValues;
use hier_collectives::store::StoreRequestError;
use hier_collectives::store::limits::{REQUEST_KEYS_MAX, VALUE_BYTES_MAX};
use std::ffi::{c_char, c_void};
use std::ptr;

/// The place where the caller wants the values of an answer.
pub(crate) struct StoreValuesArgument(OutputArgument<*mut StoreValues>);

impl StoreValuesArgument {
    /// Checks the place where the caller wants the handle of values, and writes NULL there until
    /// the values come.
    ///
    /// # Safety
    /// `values` is NULL, or a handle can be written there.
    pub(crate) unsafe fn new(values: *mut *mut StoreValues) -> Result<Self, CallError> {
        // SAFETY: the caller's promise.
        let place = unsafe { OutputArgument::new(values, "values") }?;
        place.write(ptr::null_mut());
        Ok(Self(place))
    }

    /// Gives values to the caller as one handle, which the caller has to free.
    pub(crate) fn write(&self, values: Vec<Vec<u8>>) {
        self.0.write(Box::into_raw(Box::new(StoreValues::new(values))));
    }
}

/// Returns a copy of the store's key that a C string in the argument `name` gives.
///
/// # Errors
/// The key is NULL or not UTF-8.
///
/// # Safety
/// Any other pointer leads to bytes that end with a 0.
pub(crate) unsafe fn store_key_argument(
    key: *const c_char,
    name: &str,
) -> Result<String, CallError> {
    // SAFETY: the caller's promise.
    let text = unsafe { text_argument(key, name) }?;
    let text = text.ok_or_else(|| CallError::invalid(format!("{name} is NULL")))?;
    Ok(text.to_owned())
}

/// Returns copies of the `count` keys of the store that a list of C strings gives.
///
/// # Errors
/// The list is NULL, empty or too long, or a key of it is NULL or not UTF-8.
///
/// # Safety
/// Any other pointer leads to `count` keys, each as for [`store_key_argument`].
pub(super) unsafe fn store_keys_argument(
    keys: *const *const c_char,
    count: usize,
) -> Result<Vec<String>, CallError> {
    if !(1..=REQUEST_KEYS_MAX).contains(&count) {
        return Err(StoreRequestError::Keys(count).into());
    }
    check_pointer_argument(keys, "keys")?;
    // SAFETY: the caller's promise, and the check above.
    let keys = unsafe { std::slice::from_raw_parts(keys, count) };
    // SAFETY: as above.
    let key = |(at, key): (usize, &*const c_char)| unsafe {
        store_key_argument(*key, &format!("keys[{at}]"))
    };
    keys.iter().enumerate().map(key).collect()
}

/// Returns a copy of the value for the store, of `bytes` bytes, in the argument `name`.
///
/// # Errors
/// The value is too long, or NULL and not empty.
///
/// # Safety
/// Any other pointer leads to `bytes` bytes.
pub(crate) unsafe fn store_value_argument(
    value: *const c_void,
    bytes: usize,
    name: &str,
) -> Result<Vec<u8>, CallError> {
    if bytes > VALUE_BYTES_MAX {
        return Err(StoreRequestError::Value(bytes).into());
    }
    if bytes == 0 {
        return Ok(Vec::new());
    }
    let value = value.cast::<u8>();
    check_pointer_argument(value, name)?;
    // SAFETY: the caller's promise, and the checks above.
    Ok(unsafe { std::slice::from_raw_parts(value, bytes) }.to_vec())
}

/// Borrows the texts of keys in the form that the client in Rust takes.
pub(super) fn store_key_argument_texts(keys: &[String]) -> Vec<&str> {
    keys.iter().map(String::as_str).collect()
}
