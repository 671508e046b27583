//! Calls that post one end of a send. Arguments stand in the order of NCCL.

use super::finish_posting_call;
use crate::attached_group::AttachedGroup;
use crate::call_error::CallError;
use crate::ffi::arguments::{
    call_options_argument, count_argument_bytes, dtype_argument, group_argument,
};
use crate::ffi::report::{ErrorReport, report};
use crate::ffi::types::CallOptions;
use crate::operation_handle::OperationHandle;
use crate::rank_memory::RankMemoryBuffers;
use crate::rank_poster::{SendCall, SendCallEnd};
use crate::raw::ForeignMemory;
use gateway::client::SendSpec;
use hier_collectives::ids::{RankId, Tag};
use std::ffi::{c_int, c_void};

/// Posts the sender's end of a send of `count` elements to rank `peer`. Writes the operation's
/// handle to `operation`; where that is NULL, waits for the end instead.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_send(
    contribution: *const c_void,
    count: usize,
    dtype_code: c_int,
    peer: u32,
    tag: u32,
    group: *mut AttachedGroup,
    options: *const CallOptions,
    operation: *mut *mut OperationHandle,
    error: *mut ErrorReport,
) -> c_int {
    let (end, buffer) = (SendCallEnd::Sender, contribution.cast_mut());
    let arguments = SendArguments { end, buffer, count, dtype_code, peer, tag };
    // SAFETY: the caller's promise; a contribution is only read.
    let call = || unsafe { arguments.post(group, options, operation) };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// Posts the receiver's end of a send of `count` elements from rank `peer`. Writes the operation's
/// handle to `operation`; where that is NULL, waits for the result instead.
///
/// # Safety
/// Pointers are NULL, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn landbridge_receive(
    result: *mut c_void,
    count: usize,
    dtype_code: c_int,
    peer: u32,
    tag: u32,
    group: *mut AttachedGroup,
    options: *const CallOptions,
    operation: *mut *mut OperationHandle,
    error: *mut ErrorReport,
) -> c_int {
    let (end, buffer) = (SendCallEnd::Receiver, result);
    let arguments = SendArguments { end, buffer, count, dtype_code, peer, tag };
    // SAFETY: the caller's promise.
    let call = || unsafe { arguments.post(group, options, operation) };
    // SAFETY: as above.
    unsafe { report(error, call) }
}

/// The arguments of one end of a send, as the caller gave them.
struct SendArguments {
    end: SendCallEnd,
    /// The contribution of a sender, which is only read, or the result of a receiver.
    buffer: *mut c_void,
    count: usize,
    dtype_code: c_int,
    peer: u32,
    tag: u32,
}

impl SendArguments {
    /// Posts this rank's end of a send or receive in `group`. Writes the operation's handle to
    /// `operation`; where that is NULL, waits for the end instead.
    ///
    /// # Safety
    /// Pointers are NULL, or lead to what the header says.
    unsafe fn post(
        self,
        group: *mut AttachedGroup,
        options: *const CallOptions,
        operation: *mut *mut OperationHandle,
    ) -> Result<(), CallError> {
        let Self { end, buffer, count, dtype_code, peer, tag } = self;
        let dtype = dtype_argument(dtype_code)?;
        // SAFETY: the caller's promise, for each pointer.
        let group = unsafe { group_argument(group) }?;
        // SAFETY: as above.
        let (timeout, _) = unsafe { call_options_argument(options) }?;
        let spec =
            SendSpec { peer: send_call_peer(peer, group)?, tag: send_call_tag(tag)?, timeout };
        let bytes = count_argument_bytes(count as u64, dtype)?;
        let name = if end == SendCallEnd::Sender { "contribution" } else { "result" };
        // SAFETY: as above.
        let memory = unsafe { ForeignMemory::new(buffer, bytes, name) }?;
        let mut buffers = RankMemoryBuffers::empty(dtype);
        match end {
            SendCallEnd::Sender => {
                (buffers.contribution, buffers.contribution_bytes) = (memory, bytes as u64);
            }
            SendCallEnd::Receiver => {
                (buffers.result, buffers.result_bytes) = (memory, bytes as u64);
            }
        }
        let call = SendCall { spec, end, buffers };
        // SAFETY: as above.
        unsafe { finish_posting_call(operation, || group.send(call)) }
    }
}

/// Returns the rank at the other end of a send.
///
/// # Errors
/// The group has no such rank, or it is this one.
fn send_call_peer(peer: u32, group: &AttachedGroup) -> Result<RankId, CallError> {
    let info = group.info();
    if peer >= info.size {
        let last = info.size - 1;
        return Err(CallError::invalid(format!("peer {peer}: there are ranks 0 to {last}")));
    }
    if peer == info.rank {
        let text = format!("peer {peer}: this rank itself; copy the data instead");
        return Err(CallError::invalid(text));
    }
    Ok(RankId(peer))
}

/// Returns the tag of a send; an error above 65535.
fn send_call_tag(tag: u32) -> Result<Tag, CallError> {
    let invalid = |_| CallError::invalid(format!("tag {tag}: accepted: 0 to {}", u16::MAX));
    u16::try_from(tag).map(Tag).map_err(invalid)
}
