//! Answers and options, and the files that follow from them.

use super::init_options::{
    InitLinkOption, InitPerRegionOption, InitRegionOption, parse_init_addresses_option,
};
use super::questions::{Answers, Questioner};
use super::*;
use gateway::config::RegionFile;
use gateway::wan::connect::peer_addresses::PeerAddress;
use std::num::NonZeroU32;
use units::{BitRate, ByteCount, Fraction, Span};

/// Returns the specification of a deployment from answers at a terminal.
fn spec_of(answers: &Answers, sockets: SocketPlace) -> Result<DeploymentSpec, InitError> {
    let Answers { regions, ranks, port_rates, links } = answers;
    Ok(DeploymentSpec {
        fabric: "training".to_owned(),
        regions: DeploymentSpec::regions_from_options(regions, ranks, port_rates)?,
        links: links.clone(),
        jobs: vec!["train".to_owned(), "evaluate".to_owned()],
        job_memory: ByteCount::new(4 << 30),
        sockets,
    })
}

/// Returns the answers of somebody who types `lines`, and what was asked.
fn ask(lines: &str) -> (Result<Answers, InitError>, String) {
    let mut asked = Vec::new();
    let answers = Questioner::new(lines.as_bytes(), &mut asked).ask_for_deployment();
    (answers, String::from_utf8(asked).expect("questions are text"))
}

/// Answers for two regions, one with two gateways.
const TWO_REGIONS: &str = "east west\n192.0.2.10\n\n\n198.51.100.7, 198.51.100.8:7500\n4\n2.5 Gbit/s\n80ms\n1Gbit/s\n0.1 %\n";

#[test]
fn answers_make_files_that_gateways_read() {
    let (answers, _) = ask(TWO_REGIONS);
    let folder = tempfile::tempdir().expect("a temporary directory");
    let out = folder.path().join("new");
    let spec = spec_of(&answers.expect("complete"), SocketPlace::BesideRegionFile);
    let folders = make_init_deployment(&spec.expect("valid"), &out, 30).expect("made");
    let ranks: Vec<_> = folders.iter().map(|of| (of.first_rank, of.ranks)).collect();
    assert_eq!(ranks, [(0, 8), (8, 8)]);
    for (region, gateways) in [("east", 1), ("west", 2)] {
        let file = RegionFile::load(&out.join(region).join(format!("{region}.toml")));
        let file = file.expect("the readers of gateways take it");
        assert_eq!((file.gateways().count(), file.jobs().count()), (gateways, 2));
        for gateway in file.gateways() {
            assert!(gateway.key.exists() && gateway.certificate.exists() && gateway.ca.exists());
        }
    }
    assert_eq!(std::fs::read_dir(folder.path()).expect("readable").count(), 1, "no draft is left");
}

#[test]
fn a_region_gets_no_key_of_another() {
    let (answers, _) = ask(TWO_REGIONS);
    let folder = tempfile::tempdir().expect("a temporary directory");
    let out = folder.path().join("new");
    let spec = spec_of(&answers.expect("complete"), SocketPlace::SystemService);
    make_init_deployment(&spec.expect("valid"), &out, 30).expect("made");
    let mut keys: Vec<_> = std::fs::read_dir(out.join("west/keys"))
        .expect("readable")
        .map(|entry| entry.expect("readable").file_name().into_string().expect("text"))
        .collect();
    keys.sort_unstable();
    let wanted =
        ["ca.pem", "evaluate.token", "train.token", "west-0.key", "west-0.pem", "west-1.key"];
    assert_eq!(keys, [&wanted[..], &["west-1.pem"]].concat());
    let text = std::fs::read_to_string(out.join("west/west.toml")).expect("readable");
    assert!(text.contains("/run/landbridge/west/west-1.sock"), "{text}");
}

#[test]
fn secrets_are_readable_by_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let (answers, _) = ask(TWO_REGIONS);
    let folder = tempfile::tempdir().expect("a temporary directory");
    let out = folder.path().join("new");
    let spec = spec_of(&answers.expect("complete"), SocketPlace::BesideRegionFile);
    make_init_deployment(&spec.expect("valid"), &out, 30).expect("made");
    for secret in ["CA/ca.key", "east/keys/east-0.key", "west/keys/train.token"] {
        let mode = std::fs::metadata(out.join(secret)).expect("there").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{secret} has mode {mode:o}");
    }
}

#[test]
fn a_used_folder_stays_as_it_is() {
    let (answers, _) = ask(TWO_REGIONS);
    let folder = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(folder.path().join("thesis.txt"), "mine").expect("ours");
    let spec = spec_of(&answers.expect("complete"), SocketPlace::BesideRegionFile).expect("valid");
    let error = make_init_deployment(&spec, folder.path(), 30).expect_err("used").to_string();
    assert!(error.contains("has files already"), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).expect("readable").count(), 1);
}

#[test]
fn answers_that_make_no_fabric_leave_nothing() {
    let (answers, _) = ask("east west\n192.0.2.10\n\n\n198.51.100.7\n\n\nnone\n");
    let folder = tempfile::tempdir().expect("a temporary directory");
    let out = folder.path().join("new");
    let spec = spec_of(&answers.expect("complete"), SocketPlace::BesideRegionFile).expect("valid");
    let error = make_init_deployment(&spec, &out, 30).expect_err("no link joins them").to_string();
    assert!(error.contains("nothing was written") && error.contains("new/fabric.toml"), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).expect("readable").count(), 0);
}

