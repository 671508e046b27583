//! `landbridge plan traffic`: bytes that each axis of parallelism moves.

use crate::cli::output::command_error::CommandError;
use crate::cli::output::exit::Exit;
use crate::cli::output::print::{print_json, print_text};
use crate::cli::output::table::render_table;
use clap::{Args, ValueEnum};
use gateway::config::FabricFile;
use hier_collectives::plan::{self, Operation};
use hier_collectives::topology::{
    Fabric, FabricGatewaySpec, FabricLinkSpec, FabricRegionSpec, WanPort,
};
use serde::Serialize;
use std::path::PathBuf;
use units::{BitRate, ByteCount, Fraction, Span};

/// Count the bytes that each axis of parallelism moves in an epoch, in bf16, and say which axes may
/// cross the WAN.
///
/// `schedule` counts the bytes that the plan of a fabric puts on links, with each axis laid across
/// the regions. `article` uses closed formulas for naive exchange among all cards. The defaults are
/// those of Llama 3 70B on C4.
#[derive(Debug, Args)]
#[command(after_help = "Example: landbridge plan traffic --model-kind article --cards 8")]
pub(super) struct TrafficCommand {
    /// The way of counting
    #[arg(long, value_enum, default_value = "schedule")]
    model_kind: ModelKind,
    /// Parameters
    #[arg(long, value_name = "P", default_value = "70e9", value_parser = parse_traffic_number)]
    params: f64,
    /// Layers
    #[arg(long, value_name = "L", default_value = "80", value_parser = parse_traffic_number)]
    layers: f64,
    /// Hidden size
    #[arg(long, value_name = "H", default_value = "8192", value_parser = parse_traffic_number)]
    hidden: f64,
    /// Tokens of an epoch
    #[arg(long, value_name = "T", default_value = "156e9", value_parser = parse_traffic_number)]
    tokens: f64,
    /// Samples of an epoch
    #[arg(long, default_value = "364.6e6", value_parser = parse_traffic_number)]
    samples: f64,
    /// Samples of a mini-batch
    #[arg(long, default_value = "2048", value_parser = parse_traffic_number)]
    batch: f64,
    /// Cards, all of them along each single axis; for `article`
    #[arg(long, value_name = "G", default_value = "8", value_parser = parse_traffic_number)]
    cards: f64,
    /// Cards along data, tensor and pipeline, used together; for `article`
    #[arg(long, value_name = "DPxTPxPP", default_value = "16x8x8")]
    grid: TrafficCardGrid,
    /// The fabric file, for `schedule`; by default two equal regions
    #[arg(long, value_name = "FILE")]
    fabric: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum ModelKind {
    Schedule,
    Article,
}

/// Number of cards along each axis.
#[derive(Debug, Clone, Copy, PartialEq)]
struct TrafficCardGrid {
    data: f64,
    tensor: f64,
    pipeline: f64,
}

impl std::str::FromStr for TrafficCardGrid {
    type Err = String;
    /// Parses numbers of cards, such as `16x8x8`.
    fn from_str(text: &str) -> Result<Self, String> {
        let cards: Result<Vec<f64>, String> = text.split('x').map(parse_traffic_number).collect();
        match cards.as_deref() {
            Ok([data, tensor, pipeline]) => {
                Ok(Self { data: *data, tensor: *tensor, pipeline: *pipeline })
            }
            _ => Err("three numbers such as 16x8x8".to_owned()),
        }
    }
}

/// Parses a number that is at least 1, such as `70e9`.
fn parse_traffic_number(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok().filter(|n: &f64| n.is_finite() && *n >= 1.0);
    number.ok_or_else(|| "a number from 1, such as 70e9".to_owned())
}

/// Traffic of one axis of parallelism.
#[derive(Debug, Serialize)]
struct AxisTraffic {
    axis: &'static str,
    /// Bytes in an epoch, of all cards or links together.
    bytes: f64,
    may_cross: bool,
    reason: String,
}

#[derive(Debug, Serialize)]
struct TrafficReport {
    model_kind: ModelKind,
    steps: f64,
    axes: Vec<AxisTraffic>,
}

impl TrafficCommand {
    /// Runs `landbridge plan traffic`: prints the bytes of each axis of parallelism.
    pub(super) fn run(self) -> Result<Exit, CommandError> {
        let axes = match self.model_kind {
            ModelKind::Article => self.traffic_by_formulas(),
            ModelKind::Schedule => match &self.fabric {
                Some(path) => {
                    self.traffic_by_plan(&FabricFile::load(path)?.fabric().without_witness())?
                }
                None => self.traffic_by_plan(&traffic_fabric())?,
            },
        };
        let report =
            TrafficReport { model_kind: self.model_kind, steps: self.steps_per_epoch(), axes };
        if self.json {
            print_json(&report)?;
            return Ok(Exit::Good);
        }
        let row = |axis: &AxisTraffic| {
            let crosses = if axis.may_cross { "yes" } else { "NO" };
            let bytes = ByteCount::new(axis.bytes as u64).rounded();
            [axis.axis.to_owned(), bytes, crosses.to_owned(), axis.reason.clone()]
        };
        let rows: Vec<[String; 4]> = report.axes.iter().map(row).collect();
        print_text(&render_table(["axis", "bytes", "may cross WAN", "reason"], &rows))?;
        Ok(Exit::Good)
    }

