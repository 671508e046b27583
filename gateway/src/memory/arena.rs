//! Shared memory that other processes may write at any moment.
//!
//! The local plane maps a trainer's memfd as an [`Arena`]; the engine and the lanes read and write
//! [`MemSlice`]s of it from their threads. All access goes through raw pointers. References are
//! made only for the bytes that QUIC and the FEC coder take, and both copy each byte before they
//! use it.

#![expect(unsafe_code, reason = "shared memory is mapped and touched by pointer")]

use bytes::Bytes;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::mutant::{self, Mutant};
use hier_collectives::reduce;
use prometheus_client::metrics::gauge::Gauge;
use rustix::fs::{SealFlags, SeekFrom};
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// 64 bytes. Slots of an arena start at multiples of this length, so that no cache line belongs to
/// two slots. Tested by `slots_never_overlap_and_all_can_be_freed`.
pub const ALIGN_BYTES: u64 = 64;

/// A mapping, which is unmapped when its last slice is dropped.
#[derive(Debug)]
pub struct Arena {
    start: NonNull<c_void>,
    bytes: usize,
    /// A trainer's memfd.
    memory: Option<OwnedFd>,
    /// The gauges that count it.
    mapped: Option<MappedGauges>,
}

/// Gauges of the mapped bytes of one job.
#[derive(Debug, Clone, Default)]
pub struct MappedGauges {
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

/// A range that lies inside an arena.
#[derive(Debug, Clone)]
pub struct MemSlice {
    arena: Arc<Arena>,
    range: Range<u64>,
}

/// An operand of a reduction, with its weight in an average.
#[derive(Debug, Clone, Copy)]
pub enum Operand<'a> {
    /// Shared memory, as long as the destination.
    Memory(&'a MemSlice, f64),
    /// Bytes of a packet, as long as their part of the destination.
    Bytes(&'a [u8], f64),
}

/// Why the gateway does not map a trainer's memory: the trainer's fault.
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
    /// Some pages are not allocated yet, and may be missing when they are needed.
    #[error(
        "the memfd has pages that were never written; write all of it, or map it with MAP_POPULATE, first"
    )]
    Holes,
    /// The memfd has huge pages, which can run out at the first touch.
    #[error("the memfd is on hugetlbfs")]
    HugePages,
    /// The system refused the mapping.
    #[error("cannot map the memory: {0}")]
    System(#[from] io::Error),
}

/// 256: how often folded memory repeats its pages at most. Each repetition is a mapping, of which a
/// process may have some ten thousand. Tested by `folded_memory_has_its_length_but_takes_a_part`.
const FOLDS_MAX: u64 = 256;
/// 1 MiB. Least length of the pages that folded memory repeats.
const FOLD_BYTES_MIN: u64 = 1 << 20;
/// The `f_type` by which statfs names the file system hugetlbfs.
const HUGETLBFS_MAGIC: rustix::fs::FsWord = 0x9584_58f6;

impl Arena {
    /// Maps `bytes` bytes of zeroed memory of this process.
    ///
    /// # Errors
    /// The system has too little memory.
    pub fn anonymous(bytes: u64) -> Result<Arc<Self>, ArenaError> {
        Self::map_anonymous(bytes, ProtFlags::READ | ProtFlags::WRITE).map(Arc::new)
    }

