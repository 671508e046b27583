//! A plan in numbers: JSON and tables.

use super::planned_collective::PlannedCollective;
use super::simulated_plan::SimulatedPlan;
use crate::cli::output::table::{render_field_table, render_table};
use hier_collectives::bound;
use hier_collectives::ids::{GatewayId, RegionId};
use hier_collectives::parts::OperationPart;
use hier_collectives::plan::{self, Plan};
use hier_collectives::topology::Fabric;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use units::{BitRate, ByteCount, Span, rounded_decimal_percent};

/// Output of `landbridge plan`. The field names are the keys of its JSON.
#[derive(Debug, Serialize)]
pub(super) struct PlanReport {
    fabric: String,
    operation: &'static str,
    dtype: String,
    pub(super) size_bytes: u64,
    algorithm: &'static str,
    reason: String,
    /// Hash of the plan, on which running gateways agree.
    plan_hash: String,
    segment_bytes: u64,
    /// Largest buffer that uses the express tree, if the plan has one.
    pub(super) express_bytes: Option<u64>,
    pub(super) predicted_seconds: f64,
    bound_seconds: f64,
    /// Lower bound over predicted time, 0 to 1.
    eta: f64,
    min_cut_bits_per_second: u64,
    /// Fraction of what travels of which each gateway is a root, 0 to 1.
    pub(super) shares: BTreeMap<String, f64>,
    pub(super) link_bytes: Vec<LinkLoadRow>,
    gateways: Vec<GatewayLoadRow>,
    pub(super) trees: Vec<TreeLoad>,
    /// Whether the data of each gateway take trees of its own, of which several rows may be parts.
    #[serde(skip)]
    pub(super) has_owner_trees: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) simulated: Option<SimulatedPlan>,
}

/// Load of one direction of a link.
#[derive(Debug, Serialize)]
pub(super) struct LinkLoadRow {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    /// Receive window between two of its gateways beyond the last result.
    window_bytes: u64,
    tail_repair: PlanReportTailFec,
}

/// FEC of the last bytes that cross a link, with its cost and benefit.
#[derive(Debug, Serialize)]
struct PlanReportTailFec {
    /// Number of protected bytes; 0 where FEC costs more than it saves.
    bytes: u64,
    /// Mean time that losses among them would cost without FEC.
    saves_seconds: f64,
    /// Time that the parity takes on the link.
    takes_seconds: f64,
}

/// Load of a gateway.
#[derive(Debug, Serialize)]
struct GatewayLoadRow {
    gateway: String,
    wan_out_bytes: u64,
    wan_in_bytes: u64,
    lan_out_bytes: u64,
    /// Largest sum of its receive windows, without the partial sums of its own ranks.
    held_bytes: u64,
}

/// Load of a tree.
#[derive(Debug, Clone, Serialize)]
pub(super) struct TreeLoad {
    pub(super) bytes: u64,
    pub(super) express: bool,
    /// The kind of data: partials, results, or both.
    pub(super) carries: &'static str,
    /// Root set: the gateways that exchange their partial sums.
    pub(super) crown: Vec<String>,
    pub(super) parents: BTreeMap<String, String>,
}

/// The text of [`TreeLoad`]'s `carries` for partials up and results down.
pub(super) const CARRIES_BOTH: &str = "partials and results";

/// The text that `landbridge plan` prints as the plan's `reason` for operations on blocks and for
/// sends, which use owner trees.
const OWNER_TREES_REASON: &str = "each gateway's data take trees of its own, one for each rail of ports or several, without the \
                                  branches that need none of them";

