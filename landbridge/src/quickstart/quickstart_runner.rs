//! Runs a quickstart: deployment, processes, training, all-reduces, report.
//!
//! One task of a current-thread runtime starts all [`child_process`](super::child_process) and reads their
//! lines one after the other; each child blocks while its pipe is full.

use super::all_reduce_times::{
    AllReduceTimes, TrafficCounters, relay_counters_between_all_reduces, summarize_all_reduces,
};
use super::child_process::ChildProcess;
use super::deployment::{QuickstartDeployment, REGION_NAMES, deployment_rank_speeds};
use super::error::QuickstartError;
use super::messages::RankMessage;
use super::progress_terminal::quickstart_progress_terminal;
use super::quickstart_options::QuickstartOptions;
use super::report::processor_times::ProcessorTimes;
use super::report::run_fidelity::{QuickstartRunFidelity, RelayFidelity};
use super::report::{DirectionCounters, LinkConditions, QuickstartReport, RelayCounters};
use gateway::limits::thread_limits::spawn_thread_within_limits;
use gateway::observe::fetch_status::fetch_status_async;
use gateway::simulate::SIMULATED_QUEUE_MIN;
use hier_collectives::batch::batch_shares;
use indicatif::ProgressBar;
use serde::de::DeserializeOwned;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use training::data_parallel::{GLOBAL_BATCH, Trained};
use training::digits::Digits;
use training::{mlp, reference_training};

/// 30 s: a quickstart fails whose gateways have not agreed on an epoch after so long, or after
/// [`EPOCH_ROUND_TRIPS`] where that is longer. It is enough for three attempts to connect.
const EPOCH_TIMEOUT_MIN: Duration = Duration::from_secs(30);
/// 30 round trips: a quickstart over a long link fails whose gateways have not agreed on an epoch
/// after so long. It is enough for three attempts to connect of ten round trips each.
const EPOCH_ROUND_TRIPS: u32 = 30;

/// Runs a quickstart to its report. Processes and files are removed, whatever happens. An
/// interrupt, SIGTERM, SIGQUIT or the end of the terminal ends the quickstart with
/// [`QuickstartError::Interrupted`].
///
/// # Errors
/// [`QuickstartError`].
pub(crate) async fn run_quickstart(
    options: &QuickstartOptions,
) -> Result<QuickstartReport, QuickstartError> {
    let system = || QuickstartError::system("cannot wait for signals");
    let mut interrupt = signal(SignalKind::interrupt()).map_err(system())?;
    let mut terminate = signal(SignalKind::terminate()).map_err(system())?;
    // A closed terminal ends the quickstart as Ctrl-C does, unless it shall outlive the terminal.
    let outlives_terminal = stdio::is_terminal_hangup_ignored();
    let mut hangup = signal(SignalKind::hangup()).map_err(system())?;
    let mut quit = signal(SignalKind::quit()).map_err(system())?;
    // Schedulers send these to all processes of a job. Uncaught, they leave files and processes.
    let stray = [SignalKind::user_defined1(), SignalKind::user_defined2(), SignalKind::alarm()];
    let _caught = stray.map(signal).into_iter().collect::<Result<Vec<_>, _>>().map_err(system())?;
    let deployment = QuickstartDeployment::create(options)?;
    let mut runner = QuickstartRunner::default();
    let outcome = tokio::select! {
        biased;
        _ = interrupt.recv() => Err(QuickstartError::Interrupted),
        _ = terminate.recv() => Err(QuickstartError::Interrupted),
        _ = quit.recv() => Err(QuickstartError::Interrupted),
        _ = hangup.recv(), if !outlives_terminal => Err(QuickstartError::Interrupted),
        outcome = runner.run_to_report(options, &deployment) => outcome,
    };
    runner.stop_all().await;
    outcome
}

/// Runs a quickstart by its child processes.
#[derive(Default)]
struct QuickstartRunner {
    relay: Option<ChildProcess>,
    gateways: Vec<ChildProcess>,
    ranks: Vec<ChildProcess>,
}

