//! One attached rank: it places buffers, posts, attaches again, and meets all other ranks.
//!
//! Threads of the program call it. Posts and recoveries exclude each other by one lock; nothing else
//! waits at it.

use crate::call_error::CallError;
use crate::memory_in_use::{MemoryInUse, UsedRanges, memory_ranges_overlap};
use crate::operation::{Delivery, OperationHandle};
use crate::raw::ForeignMemory;
use crate::settings::ConnectSettings;
use crate::status::Status;
use crate::worker::{Worker, block_without_worker};
use gateway::client::{ArenaBuffer, AttachOptions, Client, CollectiveSpec, GatewayAddress, Tensor};
use gateway::lock::lock_ignoring_poison;
use gateway::memory::arena::ALIGN_BYTES;
use hier_collectives::descriptor::{Counts, Dtype, Pattern, ReduceOp};
use hier_collectives::ids::Step;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use units::Span;

/// 100 ms: the pause before ranks that did not meet try again. An epoch takes as long to end.
const MEET_PAUSE: Duration = Duration::from_millis(100);
/// 2 s: how much later than its timeout a running gateway may report it; docs/failures.md.
const TIMEOUT_REPORT_DELAY_MAX: Duration = Duration::from_secs(2);

/// An attached rank.
pub struct AttachedGroup {
    /// Process that attached it.
    owner: u32,
    attach: AttachOptions,
    /// Held while a thread posts or recovers.
    posting: Mutex<()>,
    client: Mutex<Client>,
    /// Addresses of the arena.
    arena: Range<usize>,
    /// Memory that the program has allocated, by its address.
    allocated: Mutex<BTreeMap<usize, ArenaBuffer>>,
    in_use: Arc<MemoryInUse>,
    worker: Worker,
}

/// A collective as the program asks for it.
#[derive(Debug)]
pub struct CollectiveCall {
    /// Pattern, reduction, weight and timeout.
    pub spec: CollectiveSpec,
    /// Elements of blocks, where the pattern has blocks.
    pub counts: Counts,
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

/// State of a group, as the program may ask for it.
#[derive(Debug, Clone, Copy)]
pub struct GroupInfo {
    /// Number of this rank.
    pub rank: u32,
    /// Number of ranks.
    pub size: u32,
    /// The epoch that was announced last.
    pub epoch: u64,
    /// The last step known to be complete in every region.
    pub committed: Option<u64>,
    /// The status with which posts would fail, or [`Status::Ok`].
    pub state: Status,
}

/// A contribution or result in the arena.
struct PlacedBuffer {
    buffer: ArenaBuffer,
    /// Whether it is the program's own memory.
    is_own: bool,
}

impl AttachedGroup {
    /// Attaches a rank, and waits for all others.
    ///
    /// # Errors
    /// The rank is not attached.
    pub fn connect(settings: ConnectSettings) -> Result<Self, CallError> {
        let ConnectSettings { socket, world_size, attach } = settings;
        let deadline = Instant::now().checked_add(attach.gateway_timeout.duration());
        let worker = Worker::start()?;
        let options = attach.clone();
        let attaching =
            async move { Client::attach(&GatewayAddress::Socket(socket), options).await };
        let client = worker.run(attaching)??;
        let size = client.world_size();
        if let Some(wanted) = world_size.filter(|wanted| *wanted != size) {
            let text = format!(
                "gateway and program have different fabrics: {size} ranks at the gateway, \
                 {wanted} in the config"
            );
            return Err(CallError::new(Status::Refused, text));
        }
        let start = client.reserve(0)?.address() as usize;
        let bytes = usize::try_from(attach.arena_bytes).unwrap_or(usize::MAX);
        let group = Self {
            owner: std::process::id(),
            attach,
            posting: Mutex::default(),
            client: Mutex::new(client),
            arena: start..start.saturating_add(bytes),
            allocated: Mutex::default(),
            in_use: Arc::default(),
            worker,
        };
        group.meet_all_ranks(deadline)?;
        Ok(group)
    }

    /// Returns the process that attached this rank.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// Returns rank, size, epoch, last committed step and present status of the group, without a
    /// wait.
    pub fn info(&self) -> GroupInfo {
        let client = self.client();
        let state = if client.is_epoch_agreed() {
            Status::Ok
        } else if client.disconnect_reason().is_some() {
            Status::GatewayLost
        } else {
            Status::EpochEnded
        };
        GroupInfo {
            rank: client.rank().0,
            size: client.world_size(),
            epoch: client.epoch().0,
            committed: client.committed().map(|step| step.0),
            state,
        }
    }

