//! `landbridge plan traffic`.

use super::report::bytes as in_bytes;
use crate::cli::table::table;
use crate::cli::{CommandError, Exit, show, show_json};
use crate::config::FabricFile;
use clap::{Args, ValueEnum};
use hier_collectives::plan::{self, Operation};
use hier_collectives::topology::{Fabric, LinkSpec, RegionSpec, WanPort};
use serde::Serialize;
use std::path::PathBuf;
use units::{BitRate, ByteCount, Fraction, Span};

/// Bytes that each axis of parallelism moves in an epoch, in bf16, and which may cross the
/// long haul.
///
/// `schedule` counts what our own plans put on links, each axis laid across the regions.
/// `article` uses the closed formulas for naive exchange among all cards. The model's numbers
/// are those of Llama 3 70B on C4 where none are given.
#[derive(Debug, Args)]
#[command(after_help = "Example: landbridge plan traffic --model-kind article --cards 8")]
pub(super) struct Traffic {
    /// Whose count
    #[arg(long, value_enum, default_value = "schedule")]
    model_kind: Kind,
    /// Parameters
    #[arg(long, value_name = "P", default_value = "70e9", value_parser = positive)]
    params: f64,
    /// Layers
    #[arg(long, value_name = "L", default_value = "80", value_parser = positive)]
    layers: f64,
    /// Hidden size
    #[arg(long, value_name = "H", default_value = "8192", value_parser = positive)]
    hidden: f64,
    /// Tokens of an epoch
    #[arg(long, value_name = "T", default_value = "156e9", value_parser = positive)]
    tokens: f64,
    /// Samples of an epoch
    #[arg(long, default_value = "364.6e6", value_parser = positive)]
    samples: f64,
    /// Samples of a mini-batch
    #[arg(long, default_value = "2048", value_parser = positive)]
    batch: f64,
    /// Cards, of which each axis alone has all [article]
    #[arg(long, value_name = "G", default_value = "8", value_parser = positive)]
    cards: f64,
    /// Cards by data, tensor and pipeline together [article]
    #[arg(long, value_name = "DPxTPxPP", default_value = "16x8x8")]
    grid: Grid,
    /// The fabric whose plan carries it [schedule]; by default two equal regions
    #[arg(long, value_name = "FILE")]
    fabric: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Schedule,
    Article,
}

/// Cards along each axis.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Grid {
    data: f64,
    tensor: f64,
    pipeline: f64,
}

impl std::str::FromStr for Grid {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let cards: Result<Vec<f64>, String> = text.split('x').map(positive).collect();
        match cards.as_deref() {
            Ok([data, tensor, pipeline]) => {
                Ok(Self { data: *data, tensor: *tensor, pipeline: *pipeline })
            }
            _ => Err("three numbers such as 16x8x8".to_owned()),
        }
    }
}

fn positive(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok().filter(|n: &f64| n.is_finite() && *n >= 1.0);
    number.ok_or_else(|| "a number from 1, such as 70e9".to_owned())
}

/// One axis.
#[derive(Debug, Serialize)]
struct Axis {
    axis: &'static str,
    /// In an epoch, over all cards or links together.
    bytes: f64,
    may_cross: bool,
    reason: String,
}

#[derive(Debug, Serialize)]
struct Counted {
    model_kind: Kind,
    steps: f64,
    axes: Vec<Axis>,
}

impl Traffic {
    pub(super) fn run(self) -> Result<Exit, CommandError> {
        let axes = match self.model_kind {
            Kind::Article => self.article(),
            Kind::Schedule => match &self.fabric {
                Some(path) => self.schedule(FabricFile::load(path)?.fabric())?,
                None => self.schedule(&two_regions())?,
            },
        };
        let counted = Counted { model_kind: self.model_kind, steps: self.steps(), axes };
        if self.json {
            show_json(&counted);
            return Ok(Exit::Good);
        }
        let row = |axis: &Axis| {
            let crosses = if axis.may_cross { "yes" } else { "NO" };
            let bytes = format!("{:.2} PB", axis.bytes / 1e15);
            [axis.axis.to_owned(), bytes, crosses.to_owned(), axis.reason.clone()]
        };
        let rows: Vec<[String; 4]> = counted.axes.iter().map(row).collect();
        show(&table(["axis", "bytes", "may cross", "because"], &rows));
        Ok(Exit::Good)
    }

    /// Mini-batches of an epoch.
    fn steps(&self) -> f64 {
        self.samples / self.batch
    }

