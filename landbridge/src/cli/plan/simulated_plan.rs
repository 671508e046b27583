//! `landbridge plan --simulate`: whole gateways on the fabric, in virtual time.

use super::planned_collective::PlannedCollective;
use crate::cli::output::table::render_table;
use gateway::simulate::{
    self, SimulateError, SimulatedTraffic, Simulation, SimulationSpec, TimedCollective,
};
use hier_collectives::bound;
use hier_collectives::descriptor::Pattern;
use hier_collectives::plan::{Forecast, Plan};
use hier_collectives::topology::Fabric;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::fmt;
use units::{ByteCount, Span, rounded_decimal_percent};

/// Result of a simulation beside the plan's forecast. The field names are keys of the JSON.
#[derive(Debug, Serialize)]
pub(super) struct SimulatedPlan {
    seed: u64,
    /// Time from the last post to the last result.
    seconds: f64,
    /// Lower bound over simulated time.
    eta: f64,
    links: Vec<SimulatedLink>,
}

/// One direction of a simulated link.
#[derive(Debug, Serialize)]
struct SimulatedLink {
    from: String,
    to: String,
    /// Payload of the plan, without retransmissions.
    planned_payload_bytes: u64,
    /// Payload sent, without retransmissions.
    payload_bytes: u64,
    /// IP bytes of the planned payload in full packets.
    planned_ip_bytes: u64,
    /// IP bytes that the link counted, acknowledgements and retransmissions included.
    ip_bytes: u64,
    packets: u64,
    lost_packets: u64,
    queue_peak_bytes: u64,
}

/// Simulates one collective under a plan, with whole gateways in virtual time. All random numbers
/// come from `seed`.
pub(super) fn simulate_plan(
    fabric: &Fabric,
    plan: &Plan,
    collective: PlannedCollective,
    seed: u64,
) -> Result<SimulatedPlan, SimulateError> {
    let PlannedCollective { operation, size, dtype } = collective;
    let forecast = plan.forecast(fabric, operation, size);
    let bytes = if operation.has_data() { size } else { ByteCount::default() };
    let pattern = Pattern::of_operation(operation, fabric);
    let planned = forecast.links.iter().map(|link| link.bytes.get()).sum();
    let bar = simulated_plan_progress_bar(planned);
    let deployment = SimulationSpec::of_fabric(fabric.clone(), plan.clone())?;
    let outcome = simulate::run_with_simulated_clock(async {
        let simulation = Simulation::start(deployment, size, seed).await?;
        let post = TimedCollective { after: Span::ZERO, bytes, pattern };
        let show_progress = || bar.set_position(simulation.sent_bytes().values().sum());
        let done = simulation.run_collectives(&[post], dtype, show_progress).await?;
        Ok::<_, SimulateError>((done, simulation.link_traffic()?))
    });
    bar.finish_and_clear();
    let (done, links) = outcome??;
    let seconds = done.first().map_or(0.0, |done| done.as_secs_f64());
    let links =
        links.iter().filter_map(|seen| simulate_plan_link(fabric, &forecast, seen)).collect();
    let bound = forecast.bound.as_secs_f64();
    Ok(SimulatedPlan {
        seed,
        seconds,
        eta: if seconds > 0.0 { bound / seconds } else { 1.0 },
        links,
    })
}

/// Compares one direction of a simulated link with what the plan predicts; `None` if the plan does
/// not use the link.
fn simulate_plan_link(
    fabric: &Fabric,
    forecast: &Forecast,
    seen: &SimulatedTraffic,
) -> Option<SimulatedLink> {
    let load = forecast.links.iter().find(|l| (l.from, l.to) == (seen.from, seen.to))?;
    let full_packets = load.bytes.get() as f64 / bound::payload_rate_fraction(fabric.mtu());
    Some(SimulatedLink {
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

/// Returns a progress bar over `total` payload bytes, which is shown if stderr is a terminal.
fn simulated_plan_progress_bar(total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} [{elapsed}<{eta}]");
    let bar = ProgressBar::new(total);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

impl fmt::Display for SimulatedPlan {
    /// Prints time, eta and seed in one line, then a table of the links with planned and simulated
    /// bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = Span::from_secs_f64(self.seconds).rounded();
        writeln!(f, "simulated  {seconds}, eta {:.3}, seed {}\n", self.eta, self.seed)?;
        let rows = self.links.iter().map(|row| {
            let over = match row.planned_ip_bytes {
                0 => "-".to_owned(),
                planned => rounded_decimal_percent(row.ip_bytes as f64 / planned as f64 - 1.0),
            };
            [
                format!("{} > {}", row.from, row.to),
                ByteCount::new(row.planned_ip_bytes).rounded(),
                ByteCount::new(row.ip_bytes).rounded(),
                over,
                row.lost_packets.to_string(),
                ByteCount::new(row.queue_peak_bytes).rounded(),
            ]
        });
        let rows: Vec<[String; 6]> = rows.collect();
        let header = [
            "link",
            "planned IP bytes",
            "simulated IP bytes",
            "difference",
            "packets lost",
            "longest queue",
        ];
        write!(f, "{}", render_table(header, &rows))
    }
}
