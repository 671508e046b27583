//! Shared memory that other processes may write at any moment.
//!
//! The local plane maps a trainer's memfd as an [`Arena`]; the client and the simulations make
//! arenas of their own. All access goes through the raw pointers of
//! [`MemSlice`](super::mem_slice::MemSlice).

#![expect(unsafe_code, reason = "shared memory is mapped by pointer")]

use crate::accept_errors::DESCRIPTORS_REMEDY;
use crate::limits::memory_limits::{MemoryLimit, arena_memory_limit, mapping_memory_limit};
use prometheus_client::metrics::gauge::Gauge;
use rustix::fs::{SealFlags, SeekFrom};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};
use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use units::ByteCount;

/// 64 bytes, one cache line: slots of an arena start at multiples of this length, so that no cache
/// line belongs to two slots. A post with a slot that starts elsewhere is refused.
/// Tested by `slots_never_overlap_and_all_can_be_freed`.
pub const ALIGN_BYTES: u64 = 64;

/// A mapping, which is unmapped when its last slice is dropped.
#[derive(Debug)]
pub struct Arena {
    start: NonNull<c_void>,
    bytes: usize,
    /// A trainer's memfd.
    memory: Option<OwnedFd>,
    /// The gauges that count it.
    mapped: Option<ArenaGauges>,
}

/// Gauges of the mapped bytes of one job.
#[derive(Debug, Clone, Default)]
pub struct ArenaGauges {
    /// Bytes mapped now.
    pub bytes: Gauge,
    /// Most bytes ever mapped at once.
    pub most: Gauge,
}

// SAFETY: the mapping belongs to no thread, and all access goes through raw pointers, whose
// races with other processes are part of the contract: values may tear, memory stays valid.
unsafe impl Send for Arena {}
// SAFETY: all access goes through raw pointers, so sharing a reference adds no other access.
unsafe impl Sync for Arena {}

/// Why the gateway does not map a trainer's memory: the trainer's fault, unless said otherwise.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// The memfd is not sealed, so the trainer could shrink it under the gateway.
    #[error("the memfd is not sealed against shrinking and growing (F_SEAL_SHRINK, F_SEAL_GROW)")]
    Unsealed,
    /// The length differs from the claimed one.
    #[error("the memfd has {actual} bytes, {claimed} were claimed")]
    OtherSize {
        /// The length of the memfd.
        actual: u64,
        /// The claimed length.
        claimed: u64,
    },
    /// The size is zero or too large.
    #[error("an arena of {0} bytes is not possible")]
    BadSize(u64),
    /// The system could not hand the memfd over: the operator's fault, not the trainer's.
    #[error("the arena did not arrive: {DESCRIPTORS_REMEDY}")]
    Undeliverable,
    /// Some pages are not allocated yet, and may be missing when they are needed.
    #[error(
        "the memfd has pages that were never written; write all of it, or map it with MAP_POPULATE, first"
    )]
    Holes,
    /// The memfd has huge pages, which can run out at the first touch.
    #[error("the memfd is on hugetlbfs")]
    HugePages,
    /// A limit of the system leaves less memory than the arena takes.
    #[error("an arena of {} does not fit: {limit}, or use a smaller arena", ByteCount::new(*wanted).rounded_beside(ByteCount::new(limit.available)))]
    Limited {
        /// The length of the arena.
        wanted: u64,
        /// The limit.
        limit: MemoryLimit,
    },
    /// The process has no file descriptor left.
    #[error(
        "no file descriptor is left: the limit is {limit} (ulimit -n, or LimitNOFILE= of a \
         service); raise it"
    )]
    NoDescriptor {
        /// The limit on the process's descriptors.
        limit: u64,
    },
    /// The system refused the mapping.
    #[error("cannot map the memory: {0}")]
    System(#[from] io::Error),
}

/// 256 mappings: the most in one folded memory, which repeats the same run of pages for
/// simulations. In longer memory the run is longer. Linux allows a process some ten thousand
/// mappings.
/// Tested by `folded_memory_has_its_length_but_takes_a_part`.
const FOLDS_MAX: u64 = 256;
/// 1 MiB: the shortest run of pages that folded memory repeats, so that small memory has few
/// mappings. Memory of 1 MiB or less repeats nothing.
const FOLD_BYTES_MIN: u64 = 1 << 20;
/// The number by which `statfs` (field `f_type`) reports the file system hugetlbfs. An arena that a
/// trainer has there is refused, since huge pages can run out at the first touch.
const HUGETLBFS_MAGIC: rustix::fs::FsWord = 0x9584_58f6;