#[test]
fn a_wrong_answer_is_explained_and_asked_again() {
    let lines = TWO_REGIONS.replacen("192.0.2.10\n", "gateway_0\n\n192.0.2.10\n", 1);
    let (answers, asked) = ask(&lines);
    assert!(asked.contains("`gateway_0` is no IP address and no host name; write"), "{asked}");
    assert!(asked.contains("no address; write that"), "{asked}");
    let regions = answers.expect("complete in the end").regions;
    let address = PeerAddress::Ip("192.0.2.10:7400".parse().expect("an address"));
    assert_eq!(regions[0].addresses, [address]);
}

#[test]
fn host_names_make_files_that_gateways_read() {
    let lines = TWO_REGIONS.replacen("192.0.2.10\n", "GW.Example.net gw.example.net:7500\n", 1);
    let (answers, _) = ask(&lines);
    let folder = tempfile::tempdir().expect("a temporary directory");
    let out = folder.path().join("new");
    let spec = spec_of(&answers.expect("complete"), SocketPlace::BesideRegionFile);
    make_init_deployment(&spec.expect("valid"), &out, 30).expect("made");
    let text = std::fs::read_to_string(out.join("fabric.toml")).expect("readable");
    for wan in ["gw.example.net:7400", "gw.example.net:7500", "198.51.100.7:7400"] {
        assert!(text.contains(&format!("wan = \"{wan}\"")), "{wan}: {text}");
    }
    let file = RegionFile::load(&out.join("east/east.toml")).expect("readable");
    let ports: Vec<u16> = file.gateways().map(|gateway| gateway.status.port()).collect();
    assert_eq!(ports, [9400, 9401], "both are on one host");
    let wrong = ["gw.example.net:0", "gw.example.net:x", "-gw", "10.0.0.256", ":7400"];
    for address in wrong {
        parse_init_addresses_option(address).expect_err(address);
    }
}

#[test]
fn answers_that_end_early_are_an_error() {
    for (at, _) in TWO_REGIONS.match_indices('\n').take(9) {
        let (answers, _) = ask(&TWO_REGIONS[..at]);
        assert!(matches!(answers, Err(InitError::AnswersEnded)) || at + 1 == TWO_REGIONS.len());
    }
}

#[test]
fn options_of_a_region_win_over_those_of_all() {
    let all: Vec<InitPerRegionOption<NonZeroU32>> =
        ["east=8", "4", "west=2", "6"].map(|text| text.parse().expect("an option")).to_vec();
    let of = |region| InitPerRegionOption::value_for(&all, region).map(NonZeroU32::get);
    assert_eq!([of("east"), of("west"), of("north")], [Some(8), Some(2), Some(6)]);
    assert_eq!(InitPerRegionOption::<NonZeroU32>::value_for(&[], "east"), None);
}

#[test]
fn options_for_no_region_or_a_missing_value_are_named() {
    let regions: Vec<InitRegionOption> =
        ["east=192.0.2.10", "west=192.0.2.11"].map(|text| text.parse().expect("valid")).to_vec();
    let ranks: Vec<InitPerRegionOption<NonZeroU32>> = vec!["8".parse().expect("valid")];
    let rates: Vec<InitPerRegionOption<BitRate>> = vec!["east=1Gbit/s".parse().expect("valid")];
    let error = |regions: &[InitRegionOption], ranks: &[_], rates: &[_]| {
        let made = DeploymentSpec::regions_from_options(regions, ranks, rates);
        made.expect_err("refused").to_string()
    };
    let missing = error(&regions, &ranks, &rates);
    assert!(missing.starts_with("--port-rate is missing for region `west`"), "{missing}");
    let stranger = error(&regions, &["north=8".parse().expect("valid")], &rates);
    assert!(stranger.starts_with("--ranks names region `north`"), "{stranger}");
    let twice = error(&[regions[0].clone(), regions[0].clone()], &ranks, &rates);
    assert!(twice.starts_with("region `east` is there twice"), "{twice}");
}

#[test]
fn links_have_a_round_trip_a_rate_and_a_loss() {
    let parse = |text: &str| text.parse::<InitLinkOption>();
    let link = parse("east-west=80ms,10Gbit/s,0.1%").expect("valid");
    assert_eq!((link.link.as_str(), link.rtt), ("east-west", Span::from_ms(80)));
    assert_eq!(link.rate, Some(BitRate::from_bits_per_second(10_000_000_000)));
    assert_eq!(link.loss, "0.1 %".parse::<Fraction>().ok());
    assert_eq!(parse("eu-west-us-east=80ms").expect("valid").rate, None);
    for wrong in
        ["east-west", "east=80ms", "east-west=80", "east-west=80ms,fast", "a-b=1ms,1 %,2 %"]
    {
        parse(wrong).expect_err(wrong);
    }
}

#[test]
fn gateways_of_one_host_have_status_ports_of_their_own() {
    let regions: Vec<InitRegionOption> = ["east=127.0.0.1:7400", "west=127.0.0.1:7500,127.0.0.2"]
        .map(|text| text.parse().expect("valid"))
        .to_vec();
    let made = DeploymentSpec::regions_from_options(
        &regions,
        &["1".parse().expect("valid")],
        &["1Gbit/s".parse().expect("valid")],
    );
    let made = made.expect("valid");
    let ports: Vec<u16> =
        made.iter().flat_map(|region| &region.gateways).map(|of| of.status_port).collect();
    assert_eq!(ports, [9400, 9401, 9400]);
}
