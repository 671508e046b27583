//! Commands on standard input, one a line, each answered with one line of JSON.

use super::{RelayArgs, Settings, counters_json};
use crate::LinkSpec;
use crate::relay::Relay;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::os::fd::BorrowedFd;

pub(super) struct Control {
    settings: Settings,
    /// What has been read of an unfinished line: at most [`LINE_BYTES_MAX`].
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
            "counters" => return counters_json(args, &relay.counters()),
            "cut" => relay.set_blackhole(true),
            "join" => relay.set_blackhole(false),
            _ => match self.settings.set(line) {
                Ok(spec) => relay.set_links(spec, spec),
                Err(error) => return json!({ "error": error }),
            },
        }
        json!({ "done": line })
    }
}

impl Settings {
    /// Carries out `set KEY VALUE`; on an error nothing changes.
    fn set(&mut self, line: &str) -> Result<LinkSpec, String> {
        let (key, value) =
            line.strip_prefix("set ")
                .and_then(|rest| rest.trim().split_once(' '))
                .ok_or_else(|| format!("`{line}` is none of counters, cut, join, set KEY VALUE"))?;
        let mut changed = *self;
        let quantity_error = |error: units::QuantityError| error.to_string();
        match key {
            "rtt" => changed.rtt = value.parse().map_err(quantity_error)?,
            "rate" => changed.rate = value.parse().map_err(quantity_error)?,
            "loss" => changed.loss = value.parse().map_err(quantity_error)?,
            "jitter" => changed.jitter = value.parse().map_err(quantity_error)?,
            "queue" => changed.queue = Some(value.parse().map_err(quantity_error)?),
            _ => return Err(format!("`{key}` is none of rtt, rate, loss, jitter, queue")),
        }
        let spec = changed.spec().map_err(|error| error.to_string())?;
        *self = changed;
        Ok(spec)
    }
}

const LINE_BYTES_MAX: usize = 4096;
