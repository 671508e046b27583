use super::common::*;
use crate::config::{ConfigFaults, Fault, RegionFile};

const THREE_REGIONS: &str = include_str!("../../../../configs/three-regions/fabric.toml");

/// Reads a region file of `east` with two gateways that have these lines, beside a fabric file that has
/// each `from` replaced by its `to`.
fn two_gateways(
    fabric_changes: &[(&str, &str)],
    lines: [&str; 2],
) -> Result<RegionFile, ConfigFaults> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut fabric = THREE_REGIONS.to_owned();
    for (from, to) in fabric_changes {
        assert!(fabric.contains(from), "the example has no `{from}`");
        fabric = fabric.replacen(from, to, 1);
    }
    std::fs::write(directory.path().join("fabric.toml"), fabric).expect("a temporary file");
    let gateways = ["east-0", "east-1"].into_iter().zip(lines);
    let gateways: String = gateways
        .map(|(name, line)| {
            format!(
                "[gateway.{name}]\n{line}\nsocket = \"{name}.sock\"\nstatus = \"127.0.0.1:9400\"\n\
                 certificate = \"c\"\nkey = \"k\"\nca = \"a\"\nmemory = \"1 GiB\"\n"
            )
        })
        .collect();
    let jobs = "[job.train]\ntoken = \"t\"\nmemory = \"1 GiB\"\n";
    let text = format!("fabric = \"fabric.toml\"\n{gateways}{jobs}");
    RegionFile::parse(&directory.path().join("east.toml"), &text)
}

#[test]
fn a_udp_port_that_two_sockets_bind_is_a_fault() {
    let on_two_hosts = [
        ("lan = \"127.0.0.1:7480\"", "lan = \"10.0.0.5:7480\""),
        ("wan = \"127.0.0.1:7420\"", "wan = \"203.0.113.10:7420\""),
        ("lan = \"127.0.0.1:7500\"", "lan = \"10.0.0.6:7480\""),
    ];
    let named = [("wan = \"127.0.0.1:7400\"", "wan = \"gw.example.net:7480\"")];
    let all_named = [
        named[0],
        ("127.0.0.1:7440", "oslo.example:7440"),
        ("127.0.0.1:7460", "west.example:7460"),
    ];
    let (none, all): (&[(&str, &str)], _) = (&[], "listen = \"0.0.0.0:7401\"");
    for (changes, lines, key, clash) in [
        (none, ["listen = \"127.0.0.1:7480\"", ""], "east-0.listen", "`lan` of this gateway does"),
        (none, ["listen = \"0.0.0.0:7480\"", ""], "east-0.listen", "fabric.toml:16)"),
        (none, ["listen = \"127.0.0.1:7420\"", ""], "east-0.listen", "`wan` of gateway `east-1`"),
        (none, ["", "listen = \"0.0.0.0:7480\""], "east-1.listen", "`lan` of gateway `east-0`"),
        (none, [all, all], "east-1.listen", "`listen` of gateway `east-0` does (line 3)"),
        (none, [all, "listen = \"127.0.0.1:7402\""], "", ""),
        (&on_two_hosts, [all, all], "", ""),
        (
            &on_two_hosts,
            ["", "listen = \"10.0.0.6:7480\""],
            "east-1.listen",
            "`lan` of this gateway",
        ),
        (&named, ["", ""], "east-0", "`lan` of this gateway"),
        (&named, ["listen = \"0.0.0.0:7400\"", ""], "", ""),
        (&named, ["listen = \"[2001:db8::1]:7400\"", ""], "east-0.listen", "of another family"),
        (&all_named, ["listen = \"[2001:db8::1]:7400\"", ""], "", ""),
    ] {
        let faults: Vec<Fault> = two_gateways(changes, lines).err().into_iter().flatten().collect();
        match key {
            "" => assert_eq!(faults, [], "{lines:?}"),
            key => {
                assert_eq!(keys(&faults), [format!("gateway.{key}")], "{lines:?}");
                assert!(faults[0].line.is_some(), "{faults:?}");
                assert!(faults[0].problem.contains(clash), "{faults:?}");
            }
        }
    }
}

#[test]
fn a_gateway_without_wan_listens_at_no_port() {
    let hidden = [("wan = \"127.0.0.1:7420\"\n", "")];
    for (changes, listen, problem) in [
        (&hidden[..], "10.0.0.5:7400", "has port 7400, which nothing would use"),
        (&hidden[..], "10.0.0.5:0", ""),
        (&[], "127.0.0.1:0", "has port 0, and ports are from 1"),
        (&[], "127.0.0.1:7430", ""),
    ] {
        let lines = ["", &format!("listen = \"{listen}\"")];
        let faults: Vec<Fault> = two_gateways(changes, lines).err().into_iter().flatten().collect();
        match problem {
            "" => assert_eq!(faults, [], "{listen}"),
            problem => {
                assert_eq!(keys(&faults), ["gateway.east-1.listen"]);
                assert!(faults[0].problem.starts_with(problem), "{faults:?}");
            }
        }
    }
}
