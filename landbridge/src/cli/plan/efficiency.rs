//! `landbridge plan efficiency`: training steps of named models over distance.

use crate::cli::output::command_error::CommandError;
use crate::cli::output::exit::Exit;
use crate::cli::output::print::{print_json, print_text};
use crate::cli::output::table::render_table;
use clap::{Args, ValueEnum};
use gateway::simulate::{StepLink, TrainingStep};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::fmt;
use units::{BitRate, ByteCount, Span, rounded_decimal};

/// Simulate what distance costs a training step of a named model over two regions: T(0)/T(d).
///
/// T(d) is the time of a step over a link of length d. Whole gateways all-reduce the gradients in
/// virtual time, bucket by bucket while the backward pass goes on. The convergence N:1 is the rate
/// of all cards of a region over the rate of the link. T(0) is the time of the same step on one
/// cluster, at the rate of its cards and without distance, which is a lower estimate.
#[derive(Debug, Args)]
#[command(after_help = "Example: landbridge plan efficiency --model llama3-70b \
    --distances 500 --convergence 32")]
pub(super) struct EfficiencyCommand {
    /// The model
    #[arg(long, value_enum)]
    model: EfficiencyModel,
    /// Kilometres of fibre between the regions
    #[arg(long, value_name = "KM,...", value_delimiter = ',', default_value = DEFAULT_DISTANCES_KM)]
    distances: Vec<u32>,
    /// Rate of all cards of a region over the rate of the link: the N of N:1
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = DEFAULT_CONVERGENCES,
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    convergence: Vec<u32>,
    /// Smallest acceptable T(0)/T(d), above 0 and at most 1
    #[arg(long, value_name = "FRACTION", default_value = "0.97",
          value_parser = parse_target_efficiency)]
    target: f64,
    /// Cards in each region; the default depends on the model
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cards: Option<u32>,
    /// Tokens of a step, of both regions together; the default depends on the model
    #[arg(long, value_name = "D", value_parser = parse_efficiency_number)]
    tokens: Option<f64>,
    /// Sustained speed of a card, in 10^12 operations per second; 400 is 40 % of 989 TFLOP/s bf16
    #[arg(long, value_name = "T", default_value = "400", value_parser = parse_efficiency_number)]
    card_tflops: f64,
    /// Network rate of a card
    #[arg(long, value_name = "RATE", default_value = "400 Gbit/s")]
    card_rate: BitRate,
    /// Seed of all random numbers of the simulations
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The default of `--distances`: lengths of the fibre between the two regions, in kilometres. A
/// step is simulated for each distance with each convergence.
const DEFAULT_DISTANCES_KM: &str = "0,100,250,500,1000,1500,2000";
/// The default of `--convergence`: values of N in the convergence N:1 (oversubscription). N is the
/// rate of all cards of a region over the rate of the link.
const DEFAULT_CONVERGENCES: &str = "1,2,4,8,16,32,64";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum EfficiencyModel {
    #[value(name = "llama3-8b")]
    Llama3_8b,
    #[value(name = "llama3-70b")]
    Llama3_70b,
    #[value(name = "llama3-405b")]
    Llama3_405b,
    #[value(name = "gpt3-175b")]
    Gpt3_175b,
}

/// Size of a model, and of its training step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct ModelShape {
    parameters: f64,
    /// Layers, each with one bucket of gradients.
    layers: u32,
    /// Cards in each region.
    cards: u32,
    /// Cards that hold one copy of the model.
    cards_per_copy: u32,
    /// Tokens of a step, of both regions together.
    tokens: f64,
}

impl EfficiencyModel {
    /// Returns parameters and layers of the model, and the cards and tokens that its training uses
    /// by default.
    const fn default_shape(self) -> ModelShape {
        let (parameters, layers, cards, cards_per_copy, tokens) = match self {
            Self::Llama3_8b => (8.03e9, 32, 64, 8, 4e6),
            Self::Llama3_70b => (70.6e9, 80, 512, 32, 4e6),
            Self::Llama3_405b => (405e9, 126, 8192, 128, 16e6),
            Self::Gpt3_175b => (175e9, 96, 512, 64, 3.2e6),
        };
        ModelShape { parameters, layers, cards, cards_per_copy, tokens }
    }
}