impl PlanReport {
    /// Forecasts a collective under a plan. The report has no result of a simulation yet: its
    /// `simulated` is `None`.
    pub(super) fn new(fabric: &Fabric, plan: &Plan, collective: PlannedCollective) -> Self {
        let PlannedCollective { operation, size, dtype } = collective;
        let forecast = plan.forecast(fabric, operation, size);
        let carried = if operation.has_data() { size.get() } else { 0 };
        let owner_trees = plan.owner_trees(fabric);
        let rerooted = plan.rerooted_for(fabric, operation);
        let parts = rerooted.forecast_parts(fabric, &owner_trees, operation, carried);
        let name = |id: GatewayId| fabric.gateway(id).name.clone();
        let region = |id: RegionId| fabric.region(id).name.clone();
        let owned = match operation.uses_owner_trees() {
            true => plan_report_root_fractions(fabric, &parts),
            false => rerooted.ownership_fractions(fabric, carried),
        };
        let gateways = fabric.gateway_ids().zip(&forecast.gateways);
        let (predicted, bound) = (forecast.predicted.as_secs_f64(), forecast.bound.as_secs_f64());
        Self {
            fabric: fabric.name().to_owned(),
            operation: operation.name(),
            dtype: dtype.to_string(),
            size_bytes: carried,
            algorithm: plan.algorithm.name(),
            reason: match operation.uses_owner_trees() {
                true => OWNER_TREES_REASON.to_owned(),
                false => plan.reason.clone(),
            },
            plan_hash: format!("{:016x}", plan.encoding_hash()),
            segment_bytes: plan.segment.get(),
            express_bytes: plan.express_limit().map(ByteCount::get),
            predicted_seconds: predicted,
            bound_seconds: bound,
            eta: if predicted > 0.0 { bound / predicted } else { 1.0 },
            min_cut_bits_per_second: bound::min_cut(fabric).bits_per_second(),
            shares: fabric.gateway_ids().map(name).zip(owned).collect(),
            link_bytes: forecast
                .links
                .iter()
                .map(|link| LinkLoadRow {
                    from: region(link.from),
                    to: region(link.to),
                    bytes: link.bytes.get(),
                    seconds: link.time.as_secs_f64(),
                    window_bytes: plan_report_result_window(fabric, plan, link.from, link.to),
                    tail_repair: plan_report_tail_fec(fabric, plan, link.from, link.to),
                })
                .collect(),
            gateways: gateways
                .map(|(id, load)| GatewayLoadRow {
                    gateway: name(id),
                    wan_out_bytes: load.wan_out.get(),
                    wan_in_bytes: load.wan_in.get(),
                    lan_out_bytes: load.lan_out.get(),
                    held_bytes: plan
                        .memory_bound(fabric, &owner_trees, id, ByteCount::default())
                        .window_bytes()
                        .get(),
                })
                .collect(),
            has_owner_trees: operation.uses_owner_trees(),
            trees: parts.iter().map(|part| plan_report_tree_load(fabric, part)).collect(),
            simulated: None,
        }
    }
}

/// Returns the receive window for results between the first gateways of two regions, in bytes.
fn plan_report_result_window(fabric: &Fabric, plan: &Plan, from: RegionId, to: RegionId) -> u64 {
    let [one, other] = [from, to].map(|region| GatewayId(fabric.region(region).gateways.start));
    plan::result_window_size(fabric, one, other, plan).get()
}

/// Returns the FEC that the plan uses on the link from one region to another, with its cost and
/// benefit. All are 0 where the regions have no link.
fn plan_report_tail_fec(
    fabric: &Fabric,
    plan: &Plan,
    from: RegionId,
    to: RegionId,
) -> PlanReportTailFec {
    let fec = fabric.link(from, to).map(|link| plan.tail_fec(link, fabric.mtu()));
    let fec = fec.unwrap_or_default();
    PlanReportTailFec {
        bytes: fec.tail_bytes(),
        saves_seconds: fec.expected_saving.as_secs_f64(),
        takes_seconds: fec.parity_time.as_secs_f64(),
    }
}

impl fmt::Display for PlanReportTailFec {
    /// Prints `last 1 MiB: saves 2.03 ms, takes 512 us`. Without FEC prints `none: ` and the
    /// reason, such as `no loss expected`, or a saving that is below the cost.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |seconds: f64| Span::from_secs_f64(seconds).rounded();
        let (saves, takes) = (time(self.saves_seconds), time(self.takes_seconds));
        match self.bytes {
            0 if self.saves_seconds == 0.0 => write!(f, "none: no loss expected"),
            0 => write!(f, "none: saves {saves}, takes {takes}"),
            tail => {
                write!(f, "last {}: saves {saves}, takes {takes}", ByteCount::new(tail).rounded())
            }
        }
    }
}

