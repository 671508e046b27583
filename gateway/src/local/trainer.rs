//! One attached trainer: reads its requests, and writes the events of its rank.
//!
//! [`serve_trainer`] runs in the trainer's task, which [`super::local_server`] spawned. It sends
//! the engine [`LocalEvent`]s and receives [`RankEvent`]s over the queue that it hands the engine
//! at the start.

use super::attachments::Attachment;
use super::event_writer::EventWriter;
use super::job_spec::{JobSpec, LocalSpec};
use super::protocol::{
    LOCAL_VERSION, MakeGroup, PIECE_BYTES_MAX, POSTS_MAX, ProtocolRequest, ProtocolResponse,
    STORE_REQUESTS_MAX, read_protocol_message,
};
use super::refusal::{Refusal, RefusalReason};
use super::remote::pieces::{
    PieceReceiver, is_contribution_sent_in_pieces, is_result_sent_in_pieces,
};
use super::remote::streamed_post::{PieceNews, StreamedPost};
use super::slots_in_use::{GroupCollective, PostSlots, RankPlace, SlotsInUse};
use super::trainer_groups::TrainerGroups;
use super::trainer_listener::{TrainerStream, Transport};
use crate::events::{
    Event, EventSender, GROUPS_MAX, GroupNumber, LocalEvent, LocalRankEvents, PlacedResults,
};
use crate::host::Host;
use crate::lock::lock_ignoring_poison;
use hier_collectives::ids::{GroupId, RankId};
use hier_collectives::post::{Post, RankEvent};
use hier_collectives::session::{ContributionMisfit, PostTransport};
use std::io;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncRead, BufReader, ReadHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tracing::debug;
use units::Span;

/// 8 requests, such as posts and commits: the most that one rank may have waiting in the engine's
/// queue. Then the gateway reads no further request of the trainer until the engine has handled
/// one. So a busy rank cannot fill the queue that all ranks share.
const QUEUED_REQUESTS_MAX: usize = 8;
/// 17,408 events of one rank: the most that may wait to be written to its trainer. At one more the
/// trainer is disconnected. Each of 256 posts and 4,096 groups has up to four events, and the store
/// has events too.
/// Tested by `the_end_of_many_groups_keeps_the_connection`.
const RANK_EVENTS_MAX: usize = 4 * (POSTS_MAX + GROUPS_MAX);
/// 8 events: the most that are written to a trainer with one system call; further events follow
/// with the next call. Mostly a batch is "result ready" and "contribution free" of one collective.
const WRITE_BATCH_EVENTS_MAX: usize = 8;
/// 4 pieces of results, 1 MiB: the most that are encrypted and written together. Fewer, larger writes
/// wake the trainer less often.
const WRITE_PIECES_MAX: usize = 4;
/// 100 ms: the longest time for which the gateway writes a trainer's last events, and the reason of
/// the disconnection. After that the gateway closes the connection, and drops events that are not
/// written. So a trainer that does not read delays its own end by no more than this.
pub const LAST_WRITE_TIMEOUT: Span = Span::from_ms(100);

/// The requests of a trainer that were taken and have not ended.
#[derive(Debug)]
struct TrainerRequests {
    slots: SlotsInUse,
    /// The requests to the store that may be added.
    store: Semaphore,
    /// The ranks with which the job goes on, as the trainer was told last; `None` while all do.
    world: Mutex<Option<Vec<RankId>>>,
}

impl Default for TrainerRequests {
    /// Makes the requests of a trainer that has just attached: none.
    fn default() -> Self {
        Self {
            slots: SlotsInUse::default(),
            store: Semaphore::new(STORE_REQUESTS_MAX),
            world: Mutex::default(),
        }
    }
}

impl TrainerRequests {
    /// Returns the place of a rank among those with which its job goes on. `None` while all do, or
    /// if the rank is not among them.
    fn place_in_world(&self, rank: RankId) -> Option<RankPlace> {
        let world = lock_ignoring_poison(&self.world);
        let ranks = world.as_ref()?;
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let rank = RankId(number(ranks.binary_search(&rank).ok()?));
        Some(RankPlace { rank, world_size: number(ranks.len()) })
    }

    /// Takes one of the [`STORE_REQUESTS_MAX`] places that a trainer has for requests to the store.
    /// The place is given back with the answer.
    ///
    /// # Errors
    /// The last message to the trainer: no place is free.
    fn take_store_place(&self) -> Result<(), Refusal> {
        let Ok(place) = self.store.try_acquire() else {
            let why = format!("more than {STORE_REQUESTS_MAX} requests to the store at once");
            return Err(Refusal::bad_request(why));
        };
        place.forget();
        Ok(())
    }
}

