//! The bytes between a trainer on another host and its gateway, and as many over TCP or TLS alone.
//!
//! All of these are between two processes, over one connection, and between memory of the same size in
//! both. The other process of a trainer is its gateway.

mod alone;
mod runs;
mod trainer;

use alone::Alone;
use clap::{Parser, Subcommand};
use runs::{Instants, cpu_seconds};
use serde_json::json;
use std::error::Error;
use std::process::ExitCode;
use trainer::Trainer;

/// Move bytes and print a line of JSON: when each run began and ended, and the processor time.
#[derive(Debug, Parser)]
#[command(after_help = "Example: attach-stream alone --way up --at 127.0.0.1:7700 --size '64 MiB'")]
struct Command {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Over TCP alone, or TLS over it.
    Alone(Alone),
    /// Between a rank that attaches as from another host and its gateway.
    Trainer(Trainer),
}

fn main() -> ExitCode {
    let moved = match Command::parse().what {
        What::Alone(alone) => alone.move_bytes().map_err(Box::<dyn Error>::from),
        What::Trainer(trainer) => trainer.move_bytes(),
    };
    match moved {
        Ok(Instants { posted_ns, ready_ns, cpu_before }) => {
            let cpu_seconds = cpu_seconds() - cpu_before;
            let line = json!({
                "posted_ns": posted_ns, "ready_ns": ready_ns, "cpu_seconds": cpu_seconds,
            });
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