impl QuickstartRunner {
    /// Starts all processes, trains, all-reduces, and returns the report.
    async fn run_to_report(
        &mut self,
        options: &QuickstartOptions,
        deployment: &QuickstartDeployment,
    ) -> Result<QuickstartReport, QuickstartError> {
        let steps = u64::from(options.steps.get());
        let bar = quickstart_progress_terminal(steps + u64::from(options.iterations.get()));
        let reference = spawn_quickstart_reference(options)?;
        let shares = batch_shares(GLOBAL_BATCH as u64, &deployment_rank_speeds(options))
            .expect("speeds are positive");
        bar.set_message("starting gateways");
        self.start_processes(options, deployment, &shares).await?;
        bar.set_message("training");
        let (digests, loss) = self.follow_training(&bar).await?;
        bar.set_message("all-reducing");
        let before = self.read_counters(deployment).await?;
        let busy_before = ProcessorTimes::read(&self.own_processes());
        let iterations = self.run_all_reduces(options, &bar).await?;
        let busy_after = ProcessorTimes::read(&self.own_processes());
        // Packets still in flight belong to the last all-reduce.
        tokio::time::sleep(2 * options.rtt.duration() + Duration::from_millis(200)).await;
        let after = self.read_counters(deployment).await?;
        let fidelity =
            QuickstartRunFidelity::new(self.read_fidelity().await?, busy_before, busy_after);
        let result_digests = self.read_result_digests().await?;
        // The last frame clears the bar. It must not find another one before it.
        stdio::flush_stderr();
        bar.finish_and_clear();
        let parameters = read_quickstart_weights(deployment)?;
        let reference = reference.await.map_err(|error| QuickstartError::System {
            action: "cannot train the reference",
            source: std::io::Error::other(error),
        })?;
        let same = |digests: &[String]| digests.windows(2).all(|pair| pair[0] == pair[1]);
        Ok(QuickstartReport {
            identical: same(&digests) && same(&result_digests),
            reference_max_abs_diff: reference_training::difference_from_reference_training(
                &parameters,
                &reference.parameters,
            ),
            accuracy: mlp::mlp_accuracy(&parameters, &Digits::load().test),
            steps: options.steps.get(),
            batch_shares: shares,
            loss: f64::from(loss),
            allreduce: summarize_all_reduces(
                options,
                &deployment.fabric,
                &iterations,
                &before,
                &after,
            ),
            relay: RelayCounters {
                east_west: relay_counters_between_all_reduces(&after.east_west, &before.east_west),
                west_east: relay_counters_between_all_reduces(&after.west_east, &before.west_east),
            },
            link: LinkConditions {
                rtt_ms: options.rtt.as_secs_f64() * 1000.0,
                rate_bits_per_second: options.rate.bits_per_second() as f64,
                loss: options.loss.as_f64(),
            },
            fidelity,
        })
    }

    /// Starts the relay and the gateways, waits until the gateways are in an epoch, then starts the
    /// ranks. `shares` has the samples of a batch for each rank.
    async fn start_processes(
        &mut self,
        options: &QuickstartOptions,
        deployment: &QuickstartDeployment,
        shares: &[u64],
    ) -> Result<(), QuickstartError> {
        let relay = self.relay.insert(start_quickstart_relay(options, deployment)?);
        relay.read_line().await?;
        for name in REGION_NAMES {
            let config = deployment.path(&format!("{name}.toml"));
            let arguments = [
                "run".into(),
                "--exit-with-parent".into(),
                "--config".into(),
                config.into_os_string(),
            ];
            let log = deployment.path(&format!("{name}.log"));
            self.gateways.push(ChildProcess::start(&format!("gateway {name}-0"), &log, arguments)?);
        }
        self.wait_for_epoch(deployment).await?;
        let (east, west) = options.ranks;
        for rank in 0..east + west {
            let region = if rank < east { "east" } else { "west" };
            self.ranks.push(start_quickstart_rank(options, deployment, shares, rank, region)?);
        }
        Ok(())
    }

