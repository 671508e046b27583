use super::*;
use proptest::prelude::*;
use std::path::PathBuf;

const FABRIC: &str = include_str!("../../../../configs/two-region/fabric.toml");

fn fabric(text: &str) -> Result<FabricFile, Faults> {
    FabricFile::parse(Path::new("fabric.toml"), text)
}

/// The faults of the example fabric after replacing `from` by `to`, as (line, key).
fn faults_of(changes: &[(&str, &str)]) -> Vec<Fault> {
    let mut text = FABRIC.to_owned();
    for (from, to) in changes {
        assert!(text.contains(from), "the example has no `{from}`");
        text = text.replacen(from, to, 1);
    }
    fabric(&text).expect_err("at fault").into_iter().collect()
}

fn keys(faults: &[Fault]) -> Vec<&str> {
    faults.iter().map(|fault| fault.key.as_str()).collect()
}

fn region_in(directory: &Path, text: &str) -> Result<RegionFile, Faults> {
    let east = directory.join("east.toml");
    std::fs::write(directory.join("fabric.toml"), FABRIC).expect("a temporary file");
    std::fs::write(&east, text).expect("a temporary file");
    RegionFile::load(&east)
}

const EAST: &str = include_str!("../../../../configs/two-region/east.toml");

#[test]
fn the_example_fabric_is_read_exactly() {
    let file = fabric(FABRIC).expect("valid");
    let fabric = file.fabric();
    assert_eq!((fabric.name(), fabric.mtu(), fabric.world_size()), ("two-region", 1500, 4));
    let east = fabric.gateway_named("east-0").expect("there");
    assert_eq!(file.address(east), Some("127.0.0.1:7400".parse().expect("an address")));
    let link = &fabric.links()[0];
    let printed = [link.rate.to_string(), link.rtt.to_string(), link.loss.to_string()];
    assert_eq!(printed, ["500 Mbit/s", "80 ms", "0.1 %"]);
    assert_eq!(fabric.regions()[0].speeds, [1.0; 3]);
}

#[test]
fn every_fault_of_a_file_is_reported_with_its_place() {
    let faults = faults_of(&[
        ("mtu = 1500", "mtu = 100\ncolour = \"red\""),
        ("ranks = 3", "ranks = 0\nspeed = [1.0]"),
        ("egress = \"500 Mbit/s\"", "egres = \"500 Mbit/s\""),
        ("ingress = \"500 Mbit/s\"", "ingress = \"500 Mbits\""),
        ("rtt = \"80 ms\"", "rtt = 80"),
        ("loss = \"0.1 %\"", "loss = \"60 %\""),
    ]);
    let expected = [
        "mtu",
        "colour",
        "region.east.ranks",
        "region.east.speed",
        "region.east.gateway.east-0.egress",
        "region.east.gateway.east-0.egres",
        "region.east.gateway.east-0.ingress",
        "link.east-west.rtt",
        "link.east-west.loss",
    ];
    let mut found = keys(&faults);
    found.sort_unstable();
    let mut wanted = expected.to_vec();
    wanted.sort_unstable();
    assert_eq!(found, wanted);
    let ingress = faults.iter().find(|fault| fault.key.ends_with("ingress")).expect("found above");
    assert_eq!(ingress.value.as_deref(), Some("\"500 Mbits\""));
    assert!(ingress.accepted.contains("Mbit/s"), "{ingress}");
    let line = 1 + FABRIC.lines().position(|line| line.starts_with("ingress")).expect("there");
    assert_eq!(ingress.line, Some(line + 2), "two lines were added above it");
    let slip = faults.iter().find(|fault| fault.key.ends_with("egres")).expect("found above");
    assert!(slip.accepted.contains("did you mean `egress`"), "{slip}");
}

