//! The versions of the wire that a gateway speaks, and the choice among those of two gateways.

use std::fmt;

/// 13: the newest version of all messages between gateways, sent in the first message of each lane. Two
/// gateways use the highest that both speak; without one the lane is refused.
pub const WIRE_VERSION: WireVersion = WireVersion(13);

/// 13: the oldest version of messages that this program still speaks. Versions before had other
/// messages, or divided buffers otherwise.
pub const WIRE_VERSION_OLDEST: WireVersion = WireVersion(13);

/// A version of all messages between gateways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WireVersion(pub u16);

/// The versions that a gateway speaks: from the oldest to the newest, without gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WireVersions {
    oldest: WireVersion,
    newest: WireVersion,
}

impl WireVersions {
    /// The versions that this program speaks.
    pub const OWN: Self = Self { oldest: WIRE_VERSION_OLDEST, newest: WIRE_VERSION };

    /// Returns the versions from `oldest` to `newest`; `None` where the first is not the older one.
    pub const fn new(oldest: WireVersion, newest: WireVersion) -> Option<Self> {
        if oldest.0 > newest.0 {
            return None;
        }
        Some(Self { oldest, newest })
    }

    /// Returns the oldest version.
    pub const fn oldest(self) -> WireVersion {
        self.oldest
    }

    /// Returns the newest version.
    pub const fn newest(self) -> WireVersion {
        self.newest
    }

    /// Returns the highest version that both gateways speak. Both find the same one.
    ///
    /// # Errors
    /// They have no version in common.
    pub fn highest_common(self, theirs: Self) -> Result<WireVersion, NoCommonWireVersion> {
        let highest = self.newest.min(theirs.newest);
        if highest < self.oldest.max(theirs.oldest) {
            return Err(NoCommonWireVersion { own: self, theirs });
        }
        Ok(highest)
    }
}

impl fmt::Display for WireVersions {
    /// Prints `12`, or `11 to 12`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.oldest == self.newest {
            true => write!(f, "{}", self.newest.0),
            false => write!(f, "{} to {}", self.oldest.0, self.newest.0),
        }
    }
}

/// Two gateways speak no version in common: the older program has to be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("wire version {theirs} there, {own} here")]
pub struct NoCommonWireVersion {
    /// The versions of this gateway.
    pub own: WireVersions,
    /// The versions of its peer.
    pub theirs: WireVersions,
}

impl NoCommonWireVersion {
    /// Returns whether the peer's program is the older one, which has to be upgraded first.
    pub fn is_peer_older(&self) -> bool {
        self.theirs.newest < self.own.oldest
    }
}