/// The groups of a trainer and the post whose contribution comes, as its requests have said.
struct TrainerReading {
    groups: TrainerGroups,
    /// The last post behind which bytes come.
    streamed: Option<StreamedPost>,
    pieces: PieceReceiver,
}

/// The trainer's ends of its two queues from the engine: events, and parts of results.
struct TrainerEventsOut {
    rank_events: mpsc::Receiver<(GroupNumber, RankEvent)>,
    placed: Arc<PlacedResults>,
}

/// The parts of the gateway that a trainer's task uses.
pub(super) struct TrainerContext<'g> {
    pub host: &'g dyn Host,
    pub spec: &'g LocalSpec,
    pub events: &'g EventSender,
    pub shutdown: &'g CancellationToken,
}

/// Serves a trainer until it detaches, breaks a rule or is gone, or the gateway stops.
pub(super) async fn serve_trainer(
    context: TrainerContext<'_>,
    attachment: Attachment,
    stream: Box<dyn TrainerStream>,
) {
    let (reader, writer) = tokio::io::split(stream);
    let mut writer = EventWriter::new(writer);
    let (group, rank) = (attachment.reservation.group, attachment.reservation.rank);
    let id = attachment.id;
    let (queue, rank_events) = mpsc::channel(RANK_EVENTS_MAX);
    let overflowed = CancellationToken::new();
    let under_way = TrainerRequests::default();
    let welcome = ProtocolResponse::Attached {
        version: LOCAL_VERSION,
        world_size: context.spec.world_size,
        fabric: context.spec.fabric.clone(),
    };
    writer.queue(&welcome);
    if writer.flush().await.is_err() {
        return;
    }
    let placed = Arc::new(PlacedResults::default());
    let events = LocalRankEvents::new(queue, Arc::clone(&placed), overflowed.clone());
    let mut events_out = TrainerEventsOut { rank_events, placed };
    let attach = LocalEvent::Attach { group, rank, attachment: id, events };
    let _ = context.events.send(Event::Local(attach)).await;
    let refusal = tokio::select! {
        biased;
        () = context.shutdown.cancelled() => refuse_trainer_at_shutdown(),
        () = overflowed.cancelled() => refuse_detached_trainer("it does not read its events"),
        () = wait_until_trainer_job_removed(context.spec, group) => refuse_trainer_without_job(),
        refusal = write_trainer_events(&mut events_out, &mut writer, &under_way) => refusal,
        refusal = read_trainer_requests(&context, &attachment, reader, &under_way) => refusal,
    };
    debug!("rank {rank}: {refusal}");
    let refusal = ProtocolResponse::Refused(refusal);
    // Best effort, for a trainer that still reads.
    let farewell = async {
        while let Ok(event) = events_out.rank_events.try_recv() {
            queue_trainer_event(event, &events_out.placed, &mut writer, &under_way).await?;
        }
        writer.queue(&refusal);
        writer.flush().await?;
        writer.shut_down().await
    };
    tokio::select! {
        biased;
        _ = farewell => {}
        () = context.host.sleep_until(context.host.now() + LAST_WRITE_TIMEOUT) => {}
    }
    let detach = LocalEvent::Detach { group, rank, attachment: id };
    let _ = context.events.send(Event::Local(detach)).await;
}

/// Makes the last message to a trainer whose gateway stops.
fn refuse_trainer_at_shutdown() -> Refusal {
    Refusal::new(RefusalReason::ShuttingDown, "gateway shutting down")
}

/// Makes the last message to a trainer that is gone or too slow, for the reason `why`.
fn refuse_detached_trainer(why: impl Into<String>) -> Refusal {
    Refusal::new(RefusalReason::Detached, why)
}

/// Makes the last message to a trainer whose job is no longer served.
fn refuse_trainer_without_job() -> Refusal {
    let why = "the job was removed from the gateway's region file";
    Refusal::new(RefusalReason::Unauthorized, why)
}

/// Waits until the region file has the job of a trainer no more.
async fn wait_until_trainer_job_removed(spec: &LocalSpec, group: GroupId) {
    let mut jobs = spec.jobs.clone();
    let is_removed = |jobs: &Arc<Vec<JobSpec>>| jobs.iter().all(|job| job.group() != group);
    let removed = jobs.wait_for(is_removed).await.is_ok();
    if !removed {
        // Nobody replaces the jobs any more: the gateway stops.
        std::future::pending::<()>().await;
    }
}

