//! Limits on memory: of the host, of cgroups, and of the process on its address space, its private
//! memory and the size of files.
//!
//! Clients check an arena against them before they make it; `run`, `check` and `doctor` check the
//! memory of a gateway.

use super::cgroup::{Cgroup, CgroupVersion, cgroups_of_process};
use super::limit_text::read_limit_text;
use rustix::process::{Resource, getrlimit};
use std::fmt;
use std::path::Path;
use units::ByteCount;

/// 2^62 bytes: the limit of a cgroup counts as none if it has this size or more. A version 1 cgroup
/// without a limit shows a number near 2^63.
const UNLIMITED_BYTES: u64 = 1 << 62;

/// The memory that a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryLimitKind {
    /// Pages in memory, of a process and of arenas alike.
    Resident,
    /// Private memory that a process may write, with the stacks of its threads, but no arenas.
    Private,
    /// Addresses in use, with arenas and with what the allocator of the C library reserves.
    AddressSpace,
    /// One file, so one arena alone.
    File,
}

impl MemoryLimitKind {
    /// Returns whether a limit of this kind counts the stack of a new thread.
    pub fn counts_stacks(self) -> bool {
        matches!(self, Self::Private | Self::AddressSpace)
    }
}

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
    /// The memory that it counts.
    pub kind: MemoryLimitKind,
}

impl MemoryLimit {
    /// Returns the limit's name and size in words, such as `memory.max of cgroup /a is 2 GiB`.
    pub(super) fn name_and_total(&self) -> String {
        format!("{} is {}", self.name, ByteCount::new(self.total).rounded())
    }
}

impl MemoryLimit {
    /// Returns the limit's name, its size, and how much of it is available, in words.
    fn name_and_rest(&self) -> String {
        let (total, available) = (ByteCount::new(self.total), ByteCount::new(self.available));
        let (whole, left) = (total.rounded_beside(available), available.rounded_beside(total));
        format!("{} is {whole}, of which {left} are available", self.name)
    }
}

impl fmt::Display for MemoryLimit {
    /// Prints the limit's name and size, what is available of it, and the remedy.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.name_and_rest(), self.remedy)
    }
}

/// The most memory that a process takes, as each kind of limit counts it, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimitNeeds {
    /// Bytes of [`MemoryLimitKind::Resident`], without arenas, which their trainers have.
    pub resident: u64,
    /// Bytes of [`MemoryLimitKind::Private`].
    pub private: u64,
    /// Bytes of [`MemoryLimitKind::AddressSpace`].
    pub address_space: u64,
}

impl MemoryLimitNeeds {
    /// Returns the bytes that a limit of this kind counts; 0 for the size of files.
    fn of_kind(&self, kind: MemoryLimitKind) -> u64 {
        match kind {
            MemoryLimitKind::Resident => self.resident,
            MemoryLimitKind::Private => self.private,
            MemoryLimitKind::AddressSpace => self.address_space,
            MemoryLimitKind::File => 0,
        }
    }
}

/// A limit that is lower than what a process may take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "up to {} are needed, and {}",
    ByteCount::new(*needed).rounded_beside(ByteCount::new(limit.total)), limit.name_and_rest()
)]
pub struct MemoryLimitBelowNeeds {
    /// Bytes that may be needed, as the limit counts them.
    pub needed: u64,
    /// The limit.
    pub limit: MemoryLimit,
}

impl MemoryLimitBelowNeeds {
    /// Returns the advice to somebody who set `memory` of a gateway, as a clause.
    pub fn remedy_for(&self, memory: ByteCount) -> String {
        let beside = self.needed.saturating_sub(memory.get());
        if beside > self.limit.total {
            let beside = ByteCount::new(beside).rounded();
            return format!("{}: the program takes {beside} beside `memory`", self.limit.remedy);
        }
        format!("{}, or lower `memory`", self.limit.remedy)
    }
}

/// Returns the tightest limit that leaves less than `bytes` for an arena; `None` if it fits.
pub fn arena_memory_limit(bytes: u64) -> Option<MemoryLimit> {
    let limits = memory_limits(Path::new("/")).into_iter();
    let counted = limits.filter(|limit| limit.kind != MemoryLimitKind::Private);
    let tightest = counted.min_by_key(|limit| limit.available);
    tightest.filter(|limit| limit.available < bytes)
}

