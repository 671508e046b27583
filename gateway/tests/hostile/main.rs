//! Trainers and strangers that break every rule, while another job's ranks all-reduce: theirs
//! go on, none fails, and their epoch does not end. How fast they go on is printed, not judged.

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
    Layout { east: 2, west: 1, jobs: &["train", "other"], west_seen_at: None };
/// 256 KiB: several datagrams, and some hundred all-reduces a second.
const ELEMENTS: usize = 1 << 15;
/// All-reduces of the honest job before an attack, and after it.
const ROUNDS: u32 = 100;
/// Nothing here takes long; what does is a hang.
const PATIENCE: Duration = Duration::from_secs(180);

/// One attack at a time, so that each is measured alone.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs the honest job alone, then beside an attack, then with what the attack leaves behind.
fn beside<T>(what: &str, attack: impl AsyncFnOnce(&mut Deployment) -> T) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut deployment = Deployment::new(&LAYOUT);
    deployment.run_gateways();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let scene = async {
        let team = Team::attach(&deployment, &LAYOUT, "train").await;
        let epoch = team.epoch();
        let alone = per_second(&team, |rounds| rounds < ROUNDS).await;
        let over = AtomicBool::new(false);
        let attacked = async {
            let left_behind = attack(&mut deployment).await;
            over.store(true, Ordering::Relaxed);
            left_behind
        };
        let work = per_second(&team, |_| !over.load(Ordering::Relaxed));
        let (left_behind, during) = tokio::join!(attacked, work);
        let after = per_second(&team, |rounds| rounds < ROUNDS).await;
        drop(left_behind);
        let (during, after) = (during / alone, after / alone);
        println!("{what}: {during:.2} of {alone:.0} a second in the attack, {after:.2} after it");
        assert_eq!(team.epoch(), epoch, "the honest job's epoch ended");
        lanes_are_up(&deployment);
    };
    runtime.block_on(async { tokio::time::timeout(PATIENCE, scene).await.expect("no hang") });
}

/// All-reduces as long as it is told to; each must succeed and be right.
async fn per_second(team: &Team, mut go_on: impl FnMut(u32) -> bool) -> f64 {
    let (begin, mut rounds) = (Instant::now(), 0);
    while go_on(rounds) {
        team.sum(&[1, 20, 300], ELEMENTS).await.expect("nothing fails");
        rounds += 1;
    }
    f64::from(rounds) / begin.elapsed().as_secs_f64()
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
