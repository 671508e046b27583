//! A line that shows the links at work, where someone looks.

#![expect(clippy::disallowed_methods, reason = "a rate is by the clock")]

use crate::Counters;
use std::io::IsTerminal;
use std::time::Instant;
use units::{BitRate, ByteCount};

/// One direction of a link, or a port, as it is now.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// The name shown.
    pub(super) name: String,
    pub(super) counters: Counters,
    /// Bytes that wait.
    pub(super) queue: ByteCount,
}

/// Shows rate, queue and drops of each direction since the last time.
pub(super) struct Progress {
    before: Vec<Seen>,
    at: Instant,
    shown: bool,
}

/// How often a line is due.
pub(super) const EVERY_S: i64 = 1;

impl Progress {
    /// Whether anyone looks: standard error is a terminal.
    pub(super) fn wanted() -> bool {
        std::io::stderr().is_terminal()
    }

    /// From these values on.
    pub(super) fn from(before: Vec<Seen>) -> Self {
        Self { before, at: Instant::now(), shown: false }
    }

    /// Replaces the line on standard error, if it is time.
    pub(super) fn show(&mut self, now: Vec<Seen>) {
        let elapsed = self.at.elapsed().as_millis();
        if elapsed < 900 * EVERY_S.unsigned_abs() as u128 {
            return;
        }
        eprint!("\r\x1b[K{}", line(&self.before, &now, elapsed));
        (self.before, self.at, self.shown) = (now, Instant::now(), true);
    }

    /// Leaves the line, for what follows.
    pub(super) fn end(&self) {
        if self.shown {
            eprintln!();
        }
    }
}

fn line(before: &[Seen], now: &[Seen], elapsed_ms: u128) -> String {
    let parts = before.iter().zip(now).map(|(before, now)| {
        let bits = u128::from(now.counters.ip_bytes - before.counters.ip_bytes) * 8;
        let kilobits = (bits / elapsed_ms.max(1)) as u64;
        let rate = BitRate::from_bits_per_second(kilobits * 1000);
        let drops = now.counters.drops() - before.counters.drops();
        format!("{} {rate}, queue {}, drops {drops}", now.name, now.queue)
    });
    parts.collect::<Vec<_>>().join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_direction_has_its_rate_queue_and_drops() {
        let seen = |name: &str, ip_bytes, drops_queue, queue| Seen {
            name: name.to_owned(),
            counters: Counters { ip_bytes, drops_queue, ..Counters::default() },
            queue: ByteCount::new(queue),
        };
        let before = [seen("a>b", 1000, 3, 0), seen("b>a", 0, 0, 0)];
        let now = [seen("a>b", 251_000, 5, 9000), seen("b>a", 0, 0, 0)];
        assert_eq!(
            line(&before, &now, 2000),
            "a>b 1 Mbit/s, queue 9 kB, drops 2 | b>a 0 bit/s, queue 0 B, drops 0"
        );
    }
}