/// Returns the limit that is exceeded most by the needs of a process, whatever else runs; `None` if
/// all limits allow them.
pub fn memory_limit_below_needs(needs: &MemoryLimitNeeds) -> Option<MemoryLimitBelowNeeds> {
    let limits = memory_limits(Path::new("/")).into_iter();
    let short = limits.filter(|limit| limit.total < needs.of_kind(limit.kind));
    let worst = short.max_by_key(|limit| needs.of_kind(limit.kind) - limit.total);
    worst.map(|limit| MemoryLimitBelowNeeds { needed: needs.of_kind(limit.kind), limit })
}

/// Returns the limit of this process that leaves the least for another mapping, if it has one.
pub fn mapping_memory_limit() -> Option<MemoryLimit> {
    let limits = process_memory_limits(Path::new("/")).into_iter();
    limits.filter(|limit| limit.kind.counts_stacks()).min_by_key(|limit| limit.available)
}

/// Returns the limits of this process and of its cgroups, for a process whose memory ran out; empty
/// if it has none.
pub fn describe_memory_limits() -> String {
    let root = Path::new("/");
    let limits = process_memory_limits(root).into_iter().chain(memory_limits_of_cgroups(root));
    let counted = limits.filter(|limit| limit.kind != MemoryLimitKind::File);
    let texts = counted.map(|limit| limit.name_and_total());
    texts.collect::<Vec<_>>().join("; ")
}

/// Returns all limits on this process's memory: of the host, the process and its cgroups. Their
/// files are read below `root`.
fn memory_limits(root: &Path) -> Vec<MemoryLimit> {
    let mut limits = memory_limits_of_cgroups(root);
    limits.extend(host_memory_limit(root));
    limits.extend(process_memory_limits(root));
    limits
}

/// Returns the memory of the host, of which the kernel estimates what is available.
fn host_memory_limit(root: &Path) -> Option<MemoryLimit> {
    let text = read_limit_text(&root.join("proc/meminfo"));
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
    };
    Some(MemoryLimit {
        name: "the host's memory".to_owned(),
        total: field("MemTotal:")?,
        available: field("MemAvailable:")?,
        remedy: "free memory on the host, or use one with more",
        kind: MemoryLimitKind::Resident,
    })
}

/// Returns the limits of this process (`setrlimit`). Files of `/proc` are read below `root`.
pub(super) fn process_memory_limits(root: &Path) -> Vec<MemoryLimit> {
    let pages = read_limit_text(&root.join("proc/self/statm"));
    let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
    let used = |field: usize| {
        let pages = pages.split_whitespace().nth(field).and_then(|text| text.parse::<u64>().ok());
        pages.unwrap_or(0).saturating_mul(page)
    };
    let limits = [
        (
            Resource::As,
            "address space (ulimit -v)",
            used(STATM_SIZE),
            MemoryLimitKind::AddressSpace,
        ),
        (Resource::Data, "private memory (ulimit -d)", used(STATM_DATA), MemoryLimitKind::Private),
        (Resource::Fsize, "the size of files (ulimit -f)", 0, MemoryLimitKind::File),
    ];
    let limit = |(resource, what, used, kind): (Resource, &str, u64, MemoryLimitKind)| {
        let total = getrlimit(resource).current?;
        Some(MemoryLimit {
            name: format!("the limit on {what}"),
            total,
            available: total.saturating_sub(used),
            remedy: "raise it",
            kind,
        })
    };
    limits.into_iter().filter_map(limit).collect()
}

/// Field 0, the first, of `/proc/self/statm`: all pages of this process's address space.
const STATM_SIZE: usize = 0;
/// Field 5, counted from 0, of `/proc/self/statm`: this process's private pages that may be
/// written, and its stacks.
const STATM_DATA: usize = 5;

/// Returns the limits of this process's memory cgroup and of its parents. `root` is `/`, or a folder
/// with a copy of its files for tests.
fn memory_limits_of_cgroups(root: &Path) -> Vec<MemoryLimit> {
    cgroups_of_process(root, "memory").iter().flat_map(memory_limits_of_cgroup).collect()
}

