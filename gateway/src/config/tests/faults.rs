use super::common::*;
use crate::config::{ConfigFile, Fault, RegionFile};
use proptest::prelude::*;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

#[test]
fn every_fault_of_a_file_is_reported_with_its_line() {
    let faults = faults_of(&[
        ("name = \"two-region\"", "name = \"two-region\"\nmtu = 100\ncolour = \"red\""),
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
    assert_eq!(ingress.line, Some(line + 3), "three lines were added above it");
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
        ("127.0.0.1:7500", "127.0.0.1:7400", "region.west.gateway.west-0.wan"),
        ("127.0.0.1:7500", "[2001:db8::1]:7500", "region.west.gateway.west-0.wan"),
        ("127.0.0.1:7500", "127.0.0.1:65536", "region.west.gateway.west-0.wan"),
        ("127.0.0.1:7500", "0.0.0.0:7500", "region.west.gateway.west-0.wan"),
        ("127.0.0.1:7500", "[::1]:7500", "region.west.gateway.west-0.wan"),
        ("egress = \"500 Mbit/s\"", "egress = \"5 kbit/s\"", "region.east.gateway.east-0.egress"),
        ("rate = \"500 Mbit/s\"", "rate = \"1 bit/s\"", "link.east-west.rate"),
        ("rtt = \"80 ms\"", "rtt = \"61 s\"", "link.east-west.rtt"),
        ("name = \"two-region\"", "name = \"two-region\"\nmtu = 70000", "mtu"),
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
fn a_file_of_the_other_kind_is_named_as_such() {
    let found = fabric(EAST).expect_err("a region file").to_string();
    assert!(found.starts_with("fabric.toml: is a region file; accepted: a fabric"), "{found}");
    let found = RegionFile::parse(Path::new("east.toml"), FABRIC).expect_err("a fabric");
    assert!(found.to_string().starts_with("east.toml: is a fabric file"), "{found}");
}

#[test]
fn a_missing_fabric_is_reported_at_its_line() {
    let found = RegionFile::parse(Path::new("nowhere/east.toml"), EAST).expect_err("no fabric");
    let fault = found.iter().find(|fault| fault.key == "fabric").expect("its key");
    assert!(fault.line.is_some() && fault.file == Path::new("nowhere/east.toml"), "{fault}");
    assert!(fault.problem.contains("nowhere/fabric.toml: cannot be read"), "{fault}");
}

#[test]
fn a_region_file_is_not_its_own_fabric() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let path = folder.path().join("east.toml");
    let text = EAST.replace("fabric.toml", "east.toml");
    assert_ne!(text, EAST);
    std::fs::write(&path, text).expect("a temporary file");
    let faults = RegionFile::load(&path).expect_err("no fabric");
    let found: Vec<_> = faults.iter().map(|fault| (fault.line.is_some(), &*fault.key)).collect();
    assert_eq!(found, [(true, "fabric")], "{faults}");
    let problem = &faults.iter().next().expect("one").problem;
    assert!(problem.ends_with("east.toml is a region file"), "{problem}");
}

#[test]
fn a_syntax_error_hides_keys_that_seem_missing() {
    let found = fabric("name = two regions\n").expect_err("no string").to_string();
    assert!(found.contains("have quotes") && !found.contains("is missing"), "{found}");
}

#[test]
fn a_faulty_fabric_hides_no_missing_key_of_the_region() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(folder.path().join("fabric.toml"), "name = two regions\n").expect("ours");
    let text: Vec<&str> = EAST.lines().filter(|line| !line.starts_with("socket")).collect();
    let east = folder.path().join("east.toml");
    std::fs::write(&east, text.join("\n")).expect("ours");
    let found = RegionFile::load(&east).expect_err("two faults").to_string();
    assert!(found.contains("socket") && found.contains("is missing"), "{found}");
    assert!(found.contains("have quotes"), "{found}");
}

#[test]
fn a_path_outside_of_utf_8_is_a_fault() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let path = folder.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9.toml"));
    std::fs::write(&path, "").expect("ours");
    let faults = ConfigFile::load(&path).expect_err("not in UTF-8").to_string();
    assert!(faults.contains("its path is not in UTF-8") && faults.contains("rename"), "{faults}");
}

