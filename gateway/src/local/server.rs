//! Serves the trainers of this host: one task each, which checks everything that comes in
//! before the engine hears of it.

use super::attachments::{Attachments, RankReservation};
use super::job::{JobSpec, LocalSpec};
use super::listener::{
    AcceptedConnection, ArenaHandle, Duplex, IncomingConnection, TrainerListener,
};
use super::operator::{OperatorRequest, OperatorResponse};
use super::protocol::{
    Attach, LOCAL_VERSION, Request, Response, TOKEN_BYTES, Token, framed, read_message,
    write_message,
};
use crate::admission::{AdmissionControl, AdmissionSlot};
use crate::engine::{Event, EventSender, RateChange};
use crate::host::{BoxFuture, Host};
use crate::log_throttle::LogThrottle;
use crate::memory::arena::{ALIGN_BYTES, Arena, MemSlice};
use crate::sync::lock;
use hier_collectives::ids::{GroupId, RankId, Sequence};
use hier_collectives::post::{Commit, Post, RankEvent};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncWriteExt, BufReader, ReadHalf, WriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};
use units::Span;

/// Connections that have not attached yet. One more, and the oldest of the user with the most
/// gives way. Those that have attached are as many as jobs have ranks.
const VISITORS_MAX: usize = 256;
/// Visitors come in no faster than this once half of the seats are taken: letting in as many as
/// knock took half a core from those who work. Timers add up to a millisecond.
const CROWDED_EVERY: Span = Span::from_ns(500_000);
/// A connection that has not attached by then is closed.
const ATTACH_PATIENCE: Span = Span::from_secs(10);
/// Collectives that one rank may have posted and not got back.
pub const POSTS_MAX: usize = 256;
/// Posts of one rank that may wait for the engine: a rank that posts without end does not fill
/// the queue that it shares with others.
const TURNS: usize = 8;
/// What a rank may be told before it reads: three events for each post, and epochs.
const EVENTS_MAX: usize = 4 * POSTS_MAX;

/// Events that are written together, where so many have come: mostly that a result is ready and
/// that its contribution is free.
const TOLD_AT_ONCE: usize = 8;

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
        /// The rank may have another post wait once this is dropped.
        turn: OwnedSemaphorePermit,
    },
    /// A rank commits a step.
    Commit {
        /// The job's group.
        group: GroupId,
        /// The rank.
        rank: RankId,
        /// The connection.
        attachment: AttachmentId,
        /// What it commits.
        commit: Commit,
        /// As for a post.
        turn: OwnedSemaphorePermit,
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
            Self::Attach { group, .. }
            | Self::Post { group, .. }
            | Self::Commit { group, .. }
            | Self::Detach { group, .. } => *group,
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

struct Server {
    host: Arc<dyn Host>,
    spec: LocalSpec,
    events: EventSender,
    shutdown: CancellationToken,
    next_attachment: AtomicU64,
    places: Arc<Attachments>,
    refusals: LogThrottle,
}

/// Serves the door until shutdown.
pub async fn serve(
    host: Arc<dyn Host>,
    door: Box<dyn TrainerListener>,
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
        places: Arc::default(),
        refusals: LogThrottle::default(),
    });
    let seats = AdmissionControl::new(VISITORS_MAX);
    loop {
        let knock = tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            knock = door.accept() => knock,
        };
        match knock {
            Ok(IncomingConnection { user, handshake }) => {
                let (server, seat) = (Arc::clone(&server), seats.take(user));
                host.spawn(Box::pin(server.receive(user, handshake, seat)));
                if seats.is_half_full() {
                    host.sleep_until(host.now() + CROWDED_EVERY).await;
                } else {
                    // Between two visitors everybody else has a turn.
                    tokio::task::yield_now().await;
                }
            }
            Err(error) => {
                warn!("a trainer could not be let in: {error}");
                host.sleep_until(host.now() + Span::from_ms(100)).await;
            }
        }
    }
}

