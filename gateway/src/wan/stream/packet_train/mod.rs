//! The capacity of a shared link, measured by packet trains before there is data.
//!
//! Nobody knows the rate of a `shared` link when two gateways meet, and a startup takes ten round trips
//! and more. So a lane first sends a few **packet trains**: some packets back to back, on a stream of
//! their own. The bottleneck spreads them, and the receiver reports how many bytes arrived in which
//! time behind the first packet. That is the capacity, whatever the queue on the way back.
//!
//! ```text
//! sender (one lane of a pair at a time)                receiver
//!   train 1: 10 packets        -------------------->
//!                              <--------------------   report: 12 kB in 2.1 ms
//!   train 2: half a round trip -------------------->   at that rate, 2 to 20 ms
//!                              <--------------------   report: 118 kB in 20.4 ms
//!   the lane cruises at the rate of the long trains
//! ```
//!
//! | file | subject |
//! |---|---|
//! | `train_message.rs` | the first bytes of the stream of a train, and of a report |
//! | `train_lengths.rs` | how long the next train is, and which rate the reports show. Sans-IO |
//! | `train_sender.rs` | `measure_capacity_by_trains`, before the sender of bulk begins |
//! | `train_receiver.rs` | reads a train, and reports it |
//!
//! A train takes the link half a round trip, and a quarter of that more for lost parts. So it leaves
//! less than a BDP of queue, except on paths below 2.5 ms, where its 2 ms are longer. Bulk waits for the
//! trains, which take a few round trips; small segments do not.

mod train_lengths;
pub mod train_message;
pub(super) mod train_receiver;
mod train_sender;

pub(crate) use train_sender::measure_capacity_by_trains;

use crate::lock::lock_ignoring_poison;
use std::sync::Mutex;
use tokio::sync::oneshot;
use units::Span;

/// The part of a packet train that has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TrainArrival {
    /// Bytes that arrived after the first moment.
    pub bytes: u64,
    /// The time from the first moment to the last of these bytes.
    pub span: Span,
}

/// The packet trains to one peer. One lane at a time sends trains, and each waits for its report.
#[derive(Debug, Default)]
pub struct PacketTrains {
    /// Held by the lane that sends trains.
    turn: tokio::sync::Mutex<()>,
    awaited: Mutex<AwaitedReport>,
}

/// The report that a lane waits for.
#[derive(Debug, Default)]
struct AwaitedReport {
    /// The number of the last train.
    number: u32,
    /// Takes the report of that train.
    reply: Option<oneshot::Sender<TrainArrival>>,
}

impl PacketTrains {
    /// Returns the number of a new train, and the receiver of its report.
    fn begin_train(&self) -> (u32, oneshot::Receiver<TrainArrival>) {
        let (reply, report) = oneshot::channel();
        let mut awaited = lock_ignoring_poison(&self.awaited);
        awaited.number = awaited.number.wrapping_add(1);
        awaited.reply = Some(reply);
        (awaited.number, report)
    }

    /// Hands a peer's report to the lane that waits for it. Drops one that nobody waits for.
    pub(super) fn deliver_report(&self, number: u32, arrival: TrainArrival) {
        let mut awaited = lock_ignoring_poison(&self.awaited);
        if awaited.number == number
            && let Some(reply) = awaited.reply.take()
        {
            let _ = reply.send(arrival);
        }
    }
}