#[derive(Debug, Serialize)]
struct EfficiencyReport {
    model: String,
    #[serde(flatten)]
    shape: ModelShape,
    card_tflops: f64,
    card_bits_per_second: u64,
    gradient_bytes: f64,
    /// Time of the forward and backward pass.
    compute_seconds: f64,
    /// Time of all buckets inside a region, before the exchange and again after it.
    local_seconds: f64,
    /// T(0), the time of a step on one cluster.
    one_cluster_seconds: f64,
    /// Real bytes for each simulated byte; sizes and rates are divided by it.
    scale: f64,
    seed: u64,
    target: f64,
    cells: Vec<GridPoint>,
    largest: Vec<LargestConvergence>,
}

/// Result for one distance and one convergence.
#[derive(Debug, Serialize)]
struct GridPoint {
    km: u32,
    convergence: u32,
    link_bits_per_second: f64,
    rtt_ms: f64,
    /// T(d), the time of a step over the link.
    seconds: f64,
    /// T(0)/T(d).
    efficiency: f64,
    /// Bytes of gradients over the bandwidth-delay product of the link.
    gradients_over_bdp: f64,
    /// Time of the forward and backward pass over the time of the gradients on the link.
    compute_over_communication: f64,
}

/// Largest convergence of those simulated that meets the target at a distance.
#[derive(Debug, Serialize)]
struct LargestConvergence {
    km: u32,
    convergence: Option<u32>,
}

