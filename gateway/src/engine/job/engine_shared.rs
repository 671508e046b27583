//! The parts of the engine that the groups of all jobs use.

use crate::engine::peers::Peers;
use crate::events::EventSender;
use crate::host::Host;
use crate::observe::spans::span_queue::SpanSink;
use hier_collectives::bound::LowerBound;
use std::sync::{Arc, OnceLock};

/// The parts of the engine that all jobs share.
pub(crate) struct EngineShared {
    pub host: Arc<dyn Host>,
    pub peers: Peers,
    pub events: EventSender,
    /// The lower bound of an all-reduce on the fabric, once it is computed.
    pub bound: Arc<OnceLock<LowerBound>>,
    /// The queue of spans of collectives that have ended.
    pub spans: SpanSink,
}
