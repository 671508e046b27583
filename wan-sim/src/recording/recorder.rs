//! The writer of a recording.

use super::line::{DecidedLine, HEADER_LINE, MovedLine, PacketLine};
use crate::netem::Netem;
use crate::{Change, Conditions, Decided, LinkSpec, Moved, Packet, PacketFates, Script};
use std::fmt;
use std::io::{self, Write};
use units::TimeNs;

/// Writes a recording.
pub struct Recorder {
    out: Box<dyn Write + Send>,
    /// The first error; after it nothing is written, since a partial recording is useless.
    error: Option<io::Error>,
}

impl Recorder {
    /// Begins a recording into `out`, which should be buffered.
    pub fn new(out: Box<dyn Write + Send>) -> Self {
        let mut recorder = Self { out, error: None };
        recorder.write_line(format_args!("{HEADER_LINE}"));
        recorder
    }

    /// Writes the link numbered `index`, from 0 in order, before its script and packets.
    pub fn write_link(&mut self, index: usize, name: &str, seed: u64, link: LinkSpec) {
        let words = Netem { link, seed: Some(seed) };
        self.write_line(format_args!("link {index} {name} {words}"));
    }

    /// Writes the script of link `index`, before any packet of that link.
    pub fn write_script(&mut self, index: usize, script: &Script) {
        for (at, change) in script.changes() {
            let at = at.ns();
            match change {
                Change::Spec(link) => {
                    let words = Netem { link, seed: None };
                    self.write_line(format_args!("{index} at {at} set {words}"));
                }
                Change::Cut => self.write_line(format_args!("{index} at {at} cut")),
                Change::Join => self.write_line(format_args!("{index} at {at} join")),
            }
        }
        for number in script.dropped() {
            self.write_line(format_args!("{index} drops {number}"));
        }
    }

    /// Writes the conditions of link `index`, before its script and its packets.
    pub fn write_conditions(&mut self, index: usize, conditions: &Conditions) {
        let Conditions { capacity, parallel, cross } = conditions;
        let times = capacity.iter().flat_map(|capacity| capacity.times_ms());
        let times: Vec<_> = times.map(u64::to_string).collect();
        for part in times.chunks(CAPACITY_TIMES_PER_LINE) {
            self.write_line(format_args!("{index} delivers {}", part.join(" ")));
        }
        for link in parallel {
            let words = Netem { link: *link, seed: None };
            self.write_line(format_args!("{index} parallel {words}"));
        }
        for traffic in cross {
            self.write_line(format_args!("{index} cross {traffic}"));
        }
    }

    /// Writes the fates that were decided when packets left the queue of link `index`.
    pub fn write_decided(&mut self, index: usize, decided: &[Decided]) {
        for decided in decided {
            self.write_line(format_args!("{}", DecidedLine { index, decided }));
        }
    }

    /// Writes a packet that link `index` was offered, and its fate.
    pub fn write_packet(
        &mut self,
        index: usize,
        now: TimeNs,
        packet: Packet,
        offered: &PacketFates,
    ) {
        self.write_line(format_args!("{}", PacketLine { index, now, packet, offered }));
    }

    /// Writes a change of link `index` at `now`, and the packets whose arrival the change moved.
    pub fn write_change(&mut self, index: usize, now: TimeNs, change: Change, moved: &[Moved]) {
        match change {
            Change::Spec(link) => {
                let words = Netem { link, seed: None };
                self.write_line(format_args!("{index} set {} {words}", now.ns()));
            }
            Change::Cut => self.write_line(format_args!("{index} cut")),
            Change::Join => self.write_line(format_args!("{index} join")),
        }
        for moved in moved {
            self.write_line(format_args!("{}", MovedLine { index, moved }));
        }
    }

    /// Flushes the recording.
    ///
    /// # Errors
    /// The first error of this or any earlier call; the recording is not whole then.
    pub fn finish(mut self) -> io::Result<()> {
        match self.error.take() {
            Some(error) => Err(error),
            None => self.out.flush(),
        }
    }

    /// Writes one line, unless an earlier write failed.
    fn write_line(&mut self, line: fmt::Arguments<'_>) {
        if self.error.is_none() {
            self.error = writeln!(self.out, "{line}").err();
        }
    }
}

impl fmt::Debug for Recorder {
    /// Prints the first write error, if there was one, for logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("error", &self.error).finish_non_exhaustive()
    }
}

/// 100 deliveries of a recorded capacity: the most on one line of a recording; more take further
/// lines. So no line is longer than a replay accepts.
const CAPACITY_TIMES_PER_LINE: usize = 100;
