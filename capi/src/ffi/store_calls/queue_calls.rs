//! Calls about the queues of a store.

use super::run_store_call;
use super::store_arguments::{StoreValuesArgument, store_key_argument, store_value_argument};
use crate::attached_group::AttachedGroup;
use crate::ffi::arguments::OutputArgument;
use crate::ffi::report::{ErrorReport, report};
use crate::store_values::StoreValues;
use std::ffi::{c_char, c_double, c_int, c_void};

/// Adds an item of `bytes` bytes at the end of the queue of a key. Writes the length of the queue
/// then to `length`, unless that is NULL.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_store_queue_push(
    group: *mut AttachedGroup,
    key: *const c_char,
    item: *const c_void,
    bytes: usize,
    timeout_s: c_double,
    length: *mut i64,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        // SAFETY: the caller's promise, for each pointer.
        unsafe {
            let length = OutputArgument::optional(length, "length")?;
            let key = store_key_argument(key, "key")?;
            let item = store_value_argument(item, bytes, "item")?;
            let request = run_store_call(group, timeout_s, |store| async move {
                store.queue_push(&key, &item).await
            });
            length.write(request?);
            Ok(())
        }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Takes the first item of the queue of a key, once there is one, and writes its handle to
/// `values`.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_store_queue_pop(
    group: *mut AttachedGroup,
    key: *const c_char,
    timeout_s: c_double,
    values: *mut *mut StoreValues,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        // SAFETY: the caller's promise, for each pointer.
        unsafe {
            let values = StoreValuesArgument::new(values)?;
            let key = store_key_argument(key, "key")?;
            let request =
                run_store_call(
                    group,
                    timeout_s,
                    |store| async move { store.queue_pop(&key).await },
                );
            values.write(vec![request?]);
            Ok(())
        }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Takes the first item of the queue of a key, and writes its handle to `values`. If there is none
/// now, the handle has no value.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_store_queue_try_pop(
    group: *mut AttachedGroup,
    key: *const c_char,
    timeout_s: c_double,
    values: *mut *mut StoreValues,
    error: *mut ErrorReport,
) -> c_int {
    let call =
        || {
            // SAFETY: the caller's promise, for each pointer.
            unsafe {
                let values = StoreValuesArgument::new(values)?;
                let key = store_key_argument(key, "key")?;
                let request = run_store_call(group, timeout_s, |store| async move {
                    store.queue_try_pop(&key).await
                });
                values.write(request?.into_iter().collect());
                Ok(())
            }
        };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Writes to `length` the number of items in the queue of a key.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_store_queue_len(
    group: *mut AttachedGroup,
    key: *const c_char,
    timeout_s: c_double,
    length: *mut i64,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        // SAFETY: the caller's promise, for each pointer.
        unsafe {
            let length = OutputArgument::new(length, "length")?;
            let key = store_key_argument(key, "key")?;
            length.write(run_store_call(group, timeout_s, |store| async move {
                store.queue_len(&key).await
            })?);
            Ok(())
        }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}
