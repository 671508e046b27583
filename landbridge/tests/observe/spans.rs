//! Spans of collectives at a stand-in for an OpenTelemetry collector.

use super::deployment::{Deployment, Team};
use super::explain::post_different_sizes;
use super::{LAYOUT, east_status, get};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The first line of the answer of a collector that takes a request.
const TAKEN: &str = "HTTP/1.1 200 OK";

/// 60 s: a gateway has exported long before, also after two answers for which it waits 1 and 2 s.
const EXPORTED_WITHIN: Duration = Duration::from_secs(60);

/// A collector: its address, and the requests that were posted to it.
struct Collector {
    address: SocketAddr,
    requests: Receiver<String>,
}

/// The spans of a gateway's requests, with the attributes of their resource.
struct Exported {
    resource: BTreeMap<String, String>,
    spans: Vec<Value>,
}

impl Collector {
    /// Starts a collector that answers each request by the next of `answers`, and takes the rest.
    fn start(answers: &'static [&'static str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let (sender, requests) = sync_channel(64);
        std::thread::spawn(move || {
            let answers = answers.iter().chain(std::iter::repeat(&TAKEN));
            for (stream, answer) in listener.incoming().zip(answers) {
                let request = answer_request(stream.expect("a connection"), answer);
                if *answer == TAKEN && sender.send(request).is_err() {
                    return;
                }
            }
        });
        Self { address, requests }
    }

    /// Receives requests until there is a span of both gateways with this status, or none, and returns
    /// what each gateway exported.
    fn receive(&self, status: Option<u64>) -> BTreeMap<String, Exported> {
        let mut found: BTreeMap<String, Exported> = BTreeMap::new();
        let has_status =
            |one: &Exported| one.spans.iter().any(|span| span["status"]["code"].as_u64() == status);
        while found.len() < 2 || !found.values().all(has_status) {
            let request = self.requests.recv_timeout(EXPORTED_WITHIN).expect("a request");
            let (head, body) = request.split_once("\r\n\r\n").expect("a head");
            assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
            assert!(head.contains("Content-Type: application/json"), "{head}");
            let body: Value = serde_json::from_str(body).expect("JSON");
            let of = &body["resourceSpans"][0];
            let resource = attributes(&of["resource"]);
            let gateway = resource["service.instance.id"].clone();
            let spans = of["scopeSpans"][0]["spans"].as_array().expect("spans").clone();
            let entry = found.entry(gateway).or_insert(Exported { resource, spans: vec![] });
            entry.spans.extend(spans);
        }
        found
    }
}

/// Reads a request and answers it by a line. Returns head and body of the request.
fn answer_request(stream: TcpStream, answer: &str) -> String {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        reader.read_line(&mut head).expect("a head");
    }
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    let mut body = vec![0; length.expect("a length").parse().expect("a number")];
    reader.read_exact(&mut body).expect("a body");
    write!(reader.into_inner(), "{answer}\r\nContent-Length: 2\r\n\r\n{{}}").expect("sent");
    head + &String::from_utf8(body).expect("text")
}

/// Returns the attributes of a span or resource by their keys, all as texts.
fn attributes(of: &Value) -> BTreeMap<String, String> {
    let all = of["attributes"].as_array().into_iter().flatten();
    let pair = |one: &Value| {
        let value = &one["value"];
        let text = value["stringValue"].as_str().or(value["intValue"].as_str()).map(str::to_owned);
        let text = text.unwrap_or_else(|| value.to_string());
        (one["key"].as_str().expect("a key").to_owned(), text)
    };
    all.map(pair).collect()
}

/// Starts both gateways, each with spans for a collector.
fn exporting(collectors: [SocketAddr; 2]) -> Deployment {
    let mut deployment = Deployment::new(&LAYOUT);
    for (region, collector) in ["east", "west"].into_iter().zip(collectors) {
        let file = deployment.path(&format!("{region}.toml"));
        let text = std::fs::read_to_string(&file).expect("readable");
        let otlp = format!("otlp = \"http://{collector}\"\nstatus = ");
        std::fs::write(&file, text.replacen("status = ", &otlp, 1)).expect("written");
    }
    deployment.run_gateways();
    deployment
}

/// Returns begin and end of a span, in nanoseconds since 1970.
fn begin_and_end(span: &Value) -> [u128; 2] {
    ["startTimeUnixNano", "endTimeUnixNano"]
        .map(|key| span[key].as_str().expect("a text").parse().expect("a number"))
}

