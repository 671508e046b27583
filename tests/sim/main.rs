//! Scenarios under virtual time. What runs is what `landbridge run` runs, but for the host.

mod commit;
mod controllers;
mod correct;
mod disagree;
mod dropped;
mod faults;
mod heal;
mod held;
mod identity;
mod jobs;
mod jumbo;
mod lanes;
mod link;
mod memory;
mod mesh;
mod pace;
mod rate;
mod renew;
mod replan;
mod replay;
mod seeds;
mod shapes;
mod trace;
mod traps;
mod wait;
mod window;
