//! The output of a relay: the addresses it listens on, and the counters at its end.

use super::relay_args::{RelayArgs, RelaySideArgs};
use crate::FidelityReport;
use crate::cli::json::{JSON_VERSION, counters_json, fidelity_json};
use crate::relay::{RelayCounters, RunningRelay};
use serde_json::{Value, json};
use std::io;
use units::ByteCount;

/// Prints the addresses of the listening sockets, and a warning where their buffers are small.
pub(super) fn report_relay_listening(args: &RelayArgs, relay: &RunningRelay) -> io::Result<()> {
    let listening = relay.listening();
    if args.json || args.control {
        let addresses: Vec<_> = listening.iter().map(|l| l.address.to_string()).collect();
        let buffer = listening.iter().map(|l| l.receive_buffer_bytes).min();
        let ready = json!({
            "version": JSON_VERSION, "ready": true, "listen": addresses,
            "receive_buffer_bytes": buffer,
        });
        stdio::write_stdout_report(&ready.to_string())?;
    } else {
        let ways = listening.iter().zip(&args.forwards);
        let lines = ways.map(|(listening, forward)| {
            format!("ready: {} to {}\n", listening.address, forward.target)
        });
        stdio::write_stdout_report(&lines.collect::<String>())?;
    }
    for listening in listening.iter().filter(|l| l.receive_buffer_bytes < RECEIVE_BUFFER_BYTES_GOOD)
    {
        stdio::print_stderr_message(format_args!(
            "wan-sim relay: the kernel gave {} a receive buffer of only {}: bursts may be lost \
             before the link; raise net.core.rmem_max to {RECEIVE_BUFFER_BYTES_GOOD}",
            listening.address,
            ByteCount::new(listening.receive_buffer_bytes as u64).rounded(),
        ));
    }
    Ok(())
}

/// Prints the counters and the fidelity report at the relay's end, as text or JSON.
pub(super) fn print_relay_report(
    args: &RelayArgs,
    counters: &RelayCounters,
    fidelity: &FidelityReport,
) -> io::Result<()> {
    let own = counters.own;
    if args.json {
        let mut value = relay_report_directions_json(args, counters);
        value["own_drops"] = json!({
            "no_flow": own.no_flow, "send_errors": own.send_errors, "foreign": own.foreign,
            "overflowed": own.overflowed,
        });
        value["fidelity"] = fidelity_json(fidelity);
        value["version"] = json!(JSON_VERSION);
        return Ok(stdio::write_stdout_report(&value.to_string())?);
    }
    let mut report = String::new();
    let RelaySideArgs { client, target } = &args.names;
    for (from, to, seen) in
        [(client, target, counters.forward), (target, client, counters.backward)]
    {
        report += &format!(
            "{from} to {to}: {} packets, {}; dropped: {} by loss, {} by the queue, {} by the \
             limit, {} by CoDel, {} by RED, {} by the policer, {} by a cut; {} marked for loss, \
             {} for the queue; {} copied, {} corrupted\n",
            seen.packets,
            ByteCount::new(seen.ip_bytes).rounded(),
            seen.drops_loss,
            seen.drops_queue,
            seen.drops_limit,
            seen.drops_codel,
            seen.drops_red,
            seen.drops_policer,
            seen.drops_blackhole,
            seen.marked_loss,
            seen.marked_queue + seen.marked_codel + seen.marked_red,
            seen.duplicated,
            seen.corrupted,
        );
    }
    report += &format!(
        "outside the links: {} lost before they were read, {} without a flow, {} refused by the \
         kernel, {} from other senders\n{fidelity}\n",
        own.overflowed, own.no_flow, own.send_errors, own.foreign
    );
    Ok(stdio::write_stdout_report(&report)?)
}

/// Returns the counters of both directions as JSON, keyed `CLIENT_TARGET` and `TARGET_CLIENT`.
pub(super) fn relay_report_directions_json(args: &RelayArgs, counters: &RelayCounters) -> Value {
    let RelaySideArgs { client, target } = &args.names;
    json!({
        (format!("{client}_{target}")): counters_json(&counters.forward),
        (format!("{target}_{client}")): counters_json(&counters.backward),
    })
}

/// 4 MiB: a relay warns where the kernel grants a listening socket a smaller receive buffer. A
/// burst at some Gbit/s can overflow such a socket.
const RECEIVE_BUFFER_BYTES_GOOD: usize = 4 << 20;
