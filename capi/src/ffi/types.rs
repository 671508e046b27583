//! The structures of the header, field by field.

use std::ffi::{c_char, c_double, c_int, c_uchar};
use std::mem::offset_of;

/// 2^32 - 1: stands for no rank, no user or no color where an argument takes the number of one. The
/// number 0 cannot, since it names a rank, a user and a color.
pub const NO_NUMBER: u32 = u32::MAX;

/// `landbridge_connect_options`.
#[repr(C)]
pub struct ConnectOptions {
    /// Size of the caller's structure.
    pub struct_bytes: usize,
    /// Path of the region file.
    pub config: *const c_char,
    /// Name of the gateway.
    pub gateway: *const c_char,
    /// Name of the region.
    pub region: *const c_char,
    /// Path of the socket.
    pub socket: *const c_char,
    /// Path of the token file.
    pub token_file: *const c_char,
    /// Bytes of the token.
    pub token: *const c_uchar,
    /// Name of the job.
    pub job: *const c_char,
    /// Number of the rank.
    pub rank: u32,
    /// Number of the rank in its region.
    pub local_rank: u32,
    /// Number of the gateway's user.
    pub gateway_user: u32,
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// Time to wait, in seconds.
    pub timeout_s: c_double,
    /// Address of a gateway on another host, `tls://HOST:PORT`.
    pub address: *const c_char,
    /// Path of the CA's certificate.
    pub ca: *const c_char,
    /// Path of this trainer's certificate.
    pub certificate: *const c_char,
    /// Path of the key of that certificate.
    pub key: *const c_char,
    /// Path of the folder for dumps of failures.
    pub dumps: *const c_char,
}

/// `landbridge_call_options`.
#[repr(C)]
pub struct CallOptions {
    /// Size of the caller's structure.
    pub struct_bytes: usize,
    /// Time to wait for other ranks, in seconds.
    pub timeout_s: c_double,
    /// Weight in an average.
    pub weight: c_double,
}

/// `landbridge_info`.
#[repr(C)]
pub struct Info {
    /// Size of the caller's structure.
    pub struct_bytes: usize,
    /// Number of this rank.
    pub rank: u32,
    /// Number of ranks.
    pub size: u32,
    /// The epoch.
    pub epoch: u64,
    /// The last step that is known to be complete.
    pub committed_step: u64,
    /// 1 if there is such a step.
    pub has_committed_step: i32,
    /// Status with which posts would fail.
    pub state: c_int,
}

/// A structure that begins with its own size, which tells one of another version.
///
/// # Safety
/// The first field is a `usize`, and all fields take any bits. No bits of a later field than those of
/// the first version mean anything but its default.
pub unsafe trait SizedOptions: Sized {
    /// The sizes of all versions within this soname, in bytes.
    const SIZES: &[usize] = &[size_of::<Self>()];
}

// SAFETY: these are numbers and raw pointers, after `struct_bytes`. Later fields are pointers, and NULL
// stands for none.
unsafe impl SizedOptions for ConnectOptions {
    const SIZES: &[usize] =
        &[offset_of!(Self, address), offset_of!(Self, dumps), size_of::<Self>()];
}
// SAFETY: as above.
unsafe impl SizedOptions for CallOptions {}
// SAFETY: as above.
unsafe impl SizedOptions for Info {}
