//! The runs of one collective that contenders are compared by.

use hier_collectives::plan::Operation;

/// Runs of one collective, one after the other, with a rank at each site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CollectiveRuns {
    /// The operation. Contenders know all-reduces, all-gathers and all-to-alls.
    pub operation: Operation,
    /// Bytes of the buffer: of all blocks in an all-gather, and of one rank in an all-to-all.
    pub bytes: u64,
    /// Number of runs.
    pub iterations: u32,
}

impl CollectiveRuns {
    /// Returns runs of an all-reduce.
    pub fn all_reduces(bytes: u64, iterations: u32) -> Self {
        Self { operation: Operation::AllReduce, bytes, iterations }
    }

    /// Returns the arguments by which peers' programs take the runs: operation, bytes, iterations.
    pub fn arguments(&self) -> [String; 3] {
        [self.operation.name().to_owned(), self.bytes.to_string(), self.iterations.to_string()]
    }
}
