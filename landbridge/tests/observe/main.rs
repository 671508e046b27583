//! Tests of JSON, the status page and `--watch`, by which operators and programs see gateways.

mod commands;
mod conventions;
#[path = "../deployment/mod.rs"]
mod deployment;
mod emulator;
mod explain;
mod page;
mod schema;
#[path = "../../../wan-sim/tests/skipping/mod.rs"]
mod skipping;
mod spans;
mod warnings;
mod watch;

use deployment::{Deployment, Layout};
use gateway::config::RegionFile;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Output;

/// Ranks and job of the deployments of these tests.
const LAYOUT: Layout<'static> = Layout::of(2, 1);

/// Starts both gateways, of which east serves other hosts too.
fn running() -> Deployment {
    let mut deployment = Deployment::new(&LAYOUT);
    deployment.serve_hosts("east", "");
    deployment.run_gateways();
    deployment
}

/// Returns the status address of the gateway of east.
fn east_status(deployment: &Deployment) -> SocketAddr {
    let file = RegionFile::load(&deployment.path("east.toml")).expect("valid");
    file.gateway(None).expect("one").status
}

/// Returns head and body of the answer to a GET request with more headers.
fn get(address: SocketAddr, path: &str, more: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("connects");
    write!(stream, "GET {path} HTTP/1.0\r\n{more}\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    let (head, body) = answer.split_once("\r\n\r\n").expect("HTTP");
    (head.to_owned(), body.to_owned())
}

/// Returns the JSON that a command printed.
fn json(output: &Output) -> serde_json::Value {
    let said = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"))
}