    /// Maps `bytes` bytes of zeroed memory of this process, and counts them in `mapped` while they
    /// are mapped.
    ///
    /// # Errors
    /// The system has too little memory.
    pub fn anonymous_counted(bytes: u64, mapped: &MappedGauges) -> Result<Arc<Self>, ArenaError> {
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

    /// Whether all pages of the arena are still allocated. No seal that permits writing keeps the
    /// trainer from releasing pages, and allocating them again takes time and memory.
    pub fn is_whole(&self) -> bool {
        /// 512 bytes: the unit in which `st_blocks` counts, on every file system.
        const STAT_BLOCK_BYTES: u64 = 512;
        let Some(memory) = &self.memory else { return true };
        let blocks = rustix::fs::fstat(memory).map_or(0, |stat| stat.st_blocks);
        u64::try_from(blocks).unwrap_or(0).saturating_mul(STAT_BLOCK_BYTES) >= self.bytes as u64
    }

    /// Creates a trainer's arena: a memfd with every page present, sealed, and its mapping.
    ///
    /// # Errors
    /// The system has too little memory.
    pub fn create_memfd(bytes: u64) -> Result<(Arc<Self>, OwnedFd), ArenaError> {
        use rustix::fs::{FallocateFlags, MemfdFlags};
        let length = usize::try_from(bytes).map_err(|_| ArenaError::BadSize(bytes))?;
        if length == 0 {
            return Err(ArenaError::BadSize(bytes));
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = rustix::fs::memfd_create("landbridge", flags).map_err(io::Error::from)?;
        rustix::fs::ftruncate(&memory, bytes).map_err(io::Error::from)?;
        let all = FallocateFlags::empty();
        rustix::fs::fallocate(&memory, all, 0, bytes).map_err(io::Error::from)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&memory, seals).map_err(io::Error::from)?;
        let arena = Self::map_shared(memory.as_fd(), length)?;
        Ok((Arc::new(arena), memory))
    }

    /// Returns the whole arena as a slice.
    pub fn whole(self: &Arc<Self>) -> MemSlice {
        MemSlice { arena: Arc::clone(self), range: 0..self.bytes as u64 }
    }

    /// Maps `bytes` bytes of memory that no other process sees.
    fn map_anonymous(bytes: u64, protection: ProtFlags) -> Result<Self, ArenaError> {
        let length = usize::try_from(bytes).map_err(|_| ArenaError::BadSize(bytes))?;
        if length == 0 {
            return Err(ArenaError::BadSize(bytes));
        }
        let (anywhere, flags) = (std::ptr::null_mut(), MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
        let start = unsafe { rustix::mm::mmap_anonymous(anywhere, length, protection, flags) };
        Self::from_mapping(start.map_err(io::Error::from)?, length)
    }

    /// Maps `length` bytes of a memfd, shared with other processes, with all pages present.
    fn map_shared(memory: std::os::fd::BorrowedFd<'_>, length: usize) -> Result<Self, ArenaError> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing here.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, protection, flags, memory, 0) };
        Self::from_mapping(start.map_err(io::Error::from)?, length)
    }

    /// Makes an arena of a new mapping, which the arena unmaps when dropped.
    fn from_mapping(start: *mut c_void, bytes: usize) -> Result<Self, ArenaError> {
        let start = NonNull::new(start).ok_or(ArenaError::BadSize(bytes as u64))?;
        Ok(Self { start, bytes, memory: None, mapped: None })
    }
}

impl Drop for Arena {
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

impl MemSlice {
    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the part `range`, counted from the start of this slice.
    ///
    /// # Panics
    /// Panics if the range reaches beyond the slice, which is a bug: offsets of trainers and peers
    /// are checked where they arrive.
    pub fn slice(&self, range: Range<u64>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} of {}", self.len());
        let start = self.range.start;
        Self { arena: Arc::clone(&self.arena), range: start + range.start..start + range.end }
    }

    /// Whether two slices share a byte.
    pub fn overlaps(&self, other: &Self) -> bool {
        let apart = self.range.end <= other.range.start || other.range.end <= self.range.start;
        Arc::ptr_eq(&self.arena, &other.arena) && !apart
    }

    /// Whether no other slice of the arena is alive.
    pub fn is_sole_owner(&self) -> bool {
        Arc::strong_count(&self.arena) == 1
    }

    /// Writes `bytes` at `offset` bytes from the start of the slice.
    ///
    /// # Panics
    /// Panics if the bytes reach beyond the slice.
    pub fn copy_from_bytes(&self, offset: u64, bytes: &[u8]) {
        let end = offset.checked_add(bytes.len() as u64);
        assert!(end.is_some_and(|end| end <= self.len()), "{offset} and {} more", bytes.len());
        let to = self.start_pointer().wrapping_add(offset as usize);
        // SAFETY: `to` and what follows lie in the mapping; `bytes` is a slice of this process that
        // the mapping is not part of, so they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies the whole slice into `bytes`.
    ///
    /// # Panics
    /// Panics if the lengths differ.
    pub fn copy_to(&self, bytes: &mut [u8]) {
        assert_eq!(bytes.len() as u64, self.len());
        // SAFETY: as in `copy_from_bytes`.
        unsafe {
            std::ptr::copy_nonoverlapping(self.start_pointer(), bytes.as_mut_ptr(), bytes.len())
        };
    }

    /// Copies the whole slice to another one, which may overlap.
    ///
    /// # Panics
    /// Panics if the lengths differ.
    pub fn copy_to_slice(&self, to: &Self) {
        assert_eq!(to.len(), self.len());
        // SAFETY: both lie in their mappings; `copy` allows overlap.
        unsafe { std::ptr::copy(self.start_pointer(), to.start_pointer(), self.usize_len()) };
    }

    /// Combines `inputs`, in order, into this slice; see [`reduce::reduce`].
    ///
    /// # Panics
    /// Panics if the lengths differ or an input overlaps, which is a bug.
    pub fn reduce(&self, op: ReduceOp, dtype: Dtype, inputs: &[(Self, f64)]) {
        let operand = |(slice, weight): &(Self, f64)| {
            self.checked_operand(&(0..self.len()), Operand::Memory(slice, *weight))
        };
        let operands: Vec<reduce::Operand> = inputs.iter().map(operand).collect();
        let elements = self.usize_len() / dtype.size() as usize;
        // SAFETY: lengths and overlap were checked above, and the slices keep their mappings
        // alive.
        unsafe { reduce::reduce(op, dtype, self.start_pointer(), &operands, elements) };
    }

    /// Combines two operands into the part `range`, for the payload of one packet. Allocates
    /// nothing, since there are many packets.
    ///
    /// # Panics
    /// Panics if the lengths differ or an operand overlaps, which is a bug.
    pub fn reduce_part(
        &self,
        range: Range<u64>,
        op: ReduceOp,
        dtype: Dtype,
        operands: [Operand<'_>; 2],
    ) {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} of {}", self.len());
        let operands = operands.map(|operand| self.checked_operand(&range, operand));
        let elements = (range.end - range.start) as usize / dtype.size() as usize;
        let out = self.start_pointer().wrapping_add(range.start as usize);
        // SAFETY: lengths and overlap were checked above, and the slices keep their mappings
        // alive.
        unsafe { reduce::reduce(op, dtype, out, &operands, elements) };
    }

    /// Checks length and overlap of an operand of a reduction into `range`; returns its address.
    fn checked_operand(&self, range: &Range<u64>, operand: Operand<'_>) -> reduce::Operand {
        let (bytes, weight) = match operand {
            Operand::Memory(slice, weight) => {
                assert_eq!(slice.len(), self.len());
                assert!(!slice.overlaps(self) || mutant::is_mutant_active(Mutant::Accumulate));
                (slice.start_pointer().wrapping_add(range.start as usize).cast_const(), weight)
            }
            Operand::Bytes(bytes, weight) => {
                assert_eq!(bytes.len() as u64, range.end - range.start);
                (bytes.as_ptr(), weight)
            }
        };
        reduce::Operand { bytes, weight }
    }

    /// Returns the bytes of the slice without a copy, for QUIC and the FEC coder. The mapping stays
    /// until the bytes are dropped.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(SharedBytes(self))
    }

    /// Returns the length in bytes as a `usize`.
    fn usize_len(&self) -> usize {
        // The cast loses nothing: a mapping has a `usize` length.
        self.len() as usize
    }

    /// Returns the address of the first byte in this process.
    fn start_pointer(&self) -> *mut u8 {
        let start = self.arena.start.as_ptr().cast::<u8>();
        start.wrapping_add(self.range.start as usize)
    }
}

/// A slice that the owner of [`Bytes`] keeps mapped.
struct SharedBytes(MemSlice);

impl AsRef<[u8]> for SharedBytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the range is mapped for as long as `self` lives. A trainer that writes it during
        // sending spoils its own collective only: each byte is copied into a packet or a shard, and
        // never interpreted in place.
        unsafe { std::slice::from_raw_parts(self.0.start_pointer(), self.0.usize_len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
    fn a_hole_punched_after_the_mapping_is_found() {
        let (_ours, memory) = Arena::create_memfd(1 << 20).expect("memory");
        let theirs = Arena::from_memfd(&memory, 1 << 20).expect("sealed and whole");
        assert!(theirs.is_whole());
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&memory, punch, 1 << 16, 4096).expect("its own");
        assert!(!theirs.is_whole());
        theirs.whole().slice(1 << 16..(1 << 16) + 1).copy_from_bytes(0, &[1]);
        assert!(theirs.is_whole(), "the page came back");
    }

    #[test]
    fn both_mappings_see_the_same_bytes() {
        let (ours, memory) = Arena::create_memfd(1 << 16).expect("memory");
        let theirs = Arena::from_memfd(&memory, 1 << 16).expect("sealed and whole");
        ours.whole().copy_from_bytes(100, b"over the sea");
        let mut read = [0; 12];
        theirs.whole().slice(100..112).copy_to(&mut read);
        assert_eq!(&read, b"over the sea");
        assert_eq!(&theirs.whole().slice(100..112).into_bytes()[..], b"over the sea");
    }

    #[test]
    fn folded_memory_has_its_length_but_takes_a_part() {
        let bytes = (3 << 20) + 100;
        let folded = Arena::folded(bytes).expect("memory").whole();
        assert_eq!(folded.len(), bytes);
        folded.copy_from_bytes(bytes - 3, b"end");
        let mut read = [0; 3];
        folded.slice(97..100).copy_to(&mut read);
        assert_eq!(&read, b"end", "it repeats each MiB");
        Arena::folded(1 << 40).expect("one fold of it is allocated");
    }

    #[test]
    #[should_panic(expected = "of 10")]
    fn a_part_beyond_its_slice_panics() {
        let arena = Arena::anonymous(4096).expect("memory");
        let _ = arena.whole().slice(0..10).slice(5..11);
    }
}
