use super::metrics::{Metrics, Outcome};
use super::server::{FetchError, Observed, fetch_status, serve};
use super::status::*;
use hier_collectives::ids::RankId;
use hier_collectives::session::Discard;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn example() -> Status {
    Status {
        gateway: "east-0".to_owned(),
        fabric: "two-region".to_owned(),
        peers: vec![PeerStatus {
            gateway: "west-0".to_owned(),
            state: PeerState::Up,
            lanes_up: 4,
            lanes: 4,
            rtt_ms: Some(80.5),
            sent_bytes: 1,
            received_bytes: 2,
            lost_packets: 3,
            loss: 0.0,
            loss_alarm: false,
            problem: None,
        }],
        links: vec![],
        jobs: vec![JobStatus {
            job: "train".to_owned(),
            epoch: Some(3),
            plan: Some(PlanStatus {
                algorithm: "swap".to_owned(),
                reason: "two regions".to_owned(),
                hash: "00ff".to_owned(),
            }),
            ranks: vec![RankStatus { rank: 0, attached: true, samples_per_second: Some(12.5) }],
            straggler: Some(StragglerStatus {
                kind: "rank".to_owned(),
                name: "0".to_owned(),
                behind_seconds: 0.25,
                collectives: 3,
            }),
            collectives: vec![CollectiveStatus {
                sequence: 7,
                op: "sum".to_owned(),
                dtype: "f32".to_owned(),
                bytes: 64 << 20,
                state: CollectiveState::Awaiting,
                awaited: vec![2, 3],
                seconds: 1.5,
            }],
            commits: vec![CommitStatus {
                rank: 0,
                step: 6,
                awaited: vec!["west".to_owned()],
                seconds: 0.5,
            }],
            draining: None,
        }],
    }
}

#[test]
fn metrics_have_the_names_that_dashboards_use() {
    let metrics = Metrics::new();
    let peer = metrics.peer("west-0");
    peer.sent_bytes.inc_by(5);
    metrics.peer("west-0").sent_bytes.inc_by(2);
    peer.received_bytes.inc();
    peer.resent_bytes.inc();
    peer.parity_bytes.inc();
    peer.restored_segments.inc();
    peer.lost_packets.inc();
    peer.loss_ratio.set(0.5);
    peer.loss_alarm.set(1);
    peer.loss_alarms.inc();
    peer.lanes_up.set(4);
    peer.rtt_seconds.set(0.08);
    let job = metrics.job("train");
    job.epoch.set(2);
    job.awaits(RankId(3), Some(1.5));
    job.awaits(RankId(4), Some(1.5));
    job.awaits(RankId(4), None);
    let mut straggler = StragglerStatus {
        kind: "rank".to_owned(),
        name: "7".to_owned(),
        behind_seconds: 0.5,
        collectives: 3,
    };
    job.straggles(Some(&straggler));
    (straggler.kind, straggler.name) = ("region".to_owned(), "west".to_owned());
    job.straggles(Some(&straggler));
    job.draining.set(1);
    job.waiting_commits.set(2);
    job.commit_awaited_seconds.set(2.5);
    metrics.segments.inc();
    job.collectives("sum", Outcome::Completed).inc();
    job.seconds("sum").observe(0.5);
    metrics.dropped_segments(Discard::Epoch).inc();
    let text = metrics.render();
    for line in [
        "landbridge_wan_payload_bytes_total{peer=\"west-0\",direction=\"sent\"} 7",
        "landbridge_wan_payload_bytes_total{peer=\"west-0\",direction=\"received\"} 1",
        "landbridge_wan_resent_bytes_total{peer=\"west-0\"} 1",
        "landbridge_wan_parity_bytes_total{peer=\"west-0\"} 1",
        "landbridge_restored_segments_total{peer=\"west-0\"} 1",
        "landbridge_lost_packets_total{peer=\"west-0\"} 1",
        "landbridge_loss_ratio{peer=\"west-0\"} 0.5",
        "landbridge_loss_alarm{peer=\"west-0\"} 1",
        "landbridge_loss_alarms_total{peer=\"west-0\"} 1",
        "landbridge_lanes_up{peer=\"west-0\"} 4",
        "landbridge_peer_rtt_seconds{peer=\"west-0\"} 0.08",
        "landbridge_epoch{job=\"train\"} 2",
        "landbridge_awaited_seconds{job=\"train\",rank=\"3\"} 1.5",
        "landbridge_straggler_behind_seconds{job=\"train\",kind=\"region\",name=\"west\"} 0.5",
        "landbridge_draining{job=\"train\"} 1",
        "landbridge_waiting_commits{job=\"train\"} 2",
        "landbridge_commit_awaited_seconds{job=\"train\"} 2.5",
        "landbridge_segments_total 1",
        "landbridge_collectives_total{job=\"train\",op=\"sum\",outcome=\"completed\"} 1",
        "landbridge_collective_seconds_count{job=\"train\",op=\"sum\"} 1",
        "landbridge_dropped_segments_total{reason=\"other_epoch\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "no `{line}` in\n{text}");
    }
}

