//! Runs the whole: deployment, processes, training, all-reduces, report.

use super::deployment::{Deployment, speeds};
use super::digits::Digits;
use super::processes::Process;
use super::rank::Line;
use super::report::{AllReduce, Direction, Link, Relay, Report, StageSeconds};
use super::training::{GLOBAL_BATCH, Trained};
use super::{Options, QuickstartError, mlp, reference};
use crate::observe::server::fetch_status;
use crate::simulate::QUEUE_MIN;
use hier_collectives::batch::batch_shares;
use hier_collectives::bound;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;

/// How long the gateways may take to meet.
const MEET_PATIENCE: Duration = Duration::from_secs(30);

/// Runs a quickstart to its report. Nothing is left behind, whatever happens.
///
/// # Errors
/// [`QuickstartError`].
pub async fn run(options: &Options) -> Result<Report, QuickstartError> {
    let system = || QuickstartError::system("cannot wait for signals");
    let mut interrupt = signal(SignalKind::interrupt()).map_err(system())?;
    let mut terminate = signal(SignalKind::terminate()).map_err(system())?;
    let deployment = Deployment::make(options)?;
    let mut orchestra = Orchestra::default();
    let outcome = tokio::select! {
        biased;
        _ = interrupt.recv() => Err(QuickstartError::Interrupted),
        _ = terminate.recv() => Err(QuickstartError::Interrupted),
        outcome = orchestra.play(options, &deployment) => outcome,
    };
    orchestra.stop().await;
    outcome
}

/// All processes.
#[derive(Default)]
struct Orchestra {
    relay: Option<Process>,
    gateways: Vec<Process>,
    ranks: Vec<Process>,
}

impl Orchestra {
    async fn play(
        &mut self,
        options: &Options,
        deployment: &Deployment,
    ) -> Result<Report, QuickstartError> {
        let steps = u64::from(options.steps.get());
        let bar = progress(steps + u64::from(options.iterations.get()));
        let expected = reference_beside(options);
        let shares =
            batch_shares(GLOBAL_BATCH as u64, &speeds(options)).expect("speeds are positive");
        bar.set_message("starting gateways");
        self.start(options, deployment, &shares).await?;
        bar.set_message("training");
        let (digests, loss) = self.train(&bar).await?;
        bar.set_message("all-reducing");
        let before = self.counters(deployment).await?;
        let iterations = self.iterate(options, &bar).await?;
        // What is still under way belongs to the last all-reduce.
        tokio::time::sleep(2 * options.rtt.duration() + Duration::from_millis(200)).await;
        let after = self.counters(deployment).await?;
        let results = self.results().await?;
        bar.finish_and_clear();
        let parameters = read_weights(deployment)?;
        let expected = expected.await.map_err(|error| QuickstartError::System {
            what: "the reference",
            source: std::io::Error::other(error),
        })?;
        let same = |digests: &[String]| digests.windows(2).all(|pair| pair[0] == pair[1]);
        Ok(Report {
            identical: same(&digests) && same(&results),
            reference_max_abs_diff: reference::max_abs_difference(
                &parameters,
                &expected.parameters,
            ),
            accuracy: mlp::accuracy(&parameters, &Digits::load().test),
            steps: options.steps.get(),
            batch_shares: shares,
            loss: f64::from(loss),
            allreduce: all_reduce(options, deployment, &iterations, &before, &after),
            relay: Relay {
                east_west: difference(&after.east_west, &before.east_west),
                west_east: difference(&after.west_east, &before.west_east),
            },
            link: Link {
                rtt_ms: options.rtt.as_secs_f64() * 1000.0,
                rate_bits_per_second: options.rate.bits_per_second() as f64,
                loss: options.loss.as_f64(),
            },
        })
    }

    async fn start(
        &mut self,
        options: &Options,
        deployment: &Deployment,
        shares: &[u64],
    ) -> Result<(), QuickstartError> {
        let relay = self.relay.insert(start_relay(options, deployment)?);
        relay.line().await?;
        for name in ["east", "west"] {
            let config = deployment.path(&format!("{name}.toml"));
            let arguments = [
                "run".into(),
                "--exit-with-parent".into(),
                "--config".into(),
                config.into_os_string(),
            ];
            let log = deployment.path(&format!("{name}.log"));
            self.gateways.push(Process::start(&format!("gateway {name}-0"), &log, arguments)?);
        }
        self.meet(deployment).await?;
        let (east, west) = options.ranks;
        for rank in 0..east + west {
            let region = if rank < east { "east" } else { "west" };
            self.ranks.push(start_rank(options, deployment, shares, rank, region)?);
        }
        Ok(())
    }

