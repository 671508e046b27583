//! A whole gateway: engine, lanes, local plane, put together on a host.

use crate::engine::{EVENTS_MAX, Engine, Event, EventSender, RateChange, RateError};
use crate::host::Host;
use crate::local::job::{JobSpec, LocalSpec};
use crate::local::listener::TrainerListener;
use crate::local::server;
use crate::observe::metrics::Metrics;
use crate::observe::status::{LinkStatus, StatusRequest};
use crate::wan::connect::addresses::LaneAddresses;
use crate::wan::connect::tls::Credentials;
use crate::wan::link::policy::{ControllerKind, Policies};
use crate::wan::pacing::pair_pacer::PairPacer;
use crate::wan::stream::send_queue::SendQueue;
use crate::wan::{self, LaneError, LaneSpec, LaneThreads, PeerLink, PeerLiveness};
use hier_collectives::ids::{BootId, GatewayId};
use hier_collectives::plan::{self, PairShare, Plan, PlanError};
use hier_collectives::session::SessionConfig;
use hier_collectives::topology::{self, Fabric, Link};
use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tracing::warn;
use units::{BitRate, ByteCount, Fraction, Span};

/// Faster than any port of a host, so that nothing inside a region is held back by it; with
const LAN_RATE: BitRate = BitRate::from_bits_per_second(100_000_000_000);
/// this it sizes the windows between gateways of one region.
const LAN_RTT: Span = Span::from_ns(100_000);

/// Other gateways, and the ways to them.
type PeerLinks = BTreeMap<GatewayId, Arc<PeerLink>>;

/// Everything a gateway is made of.
pub struct GatewaySpec {
    /// The deployment.
    pub fabric: Arc<Fabric>,
    /// Digest of the fabric's identity.
    pub identity: [u8; 32],
    /// Which gateway this is.
    pub me: GatewayId,
    /// Where it listens.
    pub listen: Listen,
    /// Where the lanes of the gateways with a WAN port listen.
    pub addresses: BTreeMap<GatewayId, LaneAddresses>,
    /// Where lanes of gateways listen for others of their region.
    pub lan_addresses: BTreeMap<GatewayId, LaneAddresses>,
    /// Whether the fabric says the MTU of every path; otherwise it is what is looked for.
    pub mtu_pinned: bool,
    /// Who we are and whom we believe.
    pub credentials: Credentials,
    /// The jobs whose trainers are served.
    pub jobs: Vec<JobSpec>,
    /// What it may hold beside its ranks' own.
    pub memory: ByteCount,
    /// The plan that it offers to the others when it is the first of them by name, and by which
    /// it divides its port.
    pub plan: Plan,
    /// How links are used.
    pub policies: Policies,
}

