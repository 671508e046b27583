//! Threads, and the limits of the system on them.
//!
//! Whatever needs a thread calls [`spawn_thread_within_limits`] or asks [`explain_thread_limits`].
//! The error then names the limits that may be met, with their values and the remedy.

use super::cgroup::{Cgroup, cgroups_of_process};
use super::memory_limits::process_memory_limits;
use rustix::process::{Resource, getrlimit};
use std::fmt;
use std::io;
use std::path::Path;
use std::thread::JoinHandle;

/// The system refused a thread.
#[derive(Debug)]
struct ThreadLimitMet {
    thread: String,
    /// The limits that may be met, each a phrase with its value.
    limits: Vec<String>,
    source: io::Error,
}

impl fmt::Display for ThreadLimitMet {
    /// Names the thread, the system's error, the limits and the remedy.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { thread, limits, source } = self;
        write!(f, "the system gives no thread `{thread}`: {source}; ")?;
        match &limits[..] {
            [] => f.write_str(
                "free memory, or raise the kernel's limits (sysctl kernel.threads-max and \
                 vm.max_map_count)",
            ),
            [limit] => write!(f, "{limit}: raise it"),
            limits => write!(f, "raise the limit that is met: {}", limits.join("; ")),
        }
    }
}

impl std::error::Error for ThreadLimitMet {
    /// Returns the system's error, by which it gave no thread.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Starts a thread of the system that runs `body` and has the name `name`.
///
/// # Errors
/// The system gives no thread; the text names the limits and the remedy.
pub fn spawn_thread_within_limits<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    spawned.map_err(|error| explain_thread_limits(name, error))
}

/// Adds the limits on threads, and the remedy, to the error of the system that gave no `thread`. The
/// kind of the error stays.
pub fn explain_thread_limits(thread: &str, source: io::Error) -> io::Error {
    let kind = source.kind();
    let limits = thread_limits(Path::new("/"));
    io::Error::new(kind, ThreadLimitMet { thread: thread.to_owned(), limits, source })
}

/// Returns the limits by which the system would give fewer than `needed` more threads, each a
/// phrase with its value and its setting. Threads in use count for the limits of cgroups alone.
pub fn thread_limits_below(needed: u64) -> Vec<String> {
    thread_limits_below_root(Path::new("/"), needed)
}

/// Does the work of [`thread_limits_below`], with all files read below `root`.
fn thread_limits_below_root(root: &Path, needed: u64) -> Vec<String> {
    let mut limits = Vec::new();
    for group in cgroups_of_process(root, "pids") {
        let Some(most) = group.number("pids.max") else { continue };
        let used = group.number("pids.current").unwrap_or(0);
        if most.saturating_sub(used) < needed {
            limits.push(describe_thread_cgroup(&group, most));
        }
    }
    // The kernel asks root for no such limit.
    let limited =
        getrlimit(Resource::Nproc).current.filter(|_| !rustix::process::geteuid().is_root());
    limits.extend(limited.filter(|most| *most < needed).map(describe_thread_rlimit));
    limits
}

/// Describes the limit of a cgroup on threads, which is `most`.
fn describe_thread_cgroup(group: &Cgroup, most: u64) -> String {
    let used = group.number("pids.current");
    let used = used.map_or_else(|| "some".to_owned(), |used| used.to_string());
    format!(
        "pids.max of cgroup {} is {most}, of which {used} are in use (TasksMax= of a service, \
         --pids-limit of a container)",
        group.path.display()
    )
}

/// Describes the limit of a user on threads, which is `most`.
fn describe_thread_rlimit(most: u64) -> String {
    format!(
        "the limit on processes and threads of this user is {most} (ulimit -u, LimitNPROC= of a \
         service)"
    )
}

/// Returns the limits on threads of this process, each a phrase with its value and its setting. All
/// files are read below `root`.
fn thread_limits(root: &Path) -> Vec<String> {
    let mut limits = Vec::new();
    for group in cgroups_of_process(root, "pids") {
        let Some(most) = group.number("pids.max") else { continue };
        limits.push(describe_thread_cgroup(&group, most));
    }
    limits.extend(getrlimit(Resource::Nproc).current.map(describe_thread_rlimit));
    let memory = process_memory_limits(root).into_iter();
    // The stack of a thread counts.
    let memory = memory.filter(|limit| limit.kind.counts_stacks());
    limits.extend(memory.map(|limit| limit.name_and_total()));
    limits
}

#[cfg(test)]
mod tests {
    use super::super::cgroup::tests::write_cgroup_files;
    use super::*;

    #[test]
    fn a_refused_thread_names_the_limit_of_its_cgroup() {
        let root = tempfile::tempdir().expect("a folder");
        let files = [
            ("proc/self/cgroup", "0::/service\n".to_owned()),
            ("sys/fs/cgroup/service/pids.max", "9\n".to_owned()),
            ("sys/fs/cgroup/service/pids.current", "9\n".to_owned()),
        ];
        write_cgroup_files(root.path(), &files);
        let limits = thread_limits(root.path());
        assert!(
            limits[0].starts_with("pids.max of cgroup /service is 9, of which 9 are"),
            "{limits:?}"
        );
        let below = |needed| thread_limits_below_root(root.path(), needed).len();
        assert_eq!((below(0), below(1)), (0, 1), "none is left");
        let source = io::Error::from(io::ErrorKind::WouldBlock);
        let refused =
            ThreadLimitMet { thread: "lane-0".to_owned(), limits: limits[..1].to_vec(), source };
        let text = refused.to_string();
        assert!(
            text.contains("`lane-0`") && text.ends_with("--pids-limit of a container): raise it"),
            "{text}"
        );
    }

    #[test]
    fn a_thread_that_starts_returns_its_value() {
        let thread =
            spawn_thread_within_limits("test", || std::thread::current().name().map(str::to_owned));
        let name = thread.expect("a thread").join().expect("no panic");
        assert_eq!(name.as_deref(), Some("test"));
    }
}
