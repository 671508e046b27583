//! The arena of one rank: memory of the program in it, and places for copies.
//!
//! All groups of the rank use it. Posting threads place contributions and results here.

use crate::call_error::CallError;
use crate::call_status::CallStatus;
use crate::memory_in_use::{MemoryInUse, MemoryUse, RangesInUse, ranges_in_use_overlap};
use crate::operation_handle::Delivery;
use crate::raw::ForeignMemory;
use crate::waits::post_timed_out;
use gateway::client::{ArenaBuffer, Client, Tensor};
use gateway::lock::lock_ignoring_poison;
use gateway::memory::arena::ALIGN_BYTES;
use hier_collectives::descriptor::Dtype;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use units::ByteCount;

/// The arena of an attached rank, as its program uses it.
pub struct RankMemory {
    /// Addresses of the arena.
    arena: Range<usize>,
    /// Memory that the program has allocated, by its address.
    allocated: Mutex<BTreeMap<usize, ArenaBuffer>>,
    in_use: Arc<MemoryInUse>,
}

/// The buffers of a collective or send, as the program gives them.
#[derive(Debug)]
pub struct RankMemoryBuffers {
    /// Type of the elements.
    pub dtype: Dtype,
    /// Bytes of the contribution.
    pub contribution_bytes: u64,
    /// Bytes of the result.
    pub result_bytes: u64,
    /// The contribution; `None` where this rank has none.
    pub contribution: Option<ForeignMemory>,
    /// Memory for the result; `None` where this rank gets none.
    pub result: Option<ForeignMemory>,
}

/// The buffers of a call in the arena, with the contribution in place.
#[derive(Debug)]
pub struct PlacedBuffers {
    /// The slots to post.
    pub tensor: Tensor,
    /// Both slots, in use until this is dropped.
    pub memory: MemoryUse,
    /// The copy of the result that the program waits for.
    pub delivery: Option<Delivery>,
    /// Whether the gateway uses memory of the program in place.
    pub lies_in_arena: bool,
}

/// A contribution or result in the arena.
struct PlacedBuffer {
    buffer: ArenaBuffer,
    /// Whether it is the program's own memory.
    is_own: bool,
}

impl RankMemoryBuffers {
    /// Makes the buffers of a call without elements, of type `dtype`, such as a barrier's. A send
    /// fills in one of them.
    pub fn empty(dtype: Dtype) -> Self {
        let (contribution, result) = (None, None);
        Self { dtype, contribution_bytes: 0, result_bytes: 0, contribution, result }
    }
}

impl RankMemory {
    /// Makes the memory of a rank whose arena has these addresses, without anything in it.
    pub fn new(arena: Range<usize>) -> Self {
        Self { arena, allocated: Mutex::default(), in_use: Arc::default() }
    }

    /// Reserves `bytes` bytes of the arena for the program, and returns their address.
    ///
    /// # Errors
    /// The arena has no room.
    pub fn allocate(&self, client: &Client, bytes: usize) -> Result<*mut u8, CallError> {
        // Memory without bytes still has an address of its own.
        let buffer = client.reserve((bytes as u64).max(1))?;
        let address = buffer.address();
        lock_ignoring_poison(&self.allocated).insert(address as usize, buffer);
        Ok(address)
    }

    /// Frees memory of the program. Operations that use it keep it until they end.
    ///
    /// # Errors
    /// There is no such memory.
    pub fn free(&self, address: usize) -> Result<(), CallError> {
        let freed = lock_ignoring_poison(&self.allocated).remove(&address);
        freed.map(drop).ok_or_else(|| {
            CallError::invalid("memory: not what landbridge_alloc of this rank returned, or free")
        })
    }

