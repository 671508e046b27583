//! A model of long-haul links: the fate of each packet, and front ends that apply it.
//!
//! [`EmulatedLink`] is one direction of a link as a sans-IO machine: each packet is offered with
//! its time and gets its fate at once. Time and seeds are arguments, so equal arrivals and
//! seeds give equal fates in every front end.
//!
//! Front ends, by feature:
//! * `virtual-net`: an in-memory UDP network for quinn endpoints in virtual time: under
//!   tokio's paused clock, or under an executor of its own that is exact to the nanosecond.
//! * `topology`: sites and links from files, presets, and `tc` commands for these links.
//! * `lab`: network namespaces with links between them, for any program.
//! * `relay`: a link before real UDP sockets, without privileges.

// They panic or wait where a stream is closed, full or not read: use `stdio`.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

#[cfg(feature = "topology")]
mod capacity_source;
#[cfg(feature = "cli")]
pub mod cli;
mod fidelity;
#[cfg(feature = "lab")]
pub mod lab;
mod link;
#[cfg(any(feature = "lab", feature = "relay", feature = "virtual-net"))]
mod mutex;
pub mod netem;
mod portable_math;
#[cfg(any(feature = "lab", feature = "relay"))]
mod priority;
mod random_stream;
pub mod recording;
#[cfg(feature = "relay")]
pub mod relay;
#[cfg(any(feature = "lab", feature = "relay"))]
mod run_clock;
#[cfg(feature = "topology")]
pub mod tc;
#[cfg(feature = "topology")]
pub mod topology;
mod trace_hash;
#[cfg(feature = "virtual-net")]
mod virtual_net;
#[cfg(feature = "virtual-net")]
mod virtual_time;

#[cfg(feature = "topology")]
pub use capacity_source::{CapacitySource, CapacitySourceError};
pub use fidelity::{Elapsed, Fidelity, FidelityLimits, FidelityReport};
pub use link::{
    CapacityError, CapacityRecording, Change, Codel, Conditions, ConditionsError, CrossKind,
    CrossReport, CrossTraffic, CrossTrafficError, DELAY_MAX, DELIVERY_BYTES, Decided, Delivery,
    Discipline, DropReason, EmulatedLink, Fate, FateCounters, GilbertElliott, Jitter, LinkEvent,
    LinkEventLabel, LinkSpec, Loss, MarkReason, Moved, Order, Packet, PacketFates, PacketFlow,
    PacketName, Policer, QueueSize, Red, Reorder, Script, Shape, SpecError, SyntheticCapacity,
    jain_fairness_of_cross_reports,
};
pub use trace_hash::{TraceHash, TraceRecord};
#[cfg(feature = "virtual-net")]
pub use virtual_net::{
    BindError, EPHEMERAL_PORT_FIRST, INBOX_BYTES_MAX, NoLink, SocketChoice, Undelivered, VirtualNet,
};
#[cfg(feature = "virtual-net")]
pub use virtual_time::{ExecutorStalled, SleepTimer, VirtualExecutor};