impl EfficiencyCommand {
    /// Runs `landbridge plan efficiency`: simulates a step for each distance and convergence and
    /// prints the table.
    pub(super) fn run(self) -> Result<Exit, CommandError> {
        let (shape, step) = (self.model_shape(), self.training_step());
        let all_cards = self.region_bits_per_second();
        let one_cluster = step.simulate_one_cluster(self.seed)?;
        let bar = efficiency_progress_bar((self.distances.len() * self.convergence.len()) as u64);
        let mut cells = Vec::new();
        for km in &self.distances {
            for convergence in &self.convergence {
                let bits_per_second = all_cards / f64::from(*convergence);
                let link =
                    StepLink { bits_per_second, rtt: CLUSTER_RTT + efficiency_fibre_rtt(*km) };
                let times = StepTimes { one_cluster, over_link: step.simulate(link, self.seed)? };
                cells.push(efficiency_grid_point(*km, *convergence, &step, link, times));
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        let largest = self.distances.iter().map(|km| {
            let here = cells.iter().filter(|cell| cell.km == *km && cell.efficiency >= self.target);
            LargestConvergence { km: *km, convergence: here.map(|cell| cell.convergence).max() }
        });
        let report = EfficiencyReport {
            model: self.model_name(),
            shape,
            card_tflops: self.card_tflops,
            card_bits_per_second: self.card_rate.bits_per_second(),
            gradient_bytes: step.gradient_bytes,
            compute_seconds: step.compute_time().as_secs_f64(),
            local_seconds: f64::from(step.buckets) * step.local.as_secs_f64(),
            one_cluster_seconds: one_cluster.as_secs_f64(),
            scale: step.scale_factor(),
            seed: self.seed,
            target: self.target,
            largest: largest.collect(),
            cells,
        };
        if self.json {
            print_json(&report)?;
        } else {
            print_text(&report.to_string())?;
        }
        Ok(Exit::Good)
    }

    /// Returns the name of the model as the command line takes it.
    fn model_name(&self) -> String {
        self.model.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned())
    }

    /// Returns the shape of the model with the cards and tokens of the command line.
    fn model_shape(&self) -> ModelShape {
        let shape = self.model.default_shape();
        let (cards, tokens) = (self.cards.unwrap_or(shape.cards), self.tokens);
        ModelShape { cards, tokens: tokens.unwrap_or(shape.tokens), ..shape }
    }

    /// Returns the rate at which all GPUs of one region together can use their network cards, in
    /// bits per second. `cards` is the option's name for GPUs, and `card_rate` the network rate of
    /// each.
    fn region_bits_per_second(&self) -> f64 {
        f64::from(self.model_shape().cards) * self.card_rate.bits_per_second() as f64
    }

    /// Returns the training step to simulate: 6PD operations for P parameters and D tokens, a third
    /// of them in the forward pass. Gradients are bf16, in one bucket for each layer.
    fn training_step(&self) -> TrainingStep {
        let shape = self.model_shape();
        let operations = 6.0 * shape.parameters * shape.tokens;
        let compute = operations / (2.0 * f64::from(shape.cards) * self.card_tflops * 1e12);
        let gradient_bytes = 2.0 * shape.parameters;
        // Each card holds one part of the model, and reduces it with the other copies in its region.
        let of_card = gradient_bytes / f64::from(shape.layers * shape.cards_per_copy);
        let copies = (f64::from(shape.cards) / f64::from(shape.cards_per_copy)).max(1.0);
        let local = of_card * (1.0 - 1.0 / copies) / self.card_rate.bytes_per_second();
        TrainingStep {
            forward: efficiency_step_span(compute / 3.0),
            backward: efficiency_step_span(compute * 2.0 / 3.0),
            gradient_bytes,
            buckets: shape.layers,
            local: efficiency_step_span(local),
        }
    }
}

/// T(0) and T(d) of a step.
struct StepTimes {
    one_cluster: Span,
    over_link: Span,
}

/// Returns the efficiency at one distance and convergence, with the ratios that explain it.
fn efficiency_grid_point(
    km: u32,
    convergence: u32,
    step: &TrainingStep,
    link: StepLink,
    times: StepTimes,
) -> GridPoint {
    let seconds = times.over_link.as_secs_f64();
    let rate = link.bits_per_second / 8.0;
    GridPoint {
        km,
        convergence,
        link_bits_per_second: link.bits_per_second,
        rtt_ms: link.rtt.as_secs_f64() * 1000.0,
        seconds,
        efficiency: times.one_cluster.as_secs_f64() / seconds,
        gradients_over_bdp: step.gradient_bytes / (rate * link.rtt.as_secs_f64()),
        compute_over_communication: step.compute_time().as_secs_f64()
            / (step.gradient_bytes / rate),
    }
}

impl fmt::Display for EfficiencyReport {
    /// Prints the assumptions, T(0)/T(d) for each distance and convergence, and the largest
    /// convergence that meets the target at each distance.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ModelShape { parameters, layers, cards, cards_per_copy, tokens } = self.shape;
        let rate = BitRate::from_bits_per_second(self.card_bits_per_second);
        writeln!(f, "one step of {} over two regions\n", self.model)?;
        writeln!(f, "model       {parameters:e} parameters, {layers} layers, one bucket each")?;
        let gradients = ByteCount::new(self.gradient_bytes as u64).rounded();
        writeln!(f, "gradients   {gradients}, bf16")?;
        writeln!(
            f,
            "cards       {cards} in each region, {} TFLOP/s and {rate} each, {cards_per_copy} per \
             copy of the model",
            self.card_tflops
        )?;
        writeln!(
            f,
            "compute     6PD, {tokens:e} tokens: {}, a third of it forward",
            Span::from_secs_f64(self.compute_seconds).rounded()
        )?;
        writeln!(
            f,
            "overlap     buckets are exchanged during the backward pass, and not during the next \
             step"
        )?;
        writeln!(
            f,
            "local       {} of reduction inside a region before the exchange, and as much \
             after it, on one cluster too",
            Span::from_secs_f64(self.local_seconds).rounded()
        )?;
        writeln!(
            f,
            "distance    5 us/km each way, and {CLUSTER_RTT} of RTT inside a cluster; no loss"
        )?;
        writeln!(
            f,
            "one cluster T(0) = {}: its halves exchange at the rate of their cards",
            Span::from_secs_f64(self.one_cluster_seconds).rounded()
        )?;
        writeln!(
            f,
            "simulated   sizes and rates are divided by {} and times kept, so S/BDP and comp/comm \
             are unchanged; timers fire up to 1 ms late; seed {}\n",
            rounded_decimal(self.scale),
            self.seed
        )?;
        let rows = self.cells.iter().map(|point| {
            [
                format!("{} km", point.km),
                format!("{}:1", point.convergence),
                BitRate::from_bits_per_second(point.link_bits_per_second.round() as u64).rounded(),
                rounded_decimal(point.gradients_over_bdp),
                rounded_decimal(point.compute_over_communication),
                Span::from_secs_f64(point.seconds).rounded(),
                format!("{:.4}", point.efficiency),
            ]
        });
        let rows: Vec<[String; 7]> = rows.collect();
        let header = ["distance", "convergence", "link", "S/BDP", "comp/comm", "T(d)", "T(0)/T(d)"];
        writeln!(f, "{}", render_table(header, &rows))?;
        let rows = self.largest.iter().map(|largest| {
            let convergence = largest.convergence.map_or("none".to_owned(), |n| format!("{n}:1"));
            [format!("{} km", largest.km), convergence]
        });
        let rows: Vec<[String; 2]> = rows.collect();
        let header = format!("largest N:1 with T(0)/T(d) >= {}", self.target);
        write!(f, "{}", render_table(["distance", &header], &rows))
    }
}

