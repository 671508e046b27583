use crate::observe::engine_status_request::{EngineStatusHandle, StatusError, StatusRequest};
use crate::observe::fabric_report::{FabricReport, FabricVersionReport};
use crate::observe::fetch_status::{FetchError, fetch_status};
use crate::observe::http_server::{AnswerSources, run_http_server};
use crate::observe::membership_report::{MembershipReport, WitnessReport};
use crate::observe::metrics::MetricsRegistry;
use crate::observe::readiness::judge_readiness;
use crate::observe::status::*;
use hier_collectives::ids::GatewayId;
use hier_collectives::topology::{
    Fabric, FabricGatewaySpec, FabricLinkSpec, FabricRegionSpec, WanPort,
};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use units::{BitRate, Fraction, Span};

/// Returns the report of a gateway whose job is in an epoch.
pub(super) fn example() -> GatewayReport {
    GatewayReport {
        gateway: "east-0".to_owned(),
        region: "east".to_owned(),
        program_version: "0.1.0".to_owned(),
        uptime_seconds: 100.0,
        fabric: "two-region".to_owned(),
        fabric_identity: "00ff".to_owned(),
        problems: vec![],
        attach: Some("192.0.2.10:7480".to_owned()),
        peers: vec![PeerReport {
            gateway: "west-0".to_owned(),
            region: "west".to_owned(),
            state: PeerState::Up,
            wire_version: Some(12),
            lanes_up: 4,
            lanes: 4,
            lanes_most: 4,
            lanes_reason: "the fewest that the fabric allows".to_owned(),
            rtt_ms: Some(80.5),
            sent_bytes: 1,
            received_bytes: 2,
            lost_packets: 3,
            loss: 0.0,
            loss_alarm: false,
            long_rtt_seconds: None,
            silent_seconds: 0.0,
            problem: None,
            remedy: None,
            silent_ports: vec![],
            path_mtu: None,
            mtu: Some(1500),
            shared: None,
        }],
        links: vec![],
        links_down: vec![],
        membership: Some(MembershipReport {
            left: vec![],
            leaving: vec![],
            called_off: vec![],
            joining: vec![],
            quorum: "2 of 3 regions".to_owned(),
            term: Some(4),
            members: vec!["east".to_owned(), "west".to_owned()],
            away: vec![],
            witness: Some(WitnessReport { region: "south".to_owned(), counts: true }),
            losses_survived: Some(1),
        }),
        fabric_version: FabricVersionReport::default(),
        jobs: vec![example_job()],
        lost_log_lines: 0,
        socket_problem: None,
        processor_problem: None,
        job_differences: vec![],
        restart_needed: vec![],
        file_faults: vec![],
    }
}

/// Returns the report of that job: it has completed seven collectives and awaits two ranks.
fn example_job() -> JobReport {
    JobReport {
        job: "train".to_owned(),
        epoch: Some(3),
        plan: Some(EpochPlanReport {
            algorithm: "swap".to_owned(),
            reason: "two regions".to_owned(),
            hash: "00ff".to_owned(),
        }),
        ranks: vec![RankReport { rank: 0, attached: true, samples_per_second: Some(12.5) }],
        straggler: Some(StragglerReport {
            kind: "rank".to_owned(),
            name: "0".to_owned(),
            behind_seconds: 0.25,
            collectives: 3,
            since_seconds: 30.0,
        }),
        collectives: vec![CollectiveReport {
            sequence: 7,
            op: "sum".to_owned(),
            dtype: "f32".to_owned(),
            bytes: 64 << 20,
            state: CollectiveState::Awaiting,
            awaited: vec![2, 3],
            seconds: 1.5,
        }],
        completed_seconds_ago: Some(0.5),
        groups: 0,
        incidents: vec![IncidentReport {
            kind: IncidentKind::CollectiveFailed,
            group: None,
            number: 6,
            code: 4,
            text: "rank 3 (west) was lost".to_owned(),
            count: 1,
            seconds_ago: 12.5,
        }],
        totals: TotalsReport {
            completed: 7,
            failed: 1,
            bytes: 7 << 26,
            seconds: 8.4,
            bound_seconds: 7.7,
        },
        commits: vec![CommitReport {
            rank: 0,
            step: 6,
            awaited: vec!["west".to_owned()],
            seconds: 0.5,
        }],
        removed: false,
        draining: None,
    }
}

/// Returns the fabric of that gateway: two regions with one gateway each.
pub(super) fn example_fabric() -> FabricReport {
    let rate = BitRate::from_bits_per_second(500_000_000);
    let wan = Some(WanPort { egress: rate, ingress: rate });
    let region = |name: &str| FabricRegionSpec {
        name: name.to_owned(),
        speeds: vec![1.0],
        gateways: vec![FabricGatewaySpec::new(format!("{name}-0"), 1, wan)],
    };
    let between = ("east".to_owned(), "west".to_owned());
    let link = FabricLinkSpec { between, rate, rtt: Span::from_ms(80), loss: Fraction::default() };
    let regions = vec![region("east"), region("west")];
    let fabric = Fabric::new("two-region", 1500, regions, vec![link]).expect("valid");
    FabricReport::new(&fabric, GatewayId(0))
}

/// A server on loopback, its metrics, and the requests that reach its engine.
pub(super) async fn server()
-> (SocketAddr, Arc<MetricsRegistry>, tokio::sync::mpsc::Receiver<StatusRequest>) {
    server_with(None).await
}

