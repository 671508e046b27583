//! Hostile trainers and unauthenticated connections beside an honest job.
//!
//! The honest job's all-reduces must all succeed, in one epoch. Their rate is measured only if the
//! environment asks for it: `cargo xtask bench hostile` does.

mod cgroups;
#[path = "../deployment/mod.rs"]
mod deployment;
mod descriptors;
mod http;
mod limited;
mod limits;
mod logs;
mod places;
mod raw;
mod remote;
#[path = "../../../wan-sim/tests/skipping/mod.rs"]
mod skipping;
mod standard_output;
mod trainers;
mod wan;

use deployment::{Deployment, Layout, Team};
use gateway::config::RegionFile;
use gateway::observe::fetch_status::fetch_status;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The job `train` is honest, the job `other` is hostile.
const LAYOUT: Layout<'static> =
    Layout { jobs: &["train", "other"], rate: RATE, ..Layout::of(2, 1) };
/// 200 Mbit/s: the link, not the processor, limits the honest job.
const RATE: &str = "200 Mbit/s";
/// Environment variable that asks for measurements.
const MEASURE: &str = "LANDBRIDGE_MEASURE_HOSTILE";
/// Elements of a measured all-reduce: 4 MiB.
const BULK_ELEMENTS: usize = 1 << 19;
/// 4 s for each measurement of a rate, at least.
const MEASUREMENT_TIME: Duration = Duration::from_secs(4);
/// Measurements of each kind; their medians are reported.
const MEASUREMENTS: usize = 5;
/// Elements of an all-reduce: 256 KiB, several datagrams, some hundred all-reduces a second.
const ELEMENTS: usize = 1 << 15;
/// All-reduces of the honest job after an attack.
const ROUNDS_AFTER: u32 = 100;
/// 180 s for a test, after which it counts as hung.
const TEST_TIMEOUT: Duration = Duration::from_secs(180);

/// Held by the running test, so that attacks do not overlap.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs the honest job during an attack, and then beside what the attack leaves behind. A
/// measurement compares it with the same attack on other gateways of this machine.
fn attack_beside<T>(what: &str, attack: impl AsyncFn(&mut Deployment) -> T) {
    attack_and_compare(what, &attack, async |_own, others| attack(others).await);
}

/// Runs the honest job during an attack, and then beside what the attack leaves behind. A
/// measurement compares the attack with `reference`.
fn attack_and_compare<T, U>(
    what: &str,
    attack: impl AsyncFn(&mut Deployment) -> T,
    reference: impl AsyncFn(&mut Deployment, &mut Deployment) -> U,
) {
    let _one_at_a_time = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    if std::env::var_os(MEASURE).is_some() {
        return println!("{}", runtime.block_on(measure(what, attack, reference)));
    }
    let scenario = async {
        let mut deployment = running();
        let team = Team::attach(&deployment, &LAYOUT, "train").await;
        let epoch = team.epoch();
        let (_, left_behind) = during(&team, ELEMENTS, attack(&mut deployment)).await;
        for _ in 0..ROUNDS_AFTER {
            round(&team, ELEMENTS).await;
        }
        drop(left_behind);
        assert_eq!(team.epoch(), epoch, "the honest job's epoch ended");
        lanes_are_up(&deployment);
    };
    runtime
        .block_on(async { tokio::time::timeout(TEST_TIMEOUT, scenario).await.expect("no hang") });
}

/// Starts the gateways.
fn running() -> Deployment {
    let mut deployment = Deployment::new(&LAYOUT);
    for region in ["east", "west"] {
        deployment.serve_hosts(region, "");
    }
    deployment.run_gateways();
    deployment
}

/// Measures the honest job alone, beside the reference and beside the attack. The reference takes as
/// much of the machine as the attack. Returns one line of JSON.
async fn measure<T, U>(
    what: &str,
    attack: impl AsyncFn(&mut Deployment) -> T,
    reference: impl AsyncFn(&mut Deployment, &mut Deployment) -> U,
) -> String {
    let (mut own, mut others) = (running(), running());
    let team = Team::attach(&own, &LAYOUT, "train").await;
    let mut rates: [Vec<f64>; 3] = Default::default();
    for _ in 0..MEASUREMENTS {
        let alone = during(&team, BULK_ELEMENTS, tokio::time::sleep(MEASUREMENT_TIME)).await.0;
        let referring = repeat(async || reference(&mut own, &mut others).await);
        let referred = during(&team, BULK_ELEMENTS, referring).await.0;
        let attacking = repeat(async || attack(&mut own).await);
        let attacked = during(&team, BULK_ELEMENTS, attacking).await.0;
        rates.iter_mut().zip([alone, referred, attacked]).for_each(|(of, rate)| of.push(rate));
    }
    let [alone, reference, attack] = rates.map(|mut of| {
        of.sort_by(f64::total_cmp);
        of[MEASUREMENTS / 2] * BULK_ELEMENTS as f64 * 64e-6
    });
    serde_json::json!({
        "attack": what,
        "turns": MEASUREMENTS,
        "alone_mbit_s": alone,
        "beside_reference_mbit_s": reference,
        "beside_attack_mbit_s": attack,
    })
    .to_string()
}

/// Repeats an action for the time of a measurement.
async fn repeat<T>(mut what: impl AsyncFnMut() -> T) {
    let begin = Instant::now();
    while begin.elapsed() < MEASUREMENT_TIME {
        drop(what().await);
    }
}

/// Returns the honest job's all-reduces per second while another future runs, and its output.
async fn during<T>(team: &Team, elements: usize, other: impl Future<Output = T>) -> (f64, T) {
    let has_ended = AtomicBool::new(false);
    let other = async {
        let ended = other.await;
        has_ended.store(true, Ordering::Relaxed);
        ended
    };
    let work = async {
        let (begin, mut rounds) = (Instant::now(), 0);
        while !has_ended.load(Ordering::Relaxed) {
            round(team, elements).await;
            rounds += 1;
        }
        f64::from(rounds) / begin.elapsed().as_secs_f64()
    };
    tokio::join!(work, other)
}

/// Runs one all-reduce, which must succeed with the right sum.
async fn round(team: &Team, elements: usize) {
    team.sum(&[1, 20, 300], elements).await.expect("nothing fails");
}

/// Checks that no lane of any gateway is down.
fn lanes_are_up(deployment: &Deployment) {
    for name in ["east", "west"] {
        let file = RegionFile::load(&deployment.path(&format!("{name}.toml"))).expect("valid");
        let status = fetch_status(file.gateway(None).expect("one").status).expect("a status");
        for peer in status.peers {
            assert_eq!(peer.lanes_up, peer.lanes, "{name}: {peer:?}");
        }
    }
}
