//! Targets for quantities, links in netem's syntax, lab files and recordings.

use crate::bounds::AllocationBound;
use crate::config::config_toml_string;
use std::fmt::{Debug, Display, Write};
use std::path::Path;
use std::str::FromStr;
use units::{BitRate, ByteCount, Fraction, QuantityError, Span};
use wan_sim::QueueSize;
use wan_sim::netem::{Netem, NetemError};
use wan_sim::recording::{ReplayError, replay};
use wan_sim::topology::{FileError, Topology, presets};

/// Parses `bytes` as every kind of quantity, and panics when a parser breaks a promise.
pub fn quantities(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    check_quantity::<BitRate>(text);
    check_quantity::<ByteCount>(text);
    check_quantity::<Fraction>(text);
    check_quantity::<Span>(text);
    if let Err(error) = QUANTITY_BOUND.enforce(bytes, || text.parse::<QueueSize>()) {
        assert_eq!(error.value, text);
    }
}

/// Parses a text as one kind of quantity; what was parsed must survive being printed and parsed
/// again.
fn check_quantity<T: FromStr<Err = QuantityError> + Display + Debug + PartialEq>(text: &str) {
    match QUANTITY_BOUND.enforce(text.as_bytes(), || text.parse::<T>()) {
        Ok(quantity) => {
            let printed = quantity.to_string();
            assert_eq!(printed.parse().as_ref(), Ok(&quantity), "{text:?} is {printed:?}");
        }
        Err(error) => assert_eq!(error.value, text),
    }
}

/// Parses `bytes` as a link in netem's syntax, and panics when the parser breaks a promise.
pub fn netem_words(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match NETEM_BOUND.enforce(bytes, || text.parse::<Netem>()) {
        Ok(netem) => {
            let printed = netem.to_string();
            assert_eq!(printed.parse(), Ok(netem), "{text:?} is {printed:?}");
        }
        Err(NetemError::Unknown { word, .. }) => assert!(text.contains(&word), "{word}"),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Parses `bytes` as a lab or fabric file beside the example labs, and panics when the parser
/// breaks a promise.
pub fn lab_file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    // Presets are loaded once, on first use, and do not count for this file.
    presets().count();
    let path = Path::new(LABS_FOLDER).join("lab.toml");
    match FILE_BOUND.enforce(bytes, || Topology::parse(&path, text)) {
        Ok(topology) => {
            let again = lab_text(&topology);
            let read = Topology::parse(&path, &again).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(read, without_ports_and_schedules(topology), "{again}");
        }
        Err(error) => {
            assert!(!error.to_string().contains(char::is_control), "{error:?}");
            if let FileError::Wrong { path: of, line, .. } = error
                && of == path
            {
                assert!((1..=1 + text.matches('\n').count()).contains(&line), "line {line}");
            }
        }
    }
}

/// Removes from a topology what [`lab_text`] does not write: rates of ports, and scripts and
/// conditions of links.
fn without_ports_and_schedules(mut topology: Topology) -> Topology {
    topology.ports.iter_mut().for_each(|port| (port.egress, port.ingress) = (None, None));
    for link in &mut topology.links {
        (link.a_to_b_script, link.b_to_a_script) = Default::default();
        (link.a_to_b_conditions, link.b_to_a_conditions) = Default::default();
    }
    topology
}

/// Writes a topology as a lab file, without rates of ports, and scripts and conditions of links.
fn lab_text(topology: &Topology) -> String {
    let mut text = format!("seed = {}\nmtu = {}\n", topology.seed, topology.mtu);
    let mut line = |line: String| writeln!(text, "{line}").expect("a string takes all");
    for (site, host) in topology.sites.iter().zip(&topology.hosts) {
        let addresses: Vec<_> = host.addresses.iter().map(|ip| format!("\"{ip}\"")).collect();
        line(format!("[site.{site}]\naddresses = [{}]", addresses.join(", ")));
        if let Some(device) = &host.device {
            line(format!("device = {}", config_toml_string(device)));
        }
    }
    for link in &topology.links {
        let words = |link| Netem { link, seed: None };
        line(format!("[link.{}-{}]", topology.sites[link.a], topology.sites[link.b]));
        line(format!("forward.netem = \"{}\"", words(link.a_to_b)));
        line(format!("backward.netem = \"{}\"", words(link.b_to_a)));
    }
    text
}

/// Replays `bytes` as a recording, and panics when the replay breaks a promise. A recording with
/// wrong fates replays after they are corrected.
pub fn recording(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut lines: Vec<String> = text.split('\n').map(str::to_owned).collect();
    for _ in 0..CORRECTIONS_MAX {
        let text = lines.join("\n");
        match FILE_BOUND.enforce(text.as_bytes(), || replay(text.as_bytes())) {
            Ok(replayed) => {
                let packets: u64 = replayed.links.iter().map(|(_, seen)| seen.packets).sum();
                assert!(packets < lines.len() as u64, "{packets} packets");
                return;
            }
            Err(ReplayError::Different { line, recorded, replayed }) => {
                assert_eq!(lines[line - 1].trim_end_matches('\r'), recorded.trim_end_matches('\r'));
                lines[line - 1] = replayed;
            }
            Err(ReplayError::Malformed { line, text, .. }) => {
                assert_eq!(lines[line - 1].trim_end_matches('\r'), text.trim_end_matches('\r'));
                return;
            }
            Err(ReplayError::Unreadable(error)) => {
                let long = lines.iter().any(|line| line.len() >= 4096);
                assert!(long, "text is readable: {error}");
                return;
            }
        }
    }
}

/// 256 bytes, and 8 bytes for each byte of input: the most memory that parsing a quantity may
/// allocate. An error keeps a copy of the text.
const QUANTITY_BOUND: AllocationBound = AllocationBound { fixed: 256, per_byte: 8 };
/// 512 bytes, and 16 bytes for each byte of input: the most memory that parsing a link in netem's
/// syntax may allocate. A word of two bytes takes 16 bytes in the parser's list.
const NETEM_BOUND: AllocationBound = AllocationBound { fixed: 512, per_byte: 16 };
/// 64 KiB, and 2,048 bytes for each byte of input: the most memory that parsing a lab file or a
/// recording may allocate. A link of a few bytes takes some hundred bytes, several times over.
const FILE_BOUND: AllocationBound = AllocationBound { fixed: 64 << 10, per_byte: 2048 };
/// 64 corrections: the most wrong packet fates that the fuzz target corrects in one recording
/// before it gives up.
const CORRECTIONS_MAX: usize = 64;
/// Folder of the example lab files; paths of fabric files in a lab file are relative to this
/// folder.
const LABS_FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/labs");
