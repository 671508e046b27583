//! A plan in numbers.

use super::simulate::Simulated;
use crate::cli::table::table;
use hier_collectives::bound;
use hier_collectives::descriptor::Dtype;
use hier_collectives::ids::{GatewayId, RegionId};
use hier_collectives::plan::{self, Operation, Plan, Tree};
use hier_collectives::shard;
use hier_collectives::topology::Fabric;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use units::{BitRate, ByteCount, Span};

/// What `landbridge plan` prints.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    fabric: String,
    operation: &'static str,
    dtype: String,
    size_bytes: u64,
    algorithm: &'static str,
    reason: String,
    /// Of the plan that running gateways agree on.
    plan_hash: String,
    segment_bytes: u64,
    /// The largest buffer that takes the express tree, if there is one.
    express_bytes: Option<u64>,
    pub(super) predicted_seconds: f64,
    bound_seconds: f64,
    /// Bound over prediction.
    eta: f64,
    min_cut_bits_per_second: u64,
    /// The part of the buffer at whose top each gateway stands.
    pub(super) shares: BTreeMap<String, f64>,
    pub(super) link_bytes: Vec<LinkRow>,
    gateways: Vec<GatewayRow>,
    trees: Vec<TreeRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) simulated: Option<Simulated>,
}

/// One direction of a link.
#[derive(Debug, Serialize)]
pub(super) struct LinkRow {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    /// What one of its gateways lets another send ahead of results.
    window_bytes: u64,
    tail_repair: TailRepair,
}

/// Whether parity follows the last bytes that cross a link, and why.
#[derive(Debug, Serialize)]
struct TailRepair {
    /// How many bytes; 0 where it does not pay.
    bytes: u64,
    /// What losses among them cost without, on average.
    saves_seconds: f64,
    /// What parity takes on the link.
    takes_seconds: f64,
}

#[derive(Debug, Serialize)]
struct GatewayRow {
    gateway: String,
    wan_out_bytes: u64,
    wan_in_bytes: u64,
    lan_out_bytes: u64,
    /// The most that its windows hold, beside the partials of its own ranks.
    held_bytes: u64,
}

#[derive(Debug, Serialize)]
struct TreeRow {
    bytes: u64,
    express: bool,
    /// Partials, results, or both.
    carries: &'static str,
    crown: Vec<String>,
    parents: BTreeMap<String, String>,
}

impl Report {
    /// Forecasts a plan for an operation.
    pub(super) fn new(
        fabric: &Fabric,
        plan: &Plan,
        operation: Operation,
        size: ByteCount,
        dtype: Dtype,
    ) -> Self {
        let forecast = plan.forecast(fabric, operation, size);
        let held = plan.rooted_for(operation);
        let carried = if operation.has_data() { size.get() } else { 0 };
        let parts = shard::parts(&held, carried);
        let name = |id: GatewayId| fabric.gateway(id).name.clone();
        let region = |id: RegionId| fabric.region(id).name.clone();
        let gateways = fabric.gateway_ids().zip(&forecast.gateways);
        let (predicted, bound) = (forecast.predicted.as_secs_f64(), forecast.bound.as_secs_f64());
        Self {
            fabric: fabric.name().to_owned(),
            operation: operation.name(),
            dtype: dtype.to_string(),
            size_bytes: carried,
            algorithm: plan.algorithm.name(),
            reason: plan.reason.clone(),
            plan_hash: format!("{:016x}", plan.hash()),
            segment_bytes: plan.segment.get(),
            express_bytes: plan.express_limit().map(ByteCount::get),
            predicted_seconds: predicted,
            bound_seconds: bound,
            eta: if predicted > 0.0 { bound / predicted } else { 1.0 },
            min_cut_bits_per_second: bound::min_cut(fabric).bits_per_second(),
            shares: fabric
                .gateway_ids()
                .map(name)
                .zip(held.owner_fractions(fabric, carried))
                .collect(),
            link_bytes: forecast
                .links
                .iter()
                .map(|link| LinkRow {
                    from: region(link.from),
                    to: region(link.to),
                    bytes: link.bytes.get(),
                    seconds: link.time.as_secs_f64(),
                    window_bytes: window(fabric, plan, (link.from, link.to)),
                    tail_repair: tail_repair(fabric, plan, (link.from, link.to)),
                })
                .collect(),
            gateways: gateways
                .map(|(id, load)| GatewayRow {
                    gateway: name(id),
                    wan_out_bytes: load.wan_out.get(),
                    wan_in_bytes: load.wan_in.get(),
                    lan_out_bytes: load.lan_out.get(),
                    held_bytes: plan.memory(fabric, id, ByteCount::default()).windows().get(),
                })
                .collect(),
            trees: held
                .trees
                .iter()
                .zip(&parts)
                .map(|(tree, part)| row(fabric, tree, part, operation))
                .collect(),
            simulated: None,
        }
    }
}

fn window(fabric: &Fabric, plan: &Plan, (from, to): (RegionId, RegionId)) -> u64 {
    let [one, other] = [from, to].map(|region| GatewayId(fabric.region(region).gateways.start));
    plan::result_window(fabric, one, other, plan).get()
}

