//! A whole gateway: engine, lanes, local plane, put together on a host.

use crate::engine::{EVENTS_MAX, Engine, Event, EventSender, RateChange, RateError};
use crate::host::Host;
use crate::local::door::Door;
use crate::local::server::{self, Job, LocalSpec};
use crate::observe::metrics::Metrics;
use crate::observe::status::{LinkStatus, StatusRequest};
use crate::wan::addresses::LaneAddresses;
use crate::wan::outbox::Outbox;
use crate::wan::policy::Policies;
use crate::wan::rate::HeldRate;
use crate::wan::tls::Credentials;
use crate::wan::{self, Heard, LaneError, LaneSpec, PeerLink};
use hier_collectives::ids::{BootId, GatewayId};
use hier_collectives::plan::{self, PlanError};
use hier_collectives::session::SessionConfig;
use hier_collectives::topology::{Fabric, Link, WanPort};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use units::{BitRate, ByteCount, Span};

/// Everything a gateway is made of.
pub struct GatewaySpec {
    /// The deployment.
    pub fabric: Arc<Fabric>,
    /// Digest of the fabric's identity.
    pub identity: [u8; 32],
    /// Which gateway this is.
    pub me: GatewayId,
    /// Where its lanes listen.
    pub listen: LaneAddresses,
    /// Where the lanes of the other gateways listen.
    pub addresses: BTreeMap<GatewayId, LaneAddresses>,
    /// Whether the fabric says the MTU of every path; otherwise it is what is looked for.
    pub mtu_pinned: bool,
    /// Who we are and whom we believe.
    pub credentials: Credentials,
    /// The jobs whose trainers are served.
    pub jobs: Vec<Job>,
    /// The gateway's own memory.
    pub memory: ByteCount,
    /// Segments of this size instead of the plan's own choice, so that a simulation has many
    /// of them in a small buffer.
    pub segment: Option<ByteCount>,
    /// How links are used.
    pub policies: Policies,
}

/// A gateway that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The fabric's shape.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A lane.
    #[error(transparent)]
    Lane(#[from] LaneError),
}

/// A running gateway.
pub struct Gateway {
    events: EventSender,
    shutdown: CancellationToken,
    engine: oneshot::Receiver<()>,
    credentials: watch::Sender<Arc<Credentials>>,
    /// The lanes' counters and the outboxes, by peer.
    pub peers: BTreeMap<GatewayId, Arc<PeerLink>>,
}

impl Gateway {
    /// Starts all of it; returns once the lanes listen and trainers are let in.
    ///
    /// # Errors
    /// [`StartError`]: nothing is running then.
    pub async fn start(
        host: Arc<dyn Host>,
        spec: GatewaySpec,
        door: Box<dyn Door>,
        observed: (Arc<Metrics>, mpsc::Receiver<StatusRequest>),
    ) -> Result<Self, StartError> {
        let mut plan = plan::plan(&spec.fabric)?;
        plan.segment = spec.segment.unwrap_or(plan.segment);
        let segment_bytes = plan.segment.get();
        let shutdown = CancellationToken::new();
        let (events, inbox) = mpsc::channel(EVENTS_MAX);
        let peers = peer_links(&host, &spec, &observed.0);
        let mut boot = [0; 8];
        boot.copy_from_slice(&host.random()[..8]);
        let boot = BootId(u64::from_le_bytes(boot));
        let (me, fabric) = (spec.me, Arc::clone(&spec.fabric));
        let local = local_spec(&spec);
        // Jobs share the memory for partials in equal parts: none can take another's.
        let partials = ByteCount::new(spec.memory.get() / spec.jobs.len().max(1) as u64);
        let session = |job: &Job| {
            let (fabric, plan) = (Arc::clone(&fabric), plan.clone());
            (job.name.clone(), SessionConfig { fabric, me, boot, plan, partials })
        };
        let sessions = spec.jobs.iter().map(session).collect();
        let (renew, credentials) = watch::channel(Arc::new(spec.credentials));
        let lanes = LaneSpec {
            host: Arc::clone(&host),
            fabric: Arc::clone(&fabric),
            identity: spec.identity,
            me,
            boot,
            listen: spec.listen.clone(),
            mtu_pinned: spec.mtu_pinned,
            segment_bytes,
            credentials,
            peers: peers.clone(),
            events: events.clone(),
            shutdown: shutdown.clone(),
        };
        let channel = (events.clone(), inbox);
        let (links, here) = ((peers.clone(), &spec.policies), (fabric, me));
        let engine = Engine::new(Arc::clone(&host), sessions, here, links, observed, channel);
        wan::start(Arc::new(lanes)).await?;
        let (ended, engine_ended) = oneshot::channel();
        let all_end_with_it = shutdown.clone().drop_guard();
        host.spawn(Box::pin(async move {
            let _all_end_with_it = all_end_with_it;
            engine.run().await;
            let _ = ended.send(());
        }));
        let serve = server::serve(Arc::clone(&host), door, local, events.clone(), shutdown.clone());
        let all_end_with_it = shutdown.clone().drop_guard();
        host.spawn(Box::pin(async move {
            let _all_end_with_it = all_end_with_it;
            serve.await;
        }));
        Ok(Self { events, shutdown, engine: engine_ended, credentials: renew, peers })
    }

