//! Trainers and strangers that break every rule, while another job's ranks all-reduce: theirs
//! go on, none fails, and their epoch does not end. How fast they go on is measured only when the
//! environment asks for it, by `cargo xtask bench hostile`.

#[path = "../processes/deployment.rs"]
mod deployment;
mod raw;
#[path = "../../../wan-sim/tests/skipping/mod.rs"]
mod skipping;
mod trainers;
mod wan;

use deployment::{Deployment, Layout, Team};
use gateway::config::RegionFile;
use gateway::observe::server::fetch_status;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// `train` is honest, `other` is not.
const LAYOUT: Layout<'static> =
    Layout { east: 2, west: 1, jobs: &["train", "other"], rate: RATE, west_seen_at: None };
/// Well below what this takes of a processor, so that the link is what the honest job waits for.
const RATE: &str = "200 Mbit/s";
/// Set to measure.
const MEASURE: &str = "LANDBRIDGE_MEASURE_HOSTILE";
/// 4 MiB: what is measured is an exchange of bulk.
const BULK_ELEMENTS: usize = 1 << 19;
/// How long each rate is measured, at least.
const MEASURED_FOR: Duration = Duration::from_secs(4);
/// Rates of each kind, one after the other; the medians are told.
const TURNS: usize = 5;
/// 256 KiB: several datagrams, and some hundred all-reduces a second.
const ELEMENTS: usize = 1 << 15;
/// All-reduces of the honest job after an attack.
const ROUNDS_AFTER: u32 = 100;
/// Nothing here takes long; what does is a hang.
const PATIENCE: Duration = Duration::from_secs(180);

/// One attack at a time, so that each is measured alone.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs the honest job beside an attack, and then with what the attack leaves behind. It is
/// measured against the same attack on other gateways of this machine.
fn beside<T>(what: &str, attack: impl AsyncFn(&mut Deployment) -> T) {
    beside_and_compare(what, &attack, async |_own, others| attack(others).await);
}

/// Like [`beside`], measured against something else that goes on.
fn beside_and_compare<T, U>(
    what: &str,
    attack: impl AsyncFn(&mut Deployment) -> T,
    reference: impl AsyncFn(&mut Deployment, &mut Deployment) -> U,
) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    if std::env::var_os(MEASURE).is_some() {
        return println!("{}", runtime.block_on(measure(what, attack, reference)));
    }
    let scene = async {
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
    runtime.block_on(async { tokio::time::timeout(PATIENCE, scene).await.expect("no hang") });
}

fn running() -> Deployment {
    let mut deployment = Deployment::new(&LAYOUT);
    deployment.run_gateways();
    deployment
}

/// The honest job's bulk alone, beside the reference, which takes as much of the machine as the
/// attack, and beside the attack. One line of JSON.
async fn measure<T, U>(
    what: &str,
    attack: impl AsyncFn(&mut Deployment) -> T,
    reference: impl AsyncFn(&mut Deployment, &mut Deployment) -> U,
) -> String {
    let (mut own, mut others) = (running(), running());
    let team = Team::attach(&own, &LAYOUT, "train").await;
    let mut rates: [Vec<f64>; 3] = Default::default();
    for _ in 0..TURNS {
        let alone = during(&team, BULK_ELEMENTS, tokio::time::sleep(MEASURED_FOR)).await.0;
        let referring = again(async || reference(&mut own, &mut others).await);
        let referred = during(&team, BULK_ELEMENTS, referring).await.0;
        let attacking = again(async || attack(&mut own).await);
        let attacked = during(&team, BULK_ELEMENTS, attacking).await.0;
        rates.iter_mut().zip([alone, referred, attacked]).for_each(|(of, rate)| of.push(rate));
    }
    let [alone, reference, attack] = rates.map(|mut of| {
        of.sort_by(f64::total_cmp);
        of[TURNS / 2] * BULK_ELEMENTS as f64 * 64e-6
    });
    serde_json::json!({
        "attack": what,
        "turns": TURNS,
        "alone_mbit_s": alone,
        "beside_reference_mbit_s": reference,
        "beside_attack_mbit_s": attack,
    })
    .to_string()
}

/// Does it as often as there is time for.
async fn again<T>(mut what: impl AsyncFnMut() -> T) {
    let begin = Instant::now();
    while begin.elapsed() < MEASURED_FOR {
        drop(what().await);
    }
}

/// All-reduces of the honest job a second while something else goes on, and what that ends with.
async fn during<T>(team: &Team, elements: usize, other: impl Future<Output = T>) -> (f64, T) {
    let over = AtomicBool::new(false);
    let other = async {
        let ended = other.await;
        over.store(true, Ordering::Relaxed);
        ended
    };
    let work = async {
        let (begin, mut rounds) = (Instant::now(), 0);
        while !over.load(Ordering::Relaxed) {
            round(team, elements).await;
            rounds += 1;
        }
        f64::from(rounds) / begin.elapsed().as_secs_f64()
    };
    tokio::join!(work, other)
}

/// One all-reduce, which must succeed and be right.
async fn round(team: &Team, elements: usize) {
    team.sum(&[1, 20, 300], elements).await.expect("nothing fails");
}

fn lanes_are_up(deployment: &Deployment) {
    for name in ["east", "west"] {
        let file = RegionFile::load(&deployment.path(&format!("{name}.toml"))).expect("valid");
        let status = fetch_status(file.gateway(None).expect("one").status).expect("a status");
        for peer in status.peers {
            assert_eq!(peer.lanes_up, peer.lanes, "{name}: {peer:?}");
        }
    }
}