#[test]
fn a_fault_is_one_line_for_any_name() {
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
fn nesting_that_is_too_deep_has_a_line() {
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
fn a_missing_key_lists_the_keys_of_its_table_once() {
    let text = "fabrics = \"fabric.toml\"\n";
    let faults = RegionFile::parse(Path::new("east.toml"), text).expect_err("no fabric");
    let slip = faults.iter().find(|fault| fault.key == "fabrics").expect("no such key");
    assert_eq!(slip.accepted, "fabric, gateway, job (did you mean `fabric`?)");
}

#[test]
fn a_fault_names_the_type_with_its_article() {
    let faults = faults_of(&[("rtt = \"80 ms\"", "rtt = 80"), ("[link.east-west]", "[link]")]);
    let problems: Vec<&str> = faults.iter().map(|fault| fault.problem.as_str()).collect();
    assert!(problems.contains(&"is an integer, not a table"), "{problems:?}");
    let faults = faults_of(&[("rtt = \"80 ms\"", "rtt = 80")]);
    assert_eq!(faults[0].problem, "is an integer, not a string with a unit");
}

#[test]
fn a_fault_says_what_is_wrong_with_its_value() {
    for (from, to, problem) in [
        ("ranks = 3", "ranks = \"3\"", "is a string, not an integer"),
        ("ranks = 3", "ranks = 3.0", "is a float, not an integer"),
        ("127.0.0.1:7400", "127.0.0.1:0", "has port 0, and ports are from 1 to 65535"),
        ("127.0.0.1:7400", "127.0.0.1", "has no port"),
        ("127.0.0.1:7400", "224.0.0.1:7400", "is a multicast address, of many hosts"),
        ("127.0.0.1:7400", "255.255.255.255:7400", "is the broadcast address"),
        ("127.0.0.1:7400", "[ff02::1]:7400", "is a multicast address, of many hosts"),
        (
            "127.0.0.1:7400",
            "[fe80::1]:7400",
            "is a link-local address, which other networks do not reach",
        ),
        (
            "127.0.0.1:7400",
            "[fe80::1%eth0]:7400",
            "has a scope (`%`), which counts on one host alone",
        ),
        (
            "egress = \"500 Mbit/s\"",
            "egress = \"500 MB/s\"",
            "has the unit `MB/s`, which is none of those",
        ),
        ("egress = \"500 Mbit/s\"", "egress = \"500\"", "has no unit"),
        ("egress = \"500 Mbit/s\"", "egress = \"fast\"", "has no number before its unit"),
        ("loss = \"0.1 %\"", "loss = \"-0.1 %\"", "has a sign"),
        (
            "loss = \"0.1 %\"",
            "schedule = [{ at = \"25:00\", rate = \"1 Mbit/s\" }]",
            "has entry 1 at `25:00`, which is no time of day",
        ),
        (
            "loss = \"0.1 %\"",
            "schedule = [{ at = \"08:00\", rate = \"1\" }]",
            "has entry 1 with `1`, which is no rate",
        ),
        (
            "loss = \"0.1 %\"",
            "schedule = [{ at = \"08:00\", rate = \"1 Mbit/s\", until = \"09:00\" }]",
            "has entry 1 with key `until`, which is unknown",
        ),
        (
            "loss = \"0.1 %\"",
            "schedule = [{ at = \"08:00\", rate = \"1 Mbit/s\" }, { rate = \"1 Mbit/s\" }]",
            "has entry 2 without a text `at`",
        ),
        (
            "loss = \"0.1 %\"",
            "schedule = [{ at = \"08:00\", rate = 1 }]",
            "has entry 1 without a text `rate`",
        ),
        (
            "loss = \"0.1 %\"",
            "schedule = [{ at = \"08:00\", rate = \"1 Mbit/s\" }, { at = \"07:00\", rate = \"1 Mbit/s\" }]",
            "has entry 2 at `07:00`, not after the one before",
        ),
        ("loss = \"0.1 %\"", "schedule = [\"08:00\"]", "has entry 1, which is no table"),
    ] {
        let faults = faults_of(&[(from, to)]);
        assert_eq!(faults[0].problem, problem, "{to}");
    }
    let loss = &faults_of(&[("loss = \"0.1 %\"", "loss = \"50 %\"")])[0];
    assert!(loss.problem.contains("half of all packets") && loss.accepted.contains("below 50 %"));
}

#[test]
fn an_empty_file_is_one_fault() {
    for text in ["", "\n", "# to be written\n"] {
        let faults = fabric(text).expect_err("empty");
        let all: Vec<_> = faults.iter().map(|fault| fault.problem.as_str()).collect();
        assert_eq!(all, ["is empty, or has comments alone"]);
        RegionFile::parse(Path::new("east.toml"), text).expect_err("empty");
    }
}

#[test]
fn a_key_that_is_there_twice_is_named() {
    let faults = faults_of(&[("ranks = 3", "ranks = 3\nranks = 4")]);
    assert_eq!(faults[0].problem, "`ranks` is there twice");
    let other = fabric("{\"name\": 1}\n").expect_err("no TOML").to_string();
    assert!(!other.contains("quotes"), "{other}");
}

#[test]
fn a_gateway_does_not_have_the_name_ca() {
    let faults = faults_of(&[("gateway.east-0", "gateway.ca")]);
    assert!(faults[0].problem.contains("ca.pem"), "{}", faults[0]);
}

#[test]
fn a_socket_that_is_a_folder_is_a_fault() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    for socket in ["run/", "run/.", "..", "/"] {
        let text = EAST.replace("run/east-0.sock", socket);
        let faults = region_in(folder.path(), &text).expect_err(socket).to_string();
        assert!(faults.contains("is a folder as"), "{faults}");
    }
}

#[test]
fn a_listen_address_has_the_family_of_the_peers() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let with = |listen: &str| {
        let text = EAST
            .replace("memory = \"1 GiB\"", &format!("memory = \"1 GiB\"\nlisten = \"{listen}\""));
        region_in(folder.path(), &text)
    };
    let faults = with("[::1]:7400").expect_err("IPv6 beside IPv4").to_string();
    assert!(faults.contains("is of another family than `wan`"), "{faults}");
    with("0.0.0.0:7400").expect("IPv4");
    with("[::]:7400").expect("both");
}

#[test]
fn faults_of_a_path_outside_of_utf_8_are_json() {
    let path = Path::new(std::ffi::OsStr::from_bytes(b"caf\xe9.toml"));
    let faults = ConfigFile::load(path).expect_err("not in UTF-8");
    let json = serde_json::to_string(&faults).expect("the path is printed as far as it is text");
    assert!(json.contains("caf\u{fffd}.toml"), "{json}");
}
