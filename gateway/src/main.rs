//! The `landbridge` command.

fn main() -> gateway::cli::Exit {
    gateway::cli::main()
}
