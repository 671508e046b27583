//! Region files that differ in their jobs, as trainers, doctor, status and `/readyz` tell it.

use super::paths::{findings, run};
use super::stop::get;
use gateway::client::{AttachError, AttachOptions, Client, GatewayAddress};
use gateway::config::RegionFile;
use units::Span;

/// 5 s: the gateways meet and tell trainers what they wait for within less.
const PATIENCE: Span = Span::from_secs(5);

#[test]
fn regions_with_a_job_each_are_told_at_both_ends() {
    let mut deployment = super::deployment(1, 1);
    deployment.certs("keys", &["train", "zoo"]);
    let west = std::fs::read_to_string(deployment.path("west.toml")).expect("readable");
    let other = west.replace("[job.train]", "[job.zoo]").replace("train.token", "zoo.token");
    assert_ne!(west, other);
    std::fs::write(deployment.path("west.toml"), other).expect("written");
    deployment.run_gateways();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for (rank, region, job, theirs, peer) in
        [(0, "east", "train", "zoo", "west-0"), (1, "west", "zoo", "train", "east-0")]
    {
        let way = GatewayAddress::Socket(deployment.path(&format!("{region}.sock")));
        let attach = AttachOptions::new(job, deployment.token(job), rank, 1 << 20);
        let attach = AttachOptions { epoch_timeout: PATIENCE, ..attach };
        let alone = runtime.block_on(Client::attach(&way, attach)).map(|_| ());
        let Err(error @ AttachError::NoEpoch(_)) = alone else { panic!("{alone:?}") };
        let missing = format!("job {job} of gateway {peer}");
        let text = error.to_string();
        assert!(text.contains(&format!("{missing}: not in its region file")), "{text}");
        assert!(text.contains(&format!("`[job.{job}]` there")), "{text}");
        let doctor = run(&deployment, "doctor", region, &["--json"]);
        assert_eq!(doctor.status.code(), Some(1), "{region}: {doctor:?}");
        assert!(String::from_utf8_lossy(&doctor.stdout).contains(&missing), "{doctor:?}");
        let found = findings(&doctor, "running gateway");
        let verdict = |wanted: &str, start: &str| {
            found.iter().any(|(verdict, found)| verdict == wanted && found.starts_with(start))
        };
        assert!(verdict("failed", "not in its region file"), "{region}: {found:?}");
        assert!(verdict("warning", "not in the region file here"), "{region}: {found:?}");
        let status = run(&deployment, "status", region, &[]);
        let text = String::from_utf8(status.stdout).expect("text");
        assert!(text.contains("NOT READY") && text.contains(&missing), "{region}: {text}");
        assert!(text.contains(&format!("job {theirs} of gateway {peer}")), "{region}: {text}");
        let file = RegionFile::load(&deployment.path(&format!("{region}.toml"))).expect("valid");
        let ready = get(file.gateway(None).expect("one").status, "/readyz");
        assert!(ready.contains("503") && ready.contains(&missing), "{ready}");
    }
}
