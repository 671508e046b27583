//! Pins the threads of lanes to cores.
//!
//! A pinned lane finds its keys and buffers in its core's caches, but it cannot move away from
//! other load. So lanes are pinned only if the machine has [`CORES_PER_LANE_MIN`] cores for each of
//! them.

use super::LaneThread;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tracing::info;

/// 2 cores for each lane of a gateway: if the process may use fewer, none of the lanes' threads is
/// pinned. A pinned thread cannot move away from other load, so spare cores must take that load.
const CORES_PER_LANE_MIN: usize = 2;

/// The core of a pinned thread.
#[derive(Debug, Clone, Copy)]
pub(super) struct CorePin(usize);

/// The cores that an unpinned thread may use.
#[derive(Debug, Clone, Copy)]
pub(super) struct AllowedCores(Option<CpuSet>);

impl AllowedCores {
    /// Returns the cores of the calling thread, which must not be pinned.
    pub fn of_this_thread() -> Self {
        Self(sched_getaffinity(None).ok())
    }

    /// Lets the calling thread use these cores, even if a pinned thread started the calling thread.
    pub fn unpin_this_thread(&self) {
        if let Self(Some(cores)) = self {
            // This cannot fail: another thread of the process uses these cores.
            let _ = sched_setaffinity(None, cores);
        }
    }
}

impl CorePin {
    /// Chooses the core of a lane's thread among the cores that the calling thread may use. `None`
    /// if there are too few cores for each lane, or the process has a quota of processor time.
    pub fn choose_for_lane(lane: &LaneThread) -> Option<Self> {
        let anywhere = sched_getaffinity(None).ok()?;
        let allowed: Vec<usize> =
            (0..CpuSet::MAX_CPU).filter(|core| anywhere.is_set(*core)).collect();
        // A process with a quota of CPU time has no cores of its own: others run on them.
        let time = std::thread::available_parallelism().ok()?;
        if time.get() < allowed.len() {
            return None;
        }
        choose_core(lane, &first_thread_of_each_core(&allowed, threads_of_core_of)).map(Self)
    }

    /// Pins the calling thread, which logs call `name`, to the core.
    pub fn pin_this_thread(&self, name: &str) {
        let mut only = CpuSet::new();
        only.set(self.0);
        match sched_setaffinity(None, &only) {
            Ok(()) => info!("{name} is pinned to core {}", self.0),
            Err(error) => info!("{name} cannot be pinned to core {}: {error}", self.0),
        }
    }
}

/// Returns the core of a lane's thread among `cores`; `None` if there are fewer than
/// [`CORES_PER_LANE_MIN`] for each lane.
fn choose_core(lane: &LaneThread, cores: &[usize]) -> Option<usize> {
    let enough = cores.len() >= CORES_PER_LANE_MIN * lane.of;
    let at = lane.number.checked_rem(cores.len())?;
    enough.then(|| cores[at])
}

/// Returns those of the hardware threads `allowed` that are the first of their core.
fn first_thread_of_each_core(
    allowed: &[usize],
    siblings: impl Fn(usize) -> Vec<usize>,
) -> Vec<usize> {
    let is_first = |thread: &usize| {
        let siblings = siblings(*thread);
        !siblings.iter().any(|sibling| sibling < thread && allowed.contains(sibling))
    };
    allowed.iter().copied().filter(is_first).collect()
}

/// Returns the hardware threads that share a core with `thread`; none if the system does not tell.
fn threads_of_core_of(thread: usize) -> Vec<usize> {
    let file = format!("/sys/devices/system/cpu/cpu{thread}/topology/thread_siblings_list");
    parse_core_threads(&std::fs::read_to_string(file).unwrap_or_default())
}

/// Parses a list of hardware threads in the kernel's form, such as `0-1,64`.
fn parse_core_threads(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some(from.parse::<usize>().ok()?..=to.parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{BoxFuture, Host, RealHost};
    use std::collections::BTreeSet;
    use std::sync::mpsc;

    /// The cores of all lanes of a gateway, the `index`th of its host.
    fn cores_of(cores: usize, lanes: usize, index: usize) -> Vec<Option<usize>> {
        let cores: Vec<usize> = (0..cores).collect();
        let lane = |lane: usize| LaneThread {
            name: format!("lane-{lane}"),
            number: index * lanes + lane,
            of: lanes,
        };
        (0..lanes).map(|number| choose_core(&lane(number), &cores)).collect()
    }

    #[test]
    fn lanes_are_pinned_only_where_others_have_as_many_cores() {
        for (cores, lanes) in [(0, 4), (1, 1), (2, 4), (4, 4), (7, 4), (31, 16)] {
            assert_eq!(cores_of(cores, lanes, 0), vec![None; lanes], "{lanes} lanes on {cores}");
        }
        for (cores, lanes) in [(2, 1), (8, 4), (9, 4), (32, 16), (96, 8)] {
            let own: BTreeSet<usize> = cores_of(cores, lanes, 0).into_iter().flatten().collect();
            assert_eq!(own.len(), lanes, "each has its own of {cores} cores");
            let other: BTreeSet<usize> = cores_of(cores, lanes, 1).into_iter().flatten().collect();
            assert!(own.is_disjoint(&other), "another gateway of the host: {own:?}, {other:?}");
        }
    }

    #[test]
    fn hardware_threads_of_one_core_count_once() {
        let beside = |thread: usize| vec![thread / 2 * 2, thread / 2 * 2 + 1];
        assert_eq!(first_thread_of_each_core(&[0, 1, 2, 3, 4, 5], beside), [0, 2, 4]);
        assert_eq!(
            first_thread_of_each_core(&[1, 2, 3], beside),
            [1, 2],
            "its sibling is not ours"
        );
        let behind = |thread: usize| vec![thread % 4, thread % 4 + 4];
        assert_eq!(first_thread_of_each_core(&[0, 1, 2, 3, 4, 5, 6, 7], behind), [0, 1, 2, 3]);
        assert_eq!(
            first_thread_of_each_core(&[3, 4], |_| vec![]),
            [3, 4],
            "the system does not tell"
        );
        assert_eq!(parse_core_threads("0-1,64\n"), [0, 1, 64]);
        assert_eq!(parse_core_threads("7\n"), [7]);
        assert_eq!(parse_core_threads(""), [0; 0]);
    }

    #[test]
    fn a_lane_stays_on_its_core_but_compute_does_not() {
        let anywhere = sched_getaffinity(None).expect("known");
        let core = (0..CpuSet::MAX_CPU).find(|core| anywhere.is_set(*core)).expect("one");
        let (sender, receiver) = mpsc::channel();
        let allowed = || sched_getaffinity(None).expect("known");
        let start = move || -> BoxFuture<()> {
            CorePin(core).pin_this_thread("lane-1");
            let compute_sender = sender.clone();
            Box::pin(async move {
                sender.send(allowed()).expect("the test receives");
                let task = move || compute_sender.send(allowed()).expect("the test receives");
                RealHost.run_compute(Box::new(task)).await.expect("no panic");
            })
        };
        let thread = LaneThread { name: "lane-1".to_owned(), number: 1, of: 1 << 20 };
        RealHost.spawn_lane(thread, Box::new(start)).expect("a thread");
        let [lane, compute] = [0, 1].map(|_| receiver.recv().expect("sent"));
        assert!(lane.count() == 1 && lane.is_set(core));
        assert_eq!(compute, anywhere);
    }
}
