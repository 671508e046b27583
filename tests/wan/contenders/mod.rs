//! The programs that are measured: Landbridge, quinn alone, and peers as their users run them.

pub mod contender;
pub mod peer_runs;
pub mod peers;
