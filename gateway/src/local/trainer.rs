//! One attached trainer: reads its requests, and writes the events of its rank.
//!
//! [`serve_trainer`] runs in the trainer's task, which [`super::server`] spawned. It sends the
//! engine [`LocalEvent`]s and receives [`RankEvent`]s over the queue that it hands the engine at
//! the start.

use super::attachments::RankReservation;
use super::job::{JobSpec, LocalSpec};
use super::listener::Duplex;
use super::protocol::{
    LOCAL_VERSION, POSTS_MAX, Request, Response, frame_local_message, read_local_message,
    write_local_message,
};
use super::refusal::{Refusal, RefusalReason};
use super::slots::{PostSlots, RankPlace, SlotsInUse};
use crate::events::{AttachmentId, Event, EventSender, LocalEvent, RankEvents};
use crate::host::Host;
use crate::memory::arena::Arena;
use hier_collectives::ids::GroupId;
use hier_collectives::post::RankEvent;
use std::sync::Arc;
use tokio::io::{AsyncWriteExt, BufReader, ReadHalf, WriteHalf};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tracing::debug;
use units::Span;

/// 8 posts and commits: the most of one rank that may wait in the engine's queue. One busy rank
/// cannot fill the queue that all ranks share.
const QUEUED_REQUESTS_MAX: usize = 8;
/// 1,024 events: the most of one rank that may wait to be written to its trainer, three for each
/// post, and epochs. When the queue is full, the trainer is disconnected.
const RANK_EVENTS_MAX: usize = 4 * POSTS_MAX;
/// 8 events: the most written to a trainer with one system call. Mostly a batch is "result ready"
/// and "contribution free" of one collective.
const WRITE_BATCH_EVENTS_MAX: usize = 8;
/// 100 ms: time limit to write the last events, and the reason of the disconnection, to a trainer.
const LAST_WRITE_TIMEOUT: Span = Span::from_ms(100);

/// A trainer that has attached, and the memory that it brought.
pub(super) struct Attachment {
    pub reservation: RankReservation,
    pub id: AttachmentId,
    pub arena: Arc<Arena>,
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
    stream: Box<dyn Duplex>,
) {
    let (reader, mut writer) = tokio::io::split(stream);
    let (group, rank) = (attachment.reservation.group, attachment.reservation.rank);
    let id = attachment.id;
    let (queue, mut rank_events) = mpsc::channel(RANK_EVENTS_MAX);
    let overflowed = CancellationToken::new();
    let slots = SlotsInUse::default();
    let welcome = Response::Attached {
        version: LOCAL_VERSION,
        world_size: context.spec.world_size,
        fabric: context.spec.fabric.clone(),
    };
    if write_local_message(&mut writer, &welcome.encode()).await.is_err() {
        return;
    }
    let events = RankEvents::new(queue, overflowed.clone());
    let attach = LocalEvent::Attach { group, rank, attachment: id, events };
    let _ = context.events.send(Event::Local(attach)).await;
    let refusal = tokio::select! {
        biased;
        () = context.shutdown.cancelled() => shutting_down(),
        () = overflowed.cancelled() => detached("it does not read its events"),
        () = wait_until_job_removed(context.spec, group) => job_removed(),
        refusal = write_events(&mut rank_events, &mut writer, &slots) => refusal,
        refusal = read_requests(&context, &attachment, reader, &slots) => refusal,
    };
    debug!("rank {rank}: {refusal}");
    let refusal = Response::Refused(refusal).encode();
    // Best effort, for a trainer that still reads.
    let farewell = async {
        while let Ok(event) = rank_events.try_recv() {
            write_local_message(&mut writer, &Response::Event(event).encode()).await?;
        }
        write_local_message(&mut writer, &refusal).await
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
fn shutting_down() -> Refusal {
    Refusal::new(RefusalReason::ShuttingDown, "gateway shutting down")
}

/// Makes the last message to a trainer that is gone or too slow, for the reason `why`.
fn detached(why: impl Into<String>) -> Refusal {
    Refusal::new(RefusalReason::Detached, why)
}

/// Makes the last message to a trainer whose job is no longer served.
fn job_removed() -> Refusal {
    let why = "the job was removed from the gateway's region file";
    Refusal::new(RefusalReason::Unauthorized, why)
}

/// Waits until the region file has the job of a trainer no more.
async fn wait_until_job_removed(spec: &LocalSpec, group: GroupId) {
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
async fn read_requests(
    context: &TrainerContext<'_>,
    attachment: &Attachment,
    reader: ReadHalf<Box<dyn Duplex>>,
    slots: &SlotsInUse,
) -> Refusal {
    // The buffer takes a message and its length with one read.
    let mut reader = BufReader::new(reader);
    let permits = Arc::new(Semaphore::new(QUEUED_REQUESTS_MAX));
    let (group, rank) = (attachment.reservation.group, attachment.reservation.rank);
    let id = attachment.id;
    let place = RankPlace { rank, world_size: context.spec.world_size };
    loop {
        let bytes = match read_local_message(&mut reader).await {
            Ok(bytes) => bytes,
            Err(error) => return detached(format!("connection ended: {error}")),
        };
        let request = match Request::decode(&bytes) {
            Ok(request) => request,
            Err(error) => return Refusal::bad_request(format!("malformed request: {error}")),
        };
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else {
            return shutting_down();
        };
        let event = match request {
            Request::Attach(_) => return Refusal::bad_request("attached twice"),
            Request::Detach => return detached("detached"),
            Request::Commit(commit) => {
                LocalEvent::Commit { group, rank, attachment: id, commit, permit }
            }
            Request::Post { .. } if !attachment.arena.is_whole() => {
                return Refusal::bad_request(
                    "memory of the arena was given back while it was attached: a hole was \
                     punched in the memfd",
                );
            }
            Request::Post { post, contribution_offset, result_offset } => {
                let offsets = [contribution_offset, result_offset];
                let located = PostSlots::locate(&attachment.arena, &post, place, offsets);
                let reserved = located.and_then(|located| {
                    slots.reserve_slots(post.sequence, &located)?;
                    Ok(located)
                });
                let PostSlots { contribution, result } = match reserved {
                    Ok(located) => located,
                    Err(why) => return Refusal::bad_request(why),
                };
                let post = Box::new(post);
                LocalEvent::Post { group, rank, attachment: id, post, contribution, result, permit }
            }
        };
        if context.events.send(Event::Local(event)).await.is_err() {
            return shutting_down();
        }
    }
}

/// Writes events to the trainer until the connection ends; returns the last message to it.
async fn write_events(
    rank_events: &mut mpsc::Receiver<RankEvent>,
    writer: &mut WriteHalf<Box<dyn Duplex>>,
    slots: &SlotsInUse,
) -> Refusal {
    let mut batch = Vec::with_capacity(WRITE_BATCH_EVENTS_MAX);
    while rank_events.recv_many(&mut batch, WRITE_BATCH_EVENTS_MAX).await > 0 {
        let mut frames = Vec::new();
        for event in batch.drain(..) {
            if let RankEvent::ContributionFree { sequence } | RankEvent::Failed { sequence, .. } =
                event
            {
                slots.free_slots(sequence);
            }
            frames.extend(frame_local_message(&Response::Event(event).encode()));
        }
        if let Err(error) = writer.write_all(&frames).await {
            return detached(format!("connection ended: {error}"));
        }
    }
    shutting_down()
}