#[test]
fn one_slip_makes_one_fault() {
    for (from, to, key) in [
        ("ranks = 3", "ranks = \"3\"", "region.east.ranks"),
        ("ranks = 3", "ranks = 3\nspeeds = [1.0, 0.5]", "region.east.speeds"),
        ("ranks = 3", "ranks = 3\nspeeds = [1, 1, 0]", "region.east.speeds"),
        ("[link.east-west]", "[link.east-south]", "link.east-south"),
        ("[link.east-west]", "[link.east-east]", "link.east-east"),
        ("gateway.west-0", "gateway.East", "region.west.gateway.East"),
        ("gateway.west-0", "gateway.east-0", "region.west.gateway.east-0"),
        ("127.0.0.1:7500", "127.0.0.1:7415", "region.west.gateway.west-0.wan"),
        ("127.0.0.1:7500", "127.0.0.1:65521", "region.west.gateway.west-0.wan"),
        ("127.0.0.1:7500", "west.example:7500", "region.west.gateway.west-0.wan"),
        ("127.0.0.1:7500", "0.0.0.0:7500", "region.west.gateway.west-0.wan"),
        ("wan = \"127.0.0.1:7500\"\n", "", "region.west.gateway.west-0.wan"),
        ("egress = \"500 Mbit/s\"", "egress = \"5 kbit/s\"", "region.east.gateway.east-0.egress"),
        ("rate = \"500 Mbit/s\"", "rate = \"1 bit/s\"", "link.east-west.rate"),
        ("rtt = \"80 ms\"", "rtt = \"61 s\"", "link.east-west.rtt"),
        ("mtu = 1500", "mtu = 70000", "mtu"),
        ("name = \"two-region\"", "", "name"),
        ("[link.east-west]", "[east-west]", "east-west"),
    ] {
        let faults = faults_of(&[(from, to)]);
        let more = to.contains("[east-west]");
        assert!(keys(&faults).contains(&key), "{to}: {faults:?}");
        assert_eq!(faults.len(), if more { 2 } else { 1 }, "{to}: {faults:?}");
        assert!(faults.iter().all(|fault| !fault.accepted.is_empty()), "{to}: {faults:?}");
    }
}

#[test]
fn several_gateways_say_their_ranks_and_a_sidecar_has_no_port() {
    let sidecar = "ranks = 3\n[region.east.gateway.east-1]\nranks = 1\n[region.east.gateway.east-0]\nranks = 2\n#";
    let text = FABRIC.replacen("ranks = 3\n[region.east.gateway.east-0]", sidecar, 1);
    let file = fabric(&text).expect("valid");
    let of = file.fabric();
    let east_1 = of.gateway_named("east-1").expect("there");
    assert_eq!((file.address(east_1), of.gateway(east_1).ranks.clone()), (None, 2..3));
    let text = text.replacen("ranks = 2", "", 1);
    let faults: Vec<Fault> = fabric(&text).expect_err("no ranks").into_iter().collect();
    assert_eq!(keys(&faults), ["region.east.gateway.east-0.ranks"]);
}

#[test]
fn gateways_of_a_region_meet_over_the_lan_or_from_port_to_port() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let of = |more: &str, second: &str| {
        let several = format!(
            "ranks = 3\n[region.east.gateway.east-1]\nranks = 1\n{second}\n\
             [region.east.gateway.east-0]\nranks = 2\n{more}"
        );
        let text = FABRIC.replacen("ranks = 3\n[region.east.gateway.east-0]\n", &several, 1);
        std::fs::write(directory.path().join("fabric.toml"), &text).expect("written");
        let east = directory.path().join("east.toml");
        std::fs::write(&east, EAST).expect("written");
        RegionFile::load(&east).map(|file| {
            let fabric = file.fabric();
            let id = |name| fabric.fabric().gateway_named(name).expect("there");
            fabric.meets_at(id("east-0"), id("east-1")).expect("a way").to_string()
        })
    };
    let lan = |port: u16| format!("lan = \"10.0.0.5:{port}\"\n");
    let port = "wan = \"127.0.0.1:7600\"\negress = \"1 Gbit/s\"\ningress = \"1 Gbit/s\"\n";
    assert_eq!(of(&lan(7400), &lan(7420)), Ok("10.0.0.5:7420".to_owned()));
    assert_eq!(of("", port), Ok("127.0.0.1:7600".to_owned()));
    assert_eq!(of("", &format!("{}{port}", lan(7400))), Ok("127.0.0.1:7600".to_owned()));
    let sides = |more: &str, second: &str| {
        of(more, second).expect("a way");
        let file = RegionFile::load(&directory.path().join("east.toml")).expect("as before");
        let fabric = file.fabric();
        ["east-0", "east-1"]
            .map(|name| fabric.sides(fabric.fabric().gateway_named(name).expect("one")))
    };
    assert_eq!(sides("", port), [1, 1]);
    assert_eq!(sides(&lan(7400), &lan(7420)), [2, 1], "the second has no port");
    assert_eq!(sides(&lan(7400), &format!("{}{port}", lan(7420))), [2, 2]);
    let faults = |more: &str, second: &str| -> Vec<String> {
        let faults = of(more, second).expect_err("no way").into_iter();
        faults.map(|fault| fault.key).collect()
    };
    assert_eq!(faults("", &lan(7400)), ["gateway.east-0"]);
    assert_eq!(faults(&lan(7400), ""), ["gateway.east-0"]);
    assert_eq!(faults(&lan(7400), &lan(7410)), ["region.east.gateway.east-0.lan"]);
}

