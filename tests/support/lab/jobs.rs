//! The jobs of simulated gateways, and the token that they all share.

use gateway::local::job_spec::JobSpec;
use std::num::NonZeroU32;
use units::ByteCount;

/// Name of the job in labs with one job.
pub const JOB: &str = "sim";

/// The token of every job of a lab.
pub const TOKEN: [u8; 32] = [7; 32];

/// 16 GiB: memory for the arenas of a job, more than any test needs.
pub(crate) const JOB_MEMORY: ByteCount = ByteCount::new(16 << 30);

/// Jobs by name and weight, each with `memory`.
pub(crate) fn jobs_of(jobs: &[(&str, u32)], memory: ByteCount) -> Vec<JobSpec> {
    let job = |(name, weight): &(&str, u32)| JobSpec {
        name: (*name).to_owned(),
        token: TOKEN.into(),
        memory,
        weight: NonZeroU32::new(*weight).expect("a weight"),
    };
    jobs.iter().map(job).collect()
}
