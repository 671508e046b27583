//! A policer: a token bucket that drops the excess and queues nothing.

use units::{BitRate, ByteCount, TimeNs};

/// A limit of the rate without a queue: what exceeds it is dropped at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policer {
    /// The rate in bits of IP packets a second that passes in the long run.
    pub rate: BitRate,
    /// The most bytes that pass at once after a pause.
    pub burst: ByteCount,
}

/// The bucket of a policer. It starts full.
#[derive(Debug)]
pub(in crate::link) struct PolicerBucket {
    /// Tokens in billionths of a bit, so that none is lost to rounding.
    tokens: u128,
    filled_at: TimeNs,
}

impl PolicerBucket {
    /// Makes a full bucket. Its size is that of the policer in the first call of `take`.
    pub(in crate::link) fn new() -> Self {
        Self { tokens: u128::MAX, filled_at: TimeNs::default() }
    }

    /// Takes the tokens of a packet of `ip_bytes` at `now`. Returns false and takes none where they
    /// do not suffice.
    pub(in crate::link) fn take(&mut self, now: TimeNs, policer: Policer, ip_bytes: u32) -> bool {
        let gained =
            u128::from(policer.rate.bits_per_second()) * u128::from(now.since(self.filled_at).ns());
        let most = u128::from(policer.burst.get()) * BYTE_TOKENS;
        self.tokens = self.tokens.saturating_add(gained).min(most);
        self.filled_at = self.filled_at.max(now);
        let left = self.tokens.checked_sub(u128::from(ip_bytes) * BYTE_TOKENS);
        self.tokens = left.unwrap_or(self.tokens);
        left.is_some()
    }
}

/// 8,000,000,000 tokens for a byte of a packet; the policer drops a packet for which tokens are
/// lacking. A token is a billionth of a bit, the unit in which rate times nanoseconds is a whole
/// number.
const BYTE_TOKENS: u128 = 8_000_000_000;