    /// Waits until both gateways are in an epoch, at most [`EPOCH_TIMEOUT_MIN`] or
    /// [`EPOCH_ROUND_TRIPS`], whichever is longer.
    ///
    /// A process that ends meanwhile ends the wait.
    async fn wait_for_epoch(
        &mut self,
        deployment: &QuickstartDeployment,
    ) -> Result<(), QuickstartError> {
        let rtts = deployment.fabric.links().iter().map(|link| link.rtt.duration());
        let round_trips = rtts.max().unwrap_or_default() * EPOCH_ROUND_TRIPS;
        let deadline = tokio::time::Instant::now() + EPOCH_TIMEOUT_MIN.max(round_trips);
        for (index, address) in deployment.status.into_iter().enumerate() {
            loop {
                let mut processes = self.gateways.iter_mut().chain(&mut self.relay);
                if let Some(error) = processes.find_map(ChildProcess::error_if_ended) {
                    return Err(error);
                }
                let problem = match fetch_status_async(address).await {
                    Ok(status) if status.jobs.iter().all(|job| job.epoch.is_some()) => break,
                    Ok(_) => "its peer is not connected yet".to_owned(),
                    Err(error) => error.to_string(),
                };
                if tokio::time::Instant::now() > deadline {
                    return Err(self.gateways[index].error_with_log(&problem));
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }

    /// Reads the messages of the ranks to the end of the training. Returns a digest of the weights
    /// of each rank, and the last loss that rank 0 has told.
    async fn follow_training(
        &mut self,
        bar: &ProgressBar,
    ) -> Result<(Vec<String>, f32), QuickstartError> {
        let mut last = f32::NAN;
        let mut digests = Vec::new();
        for (index, rank) in self.ranks.iter_mut().enumerate() {
            loop {
                match read_quickstart_rank_message(rank).await? {
                    RankMessage::Step { step, loss } if index == 0 => {
                        bar.set_position(u64::from(step));
                        bar.set_message(format!("training, loss {loss:.3}"));
                        last = loss;
                    }
                    RankMessage::Step { .. } => {}
                    RankMessage::Trained { digest } => {
                        digests.push(digest);
                        break;
                    }
                    other => return Err(unexpected_quickstart_message(rank, &other)),
                }
            }
        }
        Ok((digests, last))
    }

    /// Lets the ranks all-reduce. Returns the times of each iteration, which span those of all
    /// ranks.
    async fn run_all_reduces(
        &mut self,
        options: &QuickstartOptions,
        bar: &ProgressBar,
    ) -> Result<Vec<AllReduceTimes>, QuickstartError> {
        for rank in &mut self.ranks {
            rank.send_line("go").await?;
        }
        let mut iterations = Vec::new();
        for _ in 0..options.iterations.get() {
            let mut iteration = AllReduceTimes::default();
            for rank in &mut self.ranks {
                match read_quickstart_rank_message(rank).await? {
                    RankMessage::Iteration(times) => iteration.add_rank(times),
                    other => return Err(unexpected_quickstart_message(rank, &other)),
                }
            }
            iterations.push(iteration);
            bar.inc(1);
        }
        Ok(iterations)
    }

    /// Returns a digest of the last result of each rank.
    async fn read_result_digests(&mut self) -> Result<Vec<String>, QuickstartError> {
        let mut digests = Vec::new();
        for rank in &mut self.ranks {
            match read_quickstart_rank_message(rank).await? {
                RankMessage::Done { digest } => digests.push(digest),
                other => return Err(unexpected_quickstart_message(rank, &other)),
            }
        }
        Ok(digests)
    }

    /// Reads the counters of the relay, and from the status of each gateway the payload bytes that
    /// it has sent.
    async fn read_counters(
        &mut self,
        deployment: &QuickstartDeployment,
    ) -> Result<TrafficCounters, QuickstartError> {
        let counted: RelayLine = self.ask_relay("counters").await?;
        let mut payload = [0; 2];
        for (payload, (gateway, address)) in
            payload.iter_mut().zip(self.gateways.iter().zip(deployment.status))
        {
            let status = fetch_status_async(address).await;
            let status = status.map_err(|error| gateway.error_with_log(&error.to_string()))?;
            *payload = status.peers.iter().map(|peer| peer.sent_bytes).sum();
        }
        Ok(TrafficCounters { east_west: counted.east_west, west_east: counted.west_east, payload })
    }

    /// Reads the relay's verdict on itself so far.
    async fn read_fidelity(&mut self) -> Result<RelayFidelity, QuickstartError> {
        self.ask_relay("fidelity").await
    }

    /// Sends the relay a command and reads its answer.
    async fn ask_relay<T: DeserializeOwned>(
        &mut self,
        command: &str,
    ) -> Result<T, QuickstartError> {
        let Some(relay) = &mut self.relay else {
            return Err(QuickstartError::Interrupted);
        };
        relay.send_line(command).await?;
        let line = relay.read_line().await?;
        serde_json::from_str(&line)
            .map_err(|error| relay.error_with_log(&format!("printed `{line}`: {error}")))
    }

    /// Returns the ids of the quickstart and of all its processes.
    fn own_processes(&self) -> Vec<u32> {
        let children = self.gateways.iter().chain(&self.ranks).chain(&self.relay);
        std::iter::once(std::process::id()).chain(children.filter_map(ChildProcess::id)).collect()
    }

    /// Kills all processes, ranks first, and waits for their ends.
    async fn stop_all(self) {
        let gateways = self.gateways.into_iter();
        for process in self.ranks.into_iter().chain(gateways).chain(self.relay) {
            process.stop().await;
        }
    }
}

/// Answer of the relay to `counters`.
#[derive(serde::Deserialize)]
struct RelayLine {
    east_west: DirectionCounters,
    west_east: DirectionCounters,
}

/// Starts the relay that emulates the link between the regions.
fn start_quickstart_relay(
    options: &QuickstartOptions,
    deployment: &QuickstartDeployment,
) -> Result<ChildProcess, QuickstartError> {
    let QuickstartOptions { rtt, rate, loss, .. } = options;
    let mut arguments: Vec<String> =
        ["wan-sim", "--exit-with-parent", "relay", "--control", "--names", "east,west"]
            .map(str::to_owned)
            .to_vec();
    let settings = [
        ("--rtt", rtt.to_string()),
        ("--rate", rate.to_string()),
        ("--loss", loss.to_string()),
        ("--queue", (*rtt).max(SIMULATED_QUEUE_MIN).to_string()),
    ];
    for (flag, value) in settings {
        arguments.extend([flag.to_owned(), value]);
    }
    let (listen, target) = deployment.forward;
    arguments.extend(["--forward".to_owned(), format!("{listen}={target}")]);
    ChildProcess::start("relay", &deployment.path("relay.log"), arguments)
}

/// Starts a rank, which attaches to the gateway of its region.
fn start_quickstart_rank(
    options: &QuickstartOptions,
    deployment: &QuickstartDeployment,
    shares: &[u64],
    rank: u32,
    region: &str,
) -> Result<ChildProcess, QuickstartError> {
    let shares: Vec<String> = shares.iter().map(u64::to_string).collect();
    let path = |path: std::path::PathBuf| path.to_string_lossy().into_owned();
    let flags = [
        ("--socket", path(deployment.path(&format!("{region}.sock")))),
        ("--token", path(deployment.token_path())),
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
    ChildProcess::start(&format!("rank {rank}"), &log, arguments)
}

/// Returns the error of a rank that printed another message than the next one.
fn unexpected_quickstart_message(rank: &ChildProcess, message: &RankMessage) -> QuickstartError {
    rank.error_with_log(&format!("printed an unexpected {message:?}"))
}

/// Reads the next line of a rank as a message. Any other line is an error with the rank's log.
async fn read_quickstart_rank_message(
    rank: &mut ChildProcess,
) -> Result<RankMessage, QuickstartError> {
    let line = rank.read_line().await?;
    serde_json::from_str(&line)
        .map_err(|error| rank.error_with_log(&format!("said `{line}`: {error}")))
}

/// Reads the final weights of rank 0 from their file.
fn read_quickstart_weights(deployment: &QuickstartDeployment) -> Result<Vec<f32>, QuickstartError> {
    let bytes = std::fs::read(deployment.path("weights-0"))
        .map_err(QuickstartError::system("cannot read rank 0's weights"))?;
    Ok(bytemuck::pod_collect_to_vec(&bytes))
}

/// Trains the reference in one process, on a thread of its own.
fn spawn_quickstart_reference(
    options: &QuickstartOptions,
) -> Result<oneshot::Receiver<Trained>, QuickstartError> {
    let steps = options.steps;
    let (done, trained) = oneshot::channel();
    let train = move || {
        // The quickstart may have ended by an error.
        let _ = done.send(reference_training::run_reference_training(&Digits::load(), steps));
    };
    spawn_thread_within_limits("reference", train)
        .map_err(QuickstartError::system("cannot train the reference"))?;
    Ok(trained)
}