/// Returns a progress bar over `cells` training steps to simulate: one for each pair of a distance and
/// a bandwidth convergence, the ratio of the regions' bandwidth to the link's.
fn efficiency_progress_bar(cells: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} steps [{elapsed}<{eta}]");
    ProgressBar::new(cells).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Returns the round-trip time through `km` of fibre: 5 us/km each way.
fn efficiency_fibre_rtt(km: u32) -> Span {
    Span::from_ns(10_000 * u64::from(km))
}

/// Returns a span of `seconds`, rounded to nanoseconds.
fn efficiency_step_span(seconds: f64) -> Span {
    Span::from_ns((seconds * 1e9).round() as u64)
}

/// Parses a number above 0, such as `4e6`.
fn parse_efficiency_number(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok().filter(|n: &f64| n.is_finite() && *n > 0.0);
    number.ok_or_else(|| "a number above 0, such as 4e6".to_owned())
}

/// Parses a fraction above 0 and at most 1.
fn parse_target_efficiency(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok().filter(|n: &f64| *n > 0.0 && *n <= 1.0);
    number.ok_or_else(|| "a number above 0 and at most 1".to_owned())
}

/// 20 us: the assumed round-trip time inside a cluster, added to that of the fibre between regions.
/// It is chosen, as of a path over a few switches.
const CLUSTER_RTT: Span = Span::from_ns(20_000);

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        efficiency: EfficiencyCommand,
    }

    #[test]
    fn a_far_step_keeps_97_percent_of_its_speed() {
        let line = ["plan", "--model", "llama3-70b"];
        let EfficiencyCommand { seed, .. } = Line::parse_from(line).efficiency;
        let efficiency = Line::parse_from(line).efficiency;
        let (step, all_cards) = (efficiency.training_step(), efficiency.region_bits_per_second());
        let at = |convergence, km| {
            let link = StepLink {
                bits_per_second: all_cards / convergence,
                rtt: CLUSTER_RTT + efficiency_fibre_rtt(km),
            };
            step.simulate(link, seed).expect("a step")
        };
        let whole = step.simulate_one_cluster(seed).expect("a step");
        let far = at(32.0, 500);
        let ratio = whole.as_secs_f64() / far.as_secs_f64();
        println!("T(0) {whole}, T(500 km, 32:1) {far}, {ratio:.4}");
        assert!((0.97..1.0).contains(&ratio), "{ratio}");
        // 6PD over all cards, and at least that.
        let compute = 6.0 * 70.6e9 * 4e6 / (1024.0 * 400e12);
        assert!((step.compute_time().as_secs_f64() - compute).abs() < 1e-6);
        assert!(whole.as_secs_f64() >= compute);
    }
}
