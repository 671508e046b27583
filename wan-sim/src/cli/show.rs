//! The commands that print: `replay`, `show`, `presets` and `capacity`.

use super::exit_codes::{EXIT_FAILED, EXIT_GOOD, EXIT_USAGE};
use super::output::print_wan_sim_output;
use crate::netem::Netem;
use crate::recording::{ReplayError, replay};
use crate::topology::{Topology, presets};
use crate::{CapacitySource, Change, Conditions, Script};
use std::io::BufReader;
use std::path::Path;
use units::Span;

/// Replays the recording in `file` and prints the counters of its links. Returns the exit code.
pub(super) fn show_replay(file: &Path) -> u8 {
    let replayed = stdio::open_input_file(file).map_err(ReplayError::from);
    match replayed.and_then(|opened| replay(BufReader::new(opened))) {
        Ok(replayed) => {
            let mut report = String::new();
            for (name, seen) in replayed.links {
                let (packets, drops) = (seen.packets, seen.drops());
                report += &format!(
                    "{name}: {packets} packets, {drops} dropped, every fate as recorded\n"
                );
            }
            print_wan_sim_output(&report, EXIT_GOOD)
        }
        Err(error) => {
            stdio::print_stderr_message(format_args!(
                "wan-sim replay: {}: {error}",
                file.display()
            ));
            match error {
                ReplayError::Different { .. } => EXIT_FAILED,
                ReplayError::Unreadable(_) | ReplayError::Malformed { .. } => EXIT_USAGE,
            }
        }
    }
}

/// Prints the links and ports of a lab or fabric file in netem's words. Returns the exit code.
pub(super) fn show_topology(file: &Path) -> u8 {
    match Topology::load(file) {
        Ok(topology) => {
            let mut report = String::new();
            for link in &topology.links {
                let (a, b) = (&topology.sites[link.a], &topology.sites[link.b]);
                for (from, to, spec, script, conditions) in [
                    (a, b, link.a_to_b, &link.a_to_b_script, &link.a_to_b_conditions),
                    (b, a, link.b_to_a, &link.b_to_a_script, &link.b_to_a_conditions),
                ] {
                    let words = Netem { link: spec, seed: None };
                    report += &format!("{from} to {to}: {words}\n");
                    report += &show_conditions(conditions);
                    report += &show_script(script);
                }
            }
            for (site, port) in topology.sites.iter().zip(&topology.ports) {
                for (way, spec) in [("egress", port.egress), ("ingress", port.ingress)] {
                    if let Some(link) = spec {
                        report += &format!("{site} {way}: {}\n", Netem { link, seed: None });
                    }
                }
            }
            print_wan_sim_output(&report, EXIT_GOOD)
        }
        Err(error) => {
            stdio::print_stderr_message(format_args!("wan-sim show: {error}"));
            EXIT_USAGE
        }
    }
}

/// Returns the recorded capacity, parallel paths and cross traffic of a link as text, one a line.
fn show_conditions(conditions: &Conditions) -> String {
    let mut text = String::new();
    if let Some(capacity) = &conditions.capacity {
        let (mean, length) = (capacity.mean_rate(), Span::from_ms(capacity.length_ms()));
        text += &format!("    capacity: recorded for {length}, {} on average\n", mean.rounded());
    }
    for link in &conditions.parallel {
        text += &format!("    parallel: {}\n", Netem { link: *link, seed: None });
    }
    for traffic in &conditions.cross {
        text += &format!("    cross: {traffic}\n");
    }
    text
}

/// Returns the scripted changes and drops of a link as text, one a line.
fn show_script(script: &Script) -> String {
    let mut text = String::new();
    for (at, change) in script.changes() {
        let at = Span::from_ns(at.ns());
        text += &match change {
            Change::Spec(link) => format!("    at {at}: {}\n", Netem { link, seed: None }),
            Change::Cut => format!("    at {at}: cut\n"),
            Change::Join => format!("    at {at}: joined\n"),
        };
    }
    let dropped: Vec<_> = script.dropped().map(|number| number.to_string()).collect();
    if !dropped.is_empty() {
        text += &format!("    drops packets {}\n", dropped.join(", "));
    }
    text
}

/// Prints a recorded capacity, one delivery a line. Returns the exit code.
pub(super) fn show_capacity(source: &CapacitySource, seed: u64) -> u8 {
    match source.load(Path::new(""), seed) {
        Ok(recording) => print_wan_sim_output(&recording.to_string(), EXIT_GOOD),
        Err(error) => {
            stdio::print_stderr_message(format_args!("wan-sim capacity: {error}"));
            EXIT_USAGE
        }
    }
}

/// Prints every preset in netem's words with its provenance. Returns the exit code.
pub(super) fn show_presets() -> u8 {
    let mut report = String::new();
    for preset in presets() {
        let words = Netem { link: preset.link, seed: None };
        let provenance = format!("    {}\n", preset.provenance);
        // Words stay in one line, to be copied.
        report += &format!("{}: {words}\n", preset.name);
        report += &stdio::wrap_words(&provenance, stdio::output_columns());
    }
    print_wan_sim_output(&report, EXIT_GOOD)
}
