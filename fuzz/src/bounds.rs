//! Bounds of the memory that a decoder allocates.

use allocation_counter::measure;

/// A bound: `fixed` bytes, and `per_byte` bytes for each byte of input.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound {
    pub(crate) fixed: usize,
    pub(crate) per_byte: usize,
}

impl Bound {
    /// Runs `decode` on `input`, and panics when it has more allocated than allowed at any time.
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
