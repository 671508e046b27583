//! The `landbridge` command.
fn main() {}
