//! Every copy of this program, counted by thread: `memcpy` and `memmove` are those below, for all
//! that is linked into it.

#![expect(unsafe_code, reason = "they are defined here, and do what glibc's do")]

use std::cell::Cell;
use std::ffi::c_void;
use std::hint::black_box;

/// 2,048 bytes: shorter copies are not counted. Payload is copied by the jumbo packet, or by the
/// part of one that streams share; nodes of trees, events and futures are shorter.
const COUNTED_FROM_BYTES: usize = 2048;

thread_local! {
    static BYTES: Cell<u64> = const { Cell::new(0) };
}

/// Returns the bytes that this thread has copied so far.
pub fn bytes() -> u64 {
    BYTES.get()
}

/// Adds a copy of `bytes` to the count of this thread, if it is long enough.
fn count(bytes: usize) {
    if bytes >= COUNTED_FROM_BYTES {
        BYTES.set(BYTES.get() + bytes as u64);
    }
}

unsafe extern "C" {
    /// The `memmove` of glibc under another name. A compiler that sees `room` without a limit takes
    /// it for `memmove` again.
    fn __memmove_chk(
        to: *mut c_void,
        from: *const c_void,
        bytes: usize,
        room: usize,
    ) -> *mut c_void;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut c_void, from: *const c_void, bytes: usize) -> *mut c_void {
    count(bytes);
    // SAFETY: what `memmove` asks for is less than what whoever calls this has promised.
    unsafe { __memmove_chk(to, from, bytes, black_box(usize::MAX)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut c_void, from: *const c_void, bytes: usize) -> *mut c_void {
    count(bytes);
    // SAFETY: as its caller has promised.
    unsafe { __memmove_chk(to, from, bytes, black_box(usize::MAX)) }
}
