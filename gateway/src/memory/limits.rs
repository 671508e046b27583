//! The limits of the system on memory: of the host, of cgroups (versions 1 and 2), and of the
//! process on its address space and on the size of files.
//!
//! Clients check an arena against them before they make it; `run`, `check` and `doctor` check the
//! memory of a gateway. The kernel kills a process that meets some of them. A limit that cannot be
//! read, as in a container without `/proc`, is not checked.

use rustix::process::{Resource, getrlimit};
use std::fmt;
use std::path::Path;

/// 2^62 bytes: a limit of a version 1 cgroup from there on is none.
const UNLIMITED_BYTES: u64 = 1 << 62;

/// A limit on memory, and what it leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The limit, with its place.
    pub name: String,
    /// The limit itself, in bytes.
    pub total: u64,
    /// Bytes that are available now.
    pub available: u64,
    /// Advice to whoever wants more.
    pub remedy: &'static str,
    /// Whether it limits one arena alone, and not the memory of a process.
    pub of_one_arena: bool,
}

impl fmt::Display for MemoryLimit {
    /// Prints the limit, what it leaves, and the remedy.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, total, available, remedy, .. } = self;
        write!(f, "{name} is {total} bytes, of which {available} are available; {remedy}")
    }
}

/// Names of the files and fields of a memory cgroup, which differ by the version of cgroups.
struct CgroupFiles {
    /// Folder of the cgroup at the root.
    folder: &'static str,
    limit: &'static str,
    usage: &'static str,
    /// Fields of `memory.stat` that count page cache, which the kernel reclaims.
    reclaimable: [&'static str; 2],
}

/// The files of a version 2 cgroup.
static CGROUP_V2: CgroupFiles = CgroupFiles {
    folder: "sys/fs/cgroup",
    limit: "memory.max",
    usage: "memory.current",
    reclaimable: ["inactive_file", "active_file"],
};

/// The files of a version 1 cgroup.
static CGROUP_V1: CgroupFiles = CgroupFiles {
    folder: "sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    reclaimable: ["total_inactive_file", "total_active_file"],
};

/// Returns the tightest limit that leaves less than `bytes` for an arena; `None` if it fits.
pub fn arena_limit_below(bytes: u64) -> Option<MemoryLimit> {
    let tightest = memory_limits(Path::new("/")).into_iter().min_by_key(|limit| limit.available);
    tightest.filter(|limit| limit.available < bytes)
}

/// Returns the lowest limit below `bytes`, which a process that uses so much would meet whatever
/// else runs; `None` if there is none.
pub fn budget_limit_below(bytes: u64) -> Option<MemoryLimit> {
    let limits = memory_limits(Path::new("/")).into_iter().filter(|limit| !limit.of_one_arena);
    limits.min_by_key(|limit| limit.total).filter(|limit| limit.total < bytes)
}

/// Returns the limit of this process on its address space, if it has one.
pub fn address_space_limit() -> Option<MemoryLimit> {
    address_space_limit_by(Path::new("/"))
}

/// Returns all limits on memory, read from files below `root`.
fn memory_limits(root: &Path) -> Vec<MemoryLimit> {
    let mut limits = cgroup_limits(root);
    limits.extend(host_limit(root));
    limits.extend(address_space_limit_by(root));
    limits.extend(getrlimit(Resource::Fsize).current.map(|total| MemoryLimit {
        name: "the limit on the size of files (ulimit -f)".to_owned(),
        total,
        available: total,
        remedy: "raise it",
        of_one_arena: true,
    }));
    limits
}

/// Returns the memory of the host, of which the kernel estimates what is available.
fn host_limit(root: &Path) -> Option<MemoryLimit> {
    let text = read_text(&root.join("proc/meminfo"));
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
    };
    Some(MemoryLimit {
        name: "the host's memory".to_owned(),
        total: field("MemTotal:")?,
        available: field("MemAvailable:")?,
        remedy: "free memory on the host",
        of_one_arena: false,
    })
}

/// Returns the limit on the address space of this process.
fn address_space_limit_by(root: &Path) -> Option<MemoryLimit> {
    let total = getrlimit(Resource::As).current?;
    let pages = read_text(&root.join("proc/self/statm"));
    let pages = pages.split_whitespace().next().and_then(|text| text.parse::<u64>().ok());
    let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
    Some(MemoryLimit {
        name: "the limit on address space (ulimit -v)".to_owned(),
        total,
        available: total.saturating_sub(pages.unwrap_or(0).saturating_mul(page)),
        remedy: "raise it",
        of_one_arena: false,
    })
}

/// Returns the limits of this process's memory cgroup and of those around it.
fn cgroup_limits(root: &Path) -> Vec<MemoryLimit> {
    let text = read_text(&root.join("proc/self/cgroup"));
    let mut groups: Vec<_> = text.lines().filter_map(memory_cgroup_of_line).collect();
    if groups.is_empty() {
        groups = vec![(&CGROUP_V2, "/"), (&CGROUP_V1, "/")];
    }
    // Inside a container the path may be one of the host's, which the container does not show. Its
    // own cgroup is then the root of what it shows.
    let limits = groups.into_iter().flat_map(|(files, path)| {
        let around = Path::new(path).ancestors();
        around.filter_map(|group| cgroup_limit(root, files, group)).collect::<Vec<_>>()
    });
    limits.collect()
}

