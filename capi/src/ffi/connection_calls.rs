//! Calls that attach a rank, attach it again, and close groups.

use super::arguments::{
    deadline_argument, group_argument, number_argument, path_argument, sized_argument,
    text_argument, timeout_argument, write_output_argument,
};
use super::report::{ErrorReport, report};
use super::types::ConnectOptions;
use crate::attached_group::AttachedGroup;
use crate::call_error::CallError;
use crate::connect_settings::{ConnectSettings, GatewayChoice, RankChoice, TokenSource};
use gateway::local::protocol::{TOKEN_BYTES, Token};
use std::ffi::{c_double, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

/// Attaches a rank as `options` say, and waits until all ranks of its job are attached. Writes the
/// handle of the job as a group to `group`; NULL after a failure.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_connect(
    options: *const ConnectOptions,
    group: *mut *mut AttachedGroup,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        // SAFETY: the caller's promise, here and below.
        unsafe { write_output_argument(group, ptr::null_mut(), "group") }?;
        // SAFETY: as above.
        let settings = unsafe { read_connection_call_options(options) }?;
        let connected = Box::new(AttachedGroup::connect(settings)?);
        // SAFETY: as above.
        unsafe { write_output_argument(group, Box::into_raw(connected), "group") }
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Converts the options that a program gives to `landbridge_connect` to the settings of a rank, for
/// which it reads the files that they name.
///
/// # Safety
/// Those of [`landbridge_connect`].
unsafe fn read_connection_call_options(
    options: *const ConnectOptions,
) -> Result<ConnectSettings, CallError> {
    // SAFETY: the caller's promise, for each pointer.
    let options = unsafe { sized_argument(options, "options") }?;
    // SAFETY: as above.
    let (config, socket, token_file) = unsafe {
        (
            path_argument(options.config),
            path_argument(options.socket),
            path_argument(options.token_file),
        )
    };
    // SAFETY: as above.
    let (gateway, region, job) = unsafe {
        (
            text_argument(options.gateway, "gateway")?,
            text_argument(options.region, "region")?,
            text_argument(options.job, "job")?,
        )
    };
    let (rank, local_rank) = (number_argument(options.rank), number_argument(options.local_rank));
    let gateway_user = number_argument(options.gateway_user);
    let has_token = token_file.is_some() || !options.token.is_null();
    let unused = |is_set: bool, words: &str| {
        if is_set { Err(CallError::invalid(words)) } else { Ok(()) }
    };
    let choice = match (config, socket) {
        (Some(config), None) => {
            let words =
                "token, token_file and gateway_user: only with `socket`; `config` says them";
            unused(has_token || gateway_user.is_some(), words)?;
            let rank = match (rank, region, local_rank) {
                (Some(rank), None, None) => RankChoice::Number(rank),
                (None, Some(region), Some(local_rank)) => {
                    RankChoice::InRegion { region, local_rank }
                }
                _ => {
                    let text = "accepted: either `rank`, or `region` and `local_rank`";
                    return Err(CallError::invalid(text));
                }
            };
            GatewayChoice::File { config, gateway, job, rank }
        }
        (None, Some(socket)) => {
            let words = "gateway, region and local_rank: only with `config`";
            unused(gateway.is_some() || region.is_some() || local_rank.is_some(), words)?;
            let (Some(job), Some(rank)) = (job, rank) else {
                return Err(CallError::invalid("with `socket`, `job` and `rank` must be set"));
            };
            let token = match (token_file, options.token.is_null()) {
                (Some(file), true) => TokenSource::File(file),
                (None, false) => {
                    // SAFETY: as above.
                    TokenSource::Given(Token(unsafe { *options.token.cast::<[u8; TOKEN_BYTES]>() }))
                }
                _ => {
                    let text = "with `socket`, accepted: either `token` or `token_file`";
                    return Err(CallError::invalid(text));
                }
            };
            GatewayChoice::Socket { socket, job, token, rank, gateway_user }
        }
        _ => return Err(CallError::invalid("accepted: either `config` or `socket`")),
    };
    ConnectSettings::resolve(&choice, options.arena_bytes, timeout_argument(options.timeout_s)?)
}

/// Frees a group, and detaches the rank with its last one. Does nothing for NULL, and in a process
/// that was forked from the one that connected.
///
/// # Safety
/// `group` is NULL, or comes from [`landbridge_connect`] and is used no more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_close(group: *mut AttachedGroup) {
    // SAFETY: the caller's promise. In a forked process the group's thread is missing, so nothing of
    // the group may be ended there.
    if unsafe { group_argument(group) }.is_err() {
        return;
    }
    // SAFETY: as above; the box is the one that `landbridge_connect` gave away.
    let group = unsafe { Box::from_raw(group) };
    // Nobody is there to hear of a panic.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(group)));
}

/// Attaches a rank again if need be after a failure. Returns when all ranks of its job are ready to
/// begin a step again, or with an error after `timeout_s` seconds.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_recover(
    group: *mut AttachedGroup,
    timeout_s: c_double,
    error: *mut ErrorReport,
) -> c_int {
    // SAFETY: the caller's promise.
    let call = || unsafe { group_argument(group) }?.recover(deadline_argument(timeout_s)?);
    // SAFETY: as above.
    unsafe { report(error, call) }
}
