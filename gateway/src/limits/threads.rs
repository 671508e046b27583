//! Threads, and the limits of the system on them.
//!
//! Whatever needs a thread calls [`spawn_thread`] or asks [`explain_thread_refusal`]. The error then
//! names the limits that may be met, with their values and the remedy.

use super::cgroup::cgroups_of_process;
use super::memory::process_memory_limits;
use rustix::process::{Resource, getrlimit};
use std::fmt;
use std::io;
use std::path::Path;
use std::thread::JoinHandle;

/// The system refused a thread.
#[derive(Debug)]
struct ThreadRefused {
    thread: String,
    /// The limits that may be met, each a phrase with its value.
    limits: Vec<String>,
    source: io::Error,
}

impl fmt::Display for ThreadRefused {
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

impl std::error::Error for ThreadRefused {
    /// Returns the system's error, by which it gave no thread.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Starts a thread of the system that runs `body` and has the name `name`.
///
/// # Errors
/// The system gives no thread; the text names the limits and the remedy.
pub fn spawn_thread<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    spawned.map_err(|error| explain_thread_refusal(name, error))
}

/// Adds the limits on threads, and the remedy, to the error of the system that gave no `thread`. The
/// kind of the error stays.
pub fn explain_thread_refusal(thread: &str, source: io::Error) -> io::Error {
    let kind = source.kind();
    let limits = thread_limits(Path::new("/"));
    io::Error::new(kind, ThreadRefused { thread: thread.to_owned(), limits, source })
}

/// Returns the limits on threads of this process, each a phrase with its value and its setting. All
/// files are read below `root`.
fn thread_limits(root: &Path) -> Vec<String> {
    let mut limits = Vec::new();
    for group in cgroups_of_process(root, "pids") {
        let Some(most) = group.number("pids.max") else { continue };
        let used = group.number("pids.current");
        let used = used.map_or_else(|| "some".to_owned(), |used| used.to_string());
        limits.push(format!(
            "pids.max of cgroup {} is {most}, of which {used} are in use (TasksMax= of a service, \
             --pids-limit of a container)",
            group.path.display()
        ));
    }
    if let Some(most) = getrlimit(Resource::Nproc).current {
        limits.push(format!(
            "the limit on processes and threads of this user is {most} (ulimit -u, LimitNPROC= of a \
             service)"
        ));
    }
    let memory = process_memory_limits(root).into_iter();
    // The stack of a thread counts.
    let memory = memory.filter(|limit| limit.kind.counts_stacks());
    limits.extend(memory.map(|limit| limit.name_and_total()));
    limits
}

#[cfg(test)]
mod tests {
    use super::super::cgroup::tests::write_files;
    use super::*;

    #[test]
    fn a_refused_thread_names_the_limit_of_its_cgroup() {
        let root = tempfile::tempdir().expect("a folder");
        let files = [
            ("proc/self/cgroup", "0::/service\n".to_owned()),
            ("sys/fs/cgroup/service/pids.max", "9\n".to_owned()),
            ("sys/fs/cgroup/service/pids.current", "9\n".to_owned()),
        ];
        write_files(root.path(), &files);
        let limits = thread_limits(root.path());
        assert!(
            limits[0].starts_with("pids.max of cgroup /service is 9, of which 9 are"),
            "{limits:?}"
        );
        let source = io::Error::from(io::ErrorKind::WouldBlock);
        let refused =
            ThreadRefused { thread: "lane-0".to_owned(), limits: limits[..1].to_vec(), source };
        let text = refused.to_string();
        assert!(
            text.contains("`lane-0`") && text.ends_with("--pids-limit of a container): raise it"),
            "{text}"
        );
    }

    #[test]
    fn a_thread_that_starts_returns_its_value() {
        let thread = spawn_thread("test", || std::thread::current().name().map(str::to_owned));
        let name = thread.expect("a thread").join().expect("no panic");
        assert_eq!(name.as_deref(), Some("test"));
    }
}