/// Parses a line of `/proc/self/cgroup`; `None` if its cgroup has no controller of memory.
fn memory_cgroup_of_line(line: &str) -> Option<(&'static CgroupFiles, &str)> {
    let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
    match controllers {
        "" => Some((&CGROUP_V2, path)),
        _ if controllers.split(',').any(|one| one == "memory") => Some((&CGROUP_V1, path)),
        _ => None,
    }
}

/// Returns the limit of one cgroup; `None` if it has none or cannot be read.
fn cgroup_limit(root: &Path, files: &CgroupFiles, group: &Path) -> Option<MemoryLimit> {
    let folder = root.join(files.folder).join(group.strip_prefix("/").unwrap_or(group));
    let number = |file: &str| read_text(&folder.join(file)).trim().parse::<u64>().ok();
    let (total, usage) = (number(files.limit)?, number(files.usage)?);
    if total >= UNLIMITED_BYTES {
        return None;
    }
    let stat = read_text(&folder.join("memory.stat"));
    let cached = stat.lines().filter_map(|line| {
        let (field, bytes) = line.split_once(' ')?;
        let bytes = bytes.trim().parse::<u64>().ok()?;
        files.reclaimable.contains(&field).then_some(bytes)
    });
    let cached: u64 = cached.sum();
    Some(MemoryLimit {
        name: format!("{} of cgroup {}", files.limit, group.display()),
        total,
        available: total.saturating_sub(usage.saturating_sub(cached)),
        remedy: "raise the memory of the container or service",
        of_one_arena: false,
    })
}

/// Returns the text of a file of the system; empty if it cannot be read.
fn read_text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Writes files of a system below a folder.
    fn write_files(root: &Path, files: &[(&str, String)]) {
        for (name, text) in files {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, text).expect("written");
        }
    }

    #[test]
    fn a_version_2_cgroup_leaves_what_it_does_not_use() {
        let root = tempfile::tempdir().expect("a folder");
        let files = [
            ("proc/self/cgroup", "0::/service/trainer\n".to_owned()),
            ("sys/fs/cgroup/service/trainer/memory.max", "max\n".to_owned()),
            ("sys/fs/cgroup/service/trainer/memory.current", "1\n".to_owned()),
            ("sys/fs/cgroup/service/memory.max", format!("{}\n", 200 * MIB)),
            ("sys/fs/cgroup/service/memory.current", format!("{}\n", 100 * MIB)),
            ("sys/fs/cgroup/service/memory.stat", format!("anon 5\ninactive_file {MIB}\n")),
        ];
        write_files(root.path(), &files);
        let limits = cgroup_limits(root.path());
        let [limit] = &limits[..] else { panic!("one limit: {limits:?}") };
        assert_eq!((limit.total, limit.available), (200 * MIB, 101 * MIB));
        assert_eq!(limit.name, "memory.max of cgroup /service");
    }

    #[test]
    fn a_version_1_container_is_limited_by_its_visible_root() {
        let root = tempfile::tempdir().expect("a folder");
        let files = [
            ("proc/self/cgroup", "4:memory:/docker/8f\n3:cpuset:/docker/8f\n0::/\n".to_owned()),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", (200 * MIB).to_string()),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", (150 * MIB).to_string()),
            ("sys/fs/cgroup/memory/memory.stat", format!("total_active_file {MIB}\n")),
        ];
        write_files(root.path(), &files);
        let limits = cgroup_limits(root.path());
        assert_eq!(limits.iter().map(|limit| limit.available).min(), Some(51 * MIB));
        let none = ("sys/fs/cgroup/memory/memory.limit_in_bytes", (i64::MAX - 4095).to_string());
        write_files(root.path(), &[none]);
        assert!(cgroup_limits(root.path()).is_empty());
    }

    #[test]
    fn a_system_without_proc_has_the_limits_that_it_shows() {
        let root = tempfile::tempdir().expect("a folder");
        assert_eq!((host_limit(root.path()), cgroup_limits(root.path())), (None, vec![]));
        let files = [
            ("sys/fs/cgroup/memory.max", (200 * MIB).to_string()),
            ("sys/fs/cgroup/memory.current", (50 * MIB).to_string()),
            ("proc/meminfo", "MemTotal:  2048 kB\nMemAvailable:  1024 kB\n".to_owned()),
        ];
        write_files(root.path(), &files);
        assert_eq!(cgroup_limits(root.path())[0].available, 150 * MIB);
        assert_eq!(host_limit(root.path()).map(|limit| limit.available), Some(MIB));
    }

    #[test]
    fn more_than_any_host_has_exceeds_a_limit() {
        assert!(arena_limit_below(1 << 60).is_some() && budget_limit_below(1 << 60).is_some());
        assert_eq!((arena_limit_below(1), budget_limit_below(1)), (None, None));
    }
}
