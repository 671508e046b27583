//! The reference page of all config keys, `docs/configuration.md`.
//!
//! It is made from the same descriptions of tables and keys by which the reader takes values.
//! `cargo run -p gateway --example configuration` prints it, and a test compares it with the
//! page in `docs/`.

use super::config_value::ValueType;
use super::former_value::FORMER_VALUES;
use super::key::{KeyDescription, KeyNeed, TableKeys};
use super::{fabric, region};
use hier_collectives::topology::{PATIENCE_RULES, Patience};
use std::fmt::{self, Write};
use units::Span;

/// An example fabric file with every key, as `docs/configuration.md` shows it.
pub const FABRIC_EXAMPLE: &str = include_str!("fabric.toml");

/// An example region file with every key, as `docs/configuration.md` shows it.
pub const REGION_EXAMPLE: &str = include_str!("region.toml");

/// Returns the text of `docs/configuration.md`, in Markdown.
pub fn reference_page() -> String {
    let mut page = String::new();
    write_reference_page(&mut page).expect("a string takes every write");
    page
}

/// Writes all sections of the reference page.
fn write_reference_page(page: &mut String) -> fmt::Result {
    page.push_str(PAGE_INTRODUCTION);
    writeln!(page, "\n## Example of a fabric file\n\n```toml\n{FABRIC_EXAMPLE}```")?;
    writeln!(page, "\n## Example of a region file\n\n```toml\n{REGION_EXAMPLE}```")?;
    write_reference_ports(page)?;
    writeln!(page, "\n## Keys of a fabric file")?;
    write_reference_key_tables(page, &fabric::keys::FABRIC_FILE_TABLE, "")?;
    writeln!(page, "\n## Keys of a region file")?;
    write_reference_key_tables(page, &region::keys::REGION_FILE_TABLE, "")?;
    write_reference_deadlines(page)?;
    write_reference_values(page)?;
    write_reference_former_values(page)?;
    page.push_str(PAGE_OTHER_FILES);
    Ok(())
}

/// Writes the section on the UDP and TCP ports that a gateway uses.
fn write_reference_ports(page: &mut String) -> fmt::Result {
    writeln!(
        page,
        "\n## Ports\n\n\
         | port | used by | open it for |\n|---|---|---|\n\
         | UDP, the port of `wan` | lanes between regions | the gateways of the linked regions |\n\
         | UDP, the port of `lan` | lanes within the region | the gateways of the region |\n\
         | TCP, the port of `status` | metrics and status | operators and their scrapers |\n\n\
         All lanes share one port. The gateway that dials does so from ports that the system \
         chooses. With several addresses, lane *i* of *n* addresses uses address *i* mod *n*. \
         Gateways on one IP address need a port each, for `wan` and `lan` together. A gateway with \
         a WAN port and without `wan` needs no open port: it dials all others."
    )
}

/// Writes the keys of `table` and of all tables inside it; `path` is the path of the
/// table's parent.
fn write_reference_key_tables(page: &mut String, table: &TableKeys, path: &str) -> fmt::Result {
    let own = match table.name {
        "" => String::new(),
        name => format!("{path}{name}.{}", table.placeholder),
    };
    match own.as_str() {
        "" => writeln!(page, "\n### Top level\n")?,
        own => writeln!(page, "\n### `[{own}]`\n")?,
    }
    writeln!(page, "{}\n", table.about)?;
    writeln!(page, "| key | value | default | meaning | example |\n|---|---|---|---|---|")?;
    for key in table.keys {
        write_reference_key_row(page, key)?;
    }
    let inner = if own.is_empty() { own } else { own + "." };
    table.tables.iter().try_for_each(|table| write_reference_key_tables(page, table, &inner))
}

/// Writes the row of one key in a table of the reference page.
fn write_reference_key_row(page: &mut String, key: &KeyDescription) -> fmt::Result {
    let default = match key.need {
        KeyNeed::Required => "required".to_owned(),
        KeyNeed::RequiredIf(condition, otherwise) => {
            format!("required if {condition}; otherwise {otherwise}")
        }
        KeyNeed::Optional(default) => default.to_owned(),
    };
    let KeyDescription { name, value, example, meaning, .. } = key;
    writeln!(page, "| `{name}` | {} | {default} | {meaning} | `{example}` |", value.name)
}

/// Writes the section on deadlines: those that follow from the fabric's `patience`, and those that do not.
fn write_reference_deadlines(page: &mut String) -> fmt::Result {
    let usual = Patience::default();
    let zero = Span::ZERO;
    let times = [
        usual.lost_after(None, zero),
        usual.gone_round_after(None, zero),
        usual.awaited_for(zero),
        usual.stalled_after_least(),
    ];
    writeln!(
        page,
        "\n## Deadlines\n\n\
         The fabric's `patience` is the time for which a silence is borne. `landbridge check` prints the \
         deadlines of a fabric that follow from it:\n\n\
         | deadline | usually | follows from | at its end |\n|---|---|---|---|"
    )?;
    for (rule, time) in PATIENCE_RULES.iter().zip(times) {
        writeln!(page, "| `{}` | {time} | {} | {} |", rule.name, rule.formula, rule.meaning)?;
    }
    page.push_str(OTHER_DEADLINES);
    Ok(())
}