/// Reads requests and hands them to the engine until the trainer leaves or breaks a rule; returns
/// the last message to it.
async fn read_trainer_requests(
    context: &TrainerContext<'_>,
    attachment: &Attachment,
    reader: ReadHalf<Box<dyn TrainerStream>>,
    under_way: &TrainerRequests,
) -> Refusal {
    // The buffer takes a message and its length with one read.
    let mut reader = BufReader::new(reader);
    let permits = Arc::new(Semaphore::new(QUEUED_REQUESTS_MAX));
    let rank = attachment.reservation.rank;
    let groups = TrainerGroups::of_rank(RankPlace { rank, world_size: context.spec.world_size });
    let mut reading = TrainerReading { groups, streamed: None, pieces: PieceReceiver::new() };
    loop {
        let request = match read_trainer_request(&mut reader).await {
            Ok(request) => request,
            Err(refusal) => return refusal,
        };
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else {
            return refuse_trainer_at_shutdown();
        };
        let event = match request {
            ProtocolRequest::ContributionPiece { offset, bytes } => {
                let (piece, reading) = ((offset, bytes), &mut reading);
                receive_trainer_piece(attachment, reading, under_way, &mut reader, piece, permit)
                    .await
            }
            request => trainer_event(attachment, &mut reading, under_way, request, permit),
        };
        match event {
            Ok(None) => {}
            Ok(Some(event)) => {
                if context.events.send(Event::Local(event)).await.is_err() {
                    return refuse_trainer_at_shutdown();
                }
            }
            Err(refusal) => return refusal,
        }
    }
}

/// Converts a request of an attached trainer into an event for the engine; `None` for a post that
/// waits for its first bytes. Notes groups that the trainer makes or leaves, and the requests that
/// are under way.
///
/// # Errors
/// The last message to the trainer: it leaves, or broke a rule.
fn trainer_event(
    attachment: &Attachment,
    reading: &mut TrainerReading,
    under_way: &TrainerRequests,
    request: ProtocolRequest,
    permit: OwnedSemaphorePermit,
) -> Result<Option<LocalEvent>, Refusal> {
    check_trainer_bytes_came(reading, under_way, &request)?;
    let groups = &mut reading.groups;
    let (group, rank) = (attachment.reservation.group, attachment.reservation.rank);
    let id = attachment.id;
    let (number, request) = match request {
        ProtocolRequest::InGroup(number, request) => (number, *request),
        request => (GroupNumber::JOB, request),
    };
    let Some(place) = groups.place(number) else {
        return Err(Refusal::bad_request(format!("group {} is not one of this rank", number.0)));
    };
    let in_world = under_way.place_in_world(rank).filter(|_| number == GroupNumber::JOB);
    let place = in_world.unwrap_or(place);
    Ok(Some(match request {
        ProtocolRequest::InGroup(..) => return Err(Refusal::bad_request("a group in a group")),
        ProtocolRequest::MakeGroup(making) => {
            groups.add_group(&making).map_err(Refusal::bad_request)?;
            let MakeGroup { number, parent, place, ranks } = making;
            let attachment = id;
            LocalEvent::MakeGroup { group, rank, attachment, number, parent, place, ranks, permit }
        }
        ProtocolRequest::LeaveGroup(number) => {
            if under_way.slots.has_slots_of(number) || !groups.remove_group(number) {
                return Err(Refusal::bad_request(format!(
                    "group {} is not one of this rank, or has collectives under way",
                    number.0
                )));
            }
            LocalEvent::LeaveGroup { group, rank, attachment: id, number, permit }
        }
        ProtocolRequest::Attach(_) => return Err(Refusal::bad_request("attached twice")),
        ProtocolRequest::Detach => return Err(refuse_detached_trainer("detached")),
        ProtocolRequest::ContributionPiece { .. } => unreachable!("received above"),
        ProtocolRequest::Commit(commit) => {
            LocalEvent::Commit { group, rank, attachment: id, number, commit, permit }
        }
        ProtocolRequest::Store { number, timeout, request } => {
            under_way.take_store_place()?;
            let request = Box::new(request);
            LocalEvent::Store { group, rank, attachment: id, number, timeout, request, permit }
        }
        ProtocolRequest::Post { .. } if !attachment.arena.is_whole() => {
            return Err(Refusal::bad_request(
                "memory of the arena was given back while it was attached: a hole was \
                 punched in the memfd",
            ));
        }
        request @ ProtocolRequest::Post { .. } => {
            let in_group = (number, place);
            return trainer_post_event(attachment, reading, under_way, in_group, request, permit);
        }
    }))
}

