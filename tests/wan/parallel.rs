//! Work on all cores, and the bar that shows its progress.

use indicatif::{ProgressBar, ProgressStyle};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Does the work of each number below `count` on all cores, which virtual time does not mind. From
/// the last on: what takes longest begins first.
pub fn run_in_parallel<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(1);
    let some = || {
        let mut done = Vec::new();
        while let Some(index) = count.checked_sub(next.fetch_add(1, Ordering::Relaxed)) {
            done.push((index, work(index)));
        }
        done
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut done: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(some)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no panic")).collect()
    });
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, done)| done).collect()
}

pub fn progress_bar(length: usize, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix} {bar:30} {pos}/{len} {elapsed} {msg}");
    let bar = ProgressBar::new(length as u64).with_prefix(what);
    style.map_or(bar.clone(), |style| bar.with_style(style))
}