/// Starts such a server for a gateway with this problem at its socket.
async fn server_with(
    socket_problem: Option<String>,
) -> (SocketAddr, Arc<MetricsRegistry>, tokio::sync::mpsc::Receiver<StatusRequest>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
    let address = listener.local_addr().expect("bound");
    let metrics = Arc::new(MetricsRegistry::new());
    let (status, requests) = EngineStatusHandle::new();
    let observed = AnswerSources {
        metrics: Arc::clone(&metrics),
        status,
        socket_problem: tokio::sync::watch::channel(socket_problem).1,
        processor_problem: tokio::sync::watch::channel(None).1,
        attach: Some("192.0.2.10:7480".to_owned()),
    };
    tokio::spawn(run_http_server(listener, observed));
    (address, metrics, requests)
}

/// Answers a request as the engine does, with this status.
pub(super) fn answer_request(request: StatusRequest, status: GatewayReport) {
    match request {
        StatusRequest::Status(reply) => drop(reply.send(status)),
        StatusRequest::Fabric(reply) => drop(reply.send(example_fabric())),
        StatusRequest::Dump(reply) => drop(reply.send(DumpReport { status, flights: vec![] })),
    }
}

async fn fetch(address: SocketAddr) -> Result<GatewayReport, FetchError> {
    tokio::task::spawn_blocking(move || fetch_status(address)).await.expect("no panic")
}

#[tokio::test]
async fn status_is_the_answer_of_the_engine() {
    let (address, _, mut requests) = server().await;
    let engine = async {
        let answer = requests.recv().await.expect("asked");
        answer_request(answer, example());
    };
    let (status, ()) = tokio::join!(fetch(address), engine);
    assert_eq!(status.expect("a status"), example());
    drop(requests);
    let gone = fetch(address).await.expect_err("no engine");
    assert!(gone.to_string().contains("503") && gone.to_string().contains("stopping"), "{gone}");
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_does_not_answer_is_given_up() {
    let (status, requests) = EngineStatusHandle::new();
    assert_eq!(status.request().await, Err(StatusError::Late));
    // Abandoned requests stay queued until the engine receives them, so that the channel fills.
    let mut outcomes = Vec::new();
    for _ in 0..requests.max_capacity() {
        outcomes.push(status.request().await);
    }
    assert_eq!(outcomes.last(), Some(&Err(StatusError::Busy)));
}

#[tokio::test]
async fn fetching_without_a_gateway_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    assert!(matches!(fetch(address).await, Err(FetchError::Unreachable { .. })));
}

#[tokio::test]
async fn readiness_follows_the_epoch() {
    let (address, _, mut requests) = server().await;
    tokio::spawn(async move {
        let drain = DrainReport { seconds_left: 9.0, collectives: vec![7], uncommitted: vec![] };
        for (epoch, draining) in [(None, None), (Some(3), None), (Some(3), Some(drain))] {
            let answer = requests.recv().await.expect("asked");
            let mut status = example();
            status.jobs[0].epoch = epoch;
            status.jobs[0].draining = draining;
            answer_request(answer, status);
        }
    });
    let head = |path: &'static str| async move {
        let mut stream = TcpStream::connect(address).await.expect("connected");
        let request = format!("GET {path} HTTP/1.0\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("answered");
        answer.lines().next().unwrap_or_default().to_owned()
    };
    assert!(head("/readyz").await.contains("503"));
    assert!(head("/healthz").await.contains("200"));
    assert!(head("/readyz").await.contains("200"));
    assert!(head("/readyz").await.contains("503"), "shutting down");
    assert!(head("/readyz").await.contains("503"), "no engine any more");
    assert!(head("/metrics").await.contains("200"));
}

#[tokio::test]
async fn a_gateway_without_its_socket_is_not_ready() {
    let problem = "trainers cannot attach".to_owned();
    let (address, _, mut requests) = server_with(Some(problem.clone())).await;
    tokio::spawn(async move {
        while let Some(request) = requests.recv().await {
            answer_request(request, example());
        }
    });
    let mut stream = TcpStream::connect(address).await.expect("connected");
    stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("answered");
    assert!(answer.contains("503") && answer.contains(&problem), "{answer}");
    let status = fetch(address).await.expect("a status");
    let mut expected = GatewayReport { socket_problem: Some(problem), ..example() };
    expected.problems = judge_readiness(&expected);
    assert_eq!(status, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_and_long_headers_block_no_scraper() {
    let (address, _, mut requests) = server().await;
    tokio::spawn(async move {
        while let Some(request) = requests.recv().await {
            answer_request(request, example());
        }
    });
    let mut idle = Vec::new();
    for _ in 0..1000 {
        idle.push(TcpStream::connect(address).await.expect("accepted"));
    }
    let many = (0..1000).map(|n| format!("a{n}: b\r\n")).collect();
    for head in [many, format!("a: {}\r\n", "b".repeat(100_000))] {
        let mut stream = TcpStream::connect(address).await.expect("accepted");
        let _ = stream.write_all(format!("GET /status HTTP/1.1\r\n{head}\r\n").as_bytes()).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(!answer.contains(" 200 "), "{answer}");
    }
    assert_eq!(fetch(address).await.expect("a status"), example());
    let still_open = idle.iter().filter(|stream| stream.try_read(&mut [0]).is_err()).count();
    assert!(still_open < 128, "{still_open}");
}
