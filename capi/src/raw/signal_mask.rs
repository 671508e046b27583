//! Signals of the program, which the threads of this library leave to it.

use std::mem::MaybeUninit;
use std::ptr;

/// Runs `start`, and returns its output. A thread that it starts takes no signals: handlers run in
/// threads of the program, and a write to a closed socket is an error, never SIGPIPE.
pub fn run_under_signal_mask<T>(start: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigfillset` writes the whole set; `pthread_sigmask` reads that one and writes the
    // other. Neither can fail with these arguments.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let output = start();
    // SAFETY: `before` was written above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    output
}