/// Converts a post into an event for the engine; `None` while it waits for its first bytes. Returns
/// none for another request, too.
///
/// # Errors
/// The last message to the trainer: the post breaks a rule.
fn trainer_post_event(
    attachment: &Attachment,
    reading: &mut TrainerReading,
    under_way: &TrainerRequests,
    (number, place): (GroupNumber, RankPlace),
    request: ProtocolRequest,
    permit: OwnedSemaphorePermit,
) -> Result<Option<LocalEvent>, Refusal> {
    let ProtocolRequest::Post { post, contribution_offset, result_offset, streamed_bytes } =
        request
    else {
        return Ok(None);
    };
    let (group, rank) = (attachment.reservation.group, attachment.reservation.rank);
    let id = attachment.id;
    let offsets = [contribution_offset, result_offset];
    let located = locate_trainer_post(attachment, under_way, (number, place), &post, offsets);
    let slots = located.map_err(Refusal::bad_request)?;
    let pattern = post.descriptor.pattern;
    let is_awaited = attachment.transport == Transport::Streamed
        && is_contribution_sent_in_pieces(pattern, place.rank)
        && !slots.contribution.is_empty();
    let (slot, collective) = (slots.contribution.clone(), (number, post.sequence));
    let misfit = ContributionMisfit { announced: streamed_bytes, contribution: slot.len() };
    let is_misfit = is_awaited && misfit.announced != misfit.contribution;
    let event = LocalEvent::Post {
        group,
        rank,
        attachment: id,
        number,
        post: Box::new(post),
        contribution: slots.contribution,
        result: slots.result,
        transport: PostTransport {
            missing_from: is_awaited.then_some(0),
            reports_result: attachment.transport == Transport::Streamed
                && is_result_sent_in_pieces(pattern, place.rank),
            misfit: is_misfit.then_some(misfit),
        },
        permit,
    };
    if streamed_bytes == 0 {
        return Ok(Some(event));
    }
    if attachment.transport == Transport::Shared {
        let why = "a post with bytes behind it, though the arena is shared";
        return Err(Refusal::bad_request(why));
    }
    let slot = Some(slot).filter(|_| is_awaited && !is_misfit);
    let (streamed, event) = StreamedPost::new(collective, slot, streamed_bytes, event);
    reading.streamed = Some(streamed);
    Ok(event)
}

/// Checks that a request does not come in place of bytes that an earlier post announced. Those of a
/// collective that has ended may be left out.
///
/// # Errors
/// The last message to the trainer: bytes are missing.
fn check_trainer_bytes_came(
    reading: &TrainerReading,
    under_way: &TrainerRequests,
    request: &ProtocolRequest,
) -> Result<(), Refusal> {
    let awaited = reading.streamed.as_ref().filter(|post| {
        post.missing_from().is_some() && under_way.slots.has_slots_of_collective(post.collective())
    });
    match awaited {
        Some(post) if *request != ProtocolRequest::Detach => {
            Err(Refusal::bad_request(post.interruption_text()))
        }
        _ => Ok(()),
    }
}

/// Locates the slots of a post in the arena, and reserves them.
///
/// # Errors
/// The reason why the post breaks a rule.
fn locate_trainer_post(
    attachment: &Attachment,
    under_way: &TrainerRequests,
    (number, place): (GroupNumber, RankPlace),
    post: &Post,
    offsets: [u64; 2],
) -> Result<PostSlots, String> {
    let streams_result = attachment.transport == Transport::Streamed
        && is_result_sent_in_pieces(post.descriptor.pattern, place.rank);
    let located = PostSlots::locate(&attachment.arena, post, place, offsets)?;
    under_way.slots.reserve_slots((number, post.sequence), &located, streams_result)?;
    Ok(located)
}

/// Receives a piece, by its offset and length, of the contribution that was posted last. Returns the
/// event that tells the engine of it; `None` for bytes that nobody reads.
///
/// # Errors
/// The last message to the trainer: the connection ended, or the piece belongs nowhere.
async fn receive_trainer_piece(
    attachment: &Attachment,
    reading: &mut TrainerReading,
    under_way: &TrainerRequests,
    reader: &mut (impl AsyncRead + Unpin),
    (offset, bytes): (u64, u32),
    permit: OwnedSemaphorePermit,
) -> Result<Option<LocalEvent>, Refusal> {
    let TrainerReading { streamed, pieces, .. } = reading;
    if attachment.transport == Transport::Shared {
        return Err(Refusal::bad_request("a piece, though the arena is shared"));
    }
    let Some(streamed) = streamed else {
        return Err(Refusal::bad_request("a piece, though nothing was posted"));
    };
    let (number, sequence) = streamed.collective();
    if !under_way.slots.has_slots_of_collective((number, sequence)) {
        streamed.stop_reading_post();
    }
    let place = streamed.place_of_piece(offset, bytes).map_err(Refusal::bad_request)?;
    let put = |at, part: &[u8]| {
        if let Some(place) = &place {
            place.copy_from_bytes(at, part);
        }
    };
    pieces.receive(reader, bytes, put).await.map_err(trainer_gone)?;
    let (group, rank) = (attachment.reservation.group, attachment.reservation.rank);
    let attachment = attachment.id;
    Ok(match streamed.note_piece(bytes) {
        PieceNews::Post(event) => Some(event),
        PieceNews::MissingFrom(missing_from) => Some(LocalEvent::Contribution {
            group,
            rank,
            attachment,
            number,
            sequence,
            missing_from,
            permit,
        }),
        PieceNews::None => None,
    })
}

