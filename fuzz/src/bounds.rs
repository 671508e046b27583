//! Bounds of the memory that a decoder allocates.

use allocation_counter::measure;

/// A bound of the memory that a decoder allocates at any time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AllocationBound {
    /// Bytes that the decoder may allocate for any input.
    pub(crate) fixed: usize,
    /// Bytes that it may allocate for each byte of the input.
    pub(crate) per_byte: usize,
}

impl AllocationBound {
    /// Runs `decode` on `input`, and panics when it has allocated more than the bound at any time.
    pub(crate) fn enforce<T>(self, input: &[u8], decode: impl FnOnce() -> T) -> T {
        let mut decoded = None;
        let used = measure(|| decoded = Some(decode())).bytes_max;
        let allowed = self.fixed + self.per_byte * input.len();
        assert!(
            used <= u64::try_from(allowed).unwrap_or(u64::MAX),
            "{used} bytes allocated for an input of {}, {allowed} allowed",
            input.len()
        );
        decoded.expect("measured code runs")
    }
}