/// A server on loopback, and the questions of its door.
async fn server() -> (SocketAddr, Arc<Metrics>, tokio::sync::mpsc::Receiver<StatusRequest>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
    let address = listener.local_addr().expect("bound");
    let metrics = Arc::new(Metrics::new());
    let (door, questions) = StatusDoor::new();
    tokio::spawn(serve(listener, Observed { metrics: Arc::clone(&metrics), door }));
    (address, metrics, questions)
}

async fn fetch(address: SocketAddr) -> Result<Status, FetchError> {
    tokio::task::spawn_blocking(move || fetch_status(address)).await.expect("no panic")
}

#[tokio::test]
async fn status_is_what_the_engine_answers() {
    let (address, _, mut questions) = server().await;
    let engine = async {
        let answer = questions.recv().await.expect("asked");
        answer.send(example()).expect("awaited");
    };
    let (status, ()) = tokio::join!(fetch(address), engine);
    assert_eq!(status.expect("a status"), example());
    drop(questions);
    let gone = fetch(address).await.expect_err("no engine");
    assert!(gone.to_string().contains("503") && gone.to_string().contains("stopping"), "{gone}");
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_does_not_answer_is_given_up() {
    let (door, questions) = StatusDoor::new();
    assert_eq!(door.ask().await, Err(NoStatus::Late));
    // Abandoned questions stay queued until the engine comes by; then the door says so at once.
    let mut outcomes = Vec::new();
    for _ in 0..questions.max_capacity() {
        outcomes.push(door.ask().await);
    }
    assert_eq!(outcomes.last(), Some(&Err(NoStatus::Busy)));
}

#[tokio::test]
async fn nothing_answers_where_no_gateway_runs() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    assert!(matches!(fetch(address).await, Err(FetchError::NothingAnswers { .. })));
}

#[tokio::test]
async fn readiness_follows_the_epoch() {
    let (address, _, mut questions) = server().await;
    tokio::spawn(async move {
        let drain = DrainStatus { seconds_left: 9.0, collectives: vec![7], uncommitted: vec![] };
        for (epoch, draining) in [(None, None), (Some(3), None), (Some(3), Some(drain))] {
            let answer = questions.recv().await.expect("asked");
            let mut status = example();
            status.jobs[0].epoch = epoch;
            status.jobs[0].draining = draining;
            answer.send(status).expect("awaited");
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

#[tokio::test(flavor = "multi_thread")]
async fn crowds_and_long_headers_keep_no_scraper_out() {
    let (address, _, mut questions) = server().await;
    tokio::spawn(async move {
        while let Some(question) = questions.recv().await {
            let _ = question.send(example());
        }
    });
    let mut crowd = Vec::new();
    for _ in 0..1000 {
        crowd.push(TcpStream::connect(address).await.expect("let in"));
    }
    let many = (0..1000).map(|n| format!("a{n}: b\r\n")).collect();
    for head in [many, format!("a: {}\r\n", "b".repeat(100_000))] {
        let mut stream = TcpStream::connect(address).await.expect("let in");
        let _ = stream.write_all(format!("GET /status HTTP/1.1\r\n{head}\r\n").as_bytes()).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(!answer.contains(" 200 "), "{answer}");
    }
    assert_eq!(fetch(address).await.expect("a status"), example());
    let still_open = crowd.iter().filter(|stream| stream.try_read(&mut [0]).is_err()).count();
    assert!(still_open < 128, "{still_open}");
}
