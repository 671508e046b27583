//! The processor before others, for threads whose lateness is the emulator's error.

#![expect(unsafe_code, reason = "a call that no safe interface offers")]

/// Puts the calling thread before all that are not real-time; where it may not, as far ahead
/// as it may. A thread that never waits still leaves the others the share that the system
/// keeps for them.
pub(crate) fn raise() {
    let parameters = libc::sched_param { sched_priority: LOWEST };
    // Not for children: they are programs under test.
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the call only reads the parameters, which outlive it; 0 is the calling thread.
    let refused = unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) } != 0;
    if refused {
        let _ = rustix::process::setpriority_process(None, -20);
    }
}

/// The lowest real-time priority.
const LOWEST: libc::c_int = 1;
