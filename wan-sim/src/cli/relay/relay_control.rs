//! Commands on standard input, one a line, each answered with one line of JSON.

use super::relay_args::RelayArgs;
use super::relay_report::relay_report_directions_json;
use super::relay_settings::RelaySettings;
use crate::LinkSpec;
use crate::cli::json::{JSON_VERSION, fidelity_json};
use crate::netem::Netem;
use crate::relay::RunningRelay;
use serde_json::{Value, json};
use std::io;
use std::os::fd::BorrowedFd;
use std::str::FromStr;

/// The commands that a relay takes from standard input.
pub(super) struct RelayControl {
    settings: RelaySettings,
    /// The bytes read of an unfinished line: at most [`COMMAND_BYTES_MAX`].
    line: Vec<u8>,
}

impl RelayControl {
    /// Makes the control of a relay whose links are as `settings` says.
    pub(super) fn new(settings: RelaySettings) -> Self {
        Self { settings, line: Vec::new() }
    }

    /// Reads from `input` once and answers each complete line; returns false at the end of the
    /// input. A line of more than 4,096 bytes is an error.
    pub(super) fn read_commands(
        &mut self,
        input: BorrowedFd<'_>,
        args: &RelayArgs,
        relay: &RunningRelay,
    ) -> io::Result<bool> {
        let mut arrived = [0; COMMAND_BYTES_MAX];
        let taken = rustix::io::retry_on_intr(|| rustix::io::read(input, &mut arrived))?;
        for &byte in &arrived[..taken] {
            if byte != b'\n' {
                if self.line.len() == COMMAND_BYTES_MAX {
                    return Err(io::Error::other("a command longer than 4096 bytes"));
                }
                self.line.push(byte);
                continue;
            }
            let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).trim().to_owned();
            let mut answer = self.answer_command(&line, args, relay);
            answer["version"] = json!(JSON_VERSION);
            stdio::write_stdout_report(&answer.to_string())?;
        }
        Ok(taken > 0)
    }

    /// Carries out one command and returns the answer, without its version.
    fn answer_command(&mut self, line: &str, args: &RelayArgs, relay: &RunningRelay) -> Value {
        match line {
            "counters" => return relay_report_directions_json(args, &relay.counters()),
            "fidelity" => return fidelity_json(&relay.fidelity()),
            "cut" => relay.set_blackhole(true),
            "join" => relay.set_blackhole(false),
            _ => {
                let changed = refuse_relay_control_of_fixed(line, args);
                match changed.and_then(|()| self.settings.set_by_control_command(line)) {
                    Ok((forward, backward)) => relay.set_links(forward, backward),
                    Err(error) => return json!({ "error": error }),
                }
            }
        }
        json!({ "done": line })
    }
}

impl RelaySettings {
    /// Carries out the command `set KEY VALUE`. Returns the changed forward and backward link; an
    /// error changes nothing.
    fn set_by_control_command(&mut self, line: &str) -> Result<(LinkSpec, LinkSpec), String> {
        let (key, value) =
            line.strip_prefix("set ").and_then(|rest| rest.trim().split_once(' ')).ok_or_else(
                || format!("`{line}` is none of counters, fidelity, cut, join, set KEY VALUE"),
            )?;
        let mut changed = *self;
        if let (Self::Flags { queue, .. }, "rate" | "rtt") = (&mut changed, key) {
            // Without a `set queue`, the queue keeps its bytes when rate or round trip changes.
            let (there, _) = self.link_specs().map_err(|error| error.to_string())?;
            *queue = Some(there.queue().into());
        }
        match (&mut changed, key) {
            (changed, "netem") => {
                let link = parse_relay_control_netem(value)?;
                *changed = Self::Netem(link, link);
            }
            (changed, "netem-there" | "netem-back") => {
                let (there, back) = changed.link_specs().map_err(|error| error.to_string())?;
                let link = parse_relay_control_netem(value)?;
                let there_alone = key == "netem-there";
                *changed =
                    if there_alone { Self::Netem(link, back) } else { Self::Netem(there, link) };
            }
            (Self::Flags { rtt, .. }, "rtt") => *rtt = parse_relay_control_value(value)?,
            (Self::Flags { rate, .. }, "rate") => *rate = parse_relay_control_value(value)?,
            (Self::Flags { loss, .. }, "loss") => *loss = parse_relay_control_value(value)?,
            (Self::Flags { jitter, .. }, "jitter") => *jitter = parse_relay_control_value(value)?,
            (Self::Flags { queue, .. }, "queue") => {
                *queue = Some(parse_relay_control_value(value)?)
            }
            (Self::Flags { .. }, _) => {
                return Err(format!(
                    "`{key}` is none of rtt, rate, loss, jitter, queue, netem, netem-there, \
                     netem-back"
                ));
            }
            (Self::Netem(..), _) => {
                return Err(format!("`{key}` cannot be set beside netem's words: set netem WORDS"));
            }
        }
        let links = changed.link_specs().map_err(|error| error.to_string())?;
        *self = changed;
        Ok(links)
    }
}

/// Checks that the command `line` sets nothing that a recorded capacity or parallel paths fix.
fn refuse_relay_control_of_fixed(line: &str, args: &RelayArgs) -> Result<(), String> {
    let key = line.strip_prefix("set ").and_then(|rest| rest.split_whitespace().next());
    match key {
        Some(key) if !args.parallel.is_empty() => {
            Err(format!("`{key}` cannot be set beside --parallel: it is another on each path"))
        }
        Some(key @ ("rate" | "netem" | "netem-there" | "netem-back"))
            if args.capacity.is_some() =>
        {
            Err(format!("`{key}` cannot be set beside --capacity, which is the rate"))
        }
        _ => Ok(()),
    }
}

/// Parses netem's words in a `set` command. They may not name a seed, which cannot change while the
/// relay runs.
fn parse_relay_control_netem(words: &str) -> Result<LinkSpec, String> {
    let words: Netem = parse_relay_control_value(words)?;
    match words.seed {
        Some(_) => Err("a seed cannot change while the relay runs".to_owned()),
        None => Ok(words.link),
    }
}

/// Parses the value of a `set` command.
fn parse_relay_control_value<T: FromStr<Err: ToString>>(value: &str) -> Result<T, String> {
    value.parse().map_err(|error: T::Err| error.to_string())
}

/// 4,096 bytes: the longest line of a command that a relay reads on standard input. A longer line
/// ends the relay with an error. The limit is chosen, many times the longest command.
const COMMAND_BYTES_MAX: usize = 4096;
