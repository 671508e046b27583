//! Messages of a relay to which the system, or its own settings, leave too little.

use super::{run, wan_sim};
use std::process::{Command, Output};

/// The command line of a relay that ends with its input.
const RELAY: [&str; 8] = [
    "relay",
    "--control",
    "--forward",
    "127.0.0.1:0=127.0.0.1:9",
    "--rtt",
    "2ms",
    "--rate",
    "1 Gbit/s",
];

/// Runs a relay with at most so many descriptors.
fn run_with_descriptors(most: u32) -> Output {
    let line = format!("ulimit -n {most}; exec \"$@\"");
    let relay = wan_sim(&RELAY);
    let mut shell = Command::new("sh");
    shell.args(["-c", &line, "sh"]).arg(relay.get_program()).args(relay.get_args());
    shell.output().unwrap()
}

#[test]
fn a_queue_that_holds_no_packet_is_told() {
    for (queue, is_told) in [("100 B", true), ("1 MB", false)] {
        let output = run(&[&RELAY[..], &["--queue", queue]].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{error}");
        assert_eq!(error.contains("a queue of 100 B holds no full packet"), is_told, "{error}");
    }
}

#[test]
fn a_limit_of_descriptors_is_named_with_its_value() {
    let mut refused = 0;
    for most in 4..16 {
        let output = run_with_descriptors(most);
        let error = String::from_utf8(output.stderr).unwrap();
        if output.status.success() {
            continue;
        }
        refused += 1;
        assert_eq!(output.status.code(), Some(1), "{most}: {error}");
        assert!(error.contains(&format!("the limit is {most} descriptors")), "{most}: {error}");
    }
    assert!((2..12).contains(&refused), "{refused} of 12 limits were too low");
}

#[test]
fn a_recording_on_a_full_disk_ends_with_1() {
    let output = run(&[&RELAY[..], &["--record", "/dev/full"]].concat());
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("cannot record into /dev/full: No space left"), "{error}");
}