#[test]
fn region_names_may_have_hyphens() {
    let text = FABRIC
        .replace("region.east", "region.us-east")
        .replace("region.west", "region.us-west")
        .replace("link.east-west", "link.us-west-us-east");
    let file = fabric(&text).expect("valid");
    let names: Vec<_> = file.fabric().regions().iter().map(|region| &*region.name).collect();
    assert_eq!(names, ["us-east", "us-west"]);
}

#[test]
fn identity_covers_the_members_not_the_rates() {
    let base = fabric(FABRIC).expect("valid").identity();
    for (from, to, same) in [
        ("500 Mbit/s", "400 Mbit/s", true),
        ("80 ms", "90 ms", true),
        ("127.0.0.1:7400", "127.0.0.1:7300", true),
        ("1500", "1400", false),
        ("ranks = 3", "ranks = 4", false),
        ("gateway.east-0", "gateway.east-9", false),
        ("two-region", "three-region", false),
    ] {
        let changed = fabric(&FABRIC.replace(from, to)).expect("valid").identity();
        assert_eq!(changed == base, same, "{from} -> {to}");
    }
}

#[test]
fn a_region_file_resolves_its_paths() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = region_in(directory.path(), EAST).expect("valid");
    let gateway = file.gateway(None).expect("the only one");
    assert_eq!(gateway.certificate, directory.path().join("keys/east-0.pem"));
    assert_eq!(gateway.socket, PathBuf::from("/tmp/landbridge/east-0.sock"));
    assert_eq!(gateway.memory.to_string(), "1 GiB");
    assert_eq!(file.jobs().map(|job| &*job.name).collect::<Vec<_>>(), ["train"]);
    assert!(matches!(file.gateway(Some("east-1")), Err(GatewayChoiceError::Unknown { .. })));
}

#[test]
fn a_job_has_weight_1_unless_it_says_otherwise() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let weights = |text: &str| -> Vec<u32> {
        let file = region_in(directory.path(), text).expect("valid");
        file.jobs().map(|job| job.weight.get()).collect()
    };
    assert_eq!(weights(EAST), [1]);
    let heavy = format!("{EAST}\nweight = 3\n\n[job.zoo]\ntoken = \"t\"\nmemory = \"1 GiB\"\n");
    assert_eq!(weights(&heavy), [3, 1]);
    for wrong in ["0", "1001", "-1", "1.5", "\"3\""] {
        let text = format!("{EAST}\nweight = {wrong}\n");
        let faults = region_in(directory.path(), &text).expect_err(wrong);
        let faults: Vec<Fault> = faults.into_iter().collect();
        assert_eq!(keys(&faults), ["job.train.weight"]);
    }
}

#[test]
fn the_faults_of_region_and_fabric_come_together() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let text = EAST
        .replace("gateway.east-0", "gateway.east-7")
        .replace("\"1 GiB\"", "\"0 B\"")
        .replace("status = \"127.0.0.1:9400\"", "status = \"127.0.0.1\"")
        .replace("token =", "tokens =");
    let faults: Vec<Fault> =
        region_in(directory.path(), &text).expect_err("five").into_iter().collect();
    let mut found = keys(&faults);
    found.sort_unstable();
    let wanted = [
        "gateway.east-7",
        "gateway.east-7.memory",
        "gateway.east-7.status",
        "job.train.token",
        "job.train.tokens",
    ];
    assert_eq!(found, wanted);

    std::fs::write(directory.path().join("fabric.toml"), "name = 1").expect("a temporary file");
    let both = RegionFile::load(&directory.path().join("east.toml")).expect_err("both");
    let files: std::collections::BTreeSet<_> = both.iter().map(|fault| &fault.file).collect();
    assert_eq!(files.len(), 2, "{both}");
}

