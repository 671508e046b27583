//! The queue before the rate: its size and discipline, the policer before it, the sender behind it.

mod bottleneck;
mod codel_queue;
mod discipline;
mod policer;
mod queue_size;
mod red_average;

pub(super) use bottleneck::{Bottleneck, BottleneckRateChange, Transmission};
pub(super) use codel_queue::{CodelQueue, Departure, QueuedPacket};
pub(crate) use discipline::RED_WEIGHT_DEFAULT;
pub use discipline::{Codel, Discipline, Red};
pub use policer::Policer;
pub(super) use policer::PolicerBucket;
pub use queue_size::QueueSize;
pub(super) use red_average::{Idleness, RedAverage, RedVerdict};