/// Asserts that a gateway exported one all-reduce of the test with its phases, between two times. Returns
/// the ids of its traces and spans.
fn assert_one_all_reduce(spans: &[Value], within: [u128; 2]) -> (BTreeSet<&str>, BTreeSet<&str>) {
    let names: Vec<_> = spans.iter().map(|span| span["name"].as_str().expect("a name")).collect();
    let phases = ["wait for ranks", "local reduction", "exchange", "delivery"];
    assert_eq!(names, [&["all-reduce"], &phases[..]].concat());
    let (whole, phases) = spans.split_first().expect("a span");
    assert!(whole["parentSpanId"].is_null(), "{whole}");
    let of = attributes(whole);
    for (key, value) in [
        ("landbridge.job", "train"),
        ("landbridge.epoch", "1"),
        ("landbridge.operation", "all-reduce"),
        ("landbridge.reduction", "sum"),
        ("landbridge.dtype", "i64"),
        ("landbridge.bytes", "1048576"),
    ] {
        assert_eq!(of[key], value, "{key}");
    }
    let [from, to] = begin_and_end(whole);
    assert!(within[0] <= from && from < to && to <= within[1], "{from} to {to}, not {within:?}");
    let mut last = from;
    for phase in phases {
        assert_eq!(phase["parentSpanId"], whole["spanId"], "{phase}");
        let [from, to] = begin_and_end(phase);
        assert!(from == last && from <= to, "{phase} from {last}");
        last = to;
    }
    assert_eq!(last, to, "the phases end with the whole");
    let ids = |key| spans.iter().map(|span| span[key].as_str().expect("an id")).collect();
    (ids("traceId"), ids("spanId"))
}

#[test]
fn a_collective_is_one_trace_of_all_gateways() {
    // A collector that is not ready, or speaks something else, gets the batch again.
    let collector = Collector::start(&["HTTP/1.1 503 Service Unavailable", "SSH-2.0-rubbish"]);
    let deployment = exporting([collector.address; 2]);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let unix_now = || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos();
    let begin = unix_now();
    runtime.block_on(async {
        let team = Team::attach(&deployment, &LAYOUT, "train").await;
        team.sum(&[1, 20, 300], 1 << 17).await.expect("a sum");
    });
    let within = [begin, unix_now()];
    let found = collector.receive(None);
    for (gateway, region) in [("east-0", "east"), ("west-0", "west")] {
        let resource = &found[gateway].resource;
        for (key, value) in [
            ("service.name", "landbridge"),
            ("service.namespace", "two"),
            ("service.instance.id", gateway),
            ("landbridge.region", region),
        ] {
            assert_eq!(resource[key], value, "{key}");
        }
    }
    let [(east, of_east), (west, of_west)] =
        ["east-0", "west-0"].map(|gateway| assert_one_all_reduce(&found[gateway].spans, within));
    assert!(east == west && east.len() == 1, "{east:?} and {west:?}");
    assert!(east.iter().all(|id| id.len() == 32), "{east:?}");
    let all: BTreeSet<_> = of_east.union(&of_west).collect();
    assert!(all.len() == 10 && all.iter().all(|id| id.len() == 16), "{all:?}");
}

#[test]
fn a_failure_has_its_code_and_no_secret() {
    let collector = Collector::start(&[]);
    let deployment = exporting([collector.address; 2]);
    post_different_sizes(&deployment);
    let found = collector.receive(Some(2));
    let token = std::fs::read_to_string(deployment.path("keys/train.token")).expect("a token");
    for Exported { resource, spans } in found.values() {
        let failed = spans.iter().find(|span| span["status"]["code"] == 2).expect("a failure");
        assert_eq!(attributes(failed)["landbridge.failure.code"], "1", "{failed}");
        let text = format!("{resource:?} {spans:?}");
        assert!(!text.contains(token.trim()), "{text}");
    }
}

#[test]
fn collectors_that_are_away_or_hang_hold_nothing() {
    // One is away; the other accepts connections and never reads or answers.
    let away = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let hanging = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut deployment = exporting([away, hanging.local_addr().expect("bound")]);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let team = Team::attach(&deployment, &LAYOUT, "train").await;
        team.sum(&[1, 20, 300], 1000).await.expect("a sum");
        // From here on both exporters are at work.
        let _connection = hanging.accept().expect("a connection");
        deployment.gateways[0].log.line_with("spans are not exported to");
        for _ in 0..20 {
            team.sum(&[1, 20, 300], 1000).await.expect("a sum");
        }
        let (_, metrics) = get(east_status(&deployment), "/metrics", "");
        assert!(metrics.contains("\nlandbridge_exported_spans_total 0\n"), "{metrics}");
    });
    for gateway in &mut deployment.gateways {
        kill_process(Pid::from_child(&gateway.process), Signal::TERM).expect("signalled");
        assert!(gateway.process.wait().expect("ends").success(), "{}", gateway.log.text());
    }
}
