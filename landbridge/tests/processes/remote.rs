//! Trainers that attach over TLS, as from other hosts.

use super::deployment::{BINARY, Deployment, Layout};
use super::paths::{findings, run};
use gateway::certs::{CertificateAuthority, CertificateValidity};
use gateway::client::{
    AttachError, AttachOptions, AttachTlsGateway, Client, CollectiveSpec, GatewayAddress, Operation,
};
use gateway::local::refusal::RefusalReason;
use hier_collectives::descriptor::{Dtype, Pattern, ReduceOp};
use hier_collectives::ids::RankId;
use hier_collectives::post::FailureCode;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use units::Span;

/// Elements of a buffer of several pieces, of which the last is short.
const ELEMENTS: usize = 300_007;

/// Attaches a rank of the job `train`.
async fn attach(
    deployment: &Deployment,
    way: GatewayAddress,
    rank: u32,
) -> Result<Client, AttachError> {
    let attach = AttachOptions::new("train", deployment.token("train"), rank, 16 << 20);
    let attach = AttachOptions { gateway_timeout: Span::from_secs(20), ..attach };
    Client::attach(&way, attach).await
}

/// Returns the Unix socket of a region.
fn socket(deployment: &Deployment, region: &str) -> GatewayAddress {
    GatewayAddress::Socket(deployment.path(&format!("{region}.sock")))
}

/// Posts a collective with values that follow from the rank.
async fn post(client: &Client, pattern: Pattern) -> Operation {
    let mut tensor = client.allocate(Dtype::F32, ELEMENTS as u64).expect("room");
    let rank = client.rank().0 as f32;
    let values: Vec<f32> = (0..ELEMENTS).map(|at| (at as f32).mul_add(0.1, rank)).collect();
    tensor.write_f32(&values);
    client.post(tensor, CollectiveSpec::new(pattern, ReduceOp::Sum)).await.expect("posted")
}

#[test]
fn ranks_over_tls_and_over_sockets_get_the_same_bits() {
    let layout = Layout::of(2, 1);
    let mut deployment = Deployment::new(&layout);
    let east = deployment.serve_hosts("east", "");
    let west = deployment.serve_hosts("west", "");
    deployment.run_gateways();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let local = socket(&deployment, "east");
        let (one, two, three) = tokio::join!(
            attach(&deployment, GatewayAddress::Tls(east.clone()), 0),
            attach(&deployment, local, 1),
            attach(&deployment, GatewayAddress::Tls(west), 2),
        );
        let clients = [one, two, three].map(|attached| attached.expect("attaches"));
        for pattern in [Pattern::AllReduce, Pattern::Broadcast { from: RankId(1) }] {
            let mut results = Vec::new();
            for client in &clients {
                results.push(post(client, pattern).await);
            }
            let mut bits = Vec::new();
            for mut operation in results {
                operation.ready().await.expect("a result");
                bits.push(operation.result());
                operation.reclaim().await.expect("free");
            }
            assert!(bits.windows(2).all(|pair| pair[0] == pair[1]), "{pattern}: ranks differ");
            assert!(bits[0].iter().any(|byte| *byte != 0), "{pattern}: no values");
        }
    });
    let doctor = run(&deployment, "doctor", "east", &["--json"]);
    let found = findings(&doctor, "attach address");
    assert!(found.len() == 1 && found[0].0 == "ok", "{found:?}");
    assert!(found[0].1.contains("proves its name"), "{found:?}");
    let status = run(&deployment, "status", "east", &[]);
    let text = String::from_utf8(status.stdout).expect("text");
    assert!(text.contains(&format!("attach at {}", east.address)), "{text}");
}

/// Attaches rank 0 to east, which fails; returns the error.
fn refused(deployment: &Deployment, way: AttachTlsGateway) -> AttachError {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let attached = runtime.block_on(attach(deployment, GatewayAddress::Tls(way), 0));
    attached.map(|_| ()).expect_err("no trust")
}

#[test]
fn no_token_goes_to_a_gateway_without_its_name() {
    let mut deployment = super::deployment(1, 1);
    let way = deployment.serve_hosts("east", "");
    deployment.certs("other", &["train"]);
    deployment.run_gateway("east");
    let other_ca = AttachTlsGateway { ca: deployment.path("other/ca.pem"), ..way.clone() };
    let error = refused(&deployment, other_ca);
    assert!(matches!(error, AttachError::Untrusted(_)), "{error}");
    assert!(error.to_string().contains("is `ca` the CA of this gateway's deployment"), "{error}");
    let other_name = AttachTlsGateway { gateway: Some("west-0".to_owned()), ..way.clone() };
    let error = refused(&deployment, other_name);
    assert!(matches!(error, AttachError::Untrusted(_)), "{error}");
    assert!(error.to_string().contains("east-0.two.landbridge"), "{error}");
    let no_file = AttachTlsGateway { ca: deployment.path("keys/none.pem"), ..way.clone() };
    assert!(matches!(refused(&deployment, no_file), AttachError::Credentials(_)));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let guessed = AttachOptions::new("train", [7; 32], 0, 1 << 20);
    let attached = runtime.block_on(Client::attach(&GatewayAddress::Tls(way), guessed));
    let Err(AttachError::Refused(refusal)) = attached.map(|_| ()) else { panic!("a wrong token") };
    assert_eq!(refusal.reason, RefusalReason::Unauthorized);
}

/// 10 s: a gateway starts within this time, and its certificate expires after it.
const LIFETIME_SECONDS: u32 = 10;

/// 60 s: twice the interval at which a gateway judges its certificate files.
const CERTIFICATE_REPORT_PATIENCE: Duration = Duration::from_secs(60);

