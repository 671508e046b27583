//! The memory of a gateway in tests.

/// The bytes that each gateway has for partials, and takes without a grant at most.
#[derive(Debug, Clone, Copy)]
pub struct MemoryLimits {
    pub partials: u64,
    pub unsolicited: u64,
}

impl From<u64> for MemoryLimits {
    /// Takes so many bytes for partials, and all that come without a grant.
    fn from(partials: u64) -> Self {
        Self { partials, unsolicited: u64::MAX }
    }
}
