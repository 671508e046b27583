//! Serves the trainers of this host: one task each, which checks everything that comes in
//! before the engine hears of it.

use super::arena::{ALIGN_BYTES, Arena, MemSlice};
use super::door::{Door, Duplex, Visit};
use super::protocol::{
    Attach, LOCAL_VERSION, Request, Response, TOKEN_BYTES, read_message, write_message,
};
use crate::engine::{Event, EventSender};
use crate::host::{BoxFuture, Host};
use hier_collectives::ids::{GroupId, RankId, Sequence};
use hier_collectives::post::{Post, RankEvent};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use subtle::ConstantTimeEq;
use tokio::io::{ReadHalf, WriteHalf};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};
use units::{ByteCount, Span};

/// Connections at once, attached or not. More wait in the socket's backlog.
const CONNECTIONS_MAX: usize = 256;
/// A connection that has not attached by then is closed.
const ATTACH_PATIENCE: Span = Span::from_secs(10);
/// How long a new trainer waits for the old one of its rank to be gone: a process that has
/// ended is noticed a moment later.
const HANDOVER_PATIENCE: Span = Span::from_secs(2);
/// Collectives that one rank may have posted and not got back.
pub const POSTS_MAX: usize = 256;
/// What a rank may be told before it reads: three events for each post, and epochs.
const EVENTS_MAX: usize = 4 * POSTS_MAX;

/// Names one trainer's connection; never used twice in a process.
pub type AttachmentId = u64;

/// What the engine hears from the local plane.
#[derive(Debug)]
pub enum LocalEvent {
    /// A trainer speaks for a rank.
    Attach {
        /// The job's group.
        group: GroupId,
        /// The rank.
        rank: RankId,
        /// The connection.
        attachment: AttachmentId,
        /// Where to tell it what happens.
        events: RankEvents,
    },
    /// A rank posted a collective.
    Post {
        /// The job's group.
        group: GroupId,
        /// The rank.
        rank: RankId,
        /// The connection.
        attachment: AttachmentId,
        /// What it posted.
        post: Post,
        /// What is to be reduced.
        contribution: MemSlice,
        /// Where the result goes.
        result: MemSlice,
    },
    /// A rank's connection is gone.
    Detach {
        /// The job's group.
        group: GroupId,
        /// The rank.
        rank: RankId,
        /// The connection.
        attachment: AttachmentId,
    },
}

impl LocalEvent {
    /// The group it concerns.
    pub fn group(&self) -> GroupId {
        match self {
            Self::Attach { group, .. } | Self::Post { group, .. } | Self::Detach { group, .. } => {
                *group
            }
        }
    }
}

/// Tells one rank what happens. Never waits: a trainer that does not read its events for so
/// long that they fill the queue is cut off.
#[derive(Debug, Clone)]
pub struct RankEvents {
    queue: mpsc::Sender<RankEvent>,
    cut_off: CancellationToken,
}

impl RankEvents {
    /// Tells the rank.
    pub fn send(&self, event: RankEvent) {
        if self.queue.try_send(event).is_err() {
            self.cut_off.cancel();
        }
    }
}

/// A job whose trainers this gateway serves.
#[derive(Debug, Clone)]
pub struct Job {
    /// Its name.
    pub name: String,
    /// What its trainers must show.
    pub token: [u8; TOKEN_BYTES],
    /// Memory that its arenas may have in all.
    pub memory: ByteCount,
    /// Its share of a link against that of other jobs.
    pub weight: NonZeroU32,
}

impl Job {
    /// Its group on the wire.
    pub fn group(&self) -> GroupId {
        GroupId::of(&self.name)
    }
}

/// What the local plane needs to know.
#[derive(Debug, Clone)]
pub struct LocalSpec {
    /// Ranks that this gateway serves.
    pub ranks: Range<u32>,
    /// Ranks in all.
    pub world_size: u32,
    /// The fabric's name.
    pub fabric: String,
    /// The jobs.
    pub jobs: Vec<Job>,
}

struct Server {
    host: Arc<dyn Host>,
    spec: LocalSpec,
    events: EventSender,
    shutdown: CancellationToken,
    next_attachment: AtomicU64,
    attached: Mutex<BTreeMap<(GroupId, RankId), AttachmentId>>,
    /// Some rank left.
    left: Notify,
    /// Arena bytes in use, by job.
    memory: Mutex<BTreeMap<GroupId, u64>>,
}

/// Serves the door until shutdown.
pub async fn serve(
    host: Arc<dyn Host>,
    door: Box<dyn Door>,
    spec: LocalSpec,
    events: EventSender,
    shutdown: CancellationToken,
) {
    let server = Arc::new(Server {
        host: Arc::clone(&host),
        spec,
        events,
        shutdown: shutdown.clone(),
        next_attachment: AtomicU64::new(1),
        attached: Mutex::new(BTreeMap::new()),
        left: Notify::new(),
        memory: Mutex::new(BTreeMap::new()),
    });
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(seat) = Arc::clone(&room).acquire_owned().await else { return };
        let visit = tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            visit = door.accept() => visit,
        };
        match visit {
            Ok(visit) => {
                let server = Arc::clone(&server);
                host.spawn(Box::pin(async move {
                    server.receive(visit).await;
                    drop(seat);
                }));
            }
            Err(error) => {
                warn!("a trainer could not be let in: {error}");
                host.sleep_until(host.now() + Span::from_ms(100)).await;
            }
        }
    }
}