/// A gateway does not start with an expired certificate, but it may run until one expires.
#[test]
fn an_expired_certificate_of_a_gateway_is_refused() {
    let mut deployment = super::deployment(1, 1);
    let way = deployment.serve_hosts("east", "");
    let keys = deployment.path("keys");
    let authority = CertificateAuthority::load(&keys.join("ca.pem"), &keys.join("ca.key"));
    let validity = CertificateValidity::seconds(LIFETIME_SECONDS);
    let expiry = Instant::now() + Duration::from_secs(u64::from(LIFETIME_SECONDS) + 1);
    let issued = authority.expect("a CA").issue_certificate("east-0", "two", validity);
    let issued = issued.expect("issued");
    std::fs::write(keys.join("east-0.pem"), issued.certificate_pem).expect("written");
    std::fs::write(keys.join("east-0.key"), issued.key_pem).expect("written");
    deployment.run_gateway("east");
    std::thread::sleep(expiry.saturating_duration_since(Instant::now()));
    let error = refused(&deployment, way);
    assert!(matches!(error, AttachError::Untrusted(_)), "{error}");
    assert!(error.to_string().contains("expired"), "{error}");
    let mut found = serde_json::Value::Null;
    let deadline = Instant::now() + CERTIFICATE_REPORT_PATIENCE;
    while found.is_null() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(200));
        let problems = deployment.status(0)["problems"].clone();
        let mut problems = problems.as_array().expect("problems").iter();
        found = problems.find(|problem| problem["cause"] == "files").cloned().into();
    }
    let text = found["found"].as_str().expect("the status names the certificate");
    assert!(text.contains("east-0.pem has expired"), "{found}");
    deployment.gateways[0].log.line_with("certificates cannot be used");
}

#[test]
fn a_trainer_shows_its_certificate_where_it_is_wanted() {
    let mut deployment = super::deployment(1, 1);
    let way = deployment.serve_hosts("east", "trainers_ca = \"keys/ca.pem\"");
    deployment.certs("other", &["train"]);
    deployment.run_gateways();
    let error = refused(&deployment, way.clone());
    assert!(matches!(error, AttachError::Untrusted(_)), "{error}");
    assert!(error.to_string().contains("trainers_ca"), "{error}");
    let with = |folder: &str| {
        let file = |name: &str| deployment.path(folder).join(name);
        AttachTlsGateway { identity: Some((file("west-0.pem"), file("west-0.key"))), ..way.clone() }
    };
    let error = refused(&deployment, with("other"));
    assert!(matches!(error, AttachError::Untrusted(_)), "{error}");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let west = socket(&deployment, "west");
        let (one, other) = tokio::join!(
            attach(&deployment, GatewayAddress::Tls(with("keys")), 0),
            attach(&deployment, west, 1),
        );
        assert_eq!(one.expect("attaches").world_size(), 2);
        other.expect("attaches");
    });
}

/// Runs both ranks of a benchmark, of which the first attaches at an address of east.
fn bench_at(deployment: &Deployment, attach: &str, arguments: &[&str]) -> [serde_json::Value; 2] {
    let rank = |(rank, region, more): (&str, &str, &[&str])| {
        let mut command = Command::new(BINARY);
        command.arg("bench").args(arguments).args(["--json", "--iterations", "2", "--rank", rank]);
        command.args(["--size", "600 KiB", "--config"]);
        command.arg(deployment.path(&format!("{region}.toml"))).args(more);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts")
    };
    let ranks = [("0", "east", &["--attach", attach][..]), ("1", "west", &[])].map(rank);
    ranks.map(|rank| super::outcome(&rank.wait_with_output().expect("ends")))
}

#[test]
fn a_benchmark_checks_every_operation_over_tls() {
    let mut deployment = super::deployment(1, 1);
    let way = deployment.serve_hosts("east", "").address.to_string();
    deployment.run_gateways();
    for arguments in [
        &["all-reduce"][..],
        &["reduce", "--root", "1"],
        &["broadcast", "--root", "1"],
        &["all-gather", "--dtype", "u16"],
        &["reduce-scatter"],
        &["gather", "--root", "0"],
        &["scatter", "--root", "1"],
        &["all-to-all", "--dtype", "f64"],
        &["barrier"],
    ] {
        for outcome in bench_at(&deployment, &way, arguments) {
            assert_eq!(outcome["operation"], arguments[0], "{outcome}");
            assert_eq!(outcome["seconds"].as_array().map(Vec::len), Some(2), "{outcome}");
        }
    }
}

#[test]
fn a_killed_gateway_leaves_contributions_intact_over_tls() {
    let mut deployment = super::deployment(1, 1);
    let way = deployment.serve_hosts("east", "");
    deployment.run_gateways();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let west = socket(&deployment, "west");
        let (one, other) = tokio::join!(
            attach(&deployment, GatewayAddress::Tls(way.clone()), 0),
            attach(&deployment, west, 1),
        );
        let (one, _other) = (one.expect("attaches"), other.expect("attaches"));
        let mut operation = post(&one, Pattern::AllReduce).await;
        let mut east = deployment.gateways.remove(0);
        east.process.kill().expect("killed");
        east.process.wait().expect("ended");
        let failure = operation.ready().await.expect_err("its gateway is gone");
        assert_eq!(failure.code, FailureCode::GatewayLost, "{failure}");
        let tensor = operation.reclaim().await.expect("given back");
        let bytes = tensor.read();
        assert_eq!(&bytes[4..8], &0.1f32.to_le_bytes());
        // Another gateway takes its place, and a trainer attaches there.
        deployment.run_gateway("east");
        let again = attach(&deployment, GatewayAddress::Tls(way), 0).await.expect("attaches");
        assert_eq!(again.world_size(), 2);
    });
}