    /// Returns the number of mini-batches of an epoch of the data.
    fn steps_per_epoch(&self) -> f64 {
        self.samples / self.batch
    }

    /// Returns the bytes of each axis of parallelism per epoch by the closed formulas of
    /// `--model-kind article`: every card sends to every other, and nothing is reduced on the way.
    fn traffic_by_formulas(&self) -> Vec<AxisTraffic> {
        let (n, p, l) = (self.steps_per_epoch(), self.params, self.layers);
        let (t, h, g) = (self.tokens, self.hidden, self.cards);
        let TrafficCardGrid { data, tensor, pipeline } = self.grid;
        let grid = 2.0 * n * p * data * (2.0 * l * (tensor - 1.0) / pipeline + (data - 1.0))
            + 2.0 * t * h * (2.0 * l * tensor * (tensor - 1.0) + (pipeline - 1.0))
            + 2.0 * t * h * (pipeline - 1.0);
        let axis = |axis, bytes, reason: &str| {
            let may_cross =
                axis != TENSOR_BACKWARD_AXIS && axis != TENSOR_FORWARD_AXIS && axis != GRID_AXIS;
            AxisTraffic { axis, bytes, may_cross, reason: reason.to_owned() }
        };
        vec![
            axis("data, all to all", 2.0 * n * p * g * (g - 1.0), "once per step"),
            axis(
                "fully sharded, each way",
                2.0 * n * p * (g - 1.0),
                "once per step, layer by layer",
            ),
            axis(TENSOR_BACKWARD_AXIS, 4.0 * n * p * l * (g - 1.0), "every layer waits for it"),
            axis(TENSOR_FORWARD_AXIS, 4.0 * l * t * h * g * (g - 1.0), "every layer waits for it"),
            axis("pipeline, each way", 2.0 * t * h * (g - 1.0), "one boundary after another"),
            axis(GRID_AXIS, grid, "its tensor part must stay inside a region"),
        ]
    }