fn tail_repair(fabric: &Fabric, plan: &Plan, (from, to): (RegionId, RegionId)) -> TailRepair {
    let repair = fabric.link(from, to).map(|link| plan.fec(link, fabric.mtu()));
    let repair = repair.unwrap_or_default();
    TailRepair {
        bytes: repair.tail_bytes(),
        saves_seconds: repair.expected_saving.as_secs_f64(),
        takes_seconds: repair.parity_time.as_secs_f64(),
    }
}

impl fmt::Display for TailRepair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |seconds: f64| format!("{:.2} ms", 1e3 * seconds);
        let (saves, takes) = (ms(self.saves_seconds), ms(self.takes_seconds));
        match self.bytes {
            0 if self.saves_seconds == 0.0 => write!(f, "none: no loss"),
            0 => write!(f, "none: saves {saves}, takes {takes}"),
            tail => write!(f, "last {}: saves {saves}, takes {takes}", bytes(tail)),
        }
    }
}

fn row(fabric: &Fabric, tree: &Tree, part: &shard::Part, operation: Operation) -> TreeRow {
    let phases = operation.along(tree);
    let bytes = if phases.up || phases.down { part.range.end - part.range.start } else { 0 };
    let name = |id: &GatewayId| fabric.gateway(*id).name.clone();
    TreeRow {
        bytes,
        express: tree.is_express(),
        carries: tree.direction.name(),
        crown: tree.roots.iter().map(name).collect(),
        parents: tree.parents.iter().map(|(child, up)| (name(child), name(up))).collect(),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = ByteCount::new(self.size_bytes);
        writeln!(f, "{} of {size} {} over {}", self.operation, self.dtype, self.fabric)?;
        writeln!(f, "algorithm  {}", self.algorithm)?;
        writeln!(f, "reason     {}", self.reason)?;
        writeln!(f, "plan hash  {}", self.plan_hash)?;
        writeln!(f, "segment    {}", ByteCount::new(self.segment_bytes))?;
        if let Some(most) = self.express_bytes {
            writeln!(f, "express    up to {}", ByteCount::new(most))?;
        }
        writeln!(f, "predicted  {}", seconds(self.predicted_seconds))?;
        writeln!(f, "bound      {}, eta {:.3}", seconds(self.bound_seconds), self.eta)?;
        let min_cut = BitRate::from_bits_per_second(self.min_cut_bits_per_second);
        writeln!(f, "min-cut    {min_cut}, both ways")?;
        match &self.simulated {
            Some(simulated) => writeln!(f, "{simulated}")?,
            None => writeln!(f)?,
        }
        let rows: Vec<[String; 6]> = self.gateways.iter().map(|row| self.gateway(row)).collect();
        let header = ["gateway", "owns", "WAN out", "WAN in", "LAN out", "holds at most"];
        writeln!(f, "{}", table(header, &rows))?;
        let links = self.link_bytes.iter().map(|link| {
            let window = ByteCount::new(link.window_bytes);
            let part = link.seconds / self.predicted_seconds.max(f64::MIN_POSITIVE);
            [
                format!("{} > {}", link.from, link.to),
                bytes(link.bytes),
                format!("{:.0} %", 100.0 * part),
                bytes(window.get()),
                link.tail_repair.to_string(),
            ]
        });
        let links: Vec<[String; 5]> = links.collect();
        let header = ["link", "payload", "busy", "window", "tail repair"];
        writeln!(f, "{}", table(header, &links))?;
        let used: Vec<&TreeRow> = self.trees.iter().filter(|tree| tree.bytes > 0).collect();
        let rows: Vec<[String; 4]> =
            used.iter().take(TREES_SHOWN).map(|tree| describe(tree)).collect();
        write!(f, "{}", table(["tree", "payload", "carries", "below it"], &rows))?;
        match used.len().saturating_sub(TREES_SHOWN) {
            0 => Ok(()),
            more => writeln!(f, "and {more} more: see --json"),
        }
    }
}

impl Report {
    fn gateway(&self, row: &GatewayRow) -> [String; 6] {
        [
            row.gateway.clone(),
            format!("{:.1} %", 100.0 * self.shares.get(&row.gateway).copied().unwrap_or(0.0)),
            bytes(row.wan_out_bytes),
            bytes(row.wan_in_bytes),
            bytes(row.lan_out_bytes),
            bytes(row.held_bytes),
        ]
    }
}

fn describe(tree: &TreeRow) -> [String; 4] {
    let below = tree.parents.iter().map(|(child, parent)| {
        if tree.crown == [parent.clone()] { child.clone() } else { format!("{child} < {parent}") }
    });
    let below = below.collect::<Vec<_>>().join(", ");
    [tree.crown.join(" + "), bytes(tree.bytes), tree.carries.to_owned(), below]
}

/// Three significant digits: what a person compares.
pub(super) fn bytes(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    let decimals = match value {
        _ if unit == 0 => 0,
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {}", units[unit])
}

pub(super) fn seconds(seconds: f64) -> String {
    let ms = (seconds * 1000.0).round() as u64;
    if ms < 10 { format!("{:.2} ms", seconds * 1000.0) } else { Span::from_ms(ms).to_string() }
}

/// Trees that a table holds before it stops being read.
const TREES_SHOWN: usize = 20;

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn sizes_have_three_digits() {
        let cases = [(0, "0 B"), (999, "999 B"), (1000, "0.98 KiB"), (1 << 30, "1.00 GiB")];
        for (size, text) in cases {
            assert_eq!(bytes(size), text);
        }
        assert_eq!(bytes(u64::MAX), "16.0 EiB");
    }
}
