//! Calls that attach a rank, attach it again, and close groups.

use super::arguments::{
    deadline_argument, group_argument, number_argument, path_argument, sized_argument,
    text_argument, timeout_argument, write_output_argument,
};
use super::report::{ErrorReport, report};
use super::types::ConnectOptions;
use crate::attached_group::AttachedGroup;
use crate::call_error::CallError;
use crate::connect_settings::{ConnectSettings, GatewayChoice, RankChoice, RankOfJob, TokenSource};
use gateway::client::{AttachTlsGateway, NoTlsAddress, TlsAddress};
use gateway::local::protocol::{TOKEN_BYTES, Token};
use std::ffi::{c_char, c_double, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
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
    let (config, socket) =
        unsafe { (path_argument(options.config), path_argument(options.socket)) };
    // SAFETY: as above.
    let address = unsafe { text_argument(options.address, "address") }?;
    let choice = match (config, socket, address) {
        // SAFETY: as above.
        (Some(config), None, None) => unsafe { read_file_call_options(config, &options) }?,
        // SAFETY: as above.
        (None, Some(socket), None) => unsafe { read_socket_call_options(socket, &options) }?,
        // SAFETY: as above.
        (None, None, Some(address)) => unsafe { read_tls_call_options(address, &options) }?,
        _ => return Err(CallError::invalid("accepted: one of `config`, `socket` and `address`")),
    };
    let timeout = timeout_argument(options.timeout_s)?;
    // SAFETY: as above.
    let dumps = unsafe { path_argument(options.dumps) };
    if dumps.is_some_and(|folder| folder.as_os_str().is_empty()) {
        return Err(CallError::invalid("dumps is empty"));
    }
    let mut settings = ConnectSettings::resolve(&choice, options.arena_bytes, timeout)?;
    settings.attach.dumps = dumps.map(Path::to_path_buf).or(settings.attach.dumps);
    Ok(settings)
}

/// Returns an error with these words if an option is set that would have no effect.
fn refuse_unused_call_options(is_set: bool, words: &str) -> Result<(), CallError> {
    if is_set { Err(CallError::invalid(words)) } else { Ok(()) }
}

/// Returns whether options are set that only a gateway on another host needs.
fn has_tls_call_options(options: &ConnectOptions) -> bool {
    [options.ca, options.certificate, options.key].iter().any(|path| !path.is_null())
}

/// The words of an error about options that only a gateway on another host needs.
const TLS_OPTIONS_UNUSED: &str = "ca, certificate and key: only with `address`";

/// Returns the choice of a gateway by a region file.
///
/// # Safety
/// Those of [`landbridge_connect`].
unsafe fn read_file_call_options<'a>(
    config: &'a Path,
    options: &ConnectOptions,
) -> Result<GatewayChoice<'a>, CallError> {
    // SAFETY: the caller's promise.
    let (gateway, region, job) = unsafe {
        (
            text_argument(options.gateway, "gateway")?,
            text_argument(options.region, "region")?,
            text_argument(options.job, "job")?,
        )
    };
    let has_token = !options.token_file.is_null() || !options.token.is_null();
    let has_user = number_argument(options.gateway_user).is_some();
    let words = "token, token_file and gateway_user: only without `config`, which says them";
    refuse_unused_call_options(has_token || has_user, words)?;
    refuse_unused_call_options(has_tls_call_options(options), TLS_OPTIONS_UNUSED)?;
    let (rank, local_rank) = (number_argument(options.rank), number_argument(options.local_rank));
    let rank = match (rank, region, local_rank) {
        (Some(rank), None, None) => RankChoice::Number(rank),
        (None, Some(region), Some(local_rank)) => RankChoice::InRegion { region, local_rank },
        _ => {
            return Err(CallError::invalid(
                "accepted: either `rank`, or `region` and `local_rank`",
            ));
        }
    };
    Ok(GatewayChoice::File { config, gateway, job, rank })
}