/// A trainer that was let in.
struct Attached {
    rank: RankId,
    id: AttachmentId,
    arena: Arc<Arena>,
    group: GroupId,
}

impl Server {
    async fn receive(self: Arc<Self>, visit: BoxFuture<std::io::Result<Visit>>) {
        let attaching = async {
            let Visit { mut stream, memory } = visit.await.map_err(|error| error.to_string())?;
            let request = read_message(&mut stream).await.map_err(|error| error.to_string())?;
            Ok::<_, String>((stream, memory, request))
        };
        let came = tokio::select! {
            biased;
            came = attaching => came,
            () = self.host.sleep_until(self.host.now() + ATTACH_PATIENCE) => {
                Err("nothing said in time".to_owned())
            }
            () = self.shutdown.cancelled() => return,
        };
        let (mut stream, memory, request) = match came {
            Ok(came) => came,
            Err(why) => return debug!("a connection ended before it attached: {why}"),
        };
        let attached = match Request::decode(&request) {
            Ok(request) => {
                self.wait_for_predecessor(&request).await;
                self.admit(request, memory)
            }
            Err(error) => Err(error.to_string()),
        };
        match attached {
            Ok(attached) => self.attend(attached, stream).await,
            Err(why) => {
                warn!("a trainer was refused: {why}");
                let _ = write_message(&mut stream, &Response::Refused(why).encode()).await;
            }
        }
    }

    async fn wait_for_predecessor(&self, request: &Request) {
        let Request::Attach(attach) = request else { return };
        let deadline = self.host.now() + HANDOVER_PATIENCE;
        loop {
            let left = self.left.notified();
            if !lock(&self.attached).contains_key(&(GroupId::of(&attach.job), attach.rank)) {
                return;
            }
            tokio::select! {
                biased;
                () = left => {}
                () = self.host.sleep_until(deadline) => return,
            }
        }
    }

    fn admit(&self, request: Request, memory: super::door::Memory) -> Result<Attached, String> {
        let Request::Attach(Attach { version, job, token, rank, arena_bytes }) = request else {
            return Err("the first request must be an attach".to_owned());
        };
        if version != LOCAL_VERSION {
            let text = format!("the client speaks version {version}, the gateway {LOCAL_VERSION}");
            return Err(text);
        }
        // One answer for both, so that nobody learns which jobs there are.
        let known = self.spec.jobs.iter().find(|known| known.name == job);
        let proved = known.filter(|known| bool::from(known.token.ct_eq(&token)));
        let budget = proved.ok_or_else(|| format!("job `{job}`: no such job, or a wrong token"))?;
        if !self.spec.ranks.contains(&rank.0) {
            let Range { start, end } = self.spec.ranks;
            return Err(format!(
                "rank {rank} is not served here; this gateway serves {start}..{end}"
            ));
        }
        let arena = memory.open(arena_bytes).map_err(|error| error.to_string())?;
        let mut in_use = lock(&self.memory);
        let group = budget.group();
        let used = in_use.entry(group).or_default();
        if used.saturating_add(arena_bytes) > budget.memory.get() {
            let text = format!(
                "job `{job}` has {} of memory, {used} bytes in use; {arena_bytes} bytes asked for",
                budget.memory
            );
            return Err(text);
        }
        let mut attached = lock(&self.attached);
        if attached.contains_key(&(group, rank)) {
            return Err(format!("rank {rank} is attached already"));
        }
        let id = self.next_attachment.fetch_add(1, Ordering::Relaxed);
        attached.insert((group, rank), id);
        *used += arena_bytes;
        Ok(Attached { rank, id, arena, group })
    }

    async fn attend(&self, attached: Attached, stream: Box<dyn Duplex>) {
        let (reader, mut writer) = tokio::io::split(stream);
        let (group, rank, attachment) = (attached.group, attached.rank, attached.id);
        let (queue, told) = mpsc::channel(EVENTS_MAX);
        let cut_off = CancellationToken::new();
        let events = RankEvents { queue, cut_off: cut_off.clone() };
        let welcome = Response::Attached {
            version: LOCAL_VERSION,
            world_size: self.spec.world_size,
            fabric: self.spec.fabric.clone(),
        };
        let posted = Arc::new(Mutex::new(BTreeMap::new()));
        if write_message(&mut writer, &welcome.encode()).await.is_ok() {
            let event = LocalEvent::Attach { group, rank, attachment, events };
            let _ = self.events.send(Event::Local(event)).await;
            let why = tokio::select! {
                biased;
                () = self.shutdown.cancelled() => "gateway shutting down".to_owned(),
                () = cut_off.cancelled() => "it does not read its events".to_owned(),
                why = tell(told, &mut writer, &posted) => why,
                why = self.listen(&attached, reader, &posted) => why,
            };
            debug!("rank {rank}: {why}");
            let refusal = Response::Refused(why).encode();
            // Best effort, for a trainer that still reads.
            let goodbye = write_message(&mut writer, &refusal);
            tokio::select! {
                biased;
                _ = goodbye => {}
                () = self.host.sleep_until(self.host.now() + Span::from_ms(100)) => {}
            }
            let event = LocalEvent::Detach { group, rank, attachment };
            let _ = self.events.send(Event::Local(event)).await;
        }
        self.leave(&attached);
    }

