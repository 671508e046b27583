//! The queue itself: a scheduler behind a lock, and a signal for the lanes.
//!
//! A segment that becomes ready wakes one lane. A lane that pulls wakes the next one while segments
//! are left. So no more lanes wake than there are segments. A lost lane, which may have been woken
//! and not pulled, has all others woken. So has one that is being taken away, whose senders wait for
//! no segment from then on.

use super::queued_segment::{NewSegment, QueuedSegment, QueuedSegmentClass, SegmentId};
use super::scheduler::{PulledSegment, Scheduler};
use crate::events::ConnectionId;
use crate::lock::lock_ignoring_poison;
use crate::wan::error_code::SEGMENT_CANCELLED_CODE;
use crate::wan::pacing::pacer::RELEASE_ORDER_LAST;
use hier_collectives::ids::{GroupId, Sequence};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// The send queue of one peer; the module above names both ends and the bound.
#[derive(Debug)]
pub struct SendQueue {
    pub(super) scheduler: Mutex<Scheduler>,
    /// Wakes the senders of small segments, and of bulk, when one may be ready.
    ready: [Notify; 2],
    /// Wakes the senders of lanes that were being taken away when one of them is wanted again.
    readmitted: Notify,
}

impl SendQueue {
    /// Creates an empty queue for jobs of the given weights.
    pub fn new(weights: BTreeMap<GroupId, NonZeroU32>) -> Self {
        let scheduler = Mutex::new(Scheduler::new(weights));
        Self { scheduler, ready: Default::default(), readmitted: Notify::new() }
    }

    /// Sets the weights of all jobs, when jobs came or went.
    pub fn set_weights(&self, weights: BTreeMap<GroupId, NonZeroU32>) {
        lock_ignoring_poison(&self.scheduler).set_weights(weights);
        self.wake_all_senders();
    }

    /// Queues a segment for the lanes of the peer. Its parity is decided when a lane pulls it.
    pub fn push(&self, segment: NewSegment) {
        let NewSegment { job, group, header, priority, tail, payload } = segment;
        let class = QueuedSegmentClass::of(priority);
        lock_ignoring_poison(&self.scheduler).push_segment(QueuedSegment {
            job,
            group,
            header,
            payload,
            priority,
            tail,
            order: RELEASE_ORDER_LAST,
            requeued: false,
            cancel: CancellationToken::new(),
            released: CancellationToken::new(),
        });
        self.ready_of(class).notify_one();
    }

    /// Charges bytes of a job's control messages to the job's share of the link.
    pub fn charge_control_bytes(&self, job: GroupId, bytes: u64) {
        lock_ignoring_poison(&self.scheduler).charge_control_bytes(job, bytes);
    }

    /// Sets whether the lane of `connection` is being taken away: it then pulls nothing more.
    pub fn set_retiring(&self, connection: ConnectionId, is_retiring: bool) {
        let mut scheduler = lock_ignoring_poison(&self.scheduler);
        let has_changed = match is_retiring {
            true => scheduler.retiring.insert(connection),
            false => scheduler.retiring.remove(&connection),
        };
        drop(scheduler);
        if has_changed {
            self.wake_all_senders();
            self.readmitted.notify_waiters();
        }
    }

    /// Returns whether the lane of `connection` has segments that the peer has not receipted.
    pub fn has_pulled(&self, connection: ConnectionId) -> bool {
        lock_ignoring_poison(&self.scheduler)
            .pulled
            .values()
            .any(|pulled| pulled.connection == connection)
    }

    /// Returns whether segments of either class wait for a lane.
    pub fn has_waiting(&self) -> bool {
        let scheduler = lock_ignoring_poison(&self.scheduler);
        [QueuedSegmentClass::Small, QueuedSegmentClass::Bulk]
            .into_iter()
            .any(|one| scheduler.has_segment(one))
    }

    /// Waits until the lane of `connection` could pull a segment of a class.
    pub async fn wait_until_ready(&self, class: QueuedSegmentClass, connection: ConnectionId) {
        loop {
            let (ready, readmitted) = (self.ready_of(class).notified(), self.readmitted.notified());
            let is_retiring = {
                let scheduler = lock_ignoring_poison(&self.scheduler);
                let is_retiring = scheduler.retiring.contains(&connection);
                // A lane that finds a segment takes no signal, which is another's.
                if !is_retiring && scheduler.has_segment(class) {
                    return;
                }
                is_retiring
            };
            // A lane that is being taken away waits apart, so that it takes no signal of others.
            if is_retiring {
                readmitted.await;
            } else {
                ready.await;
            }
        }
    }

