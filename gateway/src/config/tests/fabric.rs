use super::common::*;
use crate::config::{FabricFile, Fault, RegionFile};
use crate::wan::link::controller_policy::ControllerPolicy;
use hier_collectives::ids::{GatewayId, RegionId};
use hier_collectives::plan;
use units::Span;

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
fn a_link_without_rate_is_shared_up_to_its_ports() {
    let text = FABRIC.replace("rate = \"500 Mbit/s\"\n", "");
    assert_ne!(text, FABRIC);
    let policy = |text: &str| {
        let file = fabric(text).expect("valid");
        let policies = file.policies().values().next().expect("a link").clone();
        (file.fabric().links()[0].rate.to_string(), policies.controller)
    };
    assert_eq!(policy(&text), ("500 Mbit/s".to_owned(), ControllerPolicy::Shared));
    let wide = text.replace("gress = \"500 Mbit/s\"", "gress = \"800 Mbit/s\"");
    assert_eq!(policy(&wide), ("800 Mbit/s".to_owned(), ControllerPolicy::Shared));
    assert_eq!(policy(FABRIC).1, ControllerPolicy::Dedicated);
    let ceiling = FABRIC.replace("rtt = ", "controller = \"shared\"\nrtt = ");
    assert_eq!(policy(&ceiling).1, ControllerPolicy::Shared);
    let dedicated = text.replace("rtt = ", "controller = \"dedicated\"\nrtt = ");
    let faults: Vec<Fault> = fabric(&dedicated).expect_err("no rate").into_iter().collect();
    assert_eq!(keys(&faults), ["link.east-west.rate"]);
}