#[test]
fn a_file_that_is_not_there_is_a_fault() {
    let faults = ConfigFile::load(Path::new("no/such/file.toml")).expect_err("not there");
    assert!(faults.to_string().starts_with("no/such/file.toml: cannot be read"), "{faults}");
}

#[test]
fn a_fault_is_one_line_whatever_the_names_are() {
    let faults = fabric("\"a\\nb\" = 1\n[region.\"\\u001b[2J\"]\n").expect_err("no names");
    for fault in faults {
        let line = fault.to_string();
        assert!(!line.contains(char::is_control), "{line:?}");
    }
}

#[test]
fn two_syntax_errors_are_both_reported() {
    let faults = fabric("name = \nmtu = [1\nregion = 2020-13-45\n").expect_err("no TOML");
    assert!(faults.iter().filter(|fault| fault.key.is_empty()).count() >= 2, "{faults}");
}

#[test]
fn what_is_nested_too_deeply_has_a_line() {
    let text = format!("name = \"a\"\n# [[\nmtu = {}\nlink = 1\n", "[".repeat(200));
    let faults: Vec<Fault> = fabric(&text).expect_err("no array that deep").into_iter().collect();
    let deep = faults.iter().find(|fault| fault.problem.contains("recursion"));
    assert_eq!(deep.and_then(|fault| fault.line), Some(3), "{faults:?}");
}

/// Fragments of real files in any order come nearer to the reader's branches than random text.
fn fragments() -> impl Strategy<Value = String> {
    let lines: Vec<&'static str> = FABRIC.lines().chain(EAST.lines()).collect();
    let odd = [
        "ranks = 65536",
        "speeds = [1, 2e999]",
        "[region]",
        "link = 3",
        "[region.a-b]",
        "\"\" = 1",
    ];
    let lines: Vec<&'static str> = lines.into_iter().chain(odd).collect();
    prop::collection::vec(prop::sample::select(lines), 0..40).prop_map(|lines| lines.join("\n"))
}

proptest! {
    #[test]
    fn no_text_panics(text: String) {
        if let Err(faults) = fabric(&text) {
            prop_assert!(faults.iter().count() > 0);
        }
        let _ = RegionFile::parse(Path::new("region.toml"), &text);
    }

    #[test]
    fn no_mixture_of_real_lines_panics(text in fragments()) {
        if let Err(faults) = fabric(&text) {
            prop_assert!(faults.iter().count() > 0);
        }
        let _ = RegionFile::parse(Path::new("region.toml"), &text);
    }
}

#[test]
fn gateways_on_one_address_may_stand_a_block_of_lanes_apart() {
    let text = FABRIC.replacen("127.0.0.1:7500", "127.0.0.1:7416", 1);
    fabric(&text).expect("16 ports are free between them");
}

#[test]
fn a_region_file_fits_its_fabric_and_the_system() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let faults = |text: &str| match region_in(directory.path(), text) {
        Ok(_) => vec![],
        Err(faults) => faults.iter().map(|fault| fault.key.clone()).collect::<Vec<_>>(),
    };
    let socket_of = |bytes: usize| {
        let path = format!("/{}", "s".repeat(bytes - 1));
        EAST.replace("/tmp/landbridge/east-0.sock", &path)
    };
    assert_eq!(faults(&socket_of(107)), [""; 0]);
    assert_eq!(faults(&socket_of(108)), ["gateway.east-0.socket"]);
    let gateway =
        EAST.split_once("[gateway").expect("there").1.split_once("[job").expect("there").0;
    let west = format!("{EAST}\n[gateway{}", gateway.replace("east-0", "west-0"));
    assert_eq!(faults(&west), ["gateway.west-0"]);
}

#[test]
fn packets_are_joined_unless_told_otherwise() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let offload = |line: &str| {
        let text = EAST.replace("memory = \"1 GiB\"", &format!("{line}\nmemory = \"1 GiB\""));
        let region = region_in(directory.path(), &text);
        region.map(|region| region.gateways().next().expect("one").segmentation_offload)
    };
    assert!(offload("").expect("valid"));
    assert!(!offload("segmentation_offload = false").expect("valid"));
    let faults: Vec<_> =
        offload("segmentation_offload = 0").expect_err("no truth").into_iter().collect();
    assert_eq!(keys(&faults), ["gateway.east-0.segmentation_offload"]);
}

