//! Memory that several modules of the gateway read and write: the trainers' shared arenas, and the
//! scratch of the engine's jobs.
//!
//! [`arena`] maps memory and reduces and copies on it; the local plane, the engine and the WAN use
//! it from any thread. `buffers` gives memory to the names that a session uses; only the engine's
//! task uses it.

pub mod arena;
pub(crate) mod buffers;
