//! Prints `docs/operations/metrics.md`:
//! `cargo run -p gateway --example metrics > docs/operations/metrics.md`.

fn main() {
    print!("{}", gateway::observe::metrics::metrics_page());
}
