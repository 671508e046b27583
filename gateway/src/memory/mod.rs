//! Memory that several modules of the gateway read and write: the trainers' shared arenas, and the
//! scratch of the engine's jobs.
//!
//! [`arena`] maps memory; [`mem_slice`] copies and reduces on it. The local plane, the engine and
//! the WAN use both from any thread. `buffer_table` gives memory to the names that a session uses;
//! only the engine's task uses it. `limits::memory_limits` reads how much memory the system allows.

pub mod arena;
pub(crate) mod buffer_table;
pub mod mem_slice;
