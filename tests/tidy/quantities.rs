//! Quantities for people go through the crate `units`, and in Python through `_quantities`.
//!
//! A format string that rounds a number before a unit, or prints a bare number of bytes or seconds,
//! is a second way to print a quantity. Tables of measurements in `docs/results` have one unit a
//! column, and their writers are free.

use crate::sources::{assert_none, sources_in};
use std::path::Path;

/// Units as they stand behind a number.
const UNITS: [&str; 25] = [
    "bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s", "bytes", "B", "KiB", "MiB", "GiB", "TiB",
    "PiB", "kB", "MB", "GB", "TB", "PB", "ns", "us", "ms", "s", "min", "seconds", "h", "%",
];
/// Folders whose programs print for people. Tests and benches of them are free.
const PLACES: [&str; 12] = [
    "capi/src",
    "congestion-model/src",
    "gateway/src",
    "hier-collectives/src",
    "landbridge/src",
    "stdio/src",
    "wan-sim/src",
    "xtask/src/stages",
    "xtask/src/package",
    "xtask/src/deploy",
    "xtask/src/python.rs",
    "python/landbridge",
];
/// Files with exact numbers behind which a unit may stand, each with the reason.
const EXACT: [(&str, &str); 25] = [
    ("capi/src/raw/foreign_memory.rs", "a length that the caller gave"),
    ("gateway/src/config/region/region_tables.rs", "the length of a path beside the most"),
    ("gateway/src/local/protocol/mod.rs", "a message's length beside the most"),
    ("gateway/src/local/remote/streamed_post.rs", "an offset of a piece beside what has come"),
    ("gateway/src/local/slots_in_use.rs", "an offset in the arena, and its length"),
    ("gateway/src/memory/arena.rs", "a length that a trainer claimed, beside the true one"),
    ("gateway/src/observe/engine_status_request.rs", "a constant of whole seconds"),
    ("gateway/src/wan/connect/control_stream.rs", "a frame's length beside the most"),
    ("gateway/src/wan/connect/path_probe", "sizes of packets, and a constant of whole seconds"),
    ("gateway/src/wan/stream", "lengths of a peer's segments beside what they should be"),
    ("hier-collectives/src/plan/analysis/proof.rs", "a constant of the protocol"),
    ("hier-collectives/src/plan/planner.rs", "a message's length beside the most"),
    ("hier-collectives/src/reduce/error.rs", "lengths that must be equal"),
    ("hier-collectives/src/session/collective/check_post.rs", "lengths that must be equal"),
    (
        "hier-collectives/src/session/action/peer_error.rs",
        "lengths that a peer should not have sent",
    ),
    ("gateway/src/limits/process_limits.rs", "the limit as `ulimit -t` has it"),
    ("landbridge/src/doctor/peers.rs", "sizes of packets"),
    ("landbridge/src/quickstart/error.rs", "the length of a path beside the most"),
    ("python/landbridge/_memory/arena.py", "bytes that the caller gave"),
    ("python/landbridge/_operations", "a timeout that the caller gave"),
    ("python/landbridge/_protocol", "a message's length beside the most"),
    ("python/landbridge/_rounding.py", "the one way of Python"),
    ("wan-sim/src", "words of tc and of recordings, and lengths of files beside the most"),
    ("xtask/src/stages/stage_run.rs", "whole seconds and minutes that the stages state"),
    ("xtask/src/package", "lengths of files, as `ls -l` has them"),
];

#[test]
fn quantities_for_people_are_printed_one_way() {
    let mut findings = Vec::new();
    let mut used = vec![false; EXACT.len()];
    for source in sources_in(&["rs", "py"]) {
        let path = &source.path;
        if !PLACES.iter().any(|place| path.starts_with(place)) || is_test(path) {
            continue;
        }
        let code = source.text.split("#[cfg(test)]").next().unwrap_or_default();
        for (number, line) in (1..).zip(code.lines()).filter(|(_, line)| is_for_people(line)) {
            for placeholder in quantities(line) {
                let exact = EXACT.iter().position(|(file, _)| path.starts_with(file));
                match exact.filter(|_| !rounds(placeholder)) {
                    Some(entry) => used[entry] = true,
                    None => findings.push(format!("{}:{number}: {placeholder}", path.display())),
                }
            }
        }
    }
    let unused = EXACT.iter().zip(used).filter(|(_, used)| !used);
    findings.extend(unused.map(|((file, _), _)| format!("{file}: needs no exception any more")));
    assert_none(findings);
}

/// The placeholders of a line's format strings that stand before a unit.
fn quantities(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices('}').filter_map(|(end, _)| {
        let start = line[..end].rfind('{')?;
        let behind = &line[end + 1..];
        let behind = behind.strip_prefix(' ').unwrap_or(behind);
        let ends = |unit: &&str| {
            let rest = behind.strip_prefix(*unit);
            rest.is_some_and(|rest| {
                !rest.starts_with(|c: char| c.is_alphanumeric() || "/_'".contains(c))
            })
        };
        let in_string = line[..start].matches('"').count() % 2 == 1 || !line[..start].contains('"');
        (in_string && UNITS.iter().any(ends)).then(|| &line[start..=end])
    })
}

/// Whether the placeholder rounds its number to some decimals.
fn rounds(placeholder: &str) -> bool {
    placeholder.split_once(':').is_some_and(|(_, format)| format.contains('.'))
}

/// Whether the file has nothing but tests.
fn is_test(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "tests" || part.as_os_str() == "tests.rs")
}

/// Whether the line is neither a comment nor an assertion, which is for programmers.
fn is_for_people(line: &str) -> bool {
    let line = line.trim_start();
    let is_comment = line.starts_with("//") || (line.starts_with('#') && !line.starts_with("#["));
    !is_comment && !line.starts_with("assert") && !line.starts_with("debug_assert")
}

#[test]
fn a_second_way_to_print_a_quantity_is_found() {
    let found = |line: &'static str| quantities(line).collect::<Vec<_>>();
    assert_eq!(found(r#"format!("after {seconds:.0} s")"#), ["{seconds:.0}"]);
    assert_eq!(found(r#"print(f"{x} MiB, {100 * y:.1f} %")"#), ["{x}", "{100 * y:.1f}"]);
    assert_eq!(found(r#"format!("{count} segments {name}s")"#), ["{name}"]);
    assert!(found(r#"format!("{eta:.3}, {text}")"#).is_empty());
    assert!(rounds("{seconds:.0}") && !rounds("{seconds}") && !rounds("{a.b}"));
}
