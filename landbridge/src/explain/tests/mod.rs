//! Dumps that were written by hand, and dumps of gateways that a fault has struck.

mod dumps;
mod of_clients;
mod of_gateways;
mod of_links;
mod of_ranks;
mod patience;
mod scene;
mod seeded_faults;
