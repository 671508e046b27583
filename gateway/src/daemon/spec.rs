//! The settings of a gateway, and why it may not start.

use super::kept_fabric::KeptFabric;
use crate::local::job_spec::JobSpec;
use crate::local::remote::attach_listener::{AttachListenError, AttachSpec};
use crate::observe::engine_status_request::StatusRequest;
use crate::observe::metrics::MetricsRegistry;
use crate::observe::spans::span_queue::SpanSink;
use crate::wan::LaneError;
use crate::wan::connect::lane_addresses::LaneAddresses;
use crate::wan::connect::peer_addresses::PeerAddresses;
use crate::wan::connect::tls::Credentials;
use crate::wan::link::controller_policy::LinkPolicies;
use crate::wan::link_trace::LinkTrace;
use hier_collectives::ids::GatewayId;
use hier_collectives::membership::{FabricVersion, SignedFabric};
use hier_collectives::plan::{Plan, PlanError};
use hier_collectives::topology::Fabric;
use hier_collectives::wire::WireVersions;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc;
use units::ByteCount;

/// The settings of a gateway.
pub struct GatewaySpec {
    /// The deployment.
    pub fabric: Arc<Fabric>,
    /// Digest of the fabric's identity.
    pub identity: [u8; 32],
    /// The version of the fabric.
    pub version: FabricVersion,
    /// This gateway.
    pub me: GatewayId,
    /// The versions of messages between gateways that it speaks.
    pub versions: WireVersions,
    /// The addresses that this gateway listens on.
    pub listen: ListenSpec,
    /// Lane addresses of the gateways that have a WAN port. A gateway that no other can dial has none.
    pub addresses: BTreeMap<GatewayId, PeerAddresses>,
    /// Lane addresses of gateways on the LAN of their region.
    pub lan_addresses: BTreeMap<GatewayId, PeerAddresses>,
    /// Whether the fabric gives the MTU of every path; otherwise lanes discover it.
    pub mtu_pinned: bool,
    /// This gateway's certificate and key, and the CA that it trusts.
    pub credentials: Arc<Credentials>,
    /// The address for trainers on other hosts; `None` to serve this host alone.
    pub attach: Option<AttachSpec>,
    /// The jobs whose trainers are served.
    pub jobs: Vec<JobSpec>,
    /// Limit on the gateway's memory, besides the arenas of its ranks.
    pub memory: ByteCount,
    /// The plan that this gateway offers if it is the first by name, and that divides its port.
    pub plan: Plan,
    /// How links are used.
    pub policies: LinkPolicies,
    /// Keeps signed fabrics for the next start; `None` where nothing is kept.
    pub kept: Option<Arc<KeptFabric>>,
    /// The fabric with its signature, if the CA has signed it; [`Self::take_up_kept_fabric`] finds it.
    pub signed: Option<SignedFabric>,
}

/// The addresses that a gateway listens on.
#[derive(Debug, Clone, Default)]
pub struct ListenSpec {
    /// For gateways of other regions; the addresses to dial from where it `dials_only`.
    pub wan: Option<LaneAddresses>,
    /// Whether no gateway of another region can dial this one, as behind a NAT. It dials all then.
    pub dials_only: bool,
    /// For gateways of its own region; without it, they use the WAN port.
    pub lan: Option<LaneAddresses>,
    /// Whether packets are handed to the system one by one, without segmentation offload.
    pub one_by_one: bool,
}

/// The metrics, the trace and the spans of a gateway, and the requests for its status.
pub struct ObservabilitySpec {
    /// The metrics.
    pub metrics: Arc<MetricsRegistry>,
    /// Requests of the status server.
    pub status_requests: mpsc::Receiver<StatusRequest>,
    /// The trace of its lanes and links.
    pub trace: LinkTrace,
    /// The queue of spans of collectives that have ended.
    pub spans: SpanSink,
}

/// Why a gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No plan exists for the fabric.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A lane cannot listen.
    #[error(transparent)]
    Lane(#[from] LaneError),
    /// Trainers on other hosts cannot be served.
    #[error(transparent)]
    Attach(#[from] AttachListenError),
    /// The system gives no thread.
    #[error(transparent)]
    Thread(std::io::Error),
}