/// Returns the choice of a gateway of this host by its socket.
///
/// # Safety
/// Those of [`landbridge_connect`].
unsafe fn read_socket_call_options<'a>(
    socket: &'a Path,
    options: &ConnectOptions,
) -> Result<GatewayChoice<'a>, CallError> {
    refuse_unused_call_options(
        !options.gateway.is_null(),
        "gateway: only with `config` or `address`",
    )?;
    refuse_unused_call_options(has_tls_call_options(options), TLS_OPTIONS_UNUSED)?;
    // SAFETY: the caller's promise.
    let of = unsafe { read_rank_call_options("socket", options) }?;
    let gateway_user = number_argument(options.gateway_user);
    Ok(GatewayChoice::Socket { socket, gateway_user, of })
}

/// Returns the choice of a gateway on another host by its address.
///
/// # Safety
/// Those of [`landbridge_connect`].
unsafe fn read_tls_call_options<'a>(
    address: &str,
    options: &ConnectOptions,
) -> Result<GatewayChoice<'a>, CallError> {
    let has_user = number_argument(options.gateway_user).is_some();
    refuse_unused_call_options(has_user, "gateway_user: only with `socket`")?;
    // SAFETY: the caller's promise.
    let (of, gateway, ca, certificate, key) = unsafe {
        (
            read_rank_call_options("address", options)?,
            text_argument(options.gateway, "gateway")?,
            path_argument(options.ca),
            path_argument(options.certificate),
            path_argument(options.key),
        )
    };
    let address: TlsAddress = address
        .parse()
        .map_err(|error: NoTlsAddress| CallError::invalid(format!("address {error}")))?;
    let Some(ca) = ca else {
        return Err(CallError::invalid("with `address`, `ca` must be set"));
    };
    let identity = match (certificate, key) {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some((certificate.to_path_buf(), key.to_path_buf())),
        _ => return Err(CallError::invalid("accepted: both `certificate` and `key`, or neither")),
    };
    let way = AttachTlsGateway::new(address, ca);
    let gateway = AttachTlsGateway { gateway: gateway.map(str::to_owned), identity, ..way };
    Ok(GatewayChoice::Tls { gateway, of })
}

/// Returns rank, job and token, which options without a region file give. `way` is the option that
/// stands in the file's place.
///
/// # Safety
/// Those of [`landbridge_connect`].
unsafe fn read_rank_call_options<'a>(
    way: &str,
    options: &ConnectOptions,
) -> Result<RankOfJob<'a>, CallError> {
    let has_place = !options.region.is_null() || number_argument(options.local_rank).is_some();
    refuse_unused_call_options(has_place, "region and local_rank: only with `config`")?;
    // SAFETY: the caller's promise.
    let (job, file) =
        unsafe { (text_argument(options.job, "job")?, path_argument(options.token_file)) };
    let (Some(job), Some(rank)) = (job, number_argument(options.rank)) else {
        return Err(CallError::invalid(format!("with `{way}`, `job` and `rank` must be set")));
    };
    let token = match (file, options.token.is_null()) {
        (Some(file), true) => TokenSource::File(file),
        (None, false) => {
            // SAFETY: as above.
            TokenSource::Given(Token(unsafe { *options.token.cast::<[u8; TOKEN_BYTES]>() }))
        }
        _ => {
            let text = format!("with `{way}`, accepted: either `token` or `token_file`");
            return Err(CallError::invalid(text));
        }
    };
    Ok(RankOfJob { job, token, rank })
}

/// Writes the flight recorder of the rank of a group into the file `path`.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_dump(
    group: *const AttachedGroup,
    path: *const c_char,
    error: *mut ErrorReport,
) -> c_int {
    let call = || {
        // SAFETY: the caller's promise, here and below.
        let group = unsafe { group_argument(group) }?;
        // SAFETY: as above.
        let path = unsafe { path_argument(path) }.filter(|path| !path.as_os_str().is_empty());
        group.dump(path.ok_or_else(|| CallError::invalid("path is NULL or empty"))?)
    };
    // SAFETY: as above.
    unsafe { report(error, call) }
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
