//! Operators rely on these: identity checks, certificate renewal, commits, drains, separate jobs.

mod certificate_renewal;
mod job_isolation;
mod path_problems;
mod peer_identity;
mod step_commits;
