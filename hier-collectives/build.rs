//! Variants that are broken on purpose, one at a time, to show that the simulations find them:
//! `cargo xtask simulate --mutant NAME`.

use std::env;

/// Which one to build.
const VARIABLE: &str = "LANDBRIDGE_MUTANT";

const MUTANTS: [&str; 4] = [
    // A retry adds into the result instead of to the operand.
    "accumulate",
    // What belongs to another epoch counts.
    "ignore_epochs",
    // Slots are the rank's again before all receipts are in.
    "reuse_slot",
    // Landings of one length share their memory.
    "share_landing",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    let names = MUTANTS.map(|name| format!("\"{name}\"")).join(", ");
    println!("cargo::rustc-check-cfg=cfg(mutant, values({names}))");
    if let Some(name) = env::var_os(VARIABLE) {
        let known = MUTANTS.iter().find(|known| name == **known);
        let known = known.unwrap_or_else(|| panic!("{VARIABLE} is none of {names}"));
        println!("cargo::rustc-cfg=mutant=\"{known}\"");
    }
}
