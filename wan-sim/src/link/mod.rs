//! One direction of a link: copies, loss and corruption; then policer, queue and rate; then delay.

mod capacity;
mod chances;
mod conditions;
mod cross;
mod delay;
mod emulated_link;
mod emulated_path;
mod jitter;
mod link_event;
mod link_spec;
mod loss;
mod packet;
mod queue;
mod script;

pub use capacity::{CapacityError, CapacityRecording, DELIVERY_BYTES, SyntheticCapacity};
pub use conditions::{Conditions, ConditionsError};
pub use cross::{
    CrossKind, CrossReport, CrossTraffic, CrossTrafficError, jain_fairness_of_cross_reports,
};
pub use emulated_link::EmulatedLink;
pub use jitter::{Jitter, Order, Reorder, Shape};
pub use link_event::{LinkEvent, LinkEventLabel};
pub use link_spec::{DELAY_MAX, LinkSpec, SpecError};
pub use loss::{GilbertElliott, Loss};
pub use packet::packet_fate::{
    Decided, Delivery, DropReason, Fate, FateCounters, MarkReason, Moved, PacketFates, PacketName,
};
pub use packet::{Packet, PacketFlow};
pub(crate) use queue::RED_WEIGHT_DEFAULT;
pub use queue::{Codel, Discipline, Policer, QueueSize, Red};
pub use script::{Change, Script};

#[cfg(test)]
mod tests;
