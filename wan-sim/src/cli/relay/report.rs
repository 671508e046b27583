//! The output of a relay: the addresses it listens on, and the counters at its end.

use super::args::{RelayArgs, SideNames};
use crate::FidelityReport;
use crate::cli::json::{counters_json, fidelity_json};
use crate::relay::{Relay, RelayCounters};
use serde_json::{Value, json};
use std::io::{self, Write};
use units::ByteCount;

/// Prints the addresses of the listening sockets, and a warning where their buffers are small.
pub(super) fn announce_listening(args: &RelayArgs, relay: &Relay) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let listening = relay.listening();
    if args.json || args.control {
        let addresses: Vec<_> = listening.iter().map(|l| l.address.to_string()).collect();
        let buffer = listening.iter().map(|l| l.receive_buffer_bytes).min();
        let ready = json!({ "ready": true, "listen": addresses, "receive_buffer_bytes": buffer });
        writeln!(out, "{ready}")?;
    } else {
        for (listening, forward) in listening.iter().zip(&args.forwards) {
            writeln!(out, "ready: {} to {}", listening.address, forward.target)?;
        }
    }
    for listening in listening.iter().filter(|l| l.receive_buffer_bytes < RECEIVE_BUFFER_BYTES_GOOD)
    {
        eprintln!(
            "wan-sim relay: the kernel gave {} a receive buffer of only {}: bursts may be lost \
             before the link; raise net.core.rmem_max to {RECEIVE_BUFFER_BYTES_GOOD}",
            listening.address,
            ByteCount::new(listening.receive_buffer_bytes as u64).rounded(),
        );
    }
    out.flush()
}

/// Prints the counters and the fidelity report at the relay's end, as text or JSON.
pub(super) fn print_report(
    args: &RelayArgs,
    counters: &RelayCounters,
    fidelity: &FidelityReport,
) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let own = counters.own;
    if args.json {
        let mut value = directions_json(args, counters);
        value["own_drops"] = json!({
            "no_flow": own.no_flow, "send_errors": own.send_errors, "foreign": own.foreign,
            "overflowed": own.overflowed,
        });
        value["fidelity"] = fidelity_json(fidelity);
        return writeln!(out, "{value}");
    }
    let SideNames { client, target } = &args.names;
    for (from, to, seen) in
        [(client, target, counters.forward), (target, client, counters.backward)]
    {
        writeln!(
            out,
            "{from} to {to}: {} packets, {}; dropped: {} by loss, {} by the queue, {} by the \
             limit, {} by a cut; {} marked for loss, {} for the queue; {} copied, {} corrupted",
            seen.packets,
            ByteCount::new(seen.ip_bytes).rounded(),
            seen.drops_loss,
            seen.drops_queue,
            seen.drops_limit,
            seen.drops_blackhole,
            seen.marked_loss,
            seen.marked_queue,
            seen.duplicated,
            seen.corrupted,
        )?;
    }
    writeln!(
        out,
        "outside the links: {} lost before they were read, {} without a flow, {} refused by the \
         kernel, {} from other senders",
        own.overflowed, own.no_flow, own.send_errors, own.foreign
    )?;
    writeln!(out, "{fidelity}")
}

/// Returns the counters of both directions as JSON, keyed `CLIENT_TARGET` and `TARGET_CLIENT`.
pub(super) fn directions_json(args: &RelayArgs, counters: &RelayCounters) -> Value {
    let SideNames { client, target } = &args.names;
    json!({
        (format!("{client}_{target}")): counters_json(&counters.forward),
        (format!("{target}_{client}")): counters_json(&counters.backward),
    })
}

/// 4 MiB of receive buffer: with less, a burst at some Gbit/s can overflow the socket.
const RECEIVE_BUFFER_BYTES_GOOD: usize = 4 << 20;
