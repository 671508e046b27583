//! `landbridge plan --simulate`: the production session on the fabric, in virtual time.

use super::report::bytes;
use crate::cli::table::table;
use crate::simulate::{self, Deployment, LinkSeen, Post, SimulateError, Simulation};
use hier_collectives::bound;
use hier_collectives::descriptor::{Dtype, Pattern};
use hier_collectives::ids::RankId;
use hier_collectives::plan::{Forecast, Operation, Plan};
use hier_collectives::topology::Fabric;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::fmt;
use units::{ByteCount, Span};

/// What the simulation showed, beside what was planned.
#[derive(Debug, Serialize)]
pub(super) struct Simulated {
    seed: u64,
    /// From the last post to the last result.
    seconds: f64,
    /// Bound over simulated time.
    eta: f64,
    links: Vec<LinkRow>,
}

/// One direction of a link.
#[derive(Debug, Serialize)]
struct LinkRow {
    from: String,
    to: String,
    /// First-sent payload that the plan puts on it
    planned_payload_bytes: u64,
    /// and that was sent.
    payload_bytes: u64,
    /// What the planned payload takes in full packets
    planned_ip_bytes: u64,
    /// and what the link counted, with acknowledgements and all that was sent again.
    ip_bytes: u64,
    packets: u64,
    lost_packets: u64,
    queue_peak_bytes: u64,
}

/// Runs one collective on `size` bytes.
pub(super) fn collective(
    (fabric, plan): (&Fabric, &Plan),
    operation: Operation,
    (size, dtype): (ByteCount, Dtype),
    seed: u64,
) -> Result<Simulated, SimulateError> {
    let forecast = plan.forecast(fabric, operation, size);
    let bytes = if operation.has_data() { size } else { ByteCount::default() };
    let pattern = pattern(fabric, operation);
    let planned = forecast.links.iter().map(|link| link.bytes.get()).sum();
    let bar = progress(planned);
    let deployment = Deployment::of(fabric.clone(), plan.clone())?;
    let outcome = simulate::run(async {
        let simulation = Simulation::start(deployment, size, seed).await?;
        let post = Post { after: Span::ZERO, bytes, pattern };
        let meanwhile = || bar.set_position(simulation.sent().values().sum());
        let done = simulation.collectives(&[post], dtype, meanwhile).await?;
        Ok::<_, SimulateError>((done, simulation.links()?))
    });
    bar.finish_and_clear();
    let (done, links) = outcome??;
    let seconds = done.first().map_or(0.0, |done| done.as_secs_f64());
    let links = links.iter().filter_map(|seen| row(fabric, &forecast, seen)).collect();
    let bound = forecast.bound.as_secs_f64();
    Ok(Simulated { seed, seconds, eta: if seconds > 0.0 { bound / seconds } else { 1.0 }, links })
}

/// For a gateway's ranks the first of them.
fn pattern(fabric: &Fabric, operation: Operation) -> Pattern {
    let first = |id| RankId(fabric.gateway(id).ranks.start);
    match operation {
        Operation::AllReduce => Pattern::AllReduce,
        Operation::Reduce { to } => Pattern::Reduce { to: first(to) },
        Operation::Broadcast { from } => Pattern::Broadcast { from: first(from) },
        Operation::Barrier => Pattern::Barrier,
    }
}

fn row(fabric: &Fabric, forecast: &Forecast, seen: &LinkSeen) -> Option<LinkRow> {
    let load = forecast.links.iter().find(|l| (l.from, l.to) == (seen.from, seen.to))?;
    let full_packets = load.bytes.get() as f64 / bound::payload_share(fabric.mtu());
    Some(LinkRow {
        from: fabric.region(seen.from).name.clone(),
        to: fabric.region(seen.to).name.clone(),
        planned_payload_bytes: load.bytes.get(),
        payload_bytes: seen.payload.get(),
        planned_ip_bytes: full_packets.round() as u64,
        ip_bytes: seen.counters.ip_bytes,
        packets: seen.counters.packets,
        lost_packets: seen.counters.drops_loss + seen.counters.drops_queue,
        queue_peak_bytes: seen.queue_peak.get(),
    })
}

/// A bar on stderr, where that is a terminal.
pub(super) fn progress(total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} [{elapsed}<{eta}]");
    let bar = ProgressBar::new(total);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

impl fmt::Display for Simulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = super::report::seconds(self.seconds);
        writeln!(f, "simulated  {seconds}, eta {:.3}, seed {}\n", self.eta, self.seed)?;
        let rows = self.links.iter().map(|row| {
            let over = match row.planned_ip_bytes {
                0 => "-".to_owned(),
                planned => {
                    format!("{:+.2} %", 100.0 * (row.ip_bytes as f64 / planned as f64 - 1.0))
                }
            };
            [
                format!("{} > {}", row.from, row.to),
                bytes(row.planned_ip_bytes),
                bytes(row.ip_bytes),
                over,
                row.lost_packets.to_string(),
                bytes(row.queue_peak_bytes),
            ]
        });
        let rows: Vec<[String; 6]> = rows.collect();
        let header =
            ["link", "planned packets", "simulated packets", "more", "lost", "longest queue"];
        write!(f, "{}", table(header, &rows))
    }
}