    /// Reserves memory of the arena for the program, and returns its address.
    ///
    /// # Errors
    /// The arena has no room.
    pub fn allocate(&self, bytes: usize) -> Result<*mut u8, CallError> {
        // Memory without bytes still has an address of its own.
        let buffer = self.client().reserve((bytes as u64).max(1))?;
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
            CallError::invalid("memory: not what landbridge_alloc of this group returned, or free")
        })
    }

    /// Posts a collective. Waits until it may be posted.
    ///
    /// # Errors
    /// It was not posted, and nothing uses its memory.
    pub fn post(&self, call: CollectiveCall) -> Result<OperationHandle, CallError> {
        let _posting = lock_ignoring_poison(&self.posting);
        self.post_now(call)
    }

    /// Starts the commit of a step.
    ///
    /// # Errors
    /// It was not started.
    pub fn commit(&self, step: u64, timeout: Span) -> Result<OperationHandle, CallError> {
        let _posting = lock_ignoring_poison(&self.posting);
        let commit = block_without_worker(self.client().start_commit(Step(step), timeout))?;
        let (handle, end) = OperationHandle::new(self.owner, None, None, false);
        self.worker.spawn(end.follow_commit(commit));
        Ok(handle)
    }

    /// Returns when all ranks are ready to begin a step again.
    ///
    /// # Errors
    /// They are not by `deadline`, or never will be.
    pub fn recover(&self, deadline: Option<Instant>) -> Result<(), CallError> {
        let _posting = lock_ignoring_poison(&self.posting);
        self.meet_all_ranks(deadline)
    }

    /// Returns the client of the current attachment.
    fn client(&self) -> Client {
        lock_ignoring_poison(&self.client).clone()
    }

    /// Attaches again if the connection or an agreed epoch stands in the way, and meets all ranks at
    /// a barrier of an epoch in which none has posted before.
    fn meet_all_ranks(&self, deadline: Option<Instant>) -> Result<(), CallError> {
        loop {
            let client = self.client();
            // An epoch in which this rank may have posted ends when the rank attaches again.
            if client.disconnect_reason().is_some() || client.is_epoch_agreed() {
                self.attach_again(client, deadline)?;
            }
            self.client().agree_to_epoch();
            let Err(error) = self.meet_at_barrier(deadline) else { return Ok(()) };
            let is_late = deadline.is_some_and(|deadline| Instant::now() + MEET_PAUSE >= deadline);
            if error.status.is_fault_of_posts() || is_late {
                return Err(error);
            }
            std::thread::sleep(MEET_PAUSE);
        }
    }

    /// Attaches again, with the same arena. Tries while the gateway does not answer.
    fn attach_again(&self, client: Client, deadline: Option<Instant>) -> Result<(), CallError> {
        let left = time_left(deadline);
        let options =
            AttachOptions { gateway_timeout: left, epoch_timeout: left, ..self.attach.clone() };
        let attaching = async move { client.attach_again(options).await };
        let attached = self.worker.run(attaching)??;
        *lock_ignoring_poison(&self.client) = attached;
        Ok(())
    }

    /// Waits until every rank has come to a barrier.
    fn meet_at_barrier(&self, deadline: Option<Instant>) -> Result<(), CallError> {
        let spec = CollectiveSpec {
            timeout: time_left(deadline),
            ..CollectiveSpec::new(Pattern::Barrier, ReduceOp::Sum)
        };
        let call = CollectiveCall {
            spec,
            counts: Counts::Even,
            dtype: Dtype::U8,
            contribution_bytes: 0,
            result_bytes: 0,
            contribution: None,
            result: None,
        };
        let patience = deadline.and_then(|at| at.checked_add(TIMEOUT_REPORT_DELAY_MAX));
        self.post_now(call)?.wait(patience).map_err(|error| match error.status {
            Status::WaitTimeout => {
                let text = "the gateway does not answer; is it stopped, or its host overloaded?";
                CallError::new(Status::NoGateway, text)
            }
            _ => error,
        })
    }

    /// Posts a collective. The caller holds the lock on posts.
    fn post_now(&self, call: CollectiveCall) -> Result<OperationHandle, CallError> {
        let CollectiveCall { spec, counts, dtype, contribution, result, .. } = call;
        let client = self.client();
        let given = self.place(&client, contribution.as_ref(), call.contribution_bytes)?;
        // If the connection ended before the slot was reserved, a gateway that still runs may be
        // sending from it. No new connection begins before this thread has posted.
        if let Some(reason) = client.disconnect_reason() {
            let text = format!("{reason}; contribution intact; landbridge_recover attaches again");
            return Err(CallError::new(Status::GatewayLost, text));
        }
        if !given.is_own
            && let Some(plain) = &contribution
        {
            plain.copy_to(&given.buffer);
        }
        let (wanted, overwrites) =
            self.place_result(&client, result.as_ref(), &given, call.result_bytes)?;
        let ranges =
            UsedRanges { contribution: given.buffer.range(), result: wanted.buffer.range() };
        let memory = self.in_use.begin(ranges);
        let lies_in_arena = given.is_own || wanted.is_own;
        let delivery = result.filter(|_| !wanted.is_own);
        let delivery = delivery.map(|to| Delivery { from: wanted.buffer.clone(), to, overwrites });
        let tensor = Tensor::from_buffers(dtype, given.buffer, wanted.buffer);
        let posted = block_without_worker(client.post_with_counts(tensor, spec, counts))
            .map_err(|error| error.failure)?;
        let (handle, end) = OperationHandle::new(self.owner, Some(memory), delivery, lies_in_arena);
        self.worker.spawn(end.follow_collective(posted));
        Ok(handle)
    }

    /// Finds memory of the program in the arena, or else reserves as much. Waits for operations that
    /// free memory while the arena has no room.
    fn place(
        &self,
        client: &Client,
        memory: Option<&ForeignMemory>,
        bytes: u64,
    ) -> Result<PlacedBuffer, CallError> {
        let found = memory.map(|memory| self.find_in_arena(memory)).transpose()?.flatten();
        match found {
            Some(buffer) => Ok(PlacedBuffer { buffer, is_own: true }),
            None => {
                let buffer = self.in_use.retry(|| client.reserve(bytes))?;
                Ok(PlacedBuffer { buffer, is_own: false })
            }
        }
    }

    /// Places a result beside its contribution, and says whether its delivery overwrites that.
    fn place_result(
        &self,
        client: &Client,
        memory: Option<&ForeignMemory>,
        given: &PlacedBuffer,
        bytes: u64,
    ) -> Result<(PlacedBuffer, bool), CallError> {
        let own = self.place(client, memory, bytes)?;
        let overlaps = |range: Range<u64>| memory_ranges_overlap(&range, &given.buffer.range());
        if own.is_own && overlaps(own.buffer.range()) {
            return Ok((self.place(client, None, bytes)?, true));
        }
        // A result that does not begin at a multiple is copied there.
        let inside = memory.and_then(|memory| self.offsets_of(memory));
        Ok((own, given.is_own && inside.is_some_and(overlaps)))
    }

    /// Returns the place of memory in the arena, in bytes; `None` if it lies elsewhere.
    fn offsets_of(&self, memory: &ForeignMemory) -> Option<Range<u64>> {
        let range = memory.addresses();
        let offset = |address: usize| Some(address.checked_sub(self.arena.start)? as u64);
        let is_inside = memory_ranges_overlap(&range, &self.arena);
        if is_inside { Some(offset(range.start)?..offset(range.end)?) } else { None }
    }

    /// Returns the buffer of memory that collectives can use in place; `None` for memory elsewhere,
    /// and for memory that does not begin at a multiple of [`ALIGN_BYTES`].
    ///
    /// # Errors
    /// The memory lies in the arena, and is not the program's.
    fn find_in_arena(&self, memory: &ForeignMemory) -> Result<Option<ArenaBuffer>, CallError> {
        let range = memory.addresses();
        if !memory_ranges_overlap(&range, &self.arena) {
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
            let text = "memory of the group's arena that landbridge_alloc did not return, that was \
                        freed, or beyond its end";
            return Err(CallError::invalid(text));
        };
        Ok(part.start.is_multiple_of(ALIGN_BYTES).then(|| buffer.part(part)))
    }
}

/// Returns the time until a deadline, in a form that gateways take.
fn time_left(deadline: Option<Instant>) -> Span {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let ns = left.map_or(u64::MAX, |left| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
    Span::from_ns(ns)
}
