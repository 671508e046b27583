//! Labs that are starved or stopped report a void run.

use super::stopping;
use super::support::{A, B, pid_and_prefix, receive, topology, udp, up, wan_sim};
use rustix::process::{Signal, kill_process};
use std::time::{Duration, Instant};

/// Stops a lab while datagrams are sent; returns its last report.
fn starved(packets: usize) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = topology(directory.path(), "delay 1ms limit none");
    let file = path.to_str().unwrap();
    up(file)?;
    let (pid, prefix) = pid_and_prefix(&path);
    let (a, b) = (udp(&prefix, "a", A), udp(&prefix, "b", B));
    let mut buffer = [0; 9];
    a.send_to(b"good", b.local_addr().unwrap()).unwrap();
    b.recv_from(&mut buffer).unwrap();
    stopping::stop(pid);
    for _ in 0..packets {
        a.send_to(b"late", b.local_addr().unwrap()).unwrap();
    }
    b.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert!(b.recv_from(&mut buffer).is_err(), "a stopped lab delivered");
    kill_process(pid, Signal::CONT).unwrap();
    b.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    b.recv_from(&mut buffer).unwrap();
    let down = String::from_utf8(wan_sim(&["lab", "down", file]).stdout).unwrap();
    assert!(down.contains("VOID: "), "{down}");
    Some(down)
}

#[test]
fn a_starved_lab_says_that_the_run_is_void() {
    let Some(down) = starved(1) else { return };
    assert!(down.contains("reads came more than"), "{down}");
    // More than the device holds while the stopped lab does not read.
    let Some(down) = starved(10_100) else { return };
    assert!(down.contains("the emulator itself lost"), "{down}");
}

/// Few deliveries are late, as there are many others.
#[test]
fn a_lab_stopped_under_traffic_reports_a_void_run() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = topology(directory.path(), "delay 1ms limit none");
    let file = path.to_str().unwrap();
    if up(file).is_none() {
        return;
    }
    let (pid, prefix) = pid_and_prefix(&path);
    let (a, b) = (udp(&prefix, "a", A), udp(&prefix, "b", B));
    let round = || {
        (0..100).for_each(|_| assert_eq!(a.send_to(b"traffic", (B, 7000)).unwrap(), 7));
        receive(&b, 100);
    };
    (0..100).for_each(|_| round());
    stopping::stop(pid);
    a.send_to(b"late", b.local_addr().unwrap()).unwrap();
    b.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    // A read may end before its time.
    let stopped = Instant::now();
    while stopped.elapsed() < Duration::from_secs(1) {
        assert!(b.recv_from(&mut [0; 9]).is_err(), "a stopped lab delivered");
    }
    kill_process(pid, Signal::CONT).unwrap();
    b.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    receive(&b, 1);
    (0..100).for_each(|_| round());
    let down = String::from_utf8(wan_sim(&["lab", "down", file]).stdout).unwrap();
    assert!(down.contains("VOID: ") && down.contains("it stood still for"), "{down}");
}