/// Where lanes listen.
#[derive(Debug, Clone, Default)]
pub struct Listen {
    /// For gateways of other regions.
    pub wan: Option<LaneAddresses>,
    /// For those of its own region; its WAN port when there is no address for them.
    pub lan: Option<LaneAddresses>,
    /// Whether packets are handed to the system one by one, not many at once.
    pub one_by_one: bool,
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
    /// The send queues and counters of the lanes, by peer.
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
        door: Box<dyn TrainerListener>,
        observed: (Arc<Metrics>, mpsc::Receiver<StatusRequest>),
    ) -> Result<Self, StartError> {
        let shutdown = CancellationToken::new();
        let (events, inbox) = mpsc::channel(EVENTS_MAX);
        let metrics = &observed.0;
        let mut wan_peers = peer_links(&host, &spec, metrics);
        let (lan_peers, at_port) = lan_links(&host, &spec, metrics);
        wan_peers.extend(at_port);
        let peers: BTreeMap<_, _> =
            wan_peers.iter().chain(&lan_peers).map(|(id, link)| (*id, Arc::clone(link))).collect();
        let mut boot = [0; 8];
        boot.copy_from_slice(&host.random()[..8]);
        let boot = BootId(u64::from_le_bytes(boot));
        let (me, fabric) = (spec.me, Arc::clone(&spec.fabric));
        let local = local_spec(&spec);
        // A gateway that exchanges with nobody needs no port.
        let sides = [(spec.listen.wan.clone(), wan_peers), (spec.listen.lan.clone(), lan_peers)];
        let sides = sides.into_iter().filter_map(|(listen, peers)| Some((listen?, peers)));
        let sides: Vec<_> = sides.filter(|(_, peers)| !peers.is_empty()).collect();
        let partials = partials(&spec, sides.len());
        let session = |job: &JobSpec| {
            let (fabric, plan) = (Arc::clone(&fabric), spec.plan.clone());
            let one_in = one_in(&spec.jobs, job.weight);
            (job.name.clone(), SessionConfig { fabric, me, boot, plan, partials, one_in })
        };
        let sessions = spec.jobs.iter().map(session).collect();
        let (renew, credentials) = watch::channel(Arc::new(spec.credentials));
        let (mtu_pinned, segment_bytes) = (spec.mtu_pinned, spec.plan.segment.get());
        let lanes = |(listen, peers), threads| {
            Arc::new(LaneSpec {
                host: Arc::clone(&host),
                fabric: Arc::clone(&fabric),
                identity: spec.identity,
                me,
                boot,
                listen,
                threads,
                one_by_one: spec.listen.one_by_one,
                mtu_pinned,
                segment_bytes,
                credentials: credentials.clone(),
                peers,
                events: events.clone(),
                shutdown: shutdown.clone(),
            })
        };
        let threads = threads(&fabric, me, sides.len());
        let sides: Vec<_> = sides.into_iter().zip(threads).map(|(s, t)| lanes(s, t)).collect();
        let channel = (events.clone(), inbox);
        let (links, here) = ((peers.clone(), &spec.policies), (Arc::clone(&fabric), me));
        let engine = Engine::new(Arc::clone(&host), sessions, here, links, observed, channel);
        for side in sides {
            wan::start(side).await?;
        }
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

    /// Closes a lane as if it had died, for simulations of what follows; returns how many other
    /// lanes to that peer are up. `None` when the gateway is stopping.
    pub async fn lose_lane(&self, peer: GatewayId, lane: u16) -> Option<usize> {
        let (reply, left) = oneshot::channel();
        self.events.send(Event::LoseLane { peer, lane, reply }).await.ok()?;
        left.await.ok()
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

/// Of the lanes of each of a gateway's sides.
fn threads(fabric: &Fabric, me: GatewayId, sides: usize) -> impl Iterator<Item = LaneThreads> {
    let each = usize::from(plan::lanes(fabric));
    let of = sides * each;
    let first = usize::from(me.0) * of;
    (0..sides).map(move |side| LaneThreads { first: first + side * each, of })
}

/// What of a gateway's memory the windows of so many jobs and the lanes of so many sides hold at most.
pub fn held_first(
    plan: &Plan,
    fabric: &Fabric,
    me: GatewayId,
    (jobs, sides): (usize, usize),
) -> ByteCount {
    let windows = plan.memory(fabric, me, ByteCount::default()).windows().get();
    let lanes = u64::from(plan::lanes(fabric)) * wan::LANE_BYTES.get();
    ByteCount::new(jobs as u64 * windows + sides as u64 * lanes)
}

/// The least memory of a gateway that is a bound on what it takes, where this is less: windows and
/// lanes hold so much first, and half of all is for partials in any case.
pub fn memory_wanted(memory: ByteCount, first: ByteCount) -> Option<ByteCount> {
    (first.get() > memory.get() / 2).then(|| ByteCount::new(2 * first.get()))
}

/// What is for partials of each job, in equal parts, so that none takes another's: what windows and
/// lanes leave, and at least half of all.
fn partials(spec: &GatewaySpec, sides: usize) -> ByteCount {
    let (memory, jobs) = (spec.memory.get(), spec.jobs.len());
    let first = held_first(&spec.plan, &spec.fabric, spec.me, (jobs, sides));
    let memory_of_all = memory - first.get().min(memory / 2);
    if let Some(wanted) = memory_wanted(spec.memory, first) {
        warn!(
            "windows and lanes may take {first} and partials {} beside: `memory` of {} is no bound \
             on that, {wanted} would be",
            ByteCount::new(memory_of_all),
            spec.memory
        );
    }
    ByteCount::new(memory_of_all / jobs.max(1) as u64)
}

/// The part of a link that a job of this weight has beside all others: one in so many.
fn one_in(jobs: &[JobSpec], weight: NonZeroU32) -> NonZeroU64 {
    let all: u64 = jobs.iter().map(|job| u64::from(job.weight.get())).sum();
    NonZeroU64::new(all.div_ceil(weight.get().into())).unwrap_or(NonZeroU64::MIN)
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
    let rates = spec.plan.pair_shares(fabric);
    for ((_, id), pair) in rates.iter().filter(|((from, _), _)| *from == spec.me) {
        let peer = fabric.gateway(*id);
        let (Some(addresses), Some(link)) =
            (spec.addresses.get(id), fabric.link(me.region, peer.region))
        else {
            continue;
        };
        let policy = spec.policies.get(&(link.a, link.b));
        let peer_link = PeerLink {
            id: *id,
            addresses: addresses.clone(),
            link: Link { rate: narrowest(link, me, peer), ..link.clone() },
            send_queue: SendQueue::new(weights.clone()),
            pair_pacer: PairPacer::new(Arc::clone(host), *pair, link.clone(), fabric.mtu()),
            controller: policy.map_or_else(Default::default, |policy| policy.controller),
            liveness: PeerLiveness::default(),
            metrics: metrics.peer(&peer.name),
        };
        peers.insert(*id, Arc::new(peer_link));
    }
    peers
}

/// The ways to the other gateways of the region: over the LAN, and from port to port to those
/// that have no address there.
fn lan_links(
    host: &Arc<dyn Host>,
    spec: &GatewaySpec,
    metrics: &Metrics,
) -> (PeerLinks, PeerLinks) {
    let fabric = &spec.fabric;
    let region = fabric.gateway(spec.me).region;
    let weights: BTreeMap<_, _> = spec.jobs.iter().map(|job| (job.group(), job.weight)).collect();
    let (mut over_lan, mut at_port) = (PeerLinks::new(), PeerLinks::new());
    let link =
        Link { a: region, b: region, rate: LAN_RATE, rtt: LAN_RTT, loss: Fraction::default() };
    for id in fabric.region(region).gateways.clone().map(GatewayId).filter(|id| *id != spec.me) {
        let lan = spec.lan_addresses.get(&id).filter(|_| spec.listen.lan.is_some());
        let port = spec.addresses.get(&id).filter(|_| spec.listen.wan.is_some());
        let Some(addresses) = lan.or(port) else { continue };
        let pair = PairShare::unshared(LAN_RATE);
        let peer_link = PeerLink {
            id,
            addresses: addresses.clone(),
            link: link.clone(),
            send_queue: SendQueue::new(weights.clone()),
            pair_pacer: PairPacer::new(Arc::clone(host), pair, link.clone(), fabric.mtu()),
            controller: ControllerKind::default(),
            liveness: PeerLiveness::default(),
            metrics: metrics.peer(&fabric.gateway(id).name),
        };
        let side = if lan.is_some() { &mut over_lan } else { &mut at_port };
        side.insert(id, Arc::new(peer_link));
    }
    (over_lan, at_port)
}

/// What a pair alone could send, in the direction that carries more.
fn narrowest(link: &Link, me: &topology::Gateway, peer: &topology::Gateway) -> BitRate {
    let (Some(here), Some(there)) = (me.wan, peer.wan) else { return link.rate };
    let (out, inward) = (here.egress.min(there.ingress), here.ingress.min(there.egress));
    link.rate.min(out.max(inward))
}