    /// Shows and believes other credentials from the next handshake on. Connections that are
    /// up go on.
    pub fn renew(&self, credentials: Credentials) {
        self.credentials.send_replace(Arc::new(credentials));
    }

    /// Completes when a part of it has ended that nobody asked to end: a bug of ours. All
    /// other parts end then too, and with them every connection.
    pub async fn broken(&self) {
        self.shutdown.cancelled().await;
    }

    /// Holds a link to a rate, at both of its ends, or to its schedule again; returns what
    /// holds it now.
    ///
    /// # Errors
    /// [`RateError`]: the caller's fault; nothing has changed. `None` when the gateway is
    /// stopping.
    pub async fn hold(&self, change: RateChange) -> Option<Result<LinkStatus, RateError>> {
        let (reply, held) = oneshot::channel();
        self.events.send(Event::Hold { change, reply }).await.ok()?;
        held.await.ok()
    }

    /// Closes a lane as if it had died, for simulations of what follows.
    pub async fn lose_lane(&self, peer: GatewayId, lane: u16) {
        let _ = self.events.send(Event::LoseLane { peer, lane }).await;
    }

    /// Takes nothing new, finishes what is posted and the commits that wait, and leaves the
    /// epochs, all within `bound`; then [`Gateway::shut_down`] is due.
    pub async fn drain(&self, bound: Span) {
        let (done, is_done) = oneshot::channel();
        if self.events.send(Event::Drain(bound, done)).await.is_ok() {
            let _ = is_done.await;
        }
    }

    /// Ends the epoch, tells peers and trainers, and stops.
    pub async fn shut_down(self) {
        let (done, is_done) = oneshot::channel();
        if self.events.send(Event::Shutdown(done)).await.is_ok() {
            let _ = is_done.await;
        }
        self.shutdown.cancel();
        let _ = self.engine.await;
    }
}

fn local_spec(spec: &GatewaySpec) -> LocalSpec {
    LocalSpec {
        ranks: spec.fabric.gateway(spec.me).ranks.clone(),
        world_size: spec.fabric.world_size(),
        fabric: spec.fabric.name().to_owned(),
        jobs: spec.jobs.clone(),
    }
}

/// The way to every other gateway that a link leads to.
fn peer_links(
    host: &Arc<dyn Host>,
    spec: &GatewaySpec,
    metrics: &Metrics,
) -> BTreeMap<GatewayId, Arc<PeerLink>> {
    let fabric = &spec.fabric;
    let me = fabric.gateway(spec.me);
    let weights: BTreeMap<_, _> = spec.jobs.iter().map(|job| (job.group(), job.weight)).collect();
    let mut peers = BTreeMap::new();
    for id in fabric.gateway_ids().filter(|id| *id != spec.me) {
        let peer = fabric.gateway(id);
        let (Some(out), Some(inward), Some(addresses)) =
            (me.wan, peer.wan, spec.addresses.get(&id))
        else {
            continue;
        };
        let Some(link) = fabric.link(me.region, peer.region) else { continue };
        let link = Link { rate: narrowest(link, out, inward), ..link.clone() };
        let ends = (link.a, link.b);
        let controller = spec.policies.get(&ends).map_or_else(Default::default, |p| p.controller);
        let peer_link = PeerLink {
            id,
            addresses: addresses.clone(),
            rate: HeldRate::new(Arc::clone(host), link.clone(), fabric.mtu()),
            link,
            controller,
            outbox: Outbox::new(weights.clone()),
            heard: Heard::default(),
            metrics: metrics.peer(&peer.name),
        };
        peers.insert(id, Arc::new(peer_link));
    }
    peers
}

fn narrowest(link: &Link, out: WanPort, inward: WanPort) -> BitRate {
    link.rate.min(out.egress).min(inward.ingress)
}