    /// Waits until both gateways are in an epoch.
    async fn meet(&self, deployment: &Deployment) -> Result<(), QuickstartError> {
        let deadline = tokio::time::Instant::now() + MEET_PATIENCE;
        for (gateway, address) in self.gateways.iter().zip(deployment.status) {
            loop {
                let status = tokio::task::spawn_blocking(move || fetch_status(address)).await;
                let problem = match status {
                    Ok(Ok(status)) if status.jobs.iter().all(|job| job.epoch.is_some()) => break,
                    Ok(Ok(_)) => "its peer is missing".to_owned(),
                    Ok(Err(error)) => error.to_string(),
                    Err(error) => error.to_string(),
                };
                if tokio::time::Instant::now() > deadline {
                    return Err(gateway.problem(&problem));
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }

    /// Follows the training to its end: a digest of each rank's weights, and the last loss.
    async fn train(&mut self, bar: &ProgressBar) -> Result<(Vec<String>, f32), QuickstartError> {
        let mut last = f32::NAN;
        let mut digests = Vec::new();
        for (index, rank) in self.ranks.iter_mut().enumerate() {
            loop {
                match hear(rank).await? {
                    Line::Step { step, loss } if index == 0 => {
                        bar.set_position(u64::from(step));
                        bar.set_message(format!("training, loss {loss:.3}"));
                        last = loss;
                    }
                    Line::Step { .. } => {}
                    Line::Trained { digest } => {
                        digests.push(digest);
                        break;
                    }
                    other => return Err(rank.problem(&format!("said {other:?}"))),
                }
            }
        }
        Ok((digests, last))
    }

    /// Lets the ranks all-reduce; by iteration, what each rank said.
    async fn iterate(
        &mut self,
        options: &Options,
        bar: &ProgressBar,
    ) -> Result<Vec<Iteration>, QuickstartError> {
        for rank in &mut self.ranks {
            rank.tell("go").await?;
        }
        let mut iterations = Vec::new();
        for _ in 0..options.iterations.get() {
            let mut iteration = Iteration::default();
            for rank in &mut self.ranks {
                match hear(rank).await? {
                    Line::Iteration { posted_ns, ready_ns, wan_begin_ns, wan_end_ns } => {
                        iteration.add(posted_ns, ready_ns, wan_begin_ns, wan_end_ns);
                    }
                    other => return Err(rank.problem(&format!("said {other:?}"))),
                }
            }
            iterations.push(iteration);
            bar.inc(1);
        }
        Ok(iterations)
    }

    async fn results(&mut self) -> Result<Vec<String>, QuickstartError> {
        let mut digests = Vec::new();
        for rank in &mut self.ranks {
            match hear(rank).await? {
                Line::Done { digest } => digests.push(digest),
                other => return Err(rank.problem(&format!("said {other:?}"))),
            }
        }
        Ok(digests)
    }

    /// The relay's counters, and the payload that each gateway has sent for the first time.
    async fn counters(&mut self, deployment: &Deployment) -> Result<Counters, QuickstartError> {
        let Some(relay) = &mut self.relay else {
            return Err(QuickstartError::Interrupted);
        };
        relay.tell("counters").await?;
        let line = relay.line().await?;
        let counted: RelayLine = serde_json::from_str(&line)
            .map_err(|error| relay.problem(&format!("said `{line}`: {error}")))?;
        let mut payload = [0; 2];
        for (payload, (gateway, address)) in
            payload.iter_mut().zip(self.gateways.iter().zip(deployment.status))
        {
            let status = tokio::task::spawn_blocking(move || fetch_status(address)).await;
            let status = status.map_err(|error| gateway.problem(&error.to_string()))?;
            let status = status.map_err(|error| gateway.problem(&error.to_string()))?;
            *payload = status.peers.iter().map(|peer| peer.sent_bytes).sum();
        }
        Ok(Counters { east_west: counted.east_west, west_east: counted.west_east, payload })
    }

    async fn stop(self) {
        let gateways = self.gateways.into_iter();
        for process in self.ranks.into_iter().chain(gateways).chain(self.relay) {
            process.stop().await;
        }
    }
}

struct Counters {
    east_west: Direction,
    west_east: Direction,
    payload: [u64; 2],
}

#[derive(serde::Deserialize)]
struct RelayLine {
    east_west: Direction,
    west_east: Direction,
}

/// One all-reduce over all ranks: last post, first segment, last segment, last result.
#[derive(Debug, Clone, Copy, Default)]
struct Iteration {
    posted_ns: u64,
    wan_begin_ns: Option<u64>,
    wan_end_ns: u64,
    ready_ns: u64,
}

impl Iteration {
    fn add(&mut self, posted: u64, ready: u64, wan_begin: u64, wan_end: u64) {
        self.posted_ns = self.posted_ns.max(posted);
        self.ready_ns = self.ready_ns.max(ready);
        self.wan_begin_ns = Some(self.wan_begin_ns.map_or(wan_begin, |at| at.min(wan_begin)));
        self.wan_end_ns = self.wan_end_ns.max(wan_end);
    }

    fn seconds(&self) -> f64 {
        self.ready_ns.saturating_sub(self.posted_ns) as f64 / 1e9
    }

    /// Each instant from the last post to the last result, charged once. Segments may leave
    /// before the last rank has posted; what is before the last post counts nowhere.
    fn stages(&self) -> StageSeconds {
        let begin = self.wan_begin_ns.unwrap_or(0).clamp(self.posted_ns, self.ready_ns);
        let end = self.wan_end_ns.clamp(begin, self.ready_ns);
        let seconds = |from: u64, to: u64| (to - from) as f64 / 1e9;
        StageSeconds {
            local_reduce: seconds(self.posted_ns, begin),
            wan: seconds(begin, end),
            deliver: seconds(end, self.ready_ns),
        }
    }
}

fn all_reduce(
    options: &Options,
    deployment: &Deployment,
    iterations: &[Iteration],
    before: &Counters,
    after: &Counters,
) -> AllReduce {
    let mut order: Vec<&Iteration> = iterations.iter().collect();
    order.sort_by(|a, b| a.seconds().total_cmp(&b.seconds()));
    // Of an even number the later of the two in the middle, so that the stages are those of
    // one iteration and sum to it.
    let median = order[order.len() / 2];
    let bound = bound::all_reduce(&deployment.fabric, options.size).as_secs_f64();
    let sent = before.payload.iter().zip(after.payload).map(|(before, after)| after - before);
    AllReduce {
        bytes: options.size.get(),
        iterations: options.iterations.get(),
        seconds_median: median.seconds(),
        seconds: iterations.iter().map(Iteration::seconds).collect(),
        bound_seconds: bound,
        eta: bound / median.seconds(),
        goodput_bits_per_second: options.size.get() as f64 * 8.0 / median.seconds(),
        wan_payload_bytes_per_direction: sent.max().unwrap_or(0)
            / u64::from(options.iterations.get()),
        stage_seconds: median.stages(),
    }
}

fn difference(after: &Direction, before: &Direction) -> Direction {
    Direction {
        ip_bytes: after.ip_bytes - before.ip_bytes,
        packets: after.packets - before.packets,
        drops_loss: after.drops_loss - before.drops_loss,
        drops_queue: after.drops_queue - before.drops_queue,
    }
}

fn start_relay(options: &Options, deployment: &Deployment) -> Result<Process, QuickstartError> {
    let Options { rtt, rate, loss, .. } = options;
    let mut arguments: Vec<String> =
        ["wan-sim", "--exit-with-parent", "relay", "--control", "--names", "east,west"]
            .map(str::to_owned)
            .to_vec();
    let settings = [
        ("--rtt", rtt.to_string()),
        ("--rate", rate.to_string()),
        ("--loss", loss.to_string()),
        ("--queue", (*rtt).max(QUEUE_MIN).to_string()),
    ];
    for (flag, value) in settings {
        arguments.extend([flag.to_owned(), value]);
    }
    for (listen, target) in &deployment.forwards {
        arguments.extend(["--forward".to_owned(), format!("{listen}={target}")]);
    }
    Process::start("relay", &deployment.path("relay.log"), arguments)
}

fn start_rank(
    options: &Options,
    deployment: &Deployment,
    shares: &[u64],
    rank: u32,
    region: &str,
) -> Result<Process, QuickstartError> {
    let shares: Vec<String> = shares.iter().map(u64::to_string).collect();
    let path = |path: std::path::PathBuf| path.to_string_lossy().into_owned();
    let flags = [
        ("--socket", path(deployment.path(&format!("{region}.sock")))),
        ("--token", path(deployment.token())),
        ("--rank", rank.to_string()),
        ("--shares", shares.join(",")),
        ("--steps", options.steps.to_string()),
        ("--size", options.size.to_string()),
        ("--iterations", options.iterations.to_string()),
        ("--weights", path(deployment.path(&format!("weights-{rank}")))),
    ];
    let flags = flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]);
    let arguments = std::iter::once("quickstart-rank".to_owned()).chain(flags);
    let log = deployment.path(&format!("rank-{rank}.log"));
    Process::start(&format!("rank {rank}"), &log, arguments)
}

async fn hear(rank: &mut Process) -> Result<Line, QuickstartError> {
    let line = rank.line().await?;
    serde_json::from_str(&line).map_err(|error| rank.problem(&format!("said `{line}`: {error}")))
}

fn read_weights(deployment: &Deployment) -> Result<Vec<f32>, QuickstartError> {
    let bytes = std::fs::read(deployment.path("weights-0"))
        .map_err(QuickstartError::system("cannot read rank 0's weights"))?;
    Ok(bytemuck::pod_collect_to_vec(&bytes))
}

fn reference_beside(options: &Options) -> JoinHandle<Trained> {
    let steps = options.steps;
    tokio::task::spawn_blocking(move || reference::train(&Digits::load(), steps))
}

fn progress(length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} {msg} [{elapsed}]");
    let bar = ProgressBar::new(length);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_sum_to_the_time_whatever_came_first() {
        for (begin, end) in [(5, 90), (20, 90), (20, 200), (300, 400)] {
            let mut iteration = Iteration::default();
            iteration.add(10, 100, begin, end);
            iteration.add(8, 95, begin + 1, end.saturating_sub(1));
            let StageSeconds { local_reduce, wan, deliver } = iteration.stages();
            assert!((local_reduce + wan + deliver - 90e-9).abs() < 1e-15);
            assert!(local_reduce >= 0.0 && wan >= 0.0 && deliver >= 0.0);
        }
    }
}
