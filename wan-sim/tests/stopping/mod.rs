//! Stopping a process for certain: a signal takes effect later, so wait until it has.

use rustix::process::{Pid, Signal, kill_process};

/// Stops every thread of a process until `SIGCONT`.
pub fn stop(pid: Pid) {
    kill_process(pid, Signal::STOP).expect("signalled");
    while !threads_stopped(pid) {
        std::thread::yield_now();
    }
}

fn threads_stopped(pid: Pid) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()));
    tasks.expect("running").all(|task| {
        let stat = std::fs::read_to_string(task.expect("readable").path().join("stat"));
        // A thread that ended meanwhile does nothing any more either.
        stat.map_or(true, |stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T")))
    })
}
