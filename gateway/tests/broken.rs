//! A gateway whose engine or reduction panics.

use gateway::certs::{self, CertificateOptions, CertificateValidity};
use gateway::client::{AttachOptions, Client, GatewayAddress};
use gateway::daemon::{Gateway, GatewaySpec, ListenSpec, ObservabilitySpec};
use gateway::host::{
    BoxFuture, Host, LaneThread, PortShare, RealHost, Task as Work, TaskPanicked, ThreadStart,
};
use gateway::local::job_spec::JobSpec;
use gateway::local::protocol::Token;
use gateway::local::trainer_listener;
use gateway::observe::engine_status_request::EngineStatusHandle;
use gateway::observe::metrics::MetricsRegistry;
use gateway::wan::connect::tls::Credentials;
use gateway::warnings::Warnings;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::GatewayId;
use hier_collectives::membership::FabricVersion;
use hier_collectives::plan;
use hier_collectives::post::FailureCode;
use hier_collectives::topology::{self, Fabric, FabricRegionSpec};
use hier_collectives::wire::WireVersions;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use units::{ByteCount, Span, TimeNs};

/// A host on which a reduction, or the task that asks for it, panics once it is armed.
struct PanickingHost {
    victim: Victim,
    is_armed: AtomicBool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Victim {
    /// The engine's task.
    Engine,
    /// The reduction.
    Reduction,
}

fn bug() {
    panic!("a bug, for this test");
}

impl Host for PanickingHost {
    fn now(&self) -> TimeNs {
        RealHost.now()
    }

    fn unix_seconds(&self) -> u64 {
        RealHost.unix_seconds()
    }

    fn sleep_until(&self, at: TimeNs) -> BoxFuture<()> {
        RealHost.sleep_until(at)
    }

    fn spawn(&self, task: BoxFuture<()>) {
        RealHost.spawn(task);
    }

    fn spawn_lane(&self, thread: LaneThread, start: ThreadStart) -> io::Result<()> {
        RealHost.spawn_lane(thread, start)
    }

    fn spawn_thread(&self, name: &str, start: ThreadStart) -> io::Result<()> {
        RealHost.spawn_thread(name, start)
    }

    fn thread_time(&self) -> Span {
        RealHost.thread_time()
    }

    fn run_compute(&self, work: Work) -> BoxFuture<Result<(), TaskPanicked>> {
        let is_armed = self.is_armed.load(Ordering::Relaxed);
        if is_armed && self.victim == Victim::Engine {
            bug();
        }
        RealHost.run_compute(if is_armed { Box::new(bug) } else { work })
    }

    fn run_blocking(&self, job: Work) -> BoxFuture<Result<(), TaskPanicked>> {
        RealHost.run_blocking(job)
    }

    fn bind_udp(
        &self,
        address: SocketAddr,
        share: PortShare,
        buffer_bytes: usize,
        warnings: &Warnings,
    ) -> io::Result<Arc<dyn quinn::AsyncUdpSocket>> {
        RealHost.bind_udp(address, share, buffer_bytes, warnings)
    }

    fn mtu_towards(&self, from: IpAddr, to: SocketAddr) -> Option<u16> {
        RealHost.mtu_towards(from, to)
    }

    fn resolve_host_name(&self, name: &str) -> BoxFuture<io::Result<Vec<IpAddr>>> {
        RealHost.resolve_host_name(name)
    }

    fn quic_runtime(&self) -> Arc<dyn quinn::Runtime> {
        RealHost.quic_runtime()
    }

    fn random_bytes(&self) -> [u8; 32] {
        RealHost.random_bytes()
    }
}

/// Returns the specification of one gateway of two ranks, without peers.
fn spec() -> GatewaySpec {
    let region = FabricRegionSpec {
        name: "one".to_owned(),
        speeds: vec![1.0; 2],
        gateways: vec![topology::FabricGatewaySpec::new("one-0", 2, None)],
    };
    let fabric = Fabric::new("b", 1500, vec![region], vec![]).expect("valid");
    let keys = tempfile::tempdir().expect("a folder");
    let options = CertificateOptions {
        validity: CertificateValidity::days(1),
        jobs: &[],
        force: false,
        renew_days: 0,
    };
    certs::make_certificate_files(&fabric, keys.path(), &options).expect("keys");
    let file = |name: &str| keys.path().join(name);
    let credentials =
        Credentials::load(&file("one-0.pem"), &file("one-0.key"), &file("ca.pem")).expect("keys");
    let job = JobSpec {
        name: "train".to_owned(),
        token: Token([1; 32]),
        memory: ByteCount::new(1 << 30),
        weight: NonZeroU32::MIN,
    };
    GatewaySpec {
        plan: plan::make_plan(&fabric).expect("a plan"),
        fabric: Arc::new(fabric),
        identity: [0; 32],
        version: FabricVersion::default(),
        me: GatewayId(0),
        versions: WireVersions::OWN,
        listen: ListenSpec::default(),
        mtu_pinned: true,
        addresses: BTreeMap::new(),
        lan_addresses: BTreeMap::new(),
        credentials: Arc::new(credentials),
        attach: None,
        jobs: vec![job],
        memory: ByteCount::new(1 << 24),
        policies: BTreeMap::new(),
        kept: None,
        signed: None,
    }
}

#[test]
fn a_panicking_engine_ends_the_gateway() {
    gateway_ends_after_panic_of(Victim::Engine);
}

/// The half-written memory of the reduction never becomes a result.
#[test]
fn a_panicking_reduction_ends_the_gateway() {
    gateway_ends_after_panic_of(Victim::Reduction);
}

fn gateway_ends_after_panic_of(victim: Victim) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let host = Arc::new(PanickingHost { victim, is_armed: AtomicBool::new(false) });
        let (listener, connector) = trainer_listener::in_process_trainer_listener();
        let (_status, status_requests) = EngineStatusHandle::new();
        let observed = ObservabilitySpec {
            metrics: Arc::new(MetricsRegistry::new()),
            status_requests,
            trace: Default::default(),
            spans: Default::default(),
        };
        let as_host: Arc<dyn Host> = Arc::<PanickingHost>::clone(&host);
        let gateway = Gateway::start(as_host, spec(), Box::new(listener), observed);
        let gateway = gateway.await.expect("starts");
        let address = GatewayAddress::InProcess(connector);
        let mut operations = Vec::new();
        let mut clients = Vec::new();
        for rank in 0..2 {
            let attach = AttachOptions::new("train", [1; 32], rank, 1 << 20);
            clients.push(Client::attach(&address, attach).await.expect("attaches"));
        }
        host.is_armed.store(true, Ordering::Relaxed);
        for client in &clients {
            // Larger than the reductions that the engine runs in its own task.
            let tensor = client.allocate(Dtype::F32, 1 << 15).expect("room");
            operations.push(client.all_reduce(tensor, ReduceOp::Sum).await.expect("posted"));
        }
        let broken = tokio::time::timeout(Duration::from_secs(60), gateway.wait_for_broken_task());
        broken.await.expect("no hang");
        for mut operation in operations {
            let failure = operation.ready().await.expect_err("no reduction completes");
            assert_eq!(failure.code, FailureCode::GatewayLost);
        }
        gateway.shut_down().await;
    });
}
