//! Calls about the keys of a store and their values.

use super::run_store_call;
use super::store_arguments::{
    StoreValuesArgument, store_key_argument, store_key_argument_texts, store_keys_argument,
    store_value_argument,
};
use crate::attached_group::AttachedGroup;
use crate::call_error::CallError;
use crate::ffi::arguments::{OutputArgument, check_pointer_argument};
use crate::ffi::report::{ErrorReport, report};
use crate::store_values::StoreValues;
use hier_collectives::store::StoreRequestError;
use hier_collectives::store::limits::REQUEST_KEYS_MAX;
use std::ffi::{c_char, c_double, c_int, c_void};

/// Gives a key of the job's store a value of `bytes` bytes.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_store_set(
    group: *mut AttachedGroup,
    key: *const c_char,
    value: *const c_void,
    bytes: usize,
    timeout_s: c_double,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        // SAFETY: the caller's promise, for each pointer.
        unsafe {
            let key = store_key_argument(key, "key")?;
            let value = store_value_argument(value, bytes, "value")?;
            run_store_call(group, timeout_s, |store| async move { store.set(&key, &value).await })
        }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Gives `count` keys of the job's store their values in one change: value `i` has `bytes[i]`
/// bytes.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_store_multi_set(
    group: *mut AttachedGroup,
    keys: *const *const c_char,
    values: *const *const c_void,
    bytes: *const usize,
    count: usize,
    timeout_s: c_double,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        // SAFETY: the caller's promise, for each pointer.
        unsafe {
            let keys = store_keys_argument(keys, count)?;
            let values = key_call_values_argument(values, bytes, count)?;
            run_store_call(group, timeout_s, |store| async move {
                let pairs: Vec<(&str, &[u8])> = store_key_argument_texts(&keys)
                    .into_iter()
                    .zip(values.iter().map(Vec::as_slice))
                    .collect();
                store.multi_set(pairs).await
            })
        }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Writes a handle of the value of a key to `values`, once the key has one.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_store_get(
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
                run_store_call(group, timeout_s, |store| async move { store.get(&key).await });
            values.write(vec![request?]);
            Ok(())
        }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Writes a handle of the values of `count` keys at one moment to `values`, once all keys have one.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_store_multi_get(
    group: *mut AttachedGroup,
    keys: *const *const c_char,
    count: usize,
    timeout_s: c_double,
    values: *mut *mut StoreValues,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        // SAFETY: the caller's promise, for each pointer.
        unsafe {
            let values = StoreValuesArgument::new(values)?;
            let keys = store_keys_argument(keys, count)?;
            values.write(run_store_call(group, timeout_s, |store| async move {
                store.multi_get(store_key_argument_texts(&keys)).await
            })?);
            Ok(())
        }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Adds `amount` to the number that is the value of a key, 0 at first. Writes the sum to `sum`,
/// unless that is NULL.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_store_add(
    group: *mut AttachedGroup,
    key: *const c_char,
    amount: i64,
    timeout_s: c_double,
    sum: *mut i64,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        // SAFETY: the caller's promise, for each pointer.
        unsafe {
            let sum = OutputArgument::optional(sum, "sum")?;
            let key = store_key_argument(key, "key")?;
            sum.write(run_store_call(group, timeout_s, |store| async move {
                store.add(&key, amount).await
            })?);
            Ok(())
        }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Gives a key the value `desired` if it has the value `expected`; an empty `expected` also stands
/// for no value. Writes a handle of the value that the key has then, or of `expected` if it has
/// none.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_store_compare_set(
    group: *mut AttachedGroup,
    key: *const c_char,
    expected: *const c_void,
    expected_bytes: usize,
    desired: *const c_void,
    desired_bytes: usize,
    timeout_s: c_double,
    values: *mut *mut StoreValues,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        // SAFETY: the caller's promise, for each pointer.
        unsafe {
            let values = StoreValuesArgument::new(values)?;
            let key = store_key_argument(key, "key")?;
            let expected = store_value_argument(expected, expected_bytes, "expected")?;
            let desired = store_value_argument(desired, desired_bytes, "desired")?;
            let request = run_store_call(group, timeout_s, |store| async move {
                store.compare_set(&key, &expected, &desired).await
            });
            values.write(vec![request?]);
            Ok(())
        }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Appends bytes to the value of a key.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_store_append(
    group: *mut AttachedGroup,
    key: *const c_char,
    value: *const c_void,
    bytes: usize,
    timeout_s: c_double,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        // SAFETY: the caller's promise, for each pointer.
        unsafe {
            let key = store_key_argument(key, "key")?;
            let value = store_value_argument(value, bytes, "value")?;
            run_store_call(
                group,
                timeout_s,
                |store| async move { store.append(&key, &value).await },
            )
        }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Waits until all of `count` keys exist, with a value or a queue.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_store_wait(
    group: *mut AttachedGroup,
    keys: *const *const c_char,
    count: usize,
    timeout_s: c_double,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        // SAFETY: the caller's promise, for each pointer.
        unsafe {
            let keys = store_keys_argument(keys, count)?;
            run_store_call(group, timeout_s, |store| async move {
                store.wait(store_key_argument_texts(&keys)).await
            })
        }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Writes to `all_exist` 1 if all of `count` keys exist now, with a value or a queue, else 0.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_store_check(
    group: *mut AttachedGroup,
    keys: *const *const c_char,
    count: usize,
    timeout_s: c_double,
    all_exist: *mut c_int,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        // SAFETY: the caller's promise, for each pointer.
        unsafe {
            let all_exist = OutputArgument::new(all_exist, "all_exist")?;
            let keys = store_keys_argument(keys, count)?;
            let request = run_store_call(group, timeout_s, |store| async move {
                store.check(store_key_argument_texts(&keys)).await
            });
            all_exist.write(c_int::from(request?));
            Ok(())
        }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Removes a key with its value and its queue. Writes to `existed` 1 if there was one, else 0,
/// unless `existed` is NULL.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_store_delete_key(
    group: *mut AttachedGroup,
    key: *const c_char,
    timeout_s: c_double,
    existed: *mut c_int,
    error: *mut ErrorReport,
) -> c_int {
    let call =
        || {
            // SAFETY: the caller's promise, for each pointer.
            unsafe {
                let existed = OutputArgument::optional(existed, "existed")?;
                let key = store_key_argument(key, "key")?;
                let request = run_store_call(group, timeout_s, |store| async move {
                    store.delete_key(&key).await
                });
                existed.write(c_int::from(request?));
                Ok(())
            }
        };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Writes to `keys` the number of keys that have a value or a queue.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_store_num_keys(
    group: *mut AttachedGroup,
    timeout_s: c_double,
    keys: *mut i64,
    error: *mut ErrorReport,
) -> c_int {
    let call =
        || {
            // SAFETY: the caller's promise, for each pointer.
            unsafe {
                let keys = OutputArgument::new(keys, "keys")?;
                keys.write(run_store_call(group, timeout_s, |store| async move {
                    store.num_keys().await
                })?);
                Ok(())
            }
        };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Writes a handle of the keys that begin with `prefix`, in order, to `values`.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_store_list_keys(
    group: *mut AttachedGroup,
    prefix: *const c_char,
    timeout_s: c_double,
    values: *mut *mut StoreValues,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        // SAFETY: the caller's promise, for each pointer.
        unsafe {
            let values = StoreValuesArgument::new(values)?;
            let prefix = store_key_argument(prefix, "prefix")?;
            values.write(run_store_call(group, timeout_s, |store| async move {
                store.list_keys(&prefix).await
            })?);
            Ok(())
        }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Returns copies of the `count` values that two lists of a call give, their addresses and their
/// lengths.
///
/// # Errors
/// A list is NULL, empty or too long, or a value is too long, or NULL and not empty.
///
/// # Safety
/// Any other pointers lead to `count` values, each of as many bytes as the other list says.
unsafe fn key_call_values_argument(
    values: *const *const c_void,
    bytes: *const usize,
    count: usize,
) -> Result<Vec<Vec<u8>>, CallError> {
    if !(1..=REQUEST_KEYS_MAX).contains(&count) {
        return Err(StoreRequestError::Keys(count).into());
    }
    check_pointer_argument(values, "values")?;
    check_pointer_argument(bytes, "bytes")?;
    // SAFETY: the caller's promise, and the checks above.
    let (values, bytes) = unsafe {
        (std::slice::from_raw_parts(values, count), std::slice::from_raw_parts(bytes, count))
    };
    let value = |(at, (value, bytes)): (usize, (&*const c_void, &usize))| {
        // SAFETY: as above.
        unsafe { store_value_argument(*value, *bytes, &format!("values[{at}]")) }
    };
    values.iter().zip(bytes).enumerate().map(value).collect()
}