    /// The closed formulas: every card sends to every other, nothing is reduced on the way.
    fn article(&self) -> Vec<Axis> {
        let (n, p, l) = (self.steps(), self.params, self.layers);
        let (t, h, g) = (self.tokens, self.hidden, self.cards);
        let Grid { data, tensor, pipeline } = self.grid;
        let grid = 2.0 * n * p * data * (2.0 * l * (tensor - 1.0) / pipeline + (data - 1.0))
            + 2.0 * t * h * (2.0 * l * tensor * (tensor - 1.0) + (pipeline - 1.0))
            + 2.0 * t * h * (pipeline - 1.0);
        let axis = |axis, bytes, reason: &str| {
            let may_cross = axis != TENSOR_BACKWARD && axis != TENSOR_FORWARD && axis != GRID;
            Axis { axis, bytes, may_cross, reason: reason.to_owned() }
        };
        vec![
            axis("data, all to all", 2.0 * n * p * g * (g - 1.0), "once a step"),
            axis("fully sharded, each way", 2.0 * n * p * (g - 1.0), "once a step, layer by layer"),
            axis(TENSOR_BACKWARD, 4.0 * n * p * l * (g - 1.0), "every layer waits for it"),
            axis(TENSOR_FORWARD, 4.0 * l * t * h * g * (g - 1.0), "every layer waits for it"),
            axis("pipeline, each way", 2.0 * t * h * (g - 1.0), "one boundary after the other"),
            axis(GRID, grid, "its tensor part must stay inside a region"),
        ]
    }

    /// What the plan of a fabric puts on its links.
    fn schedule(&self, fabric: &Fabric) -> Result<Vec<Axis>, CommandError> {
        let plan = plan::plan(fabric).map_err(crate::daemon::StartError::from)?;
        let regions = fabric.regions().len() as f64;
        let on_links = |bytes: f64| {
            let bytes = ByteCount::new(bytes.round() as u64);
            let forecast = plan.forecast(fabric, Operation::AllReduce, bytes);
            let all: f64 = forecast.links.iter().map(|link| link.bytes.get() as f64).sum();
            (all, forecast.predicted.as_secs_f64())
        };
        let (gradients, step) = on_links(2.0 * self.params);
        let activations = 2.0 * self.tokens * self.hidden;
        let (in_step, _) = on_links(activations / self.steps());
        let farthest = fabric.links().iter().map(|link| link.rtt.as_secs_f64() / 2.0);
        let waits = 4.0 * self.layers * farthest.fold(0.0, f64::max);
        let size = in_bytes((2.0 * self.params).round() as u64);
        let data =
            format!("{size} of gradients once a step, {step:.1} s by {}", plan.algorithm.name());
        let tensor = format!(
            "4 all-reduces for each layer and step wait for the distance: {waits:.1} s a step in \
             delay alone"
        );
        let pipeline =
            "activations and their gradients cross each boundary once, while others compute";
        Ok(vec![
            Axis { axis: "data", bytes: self.steps() * gradients, may_cross: true, reason: data },
            Axis {
                axis: "pipeline",
                bytes: 2.0 * activations * (regions - 1.0),
                may_cross: true,
                reason: pipeline.to_owned(),
            },
            Axis {
                axis: "tensor",
                bytes: 4.0 * self.layers * self.steps() * in_step,
                may_cross: false,
                reason: tensor,
            },
        ])
    }
}

/// 10 Gbit/s and 40 ms between two equal regions.
fn two_regions() -> Fabric {
    let rate = BitRate::from_bits_per_second(10_000_000_000);
    let wan = Some(WanPort { egress: rate, ingress: rate });
    let region = |name: &str| RegionSpec {
        name: name.to_owned(),
        speeds: vec![1.0],
        gateways: vec![(format!("{name}-0"), 1, wan)],
    };
    let between = ("east".to_owned(), "west".to_owned());
    let link = LinkSpec { between, rate, rtt: Span::from_ms(40), loss: Fraction::default() };
    Fabric::new("two-regions", 1500, vec![region("east"), region("west")], vec![link])
        .expect("a valid fabric")
}

const TENSOR_BACKWARD: &str = "tensor, backward";
const TENSOR_FORWARD: &str = "tensor, forward";
const GRID: &str = "data, tensor and pipeline";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        traffic: Traffic,
    }

    fn traffic(arguments: &[&str]) -> Traffic {
        Line::parse_from(["plan"].iter().chain(arguments)).traffic
    }

    #[test]
    fn llama_3_70b_on_c4_is_as_published() {
        let axes = traffic(&["--model-kind", "article"]).article();
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
        let axes = traffic.schedule(&two_regions()).expect("small");
        let gradients = 2.0 * 2.0 * 70e9 * traffic.steps();
        assert!((axes[0].bytes / gradients - 1.0).abs() < 1e-9);
        let boundary = 2.0 * 2.0 * 156e9 * 8192.0;
        assert!((axes[1].bytes / boundary - 1.0).abs() < 1e-9);
        assert!(axes[0].may_cross && axes[1].may_cross && !axes[2].may_cross);
    }

    #[test]
    fn what_is_no_grid_is_refused() {
        for text in ["8x8", "8x8x0", "8x8xeight", "8x8x8x8"] {
            assert!(text.parse::<Grid>().is_err(), "{text}");
        }
    }
}
