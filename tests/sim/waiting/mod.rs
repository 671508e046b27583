//! A late rank delays its collective without failing it, is named, and costs bounded memory. What
//! counts as a stall.

mod late_ranks;
mod memory_bounds;
mod small_collectives;
mod stalls;
mod stragglers;
