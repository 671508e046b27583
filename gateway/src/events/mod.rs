//! Types that tasks of the gateway send to each other.
//!
//! The engine, the local plane, the lanes and the daemon all import these types, so that none of
//! them needs to import another task. The types own no task and no queue; the map of queues is in
//! the crate's documentation.

mod engine_event;
mod fabric;
mod group_place;
mod ids;
mod jobs;
mod local_events;
mod operator;
mod placed_results;

pub use engine_event::{ENGINE_QUEUE_MAX, Event, EventSender, SegmentPlacement};
pub use fabric::{
    CheckedFabric, FabricAsked, FabricChange, FabricChangeError, FabricChangeReply,
    FabricChangeReport, FabricJudge, FabricRefusal,
};
pub use group_place::GroupPlace;
pub use ids::{AttachmentId, ConnectionId, GROUPS_MAX, GroupNumber};
pub use jobs::{ChangesNotReloaded, JobSession, JobsUpdate, ReloadedFiles};
pub use local_events::{LocalEvent, LocalRankEvents};
pub use operator::{MembershipChange, MembershipChangeError, RateChange, RateError};
pub use placed_results::{PlacedResult, PlacedResults};
