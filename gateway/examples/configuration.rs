//! Prints `docs/configuration.md`:
//! `cargo run -p gateway --example configuration > docs/configuration.md`.

fn main() {
    print!("{}", gateway::config::reference::reference_page());
}
