//! Memory that a decoder may take.

use allocation_counter::measure;

/// So many bytes, and so many more for each byte of input.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound {
    pub(crate) fixed: usize,
    pub(crate) per_byte: usize,
}

impl Bound {
    /// What `decode` makes of `input`; panics when it allocated more than allowed at any time.
    pub(crate) fn hold<T>(self, input: &[u8], decode: impl FnOnce() -> T) -> T {
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
