//! Scenarios under virtual time. What runs is what `landbridge run` runs, but for the host.

mod correct;
mod rate;