/// Returns the limits of one cgroup. Above `memory.high` the kernel kills nobody, but slows the
/// process down to a standstill.
fn memory_limits_of_cgroup(group: &Cgroup) -> Vec<MemoryLimit> {
    let (files, usage, reclaimable) = match group.version {
        CgroupVersion::V1 => (
            &["memory.limit_in_bytes"][..],
            "memory.usage_in_bytes",
            ["total_inactive_file", "total_active_file"],
        ),
        CgroupVersion::V2 => {
            (&["memory.max", "memory.high"][..], "memory.current", ["inactive_file", "active_file"])
        }
    };
    let Some(usage) = group.number(usage) else { return Vec::new() };
    let stat = group.text("memory.stat");
    // The kernel reclaims page cache.
    let cached = stat.lines().filter_map(|line| {
        let (field, bytes) = line.split_once(' ')?;
        let bytes = bytes.trim().parse::<u64>().ok()?;
        reclaimable.contains(&field).then_some(bytes)
    });
    let used = usage.saturating_sub(cached.sum::<u64>());
    let limit = |file: &&str| {
        let total = group.number(file).filter(|total| *total < UNLIMITED_BYTES)?;
        Some(MemoryLimit {
            name: format!("{file} of cgroup {}", group.path.display()),
            total,
            available: total.saturating_sub(used),
            remedy: "raise the memory of the container or service",
            kind: MemoryLimitKind::Resident,
        })
    };
    files.iter().filter_map(limit).collect()
}

#[cfg(test)]
mod tests {
    use super::super::cgroup::tests::write_cgroup_files;
    use super::*;

    const MIB: u64 = 1 << 20;

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
        write_cgroup_files(root.path(), &files);
        let limits = memory_limits_of_cgroups(root.path());
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
        write_cgroup_files(root.path(), &files);
        let limits = memory_limits_of_cgroups(root.path());
        assert_eq!(limits.iter().map(|limit| limit.available).min(), Some(51 * MIB));
        let none = ("sys/fs/cgroup/memory/memory.limit_in_bytes", (i64::MAX - 4095).to_string());
        write_cgroup_files(root.path(), &[none]);
        assert!(memory_limits_of_cgroups(root.path()).is_empty());
    }

    #[test]
    fn a_system_without_proc_has_the_limits_that_it_shows() {
        let root = tempfile::tempdir().expect("a folder");
        assert_eq!(
            (host_memory_limit(root.path()), memory_limits_of_cgroups(root.path())),
            (None, vec![])
        );
        let files = [
            ("sys/fs/cgroup/memory.max", (200 * MIB).to_string()),
            ("sys/fs/cgroup/memory.current", (50 * MIB).to_string()),
            ("proc/meminfo", "MemTotal:  2048 kB\nMemAvailable:  1024 kB\n".to_owned()),
        ];
        write_cgroup_files(root.path(), &files);
        assert_eq!(memory_limits_of_cgroups(root.path())[0].available, 150 * MIB);
        assert_eq!(host_memory_limit(root.path()).map(|limit| limit.available), Some(MIB));
    }

    #[test]
    fn a_cgroup_that_is_slowed_has_a_limit_too() {
        let root = tempfile::tempdir().expect("a folder");
        let files = [
            ("proc/self/cgroup", "0::/service\n".to_owned()),
            ("sys/fs/cgroup/service/memory.max", (300 * MIB).to_string()),
            ("sys/fs/cgroup/service/memory.high", (200 * MIB).to_string()),
            ("sys/fs/cgroup/service/memory.current", (50 * MIB).to_string()),
        ];
        write_cgroup_files(root.path(), &files);
        let limits = memory_limits_of_cgroups(root.path());
        let found: Vec<_> = limits.iter().map(|limit| (&limit.name[..], limit.available)).collect();
        let (max, high) = ("memory.max of cgroup /service", "memory.high of cgroup /service");
        assert_eq!(found, [(max, 250 * MIB), (high, 150 * MIB)]);
    }

    #[test]
    fn more_than_any_host_has_exceeds_a_limit() {
        let needs =
            |bytes| MemoryLimitNeeds { resident: bytes, private: bytes, address_space: bytes };
        let short = memory_limit_below_needs(&needs(1 << 60)).expect("no host has so much");
        assert!(short.to_string().starts_with("up to 1 EiB are needed"), "{short}");
        assert!(arena_memory_limit(1 << 60).is_some());
        assert_eq!((arena_memory_limit(1), memory_limit_below_needs(&needs(1))), (None, None));
    }
}
