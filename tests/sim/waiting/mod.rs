//! A late rank delays its collective without failing it, is named, and costs bounded memory.

mod late_ranks;
mod memory_bounds;
mod stragglers;