    /// Pulls the next segment of a class, if there is one and the lane is not being taken away. It
    /// belongs to the lane of `connection` until its receipt.
    pub fn pull(
        &self,
        class: QueuedSegmentClass,
        connection: ConnectionId,
    ) -> Option<QueuedSegment> {
        let mut scheduler = lock_ignoring_poison(&self.scheduler);
        let pulled = scheduler.take_segment(class, connection);
        // A bulk turn may also have repaid the overdraft of a job whose small segments wait.
        for left in [QueuedSegmentClass::Small, QueuedSegmentClass::Bulk] {
            if scheduler.has_segment(left) {
                self.ready_of(left).notify_one();
            }
        }
        pulled
    }

    /// Keeps the stream of a segment that is written completely, so that a cancel can still reset
    /// it. Resets it if the segment was cancelled already.
    pub fn keep_stream(
        &self,
        id: SegmentId,
        connection: ConnectionId,
        mut stream: quinn::SendStream,
        cancel: &CancellationToken,
    ) {
        let mut scheduler = lock_ignoring_poison(&self.scheduler);
        match scheduler.pulled.get_mut(&id) {
            Some(pulled) if pulled.connection == connection => pulled.stream = Some(stream),
            _ if cancel.is_cancelled() => {
                let _ = stream.reset(SEGMENT_CANCELLED_CODE.into());
            }
            // It is receipted already, or another lane has it by now.
            _ => {}
        }
    }

    /// Forgets a segment that the peer has receipted, and stops its writer if the peer needs no
    /// more of its bytes.
    pub fn handle_receipt(&self, id: SegmentId) {
        let mut scheduler = lock_ignoring_poison(&self.scheduler);
        let pulled = scheduler.pulled.remove(&id);
        let was_queued = scheduler.remove_segments(id.0, |queued| *queued == id.1);
        drop(scheduler);
        if was_queued {
            self.wake_all_senders();
        }
        // A segment that the receiver restored, or that arrived over a lost lane, needs no more bytes.
        let is_needless =
            |pulled: &PulledSegment| pulled.segment.header.parity > 0 || pulled.stream.is_none();
        if let Some(pulled) = pulled.filter(is_needless) {
            pulled.stop_writer();
        }
    }

    /// Stops all segments of a collective. Returns tokens that fire when the senders that are
    /// writing them have stopped: until then they read the memory.
    pub fn cancel_collective(&self, group: GroupId, sequence: Sequence) -> Vec<CancellationToken> {
        let mut scheduler = lock_ignoring_poison(&self.scheduler);
        scheduler.remove_segments(group, |queued| queued.sequence == sequence);
        let of_it = |id: &SegmentId| id.0 == group && id.1.sequence == sequence;
        let ended: Vec<_> = scheduler.pulled.extract_if(.., |id, _| of_it(id)).collect();
        drop(scheduler);
        self.wake_all_senders();
        let writing = ended.iter().filter(|(_, pulled)| pulled.stream.is_none());
        let writing = writing.map(|(_, pulled)| pulled.segment.released.clone()).collect();
        for (_, pulled) in ended {
            pulled.stop_writer();
        }
        writing
    }

    /// Requeues the segments of a lost connection that have no receipt; returns their payload
    /// bytes.
    pub fn requeue_connection(&self, connection: ConnectionId) -> u64 {
        let mut scheduler = lock_ignoring_poison(&self.scheduler);
        scheduler.retiring.remove(&connection);
        let lost: Vec<_> =
            scheduler.pulled.extract_if(.., |_, pulled| pulled.connection == connection).collect();
        let mut bytes = 0;
        for (_, pulled) in lost {
            bytes += pulled.segment.payload.len();
            scheduler.push_segment(pulled.segment.into_requeued());
        }
        drop(scheduler);
        self.wake_all_senders();
        bytes
    }

    /// Drops all segments, and stops the writers of those that lanes have pulled: the peer is gone,
    /// and its epochs with it.
    pub fn clear(&self) {
        let ended = lock_ignoring_poison(&self.scheduler).clear();
        ended.into_values().for_each(PulledSegment::stop_writer);
    }

    /// Returns the signal that wakes the senders of a class, bulk or small.
    fn ready_of(&self, class: QueuedSegmentClass) -> &Notify {
        &self.ready[class as usize]
    }

    /// Wakes all senders, after a change that may have made several segments ready, or the only
    /// woken lane unable to pull.
    fn wake_all_senders(&self) {
        self.ready.iter().for_each(Notify::notify_waiters);
    }
}