    fn leave(&self, attached: &Attached) {
        lock(&self.attached).remove(&(attached.group, attached.rank));
        let mut in_use = lock(&self.memory);
        if let Some(used) = in_use.get_mut(&attached.group) {
            *used = used.saturating_sub(attached.arena.whole().len());
        }
        self.left.notify_waiters();
    }

    /// Reads requests until the trainer leaves or breaks the rules; returns why.
    async fn listen(
        &self,
        attached: &Attached,
        mut reader: ReadHalf<Box<dyn Duplex>>,
        posted: &Posted,
    ) -> String {
        loop {
            let bytes = match read_message(&mut reader).await {
                Ok(bytes) => bytes,
                Err(error) => return format!("connection ended: {error}"),
            };
            let request = match Request::decode(&bytes) {
                Ok(request) => request,
                Err(error) => return format!("a request that is none: {error}"),
            };
            let (post, slots) = match request {
                Request::Attach(_) => return "attached twice".to_owned(),
                Request::Detach => return "detached".to_owned(),
                Request::Post { post, contribution_offset, result_offset } => {
                    let bytes = post.descriptor.elements.checked_mul(post.descriptor.dtype.size());
                    let slots = slots(&attached.arena, bytes, contribution_offset, result_offset);
                    (post, slots)
                }
            };
            let (contribution, result) = match slots {
                Ok(slots) => slots,
                Err(text) => return text,
            };
            if let Err(text) = admit_post(posted, &post, &contribution, &result) {
                return text;
            }
            let (group, rank, attachment) = (attached.group, attached.rank, attached.id);
            let event = LocalEvent::Post { group, rank, attachment, post, contribution, result };
            if self.events.send(Event::Local(event)).await.is_err() {
                return "gateway shutting down".to_owned();
            }
        }
    }
}

/// Slots that the gateway may read and write, by collective.
type Posted = Mutex<BTreeMap<Sequence, (MemSlice, MemSlice)>>;

fn admit_post(
    posted: &Posted,
    post: &Post,
    contribution: &MemSlice,
    result: &MemSlice,
) -> Result<(), String> {
    let mut posted = lock(posted);
    let sequence = post.sequence;
    if posted.contains_key(&sequence) {
        return Err(format!("collective {sequence} was posted twice"));
    }
    if posted.len() >= POSTS_MAX {
        return Err(format!("{POSTS_MAX} collectives are under way already"));
    }
    let in_use = posted.values().any(|(theirs, out)| {
        // Contributions are only read, so two collectives may share one.
        out.overlaps(contribution) || out.overlaps(result) || theirs.overlaps(result)
    });
    if in_use {
        return Err(format!("a slot of collective {sequence} is still in use by another"));
    }
    posted.insert(sequence, (contribution.clone(), result.clone()));
    Ok(())
}

fn slots(
    arena: &Arc<Arena>,
    bytes: Option<u64>,
    contribution: u64,
    result: u64,
) -> Result<(MemSlice, MemSlice), String> {
    let whole = arena.whole();
    let slot = |which: &str, offset: u64| {
        let end = bytes.and_then(|bytes| offset.checked_add(bytes));
        let end = end.filter(|end| *end <= whole.len());
        let end = end.ok_or_else(|| {
            format!(
                "the {which} slot at {offset} reaches beyond the arena of {} bytes",
                whole.len()
            )
        })?;
        if offset.is_multiple_of(ALIGN_BYTES) {
            Ok(whole.slice(offset..end))
        } else {
            Err(format!("the {which} slot at {offset} is not at a multiple of {ALIGN_BYTES}"))
        }
    };
    let (contribution, result) = (slot("contribution", contribution)?, slot("result", result)?);
    if contribution.overlaps(&result) {
        return Err("contribution and result slot overlap".to_owned());
    }
    Ok((contribution, result))
}

/// Writes events until the connection ends; returns why.
async fn tell(
    mut told: mpsc::Receiver<RankEvent>,
    writer: &mut WriteHalf<Box<dyn Duplex>>,
    posted: &Posted,
) -> String {
    while let Some(event) = told.recv().await {
        if let RankEvent::ContributionFree { sequence } | RankEvent::Failed { sequence, .. } = event
        {
            lock(posted).remove(&sequence);
        }
        if let Err(error) = write_message(writer, &Response::Event(event).encode()).await {
            return format!("connection ended: {error}");
        }
    }
    "gateway shutting down".to_owned()
}

/// A panic elsewhere leaves these tables whole: each is changed in one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