impl ArenaError {
    /// Returns the error of a system call that found no descriptor left; `None` for other errors.
    pub(crate) fn without_descriptor(error: &io::Error) -> Option<Self> {
        let code = error.raw_os_error()?;
        let is_limit = [Errno::MFILE, Errno::NFILE].iter().any(|one| one.raw_os_error() == code);
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        is_limit.then_some(Self::NoDescriptor { limit })
    }

    /// Returns the error of a mapping of `wanted` bytes that the system refused.
    fn of_mapping(error: Errno, wanted: u64) -> Self {
        match mapping_memory_limit() {
            Some(limit) if error == Errno::NOMEM => Self::Limited { wanted, limit },
            _ => Self::System(error.into()),
        }
    }
}

impl Arena {
    /// Maps `bytes` bytes of zeroed memory of this process; pages are allocated at the first touch.
    ///
    /// # Errors
    /// The system has too little memory.
    pub fn anonymous(bytes: u64) -> Result<Arc<Self>, ArenaError> {
        Self::map_anonymous(bytes, ProtFlags::READ | ProtFlags::WRITE).map(Arc::new)
    }

    /// Maps `bytes` bytes of zeroed memory for a trainer that sends bytes, with every page present.
    /// So no step waits for pages, and none is missing when it is needed.
    ///
    /// # Errors
    /// The system has too little memory, or a limit leaves too little of it.
    pub fn for_streams(bytes: u64) -> Result<Arc<Self>, ArenaError> {
        // Without this check the kernel would kill the gateway or others to find the pages.
        if let Some(limit) = arena_memory_limit(bytes) {
            return Err(ArenaError::Limited { wanted: bytes, limit });
        }
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        Self::map_private(bytes, ProtFlags::READ | ProtFlags::WRITE, flags).map(Arc::new)
    }

    /// Maps `bytes` bytes of zeroed memory of this process, and counts them in `mapped` while they
    /// are mapped.
    ///
    /// # Errors
    /// The system has too little memory, or [`ArenaError::BadSize`]: `bytes` is zero or too large.
    pub fn anonymous_counted(bytes: u64, mapped: &ArenaGauges) -> Result<Arc<Self>, ArenaError> {
        let mut arena = Self::map_anonymous(bytes, ProtFlags::READ | ProtFlags::WRITE)?;
        let bytes = i64::try_from(bytes).map_err(|_| ArenaError::BadSize(bytes))?;
        let now = mapped.bytes.inc_by(bytes) + bytes;
        mapped.most.inner().fetch_max(now, Ordering::Relaxed);
        arena.mapped = Some(mapped.clone());
        Ok(Arc::new(arena))
    }

    /// Maps memory of this process that repeats the same pages: it takes a small part of its
    /// length, and each write shows in several places. Simulations of sizes and times use it.
    ///
    /// # Errors
    /// The system has too little memory, or `bytes` is zero.
    pub fn folded(bytes: u64) -> Result<Arc<Self>, ArenaError> {
        use rustix::fs::MemfdFlags;
        let whole = Arc::new(Self::map_anonymous(bytes, ProtFlags::empty())?);
        let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
        let fold = bytes.div_ceil(FOLDS_MAX).max(FOLD_BYTES_MIN).next_multiple_of(page);
        let memory = rustix::fs::memfd_create("landbridge-folded", MemfdFlags::CLOEXEC);
        let memory = memory.map_err(io::Error::from)?;
        rustix::fs::ftruncate(&memory, fold).map_err(io::Error::from)?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let end = bytes.next_multiple_of(page);
        let mut from = 0;
        while from < end {
            let length = fold.min(end - from) as usize;
            let at = whole.start.as_ptr().wrapping_byte_add(from as usize);
            let flags = flags | MapFlags::FIXED;
            // SAFETY: `at..at + length` lies in the pages of the mapping `whole`, which nobody
            // else knows of yet; what was mapped there is unmapped.
            let mapped =
                unsafe { rustix::mm::mmap(at, length, protection, flags, memory.as_fd(), 0) };
            mapped.map_err(io::Error::from)?;
            from += length as u64;
        }
        Ok(whole)
    }