    /// Places the buffers of a call in the arena, and copies the contribution there. Waits while other
    /// operations use the same memory, or while the arena has no room, until `deadline` at most.
    ///
    /// # Errors
    /// The arena has no room, memory in it is not the program's or is in use, or the connection ended.
    pub fn place_rank_buffers(
        &self,
        client: &Client,
        buffers: RankMemoryBuffers,
        deadline: Option<Instant>,
    ) -> Result<PlacedBuffers, CallError> {
        let RankMemoryBuffers { dtype, contribution, result, .. } = buffers;
        let placing = self.in_use.begin_placing();
        let reserve = |bytes| {
            let placed = placing.retry(deadline, || client.reserve(bytes).map_err(CallError::from));
            let size = || ByteCount::new(bytes).rounded();
            let late = || format!("operations under way leave no room for {} in the arena", size());
            placed.unwrap_or_else(|| Err(post_timed_out(&late())))
        };
        let given = self.place(&reserve, contribution.as_ref(), buffers.contribution_bytes)?;
        // If the connection ended before the slot was reserved, a gateway that still runs may be
        // sending from it. This client posts nothing after the end of its connection.
        if let Some(reason) = client.disconnect_reason() {
            let text = format!("{reason}; contribution intact; landbridge_recover attaches again");
            return Err(CallError::new(CallStatus::GatewayLost, text));
        }
        if !given.is_own
            && let Some(plain) = &contribution
        {
            plain.copy_to(&given.buffer);
        }
        let (wanted, overwrites) =
            self.place_result(&reserve, result.as_ref(), &given, buffers.result_bytes)?;
        let ranges =
            RangesInUse { contribution: given.buffer.range(), result: wanted.buffer.range() };
        let in_use = "another operation uses the same memory of landbridge_alloc";
        let memory = self.in_use.begin(ranges, deadline).ok_or_else(|| post_timed_out(in_use))?;
        let lies_in_arena = given.is_own || wanted.is_own;
        let delivery = result.filter(|_| !wanted.is_own);
        let delivery = delivery.map(|to| Delivery { from: wanted.buffer.clone(), to, overwrites });
        let tensor = Tensor::from_buffers(dtype, given.buffer, wanted.buffer);
        Ok(PlacedBuffers { tensor, memory, delivery, lies_in_arena })
    }

    /// Finds the arena's buffer for `memory` of the program that lies in it. For memory elsewhere,
    /// or none, reserves a buffer of `bytes` bytes.
    fn place(
        &self,
        reserve: &impl Fn(u64) -> Result<ArenaBuffer, CallError>,
        memory: Option<&ForeignMemory>,
        bytes: u64,
    ) -> Result<PlacedBuffer, CallError> {
        let found = memory.map(|memory| self.find_in_arena(memory)).transpose()?.flatten();
        match found {
            Some(buffer) => Ok(PlacedBuffer { buffer, is_own: true }),
            None => {
                let buffer = reserve(bytes)?;
                Ok(PlacedBuffer { buffer, is_own: false })
            }
        }
    }

    /// Places the result of a call whose contribution is placed as `given`. Returns its buffer, and
    /// whether delivering the result overwrites the contribution.
    fn place_result(
        &self,
        reserve: &impl Fn(u64) -> Result<ArenaBuffer, CallError>,
        memory: Option<&ForeignMemory>,
        given: &PlacedBuffer,
        bytes: u64,
    ) -> Result<(PlacedBuffer, bool), CallError> {
        let own = self.place(reserve, memory, bytes)?;
        let overlaps = |range: Range<u64>| ranges_in_use_overlap(&range, &given.buffer.range());
        if own.is_own && overlaps(own.buffer.range()) {
            return Ok((self.place(reserve, None, bytes)?, true));
        }
        // A result that does not begin at a multiple is copied there.
        let inside = memory.and_then(|memory| self.offsets_of(memory));
        Ok((own, given.is_own && inside.is_some_and(overlaps)))
    }

    /// Returns the place of memory in the arena, in bytes; `None` if no byte of it lies there.
    fn offsets_of(&self, memory: &ForeignMemory) -> Option<Range<u64>> {
        let range = memory.addresses();
        let offset = |address: usize| Some(address.checked_sub(self.arena.start)? as u64);
        let is_inside = ranges_in_use_overlap(&range, &self.arena);
        if is_inside { Some(offset(range.start)?..offset(range.end)?) } else { None }
    }

    /// Returns the buffer of memory that collectives can use in place; `None` for memory elsewhere,
    /// and for memory that does not begin at a multiple of [`ALIGN_BYTES`].
    ///
    /// # Errors
    /// The memory lies in the arena, and is not the program's.
    fn find_in_arena(&self, memory: &ForeignMemory) -> Result<Option<ArenaBuffer>, CallError> {
        let range = memory.addresses();
        if !ranges_in_use_overlap(&range, &self.arena) {
            return Ok(None);
        }
        let allocated = lock_ignoring_poison(&self.allocated);
        let below = allocated.range(..=range.start).next_back();
        let inside = below.and_then(|(start, buffer)| {
            let bytes = buffer.range().end - buffer.range().start;
            let part = (range.start - start) as u64..(range.end - start) as u64;
            (part.end <= bytes).then_some((buffer, part))
        });
        let Some((buffer, part)) = inside else {
            let text = "memory of the rank's arena that landbridge_alloc did not return, that was \
                        freed, or beyond its end";
            return Err(CallError::invalid(text));
        };
        Ok(part.start.is_multiple_of(ALIGN_BYTES).then(|| buffer.part(part)))
    }
}
