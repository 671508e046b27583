//! Commands on standard input, one a line, each answered with one line of JSON.

use super::args::RelayArgs;
use super::report::directions_json;
use super::settings::Settings;
use crate::LinkSpec;
use crate::netem::Netem;
use crate::relay::Relay;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::str::FromStr;

pub(super) struct Control {
    settings: Settings,
    /// The bytes read of an unfinished line: at most [`LINE_BYTES_MAX`].
    line: Vec<u8>,
}

impl Control {
    pub(super) fn new(settings: Settings) -> Self {
        Self { settings, line: Vec::new() }
    }

    /// Takes what has arrived and answers whole lines; false at the input's end.
    pub(super) fn read(
        &mut self,
        input: BorrowedFd<'_>,
        args: &RelayArgs,
        relay: &Relay,
    ) -> io::Result<bool> {
        let mut arrived = [0; LINE_BYTES_MAX];
        let taken = rustix::io::retry_on_intr(|| rustix::io::read(input, &mut arrived))?;
        for &byte in &arrived[..taken] {
            if byte != b'\n' {
                if self.line.len() == LINE_BYTES_MAX {
                    return Err(io::Error::other("a command longer than 4096 bytes"));
                }
                self.line.push(byte);
                continue;
            }
            let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).trim().to_owned();
            let answer = self.answer(&line, args, relay);
            let mut out = io::stdout().lock();
            writeln!(out, "{answer}")?;
            out.flush()?;
        }
        Ok(taken > 0)
    }

    fn answer(&mut self, line: &str, args: &RelayArgs, relay: &Relay) -> Value {
        match line {
            "counters" => return directions_json(args, &relay.counters()),
            "cut" => relay.set_blackhole(true),
            "join" => relay.set_blackhole(false),
            _ => match self.settings.set(line) {
                Ok((forward, backward)) => relay.set_links(forward, backward),
                Err(error) => return json!({ "error": error }),
            },
        }
        json!({ "done": line })
    }
}

impl Settings {
    /// Executes `set KEY VALUE`; an error changes nothing.
    fn set(&mut self, line: &str) -> Result<(LinkSpec, LinkSpec), String> {
        let (key, value) =
            line.strip_prefix("set ")
                .and_then(|rest| rest.trim().split_once(' '))
                .ok_or_else(|| format!("`{line}` is none of counters, cut, join, set KEY VALUE"))?;
        let mut changed = *self;
        if let (Self::Flags { queue, .. }, "rate" | "rtt") = (&mut changed, key) {
            // Memory does not change with the link, unless told.
            let (there, _) = self.links().map_err(|error| error.to_string())?;
            *queue = Some(there.queue().into());
        }
        match (&mut changed, key) {
            (changed, "netem") => {
                let link = one_way(value)?;
                *changed = Self::Netem(link, link);
            }
            (changed, "netem-there" | "netem-back") => {
                let (there, back) = changed.links().map_err(|error| error.to_string())?;
                let link = one_way(value)?;
                let there_alone = key == "netem-there";
                *changed =
                    if there_alone { Self::Netem(link, back) } else { Self::Netem(there, link) };
            }
            (Self::Flags { rtt, .. }, "rtt") => *rtt = parse(value)?,
            (Self::Flags { rate, .. }, "rate") => *rate = parse(value)?,
            (Self::Flags { loss, .. }, "loss") => *loss = parse(value)?,
            (Self::Flags { jitter, .. }, "jitter") => *jitter = parse(value)?,
            (Self::Flags { queue, .. }, "queue") => *queue = Some(parse(value)?),
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
        let links = changed.links().map_err(|error| error.to_string())?;
        *self = changed;
        Ok(links)
    }
}

fn one_way(words: &str) -> Result<LinkSpec, String> {
    let words: Netem = parse(words)?;
    match words.seed {
        Some(_) => Err("a seed cannot change while the relay runs".to_owned()),
        None => Ok(words.link),
    }
}

fn parse<T: FromStr<Err: ToString>>(value: &str) -> Result<T, String> {
    value.parse().map_err(|error: T::Err| error.to_string())
}

/// 4096 bytes: the longest command line.
const LINE_BYTES_MAX: usize = 4096;