#[test]
fn a_byte_order_mark_begins_a_file_once() {
    let marked = format!("\u{feff}{FABRIC}");
    assert_eq!(fabric(&marked).expect("valid").fabric(), fabric(FABRIC).expect("valid").fabric());
    assert!(fabric(&format!("\u{feff}{marked}")).is_err());
    let name = "name = \"two-region\"";
    let faults: Vec<Fault> = fabric(&marked.replace(name, &format!("{name}\nmtu = 1")))
        .expect_err("too small")
        .into_iter()
        .collect();
    let line = 2 + FABRIC.lines().position(|line| line == name).expect("there");
    assert_eq!((faults[0].key.as_str(), faults[0].line), ("mtu", Some(line)));
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
fn several_gateways_give_their_ranks_and_one_needs_no_port() {
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
fn gateways_of_a_region_meet_by_lan_or_wan() {
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
            fabric.address_within_region(id("east-0"), id("east-1")).expect("a way").to_string()
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
        ["east-0", "east-1"].map(|name| {
            fabric.count_lane_networks(fabric.fabric().gateway_named(name).expect("one"))
        })
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
    assert_eq!(faults(&lan(7400), &lan(7400)), ["region.east.gateway.east-0.lan"]);
}

#[test]
fn gateways_on_one_ip_address_need_a_port_each() {
    fabric(&FABRIC.replacen("127.0.0.1:7500", "127.0.0.1:7401", 1)).expect("another port");
    let faults = faults_of(&[("127.0.0.1:7500", "127.0.0.1:7400")]);
    assert_eq!(keys(&faults), ["region.west.gateway.west-0.wan"]);
    assert_eq!(faults[0].problem, "is an address of gateway `east-0` too");
}

#[test]
fn a_gateway_without_wan_dials_one_that_has_it() {
    let hidden = |wan: &str| FABRIC.replace(wan, "");
    let (east, west) = ("wan = \"127.0.0.1:7400\"\n", "wan = \"127.0.0.1:7500\"\n");
    for (text, dials) in [(hidden(east), [true, false]), (hidden(west), [false, true])] {
        let file = fabric(&text).expect("the other can be dialled");
        assert_eq!([0, 1].map(|id| file.dials_only(GatewayId(id))), dials);
        assert_eq!([0, 1].map(|id| file.count_lane_networks(GatewayId(id))), [1, 1]);
        assert_ne!(file.identity(), fabric(FABRIC).expect("valid").identity(), "who dials");
        let from = file.any_address(GatewayId(0), 0).first().to_string();
        assert_eq!(from, "0.0.0.0:0", "of IPv4, as its peer");
    }
    let faults = faults_of(&[(east, ""), (west, "")]);
    assert_eq!(keys(&faults)[0], "region.east.gateway.east-0.wan");
    assert!(faults[0].problem.contains("neither can dial the other"), "{}", faults[0]);
    // Without rates it has no WAN port at all.
    let faults = faults_of(&[(&format!("{east}egress = \"500 Mbit/s\"\n"), "")]);
    assert_eq!(keys(&faults), ["region.east.gateway.east-0.egress"]);
}

#[test]
fn an_address_may_have_a_host_name() {
    let wan = "wan = \"127.0.0.1:7400\"";
    let with = |several: &str| fabric(&FABRIC.replacen(wan, several, 1));
    for (given, first) in [
        ("wan = \"gw-1.example.net:7400\"", "gw-1.example.net:7400"),
        ("wan = [\"gw\u{0}:7400\"]", ""),
        ("wan = [\"127.0.0.1:7400\", \"b.example:7401\"]", "127.0.0.1:7400"),
        ("wan = \"gw_1.example.net:7400\"", ""),
        ("wan = \"gw.example.net\"", ""),
        ("wan = \"gw.example.net:0\"", ""),
        ("wan = \"127.0.0.256:7400\"", ""),
        ("wan = \"-gw:7400\"", ""),
        ("wan = \":7400\"", ""),
    ] {
        let first_of = |file: &FabricFile| {
            file.lane_addresses(GatewayId(0)).map(|lanes| lanes.first().to_string())
        };
        let found = with(given).ok().and_then(|file| first_of(&file)).unwrap_or_default();
        assert_eq!(found, first, "{given}");
    }
    let twice =
        faults_of(&[(wan, "wan = \"gw:1\""), ("wan = \"127.0.0.1:7500\"", "wan = \"gw:1\"")]);
    assert_eq!(keys(&twice), ["region.west.gateway.west-0.wan"]);
}

#[test]
fn a_gateway_without_wan_dials_one_address_family() {
    let oslo = "[region.oslo]\nranks = 1\n[region.oslo.gateway.oslo-0]\nwan = \"[::1]:7400\"\n\
                egress = \"1 Gbit/s\"\ningress = \"1 Gbit/s\"\n[link.east-oslo]\nrate = \
                \"1 Gbit/s\"\nrtt = \"1 ms\"\n";
    let text = FABRIC.replace("wan = \"127.0.0.1:7400\"\n", "") + oslo;
    let faults: Vec<Fault> = fabric(&text).expect_err("two families").into_iter().collect();
    assert_eq!(keys(&faults), ["region.east.gateway.east-0.wan"]);
    assert!(faults[0].problem.contains("IPv4 and IPv6"), "{}", faults[0]);
}

#[test]
fn several_addresses_of_a_gateway_share_its_lanes() {
    let wan = "wan = \"127.0.0.1:7400\"";
    let with = |several: &str| fabric(&FABRIC.replacen(wan, several, 1));
    let file = with("wan = [\"127.0.0.1:7400\", \"127.0.0.2:7400\"]").expect("valid");
    let east = file.fabric().gateway_named("east-0").expect("there");
    let lanes = file.lane_addresses(east).expect("a port");
    let lanes = [0, 1, 2].map(|lane| lanes.of_lane(lane).to_string());
    assert_eq!(lanes, ["127.0.0.1:7400", "127.0.0.2:7400", "127.0.0.1:7400"]);
    for bad in [
        "wan = []",
        "wan = [\"127.0.0.1:7400\", \"127.0.0.1:7450\"]",
        "wan = [\"127.0.0.1:7400\", \"[::1]:7400\"]",
        "wan = [\"127.0.0.1:7400\", \"0.0.0.0:7400\"]",
        "wan = [\"127.0.0.3:7400\", \"127.0.0.1:7500\"]",
    ] {
        let faults: Vec<Fault> = with(bad).expect_err(bad).into_iter().collect();
        assert_eq!(faults.len(), 1, "{bad}: {faults:?}");
        assert!(faults[0].key.ends_with(".wan"), "{bad}: {faults:?}");
    }
    let found_by_lanes = with(wan).expect("valid");
    assert!(!found_by_lanes.mtu_pinned() && found_by_lanes.fabric().mtu() == 1500);
    let pinned = FABRIC.replacen("[region.east]", "mtu = 1400\n[region.east]", 1);
    let pinned = fabric(&pinned).expect("valid");
    assert!(pinned.mtu_pinned() && pinned.fabric().mtu() == 1400);
}

#[test]
fn a_silence_out_of_range_is_a_fault() {
    let with = |silence: &str| {
        let name = "name = \"two-region\"";
        fabric(&FABRIC.replacen(name, &format!("{name}\nsilence = {silence}"), 1))
    };
    assert_eq!(fabric(FABRIC).expect("valid").fabric().silence(), None);
    let file = with("\"5 s\"").expect("valid");
    assert_eq!(file.fabric().silence(), Some(Span::from_secs(5)));
    assert_eq!(file.identity(), fabric(FABRIC).expect("valid").identity(), "it may differ");
    for bad in ["\"2.9 s\"", "\"16 s\"", "5", "\"soon\""] {
        let faults: Vec<Fault> = with(bad).expect_err(bad).into_iter().collect();
        assert_eq!(keys(&faults), ["silence"], "{bad}");
    }
}

#[test]
fn a_patience_that_cannot_be_kept_is_a_fault() {
    let with = |keys: &str| {
        let name = "name = \"two-region\"";
        fabric(&FABRIC.replacen(name, &format!("{name}\n{keys}"), 1))
    };
    let usual = fabric(FABRIC).expect("valid");
    assert_eq!(usual.fabric().patience().span(), Span::from_secs(15));
    let same = with("patience = \"15 s\"").expect("valid");
    assert_eq!(same.identity(), usual.identity(), "old fabric files say the same");
    let file = with("patience = \"30 s\"\nsilence = \"5 s\"").expect("valid");
    assert_eq!(file.fabric().patience().span(), Span::from_secs(30));
    assert_eq!(file.fabric().silence(), Some(Span::from_secs(5)), "the override wins");
    assert_ne!(file.identity(), usual.identity(), "gateways agree on it");
    for (bad, key, words) in [
        ("patience = \"5.9 s\"", "patience", "a time from 6 s to 15 min"),
        ("patience = \"901 s\"", "patience", "a time from 6 s to 15 min"),
        ("patience = 15", "patience", "a time from 6 s to 15 min"),
        ("patience = \"6 s\"\nsilence = \"7 s\"", "silence", "at most 6 s, or no `silence`"),
    ] {
        let faults: Vec<Fault> = with(bad).expect_err(bad).into_iter().collect();
        assert_eq!(keys(&faults), [key], "{bad}");
        assert!(faults[0].accepted.contains(words), "{bad}: {faults:?}");
    }
    let far = FABRIC.replacen("80 ms", "500 ms", 1);
    let far = far.replacen("name =", "patience = \"7 s\"\nname =", 1);
    let faults: Vec<Fault> = fabric(&far).expect_err("7.5 s are needed").into_iter().collect();
    assert_eq!(keys(&faults), ["patience"]);
    assert!(faults[0].problem.contains("link `east-west`, whose RTT is 500 ms"), "{faults:?}");
    assert_eq!(faults[0].accepted, "at least 7.5 s");
}

#[test]
fn votes_are_read_and_are_part_of_the_identity() {
    let with = |quorum: &str, votes: &str| {
        let name = "name = \"two-region\"";
        let text = FABRIC.replacen(name, &format!("{name}\nquorum = {quorum}"), 1);
        fabric(&text.replacen("[region.east]", &format!("[region.east]\nvotes = {votes}"), 1))
    };
    let file = with("\"majority\"", "2").expect("east has more than half");
    let of_east = [RegionId(0)].into();
    assert!(file.fabric().is_quorum(&of_east));
    let other = with("\"majority\"", "3").expect("valid");
    assert_ne!(file.identity(), other.identity(), "equal in all files");
    for (quorum, votes, key) in [
        ("\"majority\"", "1", "quorum"),
        ("\"all\"", "2", "quorum"),
        ("1", "2", "quorum"),
        ("\"majority\"", "101", "region.east.votes"),
    ] {
        let faults: Vec<Fault> = with(quorum, votes).expect_err(votes).into_iter().collect();
        assert!(keys(&faults).contains(&key), "{quorum} {votes}: {faults:?}");
    }
}

#[test]
fn the_fewest_lanes_are_read() {
    let with = |lanes: &str| {
        let name = "name = \"two-region\"";
        fabric(&FABRIC.replacen(name, &format!("{name}\nlanes = {lanes}"), 1))
    };
    assert_eq!(fabric(FABRIC).expect("valid").fabric().lanes_min(), 1);
    for (text, lanes, most) in [("1", 1, 4), ("4", 4, 4), ("16", 16, 16)] {
        let file = with(text).expect("valid");
        let fabric = file.fabric();
        assert_eq!((fabric.lanes_min(), plan::plan_lanes_limit(fabric)), (lanes, most));
    }
    for bad in ["0", "17", "-1", "\"4\"", "1.5"] {
        let faults: Vec<Fault> = with(bad).expect_err(bad).into_iter().collect();
        assert_eq!(keys(&faults), ["lanes"], "{bad}");
    }
}

#[test]
fn schedule_and_controller_of_a_link_are_read() {
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
    let at = |text: u64| schedule.rate_at(text).to_string();
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
fn identity_covers_the_members_not_the_rates() {
    let base = fabric(FABRIC).expect("valid").identity();
    for (from, to, same) in [
        ("500 Mbit/s", "400 Mbit/s", true),
        ("80 ms", "90 ms", true),
        ("127.0.0.1:7400", "127.0.0.1:7300", true),
        ("name = \"two-region\"", "name = \"two-region\"\nlanes = 4", true),
        ("name = \"two-region\"", "name = \"two-region\"\nmtu = 1400", false),
        ("name = \"two-region\"", "name = \"two-region\"\nquorum = \"all\"", true),
        ("name = \"two-region\"", "name = \"two-region\"\nquorum = [\"east\"]", false),
        ("ranks = 3", "ranks = 4", false),
        ("gateway.east-0", "gateway.east-9", false),
        ("two-region", "three-region", false),
    ] {
        let changed = fabric(&FABRIC.replace(from, to)).expect("valid").identity();
        assert_eq!(changed == base, same, "{from} -> {to}");
    }
}

#[test]
fn quorums_that_no_part_or_two_could_have_are_faults() {
    let name = "name = \"two-region\"";
    let with = |quorum: &str| format!("{name}\nquorum = {quorum}");
    for (quorum, words) in [
        ("\"majority\"", "name the region that goes on"),
        ("1", "at least 2 are needed"),
        ("3", "more than the 2"),
        ("[\"north\"]", "no region `north`"),
        ("\"most\"", "\"all\", \"majority\""),
        ("[1]", "\"all\", \"majority\""),
    ] {
        let faults = faults_of(&[(name, &with(quorum))]);
        assert_eq!(keys(&faults), ["quorum"], "{quorum}");
        let text = faults[0].to_string();
        assert!(text.contains(words), "{quorum}: {text}");
    }
    let west = fabric(&FABRIC.replace(name, &with("[\"west\"]"))).expect("valid");
    assert!(west.fabric().is_quorum(&[RegionId(1)].into()));
    assert!(!west.fabric().is_quorum(&[RegionId(0)].into()));
}