    /// Returns the bytes that each axis of parallelism puts on the links per epoch, with the
    /// all-reduces planned for `fabric`.
    fn traffic_by_plan(&self, fabric: &Fabric) -> Result<Vec<AxisTraffic>, CommandError> {
        let plan = plan::make_plan(fabric).map_err(gateway::daemon::StartError::from)?;
        let regions = fabric.regions().len() as f64;
        let on_links = |bytes: f64| {
            let bytes = ByteCount::new(bytes.round() as u64);
            let forecast = plan.forecast(fabric, Operation::AllReduce, bytes);
            let all: f64 = forecast.links.iter().map(|link| link.bytes.get() as f64).sum();
            (all, forecast.predicted)
        };
        let (gradients, step) = on_links(2.0 * self.params);
        let step = step.rounded();
        let activations = 2.0 * self.tokens * self.hidden;
        let (in_step, _) = on_links(activations / self.steps_per_epoch());
        let farthest = fabric.links().iter().map(|link| link.rtt.as_secs_f64() / 2.0);
        let waits = 4.0 * self.layers * farthest.fold(0.0, f64::max);
        let waits = Span::from_secs_f64(waits).rounded();
        let size = ByteCount::new((2.0 * self.params).round() as u64).rounded();
        let data =
            format!("{size} of gradients once per step, {step} by {}", plan.algorithm.name());
        let tensor = format!(
            "4 all-reduces per layer and step wait for the round trip: {waits} of delay per \
             step"
        );
        let pipeline =
            "activations and their gradients cross each boundary once, while other stages compute";
        Ok(vec![
            AxisTraffic {
                axis: "data",
                bytes: self.steps_per_epoch() * gradients,
                may_cross: true,
                reason: data,
            },
            AxisTraffic {
                axis: "pipeline",
                bytes: 2.0 * activations * (regions - 1.0),
                may_cross: true,
                reason: pipeline.to_owned(),
            },
            AxisTraffic {
                axis: "tensor",
                bytes: 4.0 * self.layers * self.steps_per_epoch() * in_step,
                may_cross: false,
                reason: tensor,
            },
        ])
    }
}

/// Returns a fabric of two equal regions, 10 Gbit/s and 40 ms of RTT apart.
fn traffic_fabric() -> Fabric {
    let rate = BitRate::from_bits_per_second(10_000_000_000);
    let wan = Some(WanPort { egress: rate, ingress: rate });
    let region = |name: &str| FabricRegionSpec {
        name: name.to_owned(),
        speeds: vec![1.0],
        gateways: vec![FabricGatewaySpec::new(format!("{name}-0"), 1, wan)],
    };
    let between = ("east".to_owned(), "west".to_owned());
    let link = FabricLinkSpec { between, rate, rtt: Span::from_ms(40), loss: Fraction::default() };
    Fabric::new("two-regions", 1500, vec![region("east"), region("west")], vec![link])
        .expect("a valid fabric")
}

/// Name of tensor parallelism in the backward pass, in the column `axis` of the traffic table.
/// Bytes of this axis may not cross the WAN.
const TENSOR_BACKWARD_AXIS: &str = "tensor, backward";
/// Name of tensor parallelism in the forward pass, in the column `axis` of the traffic table. Bytes
/// of this axis may not cross the WAN.
const TENSOR_FORWARD_AXIS: &str = "tensor, forward";
/// Name of data, tensor and pipeline parallelism together, in the column `axis` of the traffic
/// table. Bytes of this axis may not cross the WAN.
const GRID_AXIS: &str = "data, tensor and pipeline";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        traffic: TrafficCommand,
    }

    fn traffic(arguments: &[&str]) -> TrafficCommand {
        Line::parse_from(["plan"].iter().chain(arguments)).traffic
    }

    #[test]
    fn llama_3_70b_on_c4_moves_the_published_bytes() {
        let axes = traffic(&["--model-kind", "article"]).traffic_by_formulas();
        let published = [1395.7, 174.5, 27914.7, 22900.9, 17.89, 84_740.0];
        assert_eq!(axes.len(), published.len());
        for (axis, petabytes) in axes.iter().zip(published) {
            let ratio = axis.bytes / 1e15 / petabytes;
            assert!((ratio - 1.0).abs() < 0.0005, "{}: {ratio}", axis.axis);
        }
    }

    #[test]
    fn two_regions_move_the_gradients_once_each_way() {
        let traffic = traffic(&[]);
        let axes = traffic.traffic_by_plan(&traffic_fabric()).expect("small");
        let gradients = 2.0 * 2.0 * 70e9 * traffic.steps_per_epoch();
        assert!((axes[0].bytes / gradients - 1.0).abs() < 1e-9);
        let boundary = 2.0 * 2.0 * 156e9 * 8192.0;
        assert!((axes[1].bytes / boundary - 1.0).abs() < 1e-9);
        assert!(axes[0].may_cross && axes[1].may_cross && !axes[2].may_cross);
    }

    #[test]
    fn a_malformed_grid_is_refused() {
        for text in ["8x8", "8x8x0", "8x8xeight", "8x8x8x8"] {
            assert!(text.parse::<TrafficCardGrid>().is_err(), "{text}");
        }
    }
}
