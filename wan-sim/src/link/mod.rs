//! One direction of a link: copies, loss and corruption; then policer, queue and rate; then delay.

mod capacity;
mod chances;
mod conditions;
mod cross;
mod delay;
mod emulated_link;
mod event;
mod jitter;
mod loss;
mod packet_fate;
mod path;
mod queue;
mod script;
mod spec;

pub use capacity::{CapacityError, CapacityRecording, DELIVERY_BYTES, SyntheticCapacity};
pub use conditions::{Conditions, ConditionsError};
pub use cross::{CrossKind, CrossReport, CrossTraffic, CrossTrafficError, jain_fairness};
pub use emulated_link::EmulatedLink;
pub use event::{EventLabel, LinkEvent};
pub use jitter::{Jitter, Order, Reorder, Shape};
pub use loss::{GilbertElliott, Loss};
pub use packet_fate::{
    Decided, Delivery, DropReason, Fate, FateCounters, MarkReason, Moved, Packet, PacketFates,
    PacketFlow, PacketName,
};
pub(crate) use queue::RED_WEIGHT_DEFAULT;
pub use queue::{Codel, Discipline, Policer, QueueSize, Red};
pub use script::{Change, Script};
pub use spec::{DELAY_MAX, LinkSpec, SpecError};

#[cfg(test)]
mod tests;
