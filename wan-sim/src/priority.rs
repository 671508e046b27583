//! The priority of threads whose lateness is the emulator's error.

#![expect(unsafe_code, reason = "a call that no safe interface offers")]

/// Gives the calling thread real-time priority; where that is refused, the nice value -20, if the
/// system grants it. Other threads keep the share that the system reserves for them.
pub(crate) fn raise_thread_priority() {
    let parameters = libc::sched_param { sched_priority: REAL_TIME_PRIORITY_MIN };
    // Not for children: they are programs under test.
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the call only reads the parameters, which outlive it; 0 is the calling thread.
    let refused = unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) } != 0;
    if refused {
        let _ = rustix::process::setpriority_process(None, -20);
    }
}

/// 1: the lowest priority of Linux's real-time policy `SCHED_FIFO`. A thread with it runs before
/// all programs without that policy.
const REAL_TIME_PRIORITY_MIN: libc::c_int = 1;