/// Writes the section of the reference page on the forms that values can have.
fn write_reference_values(page: &mut String) -> fmt::Result {
    writeln!(
        page,
        "\n## Values\n\n\
         Quantities are strings of a number and a unit; the space between them is optional. A \
         value is used exactly as written, or refused with its line and what would be accepted.\n\n\
         | value | in TOML | accepted |\n|---|---|---|"
    )?;
    let mut types: Vec<ValueType> = Vec::new();
    collect_reference_value_types(&fabric::keys::FABRIC_FILE_TABLE, &mut types);
    collect_reference_value_types(&region::keys::REGION_FILE_TABLE, &mut types);
    types.sort_by_key(|one| one.name);
    for ValueType { name, toml, accepted } in types {
        writeln!(page, "| {name} | {toml} | {accepted} |")?;
    }
    Ok(())
}

/// Writes the section of the reference page on values that earlier versions took.
fn write_reference_former_values(page: &mut String) -> fmt::Result {
    page.push_str(FORMER_VALUES_INTRODUCTION);
    for former in FORMER_VALUES {
        let (key, change) = (former.key, former.change);
        writeln!(page, "| `{key}` | {} | {} | {change} |", former.earlier, former.now)?;
    }
    page.push_str(FORMER_VALUES_BY_HAND);
    Ok(())
}

/// Adds the value types of all keys of a table, and of the tables inside it, to `types`, each once.
fn collect_reference_value_types(table: &TableKeys, types: &mut Vec<ValueType>) {
    for key in table.keys {
        if !types.contains(&key.value) {
            types.push(key.value);
        }
    }
    table.tables.iter().for_each(|table| collect_reference_value_types(table, types));
}

/// The beginning of `docs/configuration.md`, in Markdown, up to the first example.
const PAGE_INTRODUCTION: &str = "\
# Configuration

<!-- Made by `cargo run -p gateway --example configuration > docs/configuration.md`. Edit the
     descriptions in gateway/src/config/ instead of this page. -->

A deployment has two kinds of file, both in TOML:

* One **fabric file** describes regions, gateways and links. Every region uses the same file.
* One **region file** for each region names the fabric file. It holds the settings of the region's
  gateways on their hosts, and the jobs that may attach.

`landbridge check FILE...` reports every fault of such files, each with its line and what would be
accepted. The smallest pair of files that runs is
[configs/two-region](../configs/two-region/fabric.toml).

Gateways exchange only if their fabric files agree on the name, the MTU, the quorum, the patience, the names of
regions and gateways, the ranks, which gateways have a WAN port, and which regions are linked.
`landbridge check` prints a short hash of these parts as `identity`. Other keys may differ for a while,
as during a change, and nothing warns of it: addresses, `rate`, `rtt`, `loss`, `egress`, `ingress`,
`schedule`, `controller`, `speeds`.

A gateway reads its files when it starts. On SIGHUP it reads the jobs again, and renewed certificates,
which it also takes up within 30 s without a signal. `landbridge fabric apply` changes rates, round trips, losses
and schedules of the fabric at all gateways while they run. Restart a gateway after any other change: its log and
`landbridge status` name the changed keys that need it.
";

/// The deadlines that do not follow from the patience, in Markdown.
const OTHER_DEADLINES: &str = "
An outage of up to a third of the patience fails no step. A patience that a link is too long for is refused, and so is a
`silence` above it. On a slow or long link a deadline may be longer than its part of the patience; `check` says so.

Slow is not silent, so these do not follow from it:

| deadline | usually | set by |
|---|---|---|
| wait for the posts of ranks that are attached | 30 min | `timeout` of the call that posts, in all clients; `timeout` of `init_process_group` |
| a commit | 30 min | `timeout` of the call |
| attaching and meeting | 30 min in Python and C; in Rust 60 s for a gateway to answer, and 30 min to meet | `timeout` of `connect` and `recover`; `AttachOptions` |
| a request to the job's store | 300 s | `timeout` of the store |
| the end of training | 60 s | `timeout` of `finish` |
| a step under way when a region leaves | 10 min | `--within` of `landbridge leave` |
| a gateway that finishes posted collectives after SIGTERM | 25 s, and 4 s to stop | supervisors kill after 30 s |
| a gateway whose process has ended, where its system says so | 1 s | an answer, not a silence |
| a lane that is silent while others to its peer are heard | six round trips, at least 500 ms | the other lanes |
| a trainer on another host that vanished without a word | 45 s | the system of its gateway's host (TCP keep-alive) |
| log lines about waits, warnings of waits and problems | 10 s, 30 s, 30 s | they end nothing |
";

/// The beginning of the section on values that earlier versions took, in Markdown, up to the rows of its
/// table.
const FORMER_VALUES_INTRODUCTION: &str = "
## Files of earlier versions

No key was renamed or removed so far. These values were replaced. `landbridge check` names each with its line, and
`landbridge check --fix FILE...` writes those of this version, in the files and in the fabric files that they name. Comments,
order and spaces stay, the changed lines are shown, and the former text is kept in `FILE.bak`. With `--dry-run` nothing is
written; the values of a region file are then judged only if its fabric file has no fault.

| key | earlier | now | |
|---|---|---|---|
";

/// The end of the section on values that earlier versions took, in Markdown.
const FORMER_VALUES_BY_HAND: &str = "
Some files of earlier versions need a choice that only you can make. `check` names them and what is accepted:

* a `socket` in a folder to which other users may write: choose another folder;
* linked gateways of which one has an IPv4 address and the other an IPv6 address: choose addresses of one family;
* two gateways of a host, or `wan` and `lan` of one, with one UDP port: choose another port for one of both.
";

/// The last section of `docs/configuration.md`, on files with other keys, in Markdown.
const PAGE_OTHER_FILES: &str = "
## Other files

Lab files describe emulated links for tests. Their keys are in
[emulation.md](emulation.md#the-keys-of-a-link). A fabric file is also a lab file.
";
