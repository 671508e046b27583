//! Operators rely on these: identity checks, certificate renewal, commits, drains, separate jobs.

mod certificate_renewal;
mod dialling;
mod idle_gateways;
mod job_differences;
mod job_isolation;
mod lane_numbers;
mod path_problems;
mod peer_identity;
mod start_orders;
mod step_commits;
mod streamed_trainers;
