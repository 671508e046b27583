//! The calling program's memory and signals, behind types that the rest can use safely.

#![expect(
    unsafe_code,
    reason = "memory of the program is touched by pointer, and its signals by libc"
)]

mod foreign_memory;
mod signal_mask;

pub use foreign_memory::ForeignMemory;
pub use signal_mask::run_under_signal_mask;
