//! The identity of a lane's thread.

/// The identity of a lane's thread, on hosts that give it one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneThread {
    /// The thread's name in logs.
    pub name: String,
    /// Number of the lane among those of all gateways, so that lanes on one host differ.
    pub number: usize,
    /// Number of lanes of its gateway.
    pub of: usize,
}

impl LaneThread {
    /// Returns whether the lane is the first of its gateway, which shares the engine's thread. A
    /// segment then passes between engine and lane without waking a thread.
    pub fn is_shared_with_engine(&self) -> bool {
        self.number.is_multiple_of(self.of)
    }
}