/// A trainer that may attach, and the memory that it brings.
struct PendingAttachment {
    place: RankReservation,
    memory: ArenaHandle,
    arena_bytes: u64,
}

/// A trainer that was let in.
struct Attached {
    place: RankReservation,
    id: AttachmentId,
    arena: Arc<Arena>,
}

impl Server {
    async fn receive(
        self: Arc<Self>,
        user: u32,
        handshake: BoxFuture<std::io::Result<AcceptedConnection>>,
        seat: AdmissionSlot<u32>,
    ) {
        let let_in = tokio::select! {
            biased;
            () = self.shutdown.cancelled() => return,
            let_in = self.let_in(user, handshake) => let_in,
            () = seat.revoked() => return debug!("a visitor made room for others"),
            () = self.host.sleep_until(self.host.now() + ATTACH_PATIENCE) => {
                return debug!("a visitor did not attach in time");
            }
        };
        // It has a place of its own from here on: what follows takes as long as it takes.
        drop(seat);
        let attended = match let_in {
            Ok(Some((admitted, mut stream))) => match self.open(admitted).await {
                Ok(attached) => {
                    self.attend(attached, stream).await;
                    return;
                }
                Err(why) => self.refuse(&mut stream, why).await,
            },
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = attended {
            debug!("a connection ended before it attached: {error}");
        }
    }

    /// `None` when it was refused, or was an operator, who is served.
    async fn let_in(
        &self,
        user: u32,
        handshake: BoxFuture<std::io::Result<AcceptedConnection>>,
    ) -> std::io::Result<Option<(PendingAttachment, Box<dyn Duplex>)>> {
        let AcceptedConnection { mut stream, memory } = handshake.await?;
        let Some(memory) = memory else {
            let answer = self.operate(user, &read_message(&mut stream).await?).await;
            let answer = serde_json::to_vec(&answer).expect("keys are strings");
            write_message(&mut stream, &answer).await?;
            return Ok(None);
        };
        let request = Request::decode(&read_message(&mut stream).await?);
        let admitted = match request {
            Ok(request) => self.admit(request, memory).await,
            Err(error) => Err(error.to_string()),
        };
        match admitted {
            Ok(admitted) => Ok(Some((admitted, stream))),
            Err(why) => self.refuse(&mut stream, why).await.map(|()| None),
        }
    }

    async fn refuse(&self, stream: &mut Box<dyn Duplex>, why: String) -> std::io::Result<()> {
        if let Some(unsaid) = self.refusals.permit(self.host.now()) {
            warn!("a trainer was refused: {why}{unsaid}");
        }
        write_message(stream, &Response::Refused(why).encode()).await
    }

    /// Trainers of other users may be let in by the socket's mode; rates are for this user.
    async fn operate(&self, user: u32, wish: &[u8]) -> OperatorResponse {
        if user != 0 && user != rustix::process::geteuid().as_raw() {
            return OperatorResponse::Refused("only the gateway's own user may do that".to_owned());
        }
        let wish: OperatorRequest = match serde_json::from_slice(wish) {
            Ok(wish) => wish,
            Err(error) => return OperatorResponse::Refused(format!("not understood: {error}")),
        };
        let (reply, held) = oneshot::channel();
        let change = RateChange::from(&wish);
        let _ = self.events.send(Event::Hold { change, reply }).await;
        match held.await {
            Ok(Ok(link)) => OperatorResponse::Held(link),
            Ok(Err(error)) => OperatorResponse::Refused(error.to_string()),
            Err(_) => OperatorResponse::Refused("the gateway is stopping".to_owned()),
        }
    }

    async fn admit(
        &self,
        request: Request,
        memory: ArenaHandle,
    ) -> Result<PendingAttachment, String> {
        let Request::Attach(attach) = request else {
            return Err("the first request must be an attach".to_owned());
        };
        let theirs = attach.version;
        if theirs != LOCAL_VERSION {
            return Err(format!("the client speaks version {theirs}, the gateway {LOCAL_VERSION}"));
        }
        let job = self.proved(&attach)?;
        if !self.spec.ranks.contains(&attach.rank.0) {
            let (rank, Range { start, end }) = (attach.rank, self.spec.ranks.clone());
            return Err(format!(
                "rank {rank} is not served here; this gateway serves {start}..{end}"
            ));
        }
        self.places.wait_for_predecessor(&*self.host, job.group(), attach.rank).await;
        let place = self.places.take(job, attach.rank, attach.arena_bytes)?;
        Ok(PendingAttachment { place, memory, arena_bytes: attach.arena_bytes })
    }

    async fn open(&self, admitted: PendingAttachment) -> Result<Attached, String> {
        let PendingAttachment { mut place, memory, arena_bytes } = admitted;
        let arena = self.map(memory, arena_bytes).await?;
        place.holds(&arena);
        let id = self.next_attachment.fetch_add(1, Ordering::Relaxed);
        Ok(Attached { place, id, arena })
    }

    /// The job, for who knows its token. One answer for all others, after the same work, so
    /// that nobody learns which jobs there are.
    fn proved(&self, attach: &Attach) -> Result<&JobSpec, String> {
        let known = self.spec.jobs.iter().find(|known| known.name == attach.job);
        let token = known.map_or(Token([0; TOKEN_BYTES]), |known| known.token);
        let same = token == attach.token;
        let proved = known.filter(|_| same);
        proved.ok_or_else(|| format!("job `{}`: no such job, or a wrong token", attach.job))
    }

    /// Maps an arena where it holds up nobody: a large one takes a while.
    async fn map(&self, memory: ArenaHandle, bytes: u64) -> Result<Arc<Arena>, String> {
        let (done, opened) = oneshot::channel();
        let open = move || {
            // Whoever asked may have gone.
            let _ = done.send(memory.open(bytes));
        };
        let _ = self.host.run_blocking(Box::new(open)).await;
        let opened = opened.await.map_err(|_| "the arena could not be mapped".to_owned())?;
        opened.map_err(|error| error.to_string())
    }

    async fn attend(&self, attached: Attached, stream: Box<dyn Duplex>) {
        let (reader, mut writer) = tokio::io::split(stream);
        let (RankReservation { group, rank, .. }, attachment) = (&attached.place, attached.id);
        let (group, rank) = (*group, *rank);
        let (queue, mut told) = mpsc::channel(EVENTS_MAX);
        let cut_off = CancellationToken::new();
        let events = RankEvents { queue, cut_off: cut_off.clone() };
        let welcome = Response::Attached {
            version: LOCAL_VERSION,
            world_size: self.spec.world_size,
            fabric: self.spec.fabric.clone(),
        };
        let posted = Arc::new(Mutex::new(BTreeMap::new()));
        if write_message(&mut writer, &welcome.encode()).await.is_err() {
            return;
        }
        let event = LocalEvent::Attach { group, rank, attachment, events };
        let _ = self.events.send(Event::Local(event)).await;
        let why = tokio::select! {
            biased;
            () = self.shutdown.cancelled() => "gateway shutting down".to_owned(),
            () = cut_off.cancelled() => "it does not read its events".to_owned(),
            why = tell(&mut told, &mut writer, &posted) => why,
            why = self.listen(&attached, reader, &posted) => why,
        };
        debug!("rank {rank}: {why}");
        let refusal = Response::Refused(why).encode();
        // Best effort, for a trainer that still reads.
        let goodbye = async {
            while let Ok(event) = told.try_recv() {
                write_message(&mut writer, &Response::Event(event).encode()).await?;
            }
            write_message(&mut writer, &refusal).await
        };
        tokio::select! {
            biased;
            _ = goodbye => {}
            () = self.host.sleep_until(self.host.now() + Span::from_ms(100)) => {}
        }
        let event = LocalEvent::Detach { group, rank, attachment };
        let _ = self.events.send(Event::Local(event)).await;
    }

    /// Reads requests until the trainer leaves or breaks the rules; returns why.
    async fn listen(
        &self,
        attached: &Attached,
        reader: ReadHalf<Box<dyn Duplex>>,
        posted: &Posted,
    ) -> String {
        // A message and its length in one read.
        let mut reader = BufReader::new(reader);
        let turns = Arc::new(Semaphore::new(TURNS));
        loop {
            let bytes = match read_message(&mut reader).await {
                Ok(bytes) => bytes,
                Err(error) => return format!("connection ended: {error}"),
            };
            let request = match Request::decode(&bytes) {
                Ok(request) => request,
                Err(error) => return format!("a request that is none: {error}"),
            };
            let (RankReservation { group, rank, .. }, attachment) = (&attached.place, attached.id);
            let (group, rank) = (*group, *rank);
            let Ok(turn) = Arc::clone(&turns).acquire_owned().await else {
                return "gateway shutting down".to_owned();
            };
            let (post, slots) = match request {
                Request::Attach(_) => return "attached twice".to_owned(),
                Request::Detach => return "detached".to_owned(),
                Request::Commit(commit) => {
                    let event = LocalEvent::Commit { group, rank, attachment, commit, turn };
                    if self.events.send(Event::Local(event)).await.is_err() {
                        return "gateway shutting down".to_owned();
                    }
                    continue;
                }
                Request::Post { .. } if !attached.arena.is_whole() => {
                    return "memory of the arena was given back while it was attached: a hole was \
                            punched in the memfd"
                        .to_owned();
                }
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
            let event =
                LocalEvent::Post { group, rank, attachment, post, contribution, result, turn };
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
    told: &mut mpsc::Receiver<RankEvent>,
    writer: &mut WriteHalf<Box<dyn Duplex>>,
    posted: &Posted,
) -> String {
    let mut events = Vec::with_capacity(TOLD_AT_ONCE);
    while told.recv_many(&mut events, TOLD_AT_ONCE).await > 0 {
        let mut frames = Vec::new();
        for event in events.drain(..) {
            if let RankEvent::ContributionFree { sequence } | RankEvent::Failed { sequence, .. } =
                event
            {
                lock(posted).remove(&sequence);
            }
            frames.extend(framed(&Response::Event(event).encode()));
        }
        if let Err(error) = writer.write_all(&frames).await {
            return format!("connection ended: {error}");
        }
    }
    "gateway shutting down".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::VirtualHost;
    use wan_sim::VirtualNet;

    /// Of a crowd within five seconds.
    const MOST: u64 = VISITORS_MAX as u64 / 2 + 5_000_000_000 / CROWDED_EVERY.ns() + 1;

    /// Where somebody who never says a word always waits.
    struct Besieged(AtomicU64);

    impl TrainerListener for Arc<Besieged> {
        fn accept(&self) -> BoxFuture<std::io::Result<IncomingConnection>> {
            // Virtual time stands still for a server that lets in all who knock.
            assert!(self.0.fetch_add(1, Ordering::Relaxed) < MOST, "too many came in");
            Box::pin(async {
                Ok(IncomingConnection { user: 1, handshake: Box::pin(std::future::pending()) })
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_comes_in_at_a_bounded_rate() {
        let host = Arc::new(VirtualHost::new(VirtualNet::new(), 1));
        let door = Arc::new(Besieged(AtomicU64::new(0)));
        let spec = LocalSpec { ranks: 0..1, world_size: 1, fabric: "one".to_owned(), jobs: vec![] };
        let (events, _heard) = mpsc::channel(1);
        let shutdown = CancellationToken::new();
        let serving =
            serve(Arc::clone(&host) as _, Box::new(Arc::clone(&door)), spec, events, shutdown);
        tokio::select! {
            () = serving => panic!("nobody shut it down"),
            () = host.sleep_until(host.now() + Span::from_secs(5)) => {}
        }
        let let_in = door.0.load(Ordering::Relaxed);
        assert!(let_in > MOST / 4, "only {let_in} came in");
    }
}
