//! The commands that print: `replay`, `show` and `presets`.

use super::exit::{EXIT_FAILED, EXIT_GOOD, EXIT_USAGE};
use crate::netem::Netem;
use crate::recording::{ReplayError, replay};
use crate::topology::{Topology, presets};
use crate::{Change, Script};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use units::Span;

/// Replays the recording in `file` and prints the counters of its links. Returns the exit code.
pub(super) fn run_replay(file: &Path) -> u8 {
    let replayed = File::open(file).map_err(ReplayError::from);
    match replayed.and_then(|opened| replay(BufReader::new(opened))) {
        Ok(replayed) => {
            for (name, seen) in replayed.links {
                let (packets, drops) = (seen.packets, seen.drops());
                print_line!("{name}: {packets} packets, {drops} dropped, every fate as recorded");
            }
            EXIT_GOOD
        }
        Err(error) => {
            eprintln!("wan-sim replay: {}: {error}", file.display());
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
            for link in &topology.links {
                let (a, b) = (&topology.sites[link.a], &topology.sites[link.b]);
                for (from, to, spec, script) in [
                    (a, b, link.a_to_b, &link.a_to_b_script),
                    (b, a, link.b_to_a, &link.b_to_a_script),
                ] {
                    print_line!("{from} to {to}: {}", Netem { link: spec, seed: None });
                    print_script(script);
                }
            }
            for (site, port) in topology.sites.iter().zip(&topology.ports) {
                for (way, spec) in [("egress", port.egress), ("ingress", port.ingress)] {
                    let words = spec.map(|link| Netem { link, seed: None });
                    words.inspect(|words| print_line!("{site} {way}: {words}"));
                }
            }
            EXIT_GOOD
        }
        Err(error) => {
            eprintln!("wan-sim show: {error}");
            EXIT_USAGE
        }
    }
}

/// Prints the scripted changes and drops of a link, one a line.
fn print_script(script: &Script) {
    for (at, change) in script.changes() {
        let at = Span::from_ns(at.ns());
        match change {
            Change::Spec(link) => print_line!("    at {at}: {}", Netem { link, seed: None }),
            Change::Cut => print_line!("    at {at}: cut"),
            Change::Join => print_line!("    at {at}: joined"),
        }
    }
    let dropped: Vec<_> = script.dropped().map(|number| number.to_string()).collect();
    if !dropped.is_empty() {
        print_line!("    drops packets {}", dropped.join(", "));
    }
}

/// Prints every preset in netem's words with its provenance. Returns the exit code.
pub(super) fn show_presets() -> u8 {
    for preset in presets() {
        let words = Netem { link: preset.link, seed: None };
        print_line!("{}: {words}\n    {}", preset.name, preset.provenance);
    }
    EXIT_GOOD
}
