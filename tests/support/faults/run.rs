//! One scenario from beginning to end.

use crate::faults::deployment::control::Deployment;
use crate::faults::deployment::rendezvous::Rendezvous;
use crate::faults::deployment::world::World;
use crate::faults::judge::outcomes::RunSummary;
use crate::faults::members::{MEMBERS, play_members};
use crate::faults::spec::fault::Fault;
use crate::faults::spec::limits::Limits;
use crate::faults::spec::scenario::Scenario;
use crate::faults::timeline::Timeline;
use crate::simulate;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use units::{Span, TimeNs};

/// 120 s of virtual time: the longest that the collectives of a scenario may take where no fault
/// delays them.
const QUIET: Span = Span::from_secs(120);

/// 1 s of virtual time: the longest until all ranks of an epoch begin the last attempt of a
/// scenario.
const BEGUN_WITHIN: Span = Span::from_secs(1);

/// Runs a scenario; returns its summary.
pub fn run(scenario: &Scenario) -> RunSummary {
    guarded(scenario, false).0
}

/// Runs a scenario; returns its summary and all of its events.
pub fn replay(scenario: &Scenario) -> (RunSummary, String) {
    guarded(scenario, true)
}

thread_local! {
    /// Panics on this thread, for the verdict of a run: tokio does not pass on the panics of tasks.
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn guarded(scenario: &Scenario, recording: bool) -> (RunSummary, String) {
    /// Installs the process's panic hook once: it records panics in [`PANICS`], and prints those
    /// outside simulations.
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let simulating = std::thread::current().name() == Some(THREAD);
            PANICS.with_borrow_mut(|panics| panics.push(panic.to_string()));
            if !simulating {
                usual(panic);
            }
        }));
    });
    PANICS.take();
    let outcome = catch_unwind(AssertUnwindSafe(|| simulate(play(scenario, recording))));
    let (mut told, text) = outcome.unwrap_or_default();
    told.wrong.extend(PANICS.take().into_iter().map(|panic| panic.replace('\n', " ")));
    (told, text)
}

/// Name of threads on which panics are kept for the verdict instead of shown.
pub(in crate::faults) const THREAD: &str = "simulation";

async fn play(scenario: &Scenario, recording: bool) -> (RunSummary, String) {
    let timeline = if recording { Timeline::on() } else { Timeline::off() };
    if scenario.name == MEMBERS {
        return play_members(scenario.seed, timeline, recording).await;
    }
    let _logs = recording.then(|| timeline.listen());
    let world = Deployment::start(scenario, timeline.clone()).await;
    world.start_ranks();
    let all =
        |which: fn(&Rendezvous) -> bool| move |world: &World| world.rendezvous.iter().all(which);
    // A fault before anybody works is a late start.
    wait_until(&world, all(Rendezvous::has_begun), world.now() + QUIET).await;
    let begin = world.now();
    go_wrong(&world, &scenario.faults, begin).await;
    let recovered_by = begin + scenario.healed() + Limits::of_the_page().recovery;
    world.heal(recovered_by);
    wait_until(&world, all(Rendezvous::has_recovered), recovered_by).await;
    blame(&world, Rendezvous::has_recovered, "does not work again");
    wait_until(&world, all(Rendezvous::has_done_its_rounds), recovered_by + QUIET).await;
    blame(&world, Rendezvous::has_done_its_rounds, "makes no headway");
    world.sleep_until(recovered_by).await;
    world.rendezvous.iter().for_each(Rendezvous::probe);
    if all(Rendezvous::has_done_its_rounds)(&world) {
        wait_until(&world, all(Rendezvous::is_probing), world.now() + BEGUN_WITHIN).await;
        blame(&world, Rendezvous::is_probing, "has not met again");
    }
    let horizon = world.now() + scenario.load.timeout + QUIET;
    wait_until(&world, all(Rendezvous::is_over), horizon).await;
    blame(&world, Rendezvous::is_over, "hangs");
    world.oracle.judge_stores();
    if all(Rendezvous::is_over)(&world) {
        world.judge_bytes();
        world.judge_memory().await;
    }
    timeline.say("END", || "");
    (world.oracle.summary(), timeline.text())
}

/// Reports the jobs that fail a condition.
fn blame(world: &World, must_be: fn(&Rendezvous) -> bool, what: &str) {
    for rendezvous in world.rendezvous.iter().filter(|rendezvous| !must_be(rendezvous)) {
        world.oracle.wrong(format!("{what}: {}", rendezvous.standing()));
    }
}

/// Begins and ends the faults.
async fn go_wrong(world: &Deployment, faults: &[Fault], begin: TimeNs) {
    let mut instants: Vec<(Span, bool, usize)> = Vec::new();
    for (index, fault) in faults.iter().enumerate() {
        instants.push((fault.at, false, index));
        instants.push((fault.end(), true, index));
    }
    instants.sort_unstable();
    let mut to_come = faults.len();
    if to_come == 0 {
        world.rendezvous.iter().for_each(Rendezvous::struck);
    }
    let mut active: Vec<usize> = Vec::new();
    for (at, ends, index) in instants {
        world.sleep_until(begin + at).await;
        let fault = faults[index];
        let (what, place, lasting) = (fault.what, fault.place, fault.lasting);
        let text = match lasting {
            _ if ends => format!("{what} {place} is over"),
            Span::ZERO => format!("{what} {place}"),
            _ => format!("{what} {place} for {lasting}"),
        };
        if ends {
            active.retain(|other| *other != index);
        } else {
            active.push(index);
            to_come -= 1;
            world.strike(&fault).await;
            if to_come == 0 {
                world.rendezvous.iter().for_each(Rendezvous::struck);
            }
        }
        let now: Vec<Fault> = active.iter().map(|index| faults[*index]).collect();
        world.disturb(&now, text).await;
    }
}

async fn wait_until(world: &World, done: impl Fn(&World) -> bool, at: TimeNs) {
    while !done(world) && world.now() < at {
        world.sleep_until(world.now() + Span::from_ms(100)).await;
    }
}
