//! Many scenarios, spread over threads.

use crate::faults::judge::outcomes::RunSummary;
use crate::faults::run::{THREAD, run};
use crate::faults::spec::scenario::Scenario;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// 0.8 of random faults: so many must strike while a collective that they can touch is under way. A
/// sweep with fewer proves little.
pub const IN_FLIGHT_MIN: f64 = 0.8;
/// 100 seeds: the number over which the fraction of [`IN_FLIGHT_MIN`] is measured.
pub const IN_FLIGHT_SEEDS: u64 = 100;

/// Runs all scenarios. `heed` gets the summary of each, in any order, and returns whether to go on.
pub fn sweep(
    scenarios: impl Iterator<Item = Scenario> + Send,
    threads: usize,
    heed: impl FnMut(&Scenario, &RunSummary) -> bool + Send,
) -> usize {
    let (scenarios, heed) = (Mutex::new(scenarios), Mutex::new(heed));
    let (stop, runs) = (AtomicBool::new(false), AtomicUsize::new(0));
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let Some(scenario) = scenarios.lock().expect("no panic inside").next() else { return };
            let told = run(&scenario);
            runs.fetch_add(1, Ordering::Relaxed);
            if !heed.lock().expect("no panic inside")(&scenario, &told) {
                stop.store(true, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            let thread = std::thread::Builder::new().name(THREAD.to_owned());
            thread.spawn_scoped(scope, work).expect("a thread");
        }
    });
    runs.into_inner()
}

/// Returns the number of threads: one for each core.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}
