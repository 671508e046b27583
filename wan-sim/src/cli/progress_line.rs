//! The progress line, which shows the links at work on a terminal.

#![expect(clippy::disallowed_methods, reason = "a rate is by the clock")]

use crate::FateCounters;
use std::io::IsTerminal;
use std::time::Instant;
use units::{BitRate, ByteCount};

/// One direction of a link, or a port, as it is now.
#[derive(Debug, Clone)]
pub(super) struct LinkProgress {
    /// The name shown.
    pub(super) name: String,
    pub(super) counters: FateCounters,
    /// Bytes that wait for the rate.
    pub(super) queue: ByteCount,
}

/// The line on standard error that shows rate, queue and drops of each direction since its last
/// update.
pub(super) struct ProgressLine {
    before: Vec<LinkProgress>,
    at: Instant,
    shown: bool,
}

/// 1 s: the interval between two updates of the progress line on the terminal, long enough to read
/// it. A lab writes its status file at the same interval.
pub(super) const PROGRESS_INTERVAL_S: i64 = 1;

impl ProgressLine {
    /// Returns whether to show the line: standard error is a terminal.
    pub(super) fn is_wanted() -> bool {
        std::io::stderr().is_terminal()
    }

    /// Makes a line whose first update shows the change since `before`.
    pub(super) fn starting_at(before: Vec<LinkProgress>) -> Self {
        Self { before, at: Instant::now(), shown: false }
    }

    /// Replaces the line on standard error, if 900 ms or more have passed since the last update.
    /// Never waits for the terminal.
    pub(super) fn update(&mut self, now: Vec<LinkProgress>) {
        let elapsed = self.at.elapsed().as_millis();
        if elapsed < 900 * PROGRESS_INTERVAL_S.unsigned_abs() as u128 {
            return;
        }
        let line = format_progress_line(&self.before, &now, elapsed);
        // A terminal that takes nothing misses this update. The next one covers its time as well.
        if stdio::show_stderr_progress(&format!("\r\x1b[K{line}")) {
            (self.before, self.at, self.shown) = (now, Instant::now(), true);
        }
    }

    /// Ends the line, so that later output begins on a line of its own.
    pub(super) fn finish(&self) {
        if self.shown {
            stdio::print_stderr_message("");
        }
    }
}

/// Formats the rate and the drops of each direction since `before`, `elapsed_ms` ago, and the queue
/// as it is `now`.
fn format_progress_line(before: &[LinkProgress], now: &[LinkProgress], elapsed_ms: u128) -> String {
    let parts = before.iter().zip(now).map(|(before, now)| {
        let bits = u128::from(now.counters.ip_bytes - before.counters.ip_bytes) * 8;
        let kilobits = (bits / elapsed_ms.max(1)) as u64;
        let rate = BitRate::from_bits_per_second(kilobits * 1000);
        let drops = now.counters.drops() - before.counters.drops();
        let (rate, queue) = (rate.rounded(), now.queue.rounded());
        format!("{} {rate}, queue {queue}, drops {drops}", now.name)
    });
    parts.collect::<Vec<_>>().join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_direction_has_its_rate_queue_and_drops() {
        let seen = |name: &str, ip_bytes, drops_queue, queue| LinkProgress {
            name: name.to_owned(),
            counters: FateCounters { ip_bytes, drops_queue, ..FateCounters::default() },
            queue: ByteCount::new(queue),
        };
        let before = [seen("a>b", 1000, 3, 0), seen("b>a", 0, 0, 0)];
        let now = [seen("a>b", 251_000, 5, 9000), seen("b>a", 0, 0, 0)];
        assert_eq!(
            format_progress_line(&before, &now, 2000),
            "a>b 1 Mbit/s, queue 8.79 KiB, drops 2 | b>a 0 bit/s, queue 0 B, drops 0"
        );
    }
}