    /// Maps a trainer's memfd after checking that the trainer cannot make it fault: sealed
    /// against shrinking and growing, as long as claimed, every page present, no huge pages.
    ///
    /// # Errors
    /// [`ArenaError`] names the failed check.
    pub fn from_memfd(memory: &OwnedFd, claimed: u64) -> Result<Arc<Self>, ArenaError> {
        let seals = rustix::fs::fcntl_get_seals(memory).map_err(|_| ArenaError::Unsealed)?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(ArenaError::Unsealed);
        }
        let stat = rustix::fs::fstat(memory).map_err(io::Error::from)?;
        let actual = u64::try_from(stat.st_size).unwrap_or(0);
        if actual != claimed {
            return Err(ArenaError::OtherSize { actual, claimed });
        }
        let length = usize::try_from(claimed).map_err(|_| ArenaError::BadSize(claimed))?;
        if length == 0 {
            return Err(ArenaError::BadSize(claimed));
        }
        // Not by the block size, which is also large where the system backs shared memory with
        // transparent huge pages: those do not run out.
        let system = rustix::fs::fstatfs(memory).map_err(io::Error::from)?;
        if system.f_type == HUGETLBFS_MAGIC {
            return Err(ArenaError::HugePages);
        }
        let hole = rustix::fs::seek(memory, SeekFrom::Hole(0)).map_err(io::Error::from)?;
        if hole < claimed {
            return Err(ArenaError::Holes);
        }
        let kept = memory.try_clone()?;
        let mut arena = Self::map_shared(memory.as_fd(), length)?;
        arena.memory = Some(kept);
        Ok(Arc::new(arena))
    }

    /// Returns whether all pages of the arena are still allocated; true for memory that is no
    /// trainer's memfd. No seal that permits writing keeps the trainer from releasing pages, and
    /// allocating them again takes time and memory.
    pub fn is_whole(&self) -> bool {
        /// 512 bytes: the unit in which `stat` counts the blocks of a file (field `st_blocks`), on
        /// every file system. An arena whose blocks have fewer bytes than its length has lost
        /// pages.
        const STAT_BLOCK_BYTES: u64 = 512;
        let Some(memory) = &self.memory else { return true };
        let blocks = rustix::fs::fstat(memory).map_or(0, |stat| stat.st_blocks);
        u64::try_from(blocks).unwrap_or(0).saturating_mul(STAT_BLOCK_BYTES) >= self.bytes as u64
    }

    /// Creates a trainer's arena: a memfd with every page present, sealed, and its mapping.
    ///
    /// # Errors
    /// The system has too little memory, or a limit leaves too little of it or no descriptor.
    pub fn create_memfd(bytes: u64) -> Result<(Arc<Self>, OwnedFd), ArenaError> {
        use rustix::fs::{FallocateFlags, MemfdFlags};
        let length = usize::try_from(bytes).map_err(|_| ArenaError::BadSize(bytes))?;
        if length == 0 {
            return Err(ArenaError::BadSize(bytes));
        }
        // Without this check the kernel would kill this process or others to find the pages.
        if let Some(limit) = arena_memory_limit(bytes) {
            return Err(ArenaError::Limited { wanted: bytes, limit });
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = rustix::fs::memfd_create("landbridge", flags).map_err(|error| {
            let error = io::Error::from(error);
            ArenaError::without_descriptor(&error).unwrap_or(ArenaError::System(error))
        })?;
        rustix::fs::ftruncate(&memory, bytes).map_err(io::Error::from)?;
        let all = FallocateFlags::empty();
        rustix::fs::fallocate(&memory, all, 0, bytes).map_err(io::Error::from)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&memory, seals).map_err(io::Error::from)?;
        let arena = Self::map_shared(memory.as_fd(), length)?;
        Ok((Arc::new(arena), memory))
    }

    /// Returns the length of the mapping in bytes.
    pub fn mapped_bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Returns the address of the mapping's first byte in this process.
    pub(super) fn start_pointer(&self) -> *mut u8 {
        self.start.as_ptr().cast()
    }

    /// Maps `bytes` bytes of memory that no other process sees.
    fn map_anonymous(bytes: u64, protection: ProtFlags) -> Result<Self, ArenaError> {
        Self::map_private(bytes, protection, MapFlags::PRIVATE)
    }

    /// Maps `bytes` bytes of memory that no other process sees, with these flags.
    fn map_private(bytes: u64, protection: ProtFlags, flags: MapFlags) -> Result<Self, ArenaError> {
        let length = usize::try_from(bytes).map_err(|_| ArenaError::BadSize(bytes))?;
        if length == 0 {
            return Err(ArenaError::BadSize(bytes));
        }
        let anywhere = std::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
        let start = unsafe { rustix::mm::mmap_anonymous(anywhere, length, protection, flags) };
        Self::from_mapping(start.map_err(|error| ArenaError::of_mapping(error, bytes))?, length)
    }

    /// Maps `length` bytes of a memfd, shared with other processes, with all pages present.
    fn map_shared(memory: std::os::fd::BorrowedFd<'_>, length: usize) -> Result<Self, ArenaError> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing here.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, protection, flags, memory, 0) };
        let refused = |error| ArenaError::of_mapping(error, length as u64);
        Self::from_mapping(start.map_err(refused)?, length)
    }

    /// Makes an arena of a new mapping, which the arena unmaps when dropped.
    fn from_mapping(start: *mut c_void, bytes: usize) -> Result<Self, ArenaError> {
        let start = NonNull::new(start).ok_or(ArenaError::BadSize(bytes as u64))?;
        Ok(Self { start, bytes, memory: None, mapped: None })
    }
}

