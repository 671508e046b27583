//! Sizes of buffers on the command line: whole elements, and whole blocks of ranks.

use crate::cli::output::command_error::CommandError;
use hier_collectives::descriptor::Dtype;
use hier_collectives::plan::Operation;
use hier_collectives::topology::Fabric;
use units::ByteCount;

/// The smallest size of which the buffer of an operation must be a multiple.
#[derive(Debug, Clone, Copy)]
pub(super) struct BufferSizeUnit {
    dtype: Dtype,
    /// Number of blocks of the buffer.
    blocks: u64,
}

impl BufferSizeUnit {
    /// Returns the unit of an operation's buffer: an element, or one for each rank of the fabric if
    /// ranks have blocks of the buffer.
    pub fn of_operation(operation: Operation, dtype: Dtype, fabric: &Fabric) -> Self {
        let blocks = if operation.has_blocks() { u64::from(fabric.world_size()) } else { 1 };
        Self { dtype, blocks }
    }

    /// Returns the largest multiple of the unit that is at most `size`.
    pub fn round_down(self, size: ByteCount) -> ByteCount {
        ByteCount::new(size.get() / self.bytes() * self.bytes())
    }

    /// Checks that a size is a multiple of the unit.
    ///
    /// # Errors
    /// [`CommandError::Usage`]: it is none.
    pub fn check(self, size: ByteCount) -> Result<(), CommandError> {
        let Self { dtype, blocks } = self;
        if size.get().is_multiple_of(self.bytes()) {
            return Ok(());
        }
        let text = format!("{size} is not a whole number of {dtype} elements");
        let text = if blocks > 1 { format!("{text} for each of {blocks} ranks") } else { text };
        Err(CommandError::Usage(text))
    }

    /// Returns the unit in bytes.
    fn bytes(self) -> u64 {
        self.dtype.size() * self.blocks
    }
}
