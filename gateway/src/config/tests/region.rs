use super::common::*;
use crate::config::{Fault, GatewayChoiceError, LanePeer, RegionFile};
use crate::local::socket::GatewaySocketMode;
use crate::wan::connect::peer_addresses::PeerAddresses;

#[test]
fn a_region_file_resolves_its_paths() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = region_in(directory.path(), EAST).expect("valid");
    let gateway = file.gateway(None).expect("the only one");
    assert_eq!(gateway.certificate, directory.path().join("keys/east-0.pem"));
    assert_eq!(gateway.socket, directory.path().join("run/east-0.sock"));
    assert_eq!(gateway.memory.to_string(), "1 GiB");
    assert_eq!(file.jobs().map(|job| &*job.name).collect::<Vec<_>>(), ["train"]);
    assert!(matches!(file.gateway(Some("east-1")), Err(GatewayChoiceError::Unknown { .. })));
}

#[test]
fn a_job_has_weight_1_by_default() {
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
fn a_region_file_fits_its_fabric_and_the_system() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let faults = |text: &str| match region_in(directory.path(), text) {
        Ok(_) => vec![],
        Err(faults) => faults.iter().map(|fault| fault.key.clone()).collect::<Vec<_>>(),
    };
    let socket_of = |bytes: usize| {
        let path = format!("/{}", "s".repeat(bytes - 1));
        EAST.replace("run/east-0.sock", &path)
    };
    assert_eq!(faults(&socket_of(107)), [""; 0]);
    assert_eq!(faults(&socket_of(108)), ["gateway.east-0.socket"]);
    let gateway =
        EAST.split_once("[gateway").expect("there").1.split_once("[job").expect("there").0;
    let west = format!("{EAST}\n[gateway{}", gateway.replace("east-0", "west-0"));
    assert_eq!(faults(&west), ["gateway.west-0"]);
}

#[test]
fn keys_for_other_hosts_and_users_fit_together() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let with = |lines: &str| {
        let text = EAST.replace("memory = \"1 GiB\"", &format!("{lines}\nmemory = \"1 GiB\""));
        region_in(directory.path(), &text)
    };
    let faults = |lines: &str| -> Vec<String> {
        let found =
            with(lines).err().map(|faults| faults.iter().map(|one| one.key.clone()).collect());
        found.unwrap_or_default()
    };
    let file = with("attach = \"0.0.0.0:7480\"\ntrainers_ca = \"keys/t.pem\"\nmode = \"0666\"");
    let file = file.expect("valid");
    let gateway = file.gateway(None).expect("the only one");
    assert_eq!(gateway.attach, "0.0.0.0:7480".parse().ok());
    assert_eq!(gateway.trainers_ca, Some(directory.path().join("keys/t.pem")));
    assert_eq!(gateway.mode, Some(GatewaySocketMode::All));
    assert_eq!(faults("mode = \"0600\""), [""; 0]);
    assert_eq!(faults("mode = \"0660\"\ngroup = \"0\""), [""; 0]);
    for mode in
        ["mode = \"0660\"", "mode = \"0600\"\ngroup = \"0\"", "mode = \"0777\"", "mode = 600"]
    {
        assert_eq!(faults(mode), ["gateway.east-0.mode"], "{mode}");
    }
    assert_eq!(faults("trainers_ca = \"t.pem\""), ["gateway.east-0.trainers_ca"]);
    for attach in
        ["gateway:7480", "0.0.0.0", "0.0.0.0:0", "127.0.0.1:9400", "0.0.0.0:9400", "[::]:9400"]
    {
        assert_eq!(
            faults(&format!("attach = \"{attach}\"")),
            ["gateway.east-0.attach"],
            "{attach}"
        );
    }
}

#[test]
fn user_and_group_of_a_socket_are_accounts() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let with = |lines: &str| {
        let text = EAST.replace("memory = \"1 GiB\"", &format!("{lines}\nmemory = \"1 GiB\""));
        region_in(directory.path(), &text)
    };
    let ids = |lines: &str| {
        let file = with(lines).expect("valid");
        let gateway = file.gateway(None).expect("the only one");
        (gateway.user_id(), gateway.group_id())
    };
    assert_eq!(ids(""), (Ok(None), Ok(None)));
    assert_eq!(ids("user = \"root\"\ngroup = \"4321\""), (Ok(Some(0)), Ok(Some(4321))));
    assert!(ids("user = \"no-such-user-here\"").0.is_err(), "known only on the gateway's host");
    for key in ["user", "group"] {
        for wrong in ["0", "\"\"", "\"a:b\"", "\"-x\"", "\"4294967295\""] {
            let faults = with(&format!("{key} = {wrong}")).expect_err(wrong);
            let faults: Vec<Fault> = faults.into_iter().collect();
            assert_eq!(keys(&faults), [format!("gateway.east-0.{key}")], "{wrong}");
        }
    }
}

#[test]
fn segmentation_offload_is_on_by_default() {
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
fn lanes_lead_to_linked_regions_and_to_the_own_one() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let three = include_str!("../../../../configs/three-regions/fabric.toml");
    std::fs::write(directory.path().join("fabric.toml"), three).expect("a temporary file");
    let gateway = |name: &str, more: &str| {
        format!(
            "[gateway.{name}]\nsocket = \"{name}.sock\"\nstatus = \"127.0.0.1:9400\"\n\
             certificate = \"c\"\nkey = \"k\"\nca = \"a\"\nmemory = \"1 GiB\"\n{more}"
        )
    };
    let text = format!(
        "fabric = \"fabric.toml\"\n{}{}[job.train]\ntoken = \"t\"\nmemory = \"1 GiB\"\n",
        gateway("east-0", "listen = \"10.0.0.5:7400\"\n"),
        gateway("east-2", "").replace("9400", "9402"),
    );
    let path = directory.path().join("east.toml");
    std::fs::write(&path, text).expect("a temporary file");
    let file = RegionFile::load(&path).expect("valid");
    let fabric = file.fabric().fabric();
    let peers = |name: &str| -> Vec<String> {
        let peers = file.lane_peers(file.gateway(Some(name)).expect("there"));
        let text = |peer: &LanePeer| {
            let kind = if peer.link.is_some() { "WAN" } else { "LAN" };
            let theirs = peer.theirs.as_ref().and_then(PeerAddresses::without_names);
            let paths = peer.lane_paths(fabric, &theirs.expect("it can be dialled"));
            let ((own, first), name) = (paths.lanes[0], &fabric.gateway(peer.id).name);
            let seen_at = peer.own_seen_at.as_ref().expect("it can be dialled").first();
            format!("{name} {kind} {own} {seen_at} {first}")
        };
        peers.iter().map(text).collect()
    };
    assert_eq!(
        peers("east-0"),
        [
            "east-1 LAN 127.0.0.1 127.0.0.1:7480 127.0.0.1:7500",
            "east-2 LAN 127.0.0.1 127.0.0.1:7480 127.0.0.1:7520",
            "oslo-0 WAN 10.0.0.5 127.0.0.1:7400 127.0.0.1:7440",
            "west-0 WAN 10.0.0.5 127.0.0.1:7400 127.0.0.1:7460",
        ]
    );
    let sidecar = peers("east-2");
    assert!(sidecar.len() == 2 && sidecar.iter().all(|peer| peer.contains("LAN")), "{sidecar:?}");
}