impl Drop for Arena {
    /// Unmaps the memory, and subtracts its length from the job's gauge of mapped bytes, if that
    /// counts it.
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing refers to it any more. A failure could
        // only leak it.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr(), self.bytes) };
        if let Some(mapped) = &self.mapped {
            // The length fitted the gauge's type when it was counted.
            mapped.bytes.dec_by(self.bytes as i64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::mem_slice::MemSlice;
    use rustix::fs::{FallocateFlags, MemfdFlags};

    fn memfd(bytes: u64, allocate: bool, seals: SealFlags) -> OwnedFd {
        let memory = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).expect("memfd");
        rustix::fs::ftruncate(&memory, bytes).expect("room");
        if allocate {
            let written = rustix::io::pwrite(&memory, &vec![1; bytes as usize], 0);
            assert_eq!(written, Ok(bytes as usize));
        }
        rustix::fs::fcntl_add_seals(&memory, seals).expect("seals");
        memory
    }

    #[test]
    fn only_memory_that_cannot_fault_is_mapped() {
        let sealed = SealFlags::SHRINK | SealFlags::GROW;
        let good = memfd(1 << 20, true, sealed);
        assert!(Arena::from_memfd(&good, 1 << 20).is_ok());
        assert!(matches!(Arena::from_memfd(&good, 1 << 21), Err(ArenaError::OtherSize { .. })));
        assert!(rustix::fs::ftruncate(&good, 4096).is_err(), "the seal holds");
        let open = memfd(1 << 20, true, SealFlags::GROW);
        assert!(matches!(Arena::from_memfd(&open, 1 << 20), Err(ArenaError::Unsealed)));
        let holey = memfd(1 << 20, false, sealed);
        assert!(matches!(Arena::from_memfd(&holey, 1 << 20), Err(ArenaError::Holes)));
        let huge = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        if let Ok(huge) = rustix::fs::memfd_create("test", huge) {
            rustix::fs::ftruncate(&huge, 1 << 30).expect("room");
            rustix::fs::fcntl_add_seals(&huge, sealed).expect("seals");
            assert!(matches!(Arena::from_memfd(&huge, 1 << 30), Err(ArenaError::HugePages)));
        }
        let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").expect("a file"));
        assert!(matches!(Arena::from_memfd(&file, 1), Err(ArenaError::Unsealed)));
    }

    #[test]
    fn an_arena_above_a_limit_is_never_allocated() {
        let error = Arena::create_memfd(1 << 50).expect_err("no host has so much");
        assert!(matches!(error, ArenaError::Limited { wanted: 0x4_0000_0000_0000, .. }), "{error}");
        assert!(error.to_string().contains("are available"), "{error}");
    }

    #[test]
    fn a_hole_punched_after_the_mapping_is_found() {
        let (_ours, memory) = Arena::create_memfd(1 << 20).expect("memory");
        let theirs = Arena::from_memfd(&memory, 1 << 20).expect("sealed and whole");
        assert!(theirs.is_whole());
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&memory, punch, 1 << 16, 4096).expect("its own");
        assert!(!theirs.is_whole());
        MemSlice::whole(&theirs).slice(1 << 16..(1 << 16) + 1).copy_from_bytes(0, &[1]);
        assert!(theirs.is_whole(), "the page came back");
    }

    #[test]
    fn both_mappings_see_the_same_bytes() {
        let (ours, memory) = Arena::create_memfd(1 << 16).expect("memory");
        let theirs = Arena::from_memfd(&memory, 1 << 16).expect("sealed and whole");
        MemSlice::whole(&ours).copy_from_bytes(100, b"over the sea");
        let mut read = [0; 12];
        MemSlice::whole(&theirs).slice(100..112).copy_to(&mut read);
        assert_eq!(&read, b"over the sea");
        assert_eq!(&MemSlice::whole(&theirs).slice(100..112).into_bytes()[..], b"over the sea");
    }

    #[test]
    fn folded_memory_has_its_length_but_takes_a_part() {
        let bytes = (3 << 20) + 100;
        let folded = MemSlice::whole(&Arena::folded(bytes).expect("memory"));
        assert_eq!(folded.len(), bytes);
        folded.copy_from_bytes(bytes - 3, b"end");
        let mut read = [0; 3];
        folded.slice(97..100).copy_to(&mut read);
        assert_eq!(&read, b"end", "it repeats each MiB");
        Arena::folded(1 << 40).expect("one fold of it is allocated");
    }
}
