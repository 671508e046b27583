//! The last control messages to peers, which a gateway that shuts down waits for.

use crate::host::Host;
use crate::wan::PeerLink;
use crate::wan::connect::liveness::liveness_dead_path_time;
use hier_collectives::ids::GatewayId;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio_util::task::TaskTracker;
use units::Span;

/// The control messages that the engine has left to be sent when it ends.
pub(super) struct GatewayShutdownMessages {
    host: Arc<dyn Host>,
    writers: TaskTracker,
    patience: Span,
}

impl GatewayShutdownMessages {
    /// Makes the wait for the last control messages to `peers`, which tasks of `writers` write.
    pub(super) fn new(
        host: &Arc<dyn Host>,
        peers: &BTreeMap<GatewayId, Arc<PeerLink>>,
        writers: TaskTracker,
    ) -> Self {
        let rtt = peers.values().map(|peer| peer.link().rtt).max().unwrap_or(Span::ZERO);
        Self { host: Arc::clone(host), writers, patience: liveness_dead_path_time(rtt, rtt) }
    }

    /// Waits until all peers have acknowledged the messages, so that each learns why the epochs ended
    /// before its lanes close. A peer that is away is awaited until its path counts as dead.
    pub(super) async fn wait_until_acknowledged(self) {
        self.writers.close();
        tokio::select! {
            () = self.writers.wait() => {}
            () = self.host.sleep_until(self.host.now() + self.patience) => {}
        }
    }
}