/// Reads the next request of a trainer from its connection.
///
/// # Errors
/// The last message to the trainer: the connection ended, or the request is malformed.
async fn read_trainer_request(
    reader: &mut (impl AsyncRead + Unpin),
) -> Result<ProtocolRequest, Refusal> {
    let bytes = read_protocol_message(reader).await.map_err(trainer_gone)?;
    ProtocolRequest::decode(&bytes)
        .map_err(|error| Refusal::bad_request(format!("malformed request: {error}")))
}

/// Makes the last message to a trainer whose connection ended.
fn trainer_gone(error: io::Error) -> Refusal {
    refuse_detached_trainer(format!("connection ended: {error}"))
}

/// Writes events to the trainer until the connection ends or the engine is gone; returns the last
/// message to the trainer.
async fn write_trainer_events(
    events_out: &mut TrainerEventsOut,
    writer: &mut EventWriter,
    under_way: &TrainerRequests,
) -> Refusal {
    let TrainerEventsOut { rank_events, placed } = events_out;
    let mut batch = Vec::with_capacity(WRITE_BATCH_EVENTS_MAX);
    loop {
        let received = tokio::select! {
            biased;
            received = rank_events.recv_many(&mut batch, WRITE_BATCH_EVENTS_MAX) => received,
            () = placed.wait_for_placed_result() => {
                queue_placed_trainer_pieces(placed, None, writer, under_way);
                // Not none: the batch is empty, and the queue is open.
                1
            }
        };
        if received == 0 {
            return refuse_trainer_at_shutdown();
        }
        for event in batch.drain(..) {
            if let Err(error) = queue_trainer_event(event, placed, writer, under_way).await {
                return trainer_gone(error);
            }
        }
        if let Err(error) = writer.flush().await {
            return trainer_gone(error);
        }
    }
}

/// Adds some pieces of results that are in place to what is written to the trainer, of one collective
/// or of any. Returns false if there is none. Pieces of a collective that has failed are left out.
fn queue_placed_trainer_pieces(
    placed: &PlacedResults,
    of: Option<GroupCollective>,
    writer: &mut EventWriter,
    under_way: &TrainerRequests,
) -> bool {
    for queued in 0..WRITE_PIECES_MAX {
        let piece = placed.take_placed_result(of, PIECE_BYTES_MAX.into());
        let Some(piece) = piece else { return queued > 0 };
        let collective = (piece.number, piece.sequence);
        if let Some(result) = under_way.slots.streamed_result(collective, piece.range.end) {
            writer.queue_result_piece(collective, &result, piece.range);
        }
    }
    true
}

/// Adds an event to what is written to the trainer, behind those bytes of a result that it announces
/// which have not left before. Frees the slots of a collective that has ended.
///
/// # Errors
/// The connection is gone.
async fn queue_trainer_event(
    (number, event): (GroupNumber, RankEvent),
    placed: &PlacedResults,
    writer: &mut EventWriter,
    under_way: &TrainerRequests,
) -> io::Result<()> {
    match &event {
        RankEvent::ResultReady { sequence, .. } => {
            let collective = Some((number, *sequence));
            while queue_placed_trainer_pieces(placed, collective, writer, under_way) {
                writer.flush().await?;
            }
        }
        RankEvent::ContributionFree { sequence } | RankEvent::Failed { sequence, .. } => {
            under_way.slots.free_slots((number, *sequence));
        }
        RankEvent::WorldChanged { ranks } => {
            *lock_ignoring_poison(&under_way.world) = Some(ranks.clone());
        }
        RankEvent::StoreAnswered { .. } => under_way.store.add_permits(1),
        _ => {}
    }
    writer.queue(&ProtocolResponse::Event(event).of_group(number));
    Ok(())
}
