//! One direction of a link: copies, loss and corruption; then rate and queue; then delay.

mod bottleneck;
mod chances;
mod delay;
mod emulated_link;
mod fate;
mod jitter;
mod loss;
mod queue_size;
mod script;
mod spec;

pub use emulated_link::EmulatedLink;
pub use fate::{
    Delivery, DropReason, Fate, LinkCounters, MarkReason, Moved, Packet, PacketFates, PacketName,
};
pub use jitter::{Jitter, Order, Reorder, Shape};
pub use loss::{GilbertElliott, Loss};
pub use queue_size::QueueSize;
pub use script::{Change, Script};
pub use spec::{DELAY_MAX, LinkSpec, SpecError};

#[cfg(test)]
mod tests;