/// Returns for each gateway, in order, the fraction of an operation's bytes whose tree has this
/// gateway as root. Roots of one tree share its bytes evenly.
fn plan_report_root_fractions(fabric: &Fabric, parts: &[OperationPart<'_>]) -> Vec<f64> {
    let total: u64 = parts.iter().map(OperationPart::bytes).sum();
    let mut owned = vec![0.0; fabric.gateways().len()];
    for part in parts {
        for GatewayId(id) in &part.tree.roots {
            let share = part.bytes() as f64 / part.tree.roots.len() as f64;
            owned[usize::from(*id)] += share / total.max(1) as f64;
        }
    }
    owned
}

/// Returns the load of the tree of a part: its bytes, its root set and its edges.
fn plan_report_tree_load(fabric: &Fabric, part: &OperationPart<'_>) -> TreeLoad {
    let tree = &part.tree;
    let name = |id: &GatewayId| fabric.gateway(*id).name.clone();
    let carries = match (part.phases.up, part.phases.down) {
        (true, true) => CARRIES_BOTH,
        (true, false) => "partials",
        (false, true) => "results",
        (false, false) => "nothing",
    };
    TreeLoad {
        bytes: part.bytes(),
        express: tree.is_express(),
        carries,
        crown: tree.roots.iter().map(name).collect(),
        parents: tree.parents.iter().map(|(child, up)| (name(child), name(up))).collect(),
    }
}

impl fmt::Display for PlanReport {
    /// Prints the plan's figures, the simulation if there is one, and tables of gateways, links and
    /// trees. Of trees with payload, at most [`TREES_SHOWN_MAX`] are shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = ByteCount::new(self.size_bytes);
        writeln!(f, "{} of {size} {} over {}", self.operation, self.dtype, self.fabric)?;
        write!(f, "{}", render_field_table(&self.fields()))?;
        match &self.simulated {
            Some(simulated) => writeln!(f, "{simulated}")?,
            None => writeln!(f)?,
        }
        let rows: Vec<[String; 6]> =
            self.gateways.iter().map(|load| self.gateway_row(load)).collect();
        let header = ["gateway", "owns", "WAN out", "WAN in", "LAN out", "memory at most"];
        writeln!(f, "{}", render_table(header, &rows))?;
        let links = self.link_bytes.iter().map(|link| {
            let window = ByteCount::new(link.window_bytes);
            let part = link.seconds / self.predicted_seconds.max(f64::MIN_POSITIVE);
            [
                format!("{} > {}", link.from, link.to),
                ByteCount::new(link.bytes).rounded(),
                rounded_decimal_percent(part),
                window.rounded(),
                link.tail_repair.to_string(),
            ]
        });
        let links: Vec<[String; 5]> = links.collect();
        let header = ["link", "payload", "busy", "window", "tail FEC"];
        writeln!(f, "{}", render_table(header, &links))?;
        let used: Vec<&TreeLoad> = self.trees.iter().filter(|tree| tree.bytes > 0).collect();
        let rows: Vec<[String; 4]> =
            used.iter().take(TREES_SHOWN_MAX).map(|tree| plan_report_tree_row(tree)).collect();
        write!(f, "{}", render_table(["roots", "payload", "carries", "children"], &rows))?;
        match used.len().saturating_sub(TREES_SHOWN_MAX) {
            0 => Ok(()),
            more => writeln!(f, "and {more} more trees: see --json"),
        }
    }
}

impl PlanReport {
    /// Returns the properties of the plan and its predicted time, as names and values.
    fn fields(&self) -> Vec<[String; 2]> {
        let express =
            self.express_bytes.map(|most| format!("up to {}", ByteCount::new(most).rounded()));
        let min_cut = BitRate::from_bits_per_second(self.min_cut_bits_per_second).rounded();
        let bound =
            format!("{}, eta {:.3}", Span::from_secs_f64(self.bound_seconds).rounded(), self.eta);
        let fields = [
            ("algorithm", Some(self.algorithm.to_string())),
            ("reason", Some(self.reason.clone())),
            ("plan hash", Some(self.plan_hash.clone())),
            ("segment", Some(ByteCount::new(self.segment_bytes).rounded())),
            ("express", express),
            ("predicted", Some(Span::from_secs_f64(self.predicted_seconds).rounded())),
            ("bound", Some(bound)),
            ("min-cut", Some(format!("{min_cut}, both ways"))),
        ];
        let present =
            fields.into_iter().filter_map(|(name, value)| Some([name.to_owned(), value?]));
        present.collect()
    }

    /// Returns the table row of a gateway: share that it owns, WAN and LAN bytes, memory.
    fn gateway_row(&self, load: &GatewayLoadRow) -> [String; 6] {
        [
            load.gateway.clone(),
            rounded_decimal_percent(self.shares.get(&load.gateway).copied().unwrap_or(0.0)),
            ByteCount::new(load.wan_out_bytes).rounded(),
            ByteCount::new(load.wan_in_bytes).rounded(),
            ByteCount::new(load.lan_out_bytes).rounded(),
            ByteCount::new(load.held_bytes).rounded(),
        ]
    }
}

/// Returns the table row of a tree: root set, payload, kind of data, children.
fn plan_report_tree_row(tree: &TreeLoad) -> [String; 4] {
    let below = tree.parents.iter().map(|(child, parent)| {
        if tree.crown == [parent.clone()] { child.clone() } else { format!("{child} < {parent}") }
    });
    let below = below.collect::<Vec<_>>().join(", ");
    [tree.crown.join(" + "), ByteCount::new(tree.bytes).rounded(), tree.carries.to_owned(), below]
}

/// 20 trees: the most that the printed table of a plan lists, so that it stays readable. A line
/// below counts the others, and `--json` lists all. The number is chosen.
const TREES_SHOWN_MAX: usize = 20;
