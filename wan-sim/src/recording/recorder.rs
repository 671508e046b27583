//! The writer of a recording.

use super::line::{HEADER, MovedLine, PacketLine};
use crate::netem::Netem;
use crate::{Change, LinkSpec, Moved, Offered, Packet, Script};
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
    /// A recording into `out`, which should be buffered.
    pub fn new(out: Box<dyn Write + Send>) -> Self {
        let mut recorder = Self { out, error: None };
        recorder.line(format_args!("{HEADER}"));
        recorder
    }

    /// The link numbered `index`, from 0 in order, before anything of it.
    pub fn link(&mut self, index: usize, name: &str, seed: u64, link: LinkSpec) {
        let words = Netem { link, seed: Some(seed) };
        self.line(format_args!("link {index} {name} {words}"));
    }

    /// Writes the script of link `index`, before any of its packets.
    pub fn script(&mut self, index: usize, script: &Script) {
        for (at, change) in script.changes() {
            let at = at.ns();
            match change {
                Change::Spec(link) => {
                    let words = Netem { link, seed: None };
                    self.line(format_args!("{index} at {at} set {words}"));
                }
                Change::Cut => self.line(format_args!("{index} at {at} cut")),
                Change::Join => self.line(format_args!("{index} at {at} join")),
            }
        }
        for number in script.dropped() {
            self.line(format_args!("{index} drops {number}"));
        }
    }

    /// Writes a packet that link `index` was offered, and its fate.
    pub fn offered(&mut self, index: usize, now: TimeNs, packet: Packet, offered: &Offered) {
        self.line(format_args!("{}", PacketLine { index, now, packet, offered }));
    }

    /// A change of link `index` at `now`, and the packets that it moved.
    pub fn change(&mut self, index: usize, now: TimeNs, change: Change, moved: &[Moved]) {
        match change {
            Change::Spec(link) => {
                let words = Netem { link, seed: None };
                self.line(format_args!("{index} set {} {words}", now.ns()));
            }
            Change::Cut => self.line(format_args!("{index} cut")),
            Change::Join => self.line(format_args!("{index} join")),
        }
        for moved in moved {
            self.line(format_args!("{}", MovedLine { index, moved }));
        }
    }

    /// Writes out what is left.
    ///
    /// # Errors
    /// The first error of this or any earlier call; the recording is not whole then.
    pub fn finish(mut self) -> io::Result<()> {
        match self.error.take() {
            Some(error) => Err(error),
            None => self.out.flush(),
        }
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        if self.error.is_none() {
            self.error = writeln!(self.out, "{line}").err();
        }
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("error", &self.error).finish_non_exhaustive()
    }
}