#[test]
fn a_gateway_without_a_wan_port_listens_nowhere() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let fabric = "name = \"one\"\n[region.east]\nranks = 3\n[region.east.gateway.east-0]\n";
    std::fs::write(directory.path().join("fabric.toml"), fabric).expect("a temporary file");
    let faults = |text: &str| RegionFile::parse(&directory.path().join("east.toml"), text);
    faults(EAST).expect("valid");
    let text = EAST.replace("memory = \"1 GiB\"", "listen = \"0.0.0.0:7400\"\nmemory = \"1 GiB\"");
    let faults: Vec<_> = faults(&text).expect_err("listens").into_iter().collect();
    assert_eq!(keys(&faults), ["gateway.east-0.listen"]);
}

#[test]
fn a_link_is_used_as_its_table_says() {
    let link = "rtt = \"80 ms\"";
    let used = |lines: &str| fabric(&FABRIC.replacen(link, &format!("{link}\n{lines}"), 1));
    let file = used(
        "controller = \"cubic\"\nschedule = [{ at = \"08:00\", rate = \"300 Mbit/s\" }, \
         { at = \"18:30:15\", rate = \"500 Mbit/s\" }]",
    );
    let file = file.expect("valid");
    let [policy] = file.policies().values().collect::<Vec<_>>()[..] else { panic!("one link") };
    assert_eq!(policy.controller.name(), "cubic");
    let schedule = policy.schedule.as_ref().expect("given");
    let at = |text: u64| schedule.at(text).to_string();
    assert_eq!([at(0), at(8 * 3600), at(66_615)], ["500 Mbit/s", "300 Mbit/s", "500 Mbit/s"]);
    for bad in [
        "[]",
        "[{ at = \"8:00\", rate = \"300 Mbit/s\" }]",
        "[{ at = \"24:00\", rate = \"300 Mbit/s\" }]",
        "[{ at = \"08:00\", rate = \"300 Mbits\" }]",
        "[{ at = \"08:00\", rate = \"501 Mbit/s\" }]",
        "[{ at = \"08:00\", rate = \"1 kbit/s\" }]",
        "[{ at = \"08:00\", rate = \"300 Mbit/s\", day = 1 }]",
        "[{ at = \"09:00\", rate = \"1 Mbit/s\" }, { at = \"08:00\", rate = \"2 Mbit/s\" }]",
        "\"08:00\"",
    ] {
        let faults: Vec<Fault> =
            used(&format!("schedule = {bad}")).expect_err(bad).into_iter().collect();
        assert_eq!(keys(&faults), ["link.east-west.schedule"], "{bad}");
    }
    let faults: Vec<Fault> =
        used("controller = \"bbr\"").expect_err("unknown").into_iter().collect();
    assert_eq!(keys(&faults), ["link.east-west.controller"]);
}

#[test]
fn several_addresses_of_a_gateway_share_its_lanes() {
    let wan = "wan = \"127.0.0.1:7400\"";
    let with = |several: &str| fabric(&FABRIC.replacen(wan, several, 1));
    let file = with("wan = [\"127.0.0.1:7400\", \"127.0.0.2:7400\"]").expect("valid");
    let east = file.fabric().gateway_named("east-0").expect("there");
    let lanes = file.lane_addresses(east).expect("a port");
    assert_eq!([lanes.of(0), lanes.of(1)].map(|lane| lane.port()), [7400, 7401]);
    assert_ne!(lanes.of(0).ip(), lanes.of(1).ip());
    for bad in [
        "wan = []",
        "wan = [\"127.0.0.1:7400\", \"127.0.0.1:7450\"]",
        "wan = [\"127.0.0.1:7400\", \"[::1]:7400\"]",
        "wan = [\"127.0.0.1:7400\", \"0.0.0.0:7400\"]",
        "wan = [\"127.0.0.3:7400\", \"127.0.0.1:7505\"]",
    ] {
        let faults: Vec<Fault> = with(bad).expect_err(bad).into_iter().collect();
        assert_eq!(faults.len(), 1, "{bad}: {faults:?}");
        assert!(faults[0].key.ends_with(".wan"), "{bad}: {faults:?}");
    }
    let silent = with(wan).expect("valid");
    assert!(silent.mtu_pinned());
    let looked_for = fabric(&FABRIC.replacen("mtu = 1500\n", "", 1)).expect("valid");
    assert!(!looked_for.mtu_pinned() && looked_for.fabric().mtu() == 1500);
}
