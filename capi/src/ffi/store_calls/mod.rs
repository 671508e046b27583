//! Calls that ask the store of a job: the call that all of them run.
//!
//! Arguments are checked and copied before a request is sent, and so are the places of its answer.

pub(super) mod key_value_calls;
pub(super) mod queue_calls;
pub(super) mod returned_value_calls;
mod store_arguments;

use super::arguments::{group_argument, timeout_argument};
use crate::attached_group::AttachedGroup;
use crate::call_error::CallError;
use gateway::client::{Store, StoreError};
use std::ffi::c_double;

/// Sends the request that `request` makes to the store of the group's job, and waits for its answer
/// for `timeout_s` seconds at most.
///
/// # Safety
/// `group` is NULL, or comes from the library and is not closed before the call ends.
unsafe fn run_store_call<T: Send + 'static, F>(
    group: *mut AttachedGroup,
    timeout_s: c_double,
    request: impl FnOnce(Store) -> F,
) -> Result<T, CallError>
where
    F: Future<Output = Result<T, StoreError>> + Send + 'static,
{
    // SAFETY: the caller's promise.
    let group = unsafe { group_argument(group) }?;
    group.ask_store(timeout_argument(timeout_s)?, request)
}
