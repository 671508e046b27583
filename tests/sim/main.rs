//! Scenarios under virtual time. What runs is what `landbridge run` runs, but for the host.

mod commit;
mod correct;
mod disagree;
mod faults;
mod heal;
mod identity;
mod jobs;
mod link;
mod mesh;
mod pace;
mod rate;
mod renew;
mod replay;
mod seeds;
mod shapes;
mod wait;
