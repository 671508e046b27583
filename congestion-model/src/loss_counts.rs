//! The kinds of loss, and their counts.

/// The kind of a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossKind {
    /// The link lost packets while no queue stood.
    Random,
    /// A full queue dropped packets.
    Queue,
    /// Most of the bytes in flight were lost at once.
    Outage,
}

/// Lost bytes by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LossCounts {
    /// Bytes lost at random.
    pub random_bytes: u64,
    /// Bytes dropped by a queue.
    pub queue_bytes: u64,
    /// Bytes lost in outages.
    pub outage_bytes: u64,
}

impl LossKind {
    /// Judges a loss of `lost` bytes out of `in_flight`: an outage if they are more than 32 KiB and
    /// more than half. Else it is a loss by the queue if one stood (`queued`), or a random one.
    pub(crate) fn judge(lost: u64, in_flight: u64, queued: bool) -> Self {
        if lost > OUTAGE_BYTES_MIN && 2 * lost > in_flight {
            Self::Outage
        } else if queued {
            Self::Queue
        } else {
            Self::Random
        }
    }
}

impl LossCounts {
    /// Returns the bytes that the same lane has lost, by kind, since its counts were `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            random_bytes: self.random_bytes.saturating_sub(before.random_bytes),
            queue_bytes: self.queue_bytes.saturating_sub(before.queue_bytes),
            outage_bytes: self.outage_bytes.saturating_sub(before.outage_bytes),
        }
    }

    /// Adds the losses of another lane.
    pub fn add_all(&mut self, others: Self) {
        self.random_bytes += others.random_bytes;
        self.queue_bytes += others.queue_bytes;
        self.outage_bytes += others.outage_bytes;
    }

    /// Counts a loss of `bytes` bytes by its kind.
    pub(crate) fn add(&mut self, kind: LossKind, bytes: u64) {
        *match kind {
            LossKind::Random => &mut self.random_bytes,
            LossKind::Queue => &mut self.queue_bytes,
            LossKind::Outage => &mut self.outage_bytes,
        } += bytes;
    }
}

/// 32 KiB: a loss of more bytes than this, and of more than half of the bytes in flight, is an
/// outage. The size is chosen, since a smaller loss may as well come from a queue.
const OUTAGE_BYTES_MIN: u64 = 32 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_judged_by_queue_and_size() {
        for (lost, in_flight, queued, kind) in [
            (1500, 1_000_000, false, LossKind::Random),
            (60_000, 1_000_000, true, LossKind::Queue),
            (600_000, 1_000_000, true, LossKind::Outage),
            (3000, 4000, false, LossKind::Random),
        ] {
            assert_eq!(LossKind::judge(lost, in_flight, queued), kind);
        }
    }
}
