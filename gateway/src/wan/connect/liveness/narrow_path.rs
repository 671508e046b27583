//! A path that carries short packets and no full ones.
//!
//! QUIC needs a path that carries 1,228 bytes of IP packet. A path that comes to carry less while a
//! connection is up, as through a tunnel whose carrier changed, still carries probes and
//! acknowledgements. So neither QUIC nor a look at silence ends the connection, though no data gets
//! through. The liveness monitor calls [`NarrowPath`] at each look.
//!
//! ```text
//! narrow = NARROW_PATH_LOST_MIN full packets lost, and none acknowledged,
//!          for as long as a silent peer has until it is lost
//! ```

use crate::wan::congestion::lane_telemetry::FULL_PACKET_BYTES_MIN;
use quinn::PathStats;
use std::time::Duration;
use units::Span;

/// 10 packets of the size of data lost with none acknowledged between them: with fewer, a path is
/// not called too narrow, since chance may lose them on a path with high loss. The number is
/// chosen.
const NARROW_PATH_LOST_MIN: u64 = 10;

/// Counts of full packets on a path, at one look.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FullPackets {
    /// Full packets acknowledged so far.
    acked: u64,
    /// Packets of any size lost so far, and their bytes.
    lost: u64,
    lost_bytes: u64,
}

impl FullPackets {
    /// Takes the counts of a path. `acked` counts its full packets that were acknowledged.
    pub fn new(acked: u64, path: &PathStats) -> Self {
        Self { acked, lost: path.lost_packets, lost_bytes: path.lost_bytes }
    }
}

/// The full packets that a path lost since one was acknowledged.
#[derive(Debug, Default)]
pub(super) struct NarrowPath {
    last: FullPackets,
    lost: u64,
    since_first_lost: Span,
}

impl NarrowPath {
    /// Adds the packets since the last look, which was `passed` ago. Lost packets count if their
    /// mean length is that of full ones. A full packet that was acknowledged sets the count to
    /// zero.
    pub fn look(&mut self, passed: Span, now: FullPackets) {
        if self.lost > 0 {
            self.since_first_lost = self.since_first_lost + passed;
        }
        // Packets of several sizes may be lost between two looks: as many count as are full for sure.
        let lost_bytes = now.lost_bytes.saturating_sub(self.last.lost_bytes);
        let lost = now.lost.saturating_sub(self.last.lost);
        if lost_bytes >= FULL_PACKET_BYTES_MIN * lost {
            self.lost += lost;
        }
        if now.acked != self.last.acked {
            (self.lost, self.since_first_lost) = (0, Span::ZERO);
        }
        self.last = now;
    }

    /// Returns the reason why the lane ends; `None` while full packets may get through. `bound` is
    /// the silence after which a peer is lost.
    pub fn problem_after(&self, bound: Duration) -> Option<String> {
        let is_narrow =
            self.lost >= NARROW_PATH_LOST_MIN && self.since_first_lost.duration() >= bound;
        is_narrow.then(|| {
            format!(
                "short packets get through, and no full ones for {}: the path carries less than \
                 QUIC needs",
                self.since_first_lost
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts each second the packets of a path on which `acked` full packets are acknowledged in a second, and
    /// `lost` packets of `bytes` bytes are lost. Returns the seconds until the lane ends; `None`
    /// after a minute.
    fn seconds_to_the_end(acked: u64, lost: u64, bytes: u64) -> Option<u64> {
        let (mut path, mut now) = (NarrowPath::default(), FullPackets::default());
        (1..=60).find(|_| {
            now.acked += acked;
            now.lost += lost;
            now.lost_bytes += lost * bytes;
            path.look(Span::from_secs(1), now);
            path.problem_after(Duration::from_secs(8)).is_some()
        })
    }

    #[test]
    fn a_path_that_loses_all_full_packets_ends() {
        assert_eq!(seconds_to_the_end(0, 3, 1200), Some(9));
        assert_eq!(seconds_to_the_end(0, 1, 1200), Some(10), "too few to be sure before");
    }

    #[test]
    fn a_path_that_carries_any_full_packet_lasts() {
        assert_eq!(seconds_to_the_end(1, 500, 1200), None);
        assert_eq!(seconds_to_the_end(0, 20, 300), None, "small packets alone are sent");
        assert_eq!(seconds_to_the_end(0, 0, 0), None, "nothing is sent");
    }

    #[test]
    fn the_count_begins_again_after_an_acknowledgement() {
        let mut path = NarrowPath::default();
        let mut now = FullPackets::default();
        for second in 0..40 {
            (now.lost, now.lost_bytes) = (now.lost + 4, now.lost_bytes + 4800);
            now.acked += u64::from(second % 7 == 6);
            path.look(Span::from_secs(1), now);
            assert!(path.problem_after(Duration::from_secs(8)).is_none(), "second {second}");
        }
    }
}
