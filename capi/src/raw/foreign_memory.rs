//! Memory of the calling program, which the header obliges it to keep while an operation uses it.

use crate::call_error::CallError;
use gateway::client::ArenaBuffer;
use std::ffi::c_void;
use std::ops::Range;

/// Memory of the calling program: at least one byte, and none that the address space lacks.
#[derive(Debug)]
pub struct ForeignMemory {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the memory belongs to the program, which may hand it to any of its threads. It is touched
// by one thread at a time, under the lock of the operation that has it.
unsafe impl Send for ForeignMemory {}
// SAFETY: as above.
unsafe impl Sync for ForeignMemory {}

impl ForeignMemory {
    /// Describes `bytes` bytes of the program from `start` on; `None` for none.
    ///
    /// # Errors
    /// The pointer is NULL, or the range leaves the address space.
    ///
    /// # Safety
    /// The memory can be read and written while this value lives, or else only read and this value
    /// is never copied to.
    pub unsafe fn new(
        start: *mut c_void,
        bytes: usize,
        name: &str,
    ) -> Result<Option<Self>, CallError> {
        if bytes == 0 {
            return Ok(None);
        }
        if start.is_null() {
            return Err(CallError::invalid(format!("{name} is NULL")));
        }
        if (start as usize).checked_add(bytes).is_none() {
            let text = format!("{name}: {bytes} bytes reach beyond the address space");
            return Err(CallError::invalid(text));
        }
        Ok(Some(Self { start: start.cast(), bytes }))
    }

    /// Returns the range of addresses that the memory covers.
    pub fn addresses(&self) -> Range<usize> {
        let start = self.start as usize;
        start..start + self.bytes
    }

    /// Copies the program's memory into a buffer of the arena with the same length.
    ///
    /// # Panics
    /// The lengths differ, which is a bug.
    pub fn copy_to(&self, buffer: &ArenaBuffer) {
        self.check_length(buffer);
        // SAFETY: both have this length. The buffer is mapped while it lives. A range of the program
        // inside the arena does not overlap a slot that was reserved for a copy; `copy` would allow
        // it.
        unsafe { std::ptr::copy(self.start.cast_const(), buffer.address(), self.bytes) };
    }

    /// Copies a buffer of the arena with the same length into the program's memory.
    ///
    /// # Panics
    /// The lengths differ, which is a bug.
    pub fn copy_from(&self, buffer: &ArenaBuffer) {
        self.check_length(buffer);
        // SAFETY: as in `copy_to`; `new` was told that the memory can be written.
        unsafe { std::ptr::copy(buffer.address().cast_const(), self.start, self.bytes) };
    }

    /// Asserts that `buffer` is as long as this memory.
    fn check_length(&self, buffer: &ArenaBuffer) {
        let range = buffer.range();
        assert_eq!(range.end - range.start, self.bytes as u64);
    }
}
