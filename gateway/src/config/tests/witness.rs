use super::common::*;
use crate::config::{Fault, RegionFile};
use hier_collectives::ids::RegionId;
use hier_collectives::plan;

/// A witness of the example fabric.
const WITNESS: &str = "
[region.aside]
witness = true
[region.aside.gateway.aside-0]
wan = \"127.0.0.1:7600\"
egress = \"10 Mbit/s\"
ingress = \"10 Mbit/s\"
[link.aside-east]
rtt = \"20 ms\"
[link.aside-west]
rtt = \"70 ms\"
";

/// The example fabric with a quorum and a witness, in which each `from` is replaced by its `to`.
fn witnessed(changes: &[(&str, &str)]) -> String {
    let name = "name = \"two-region\"";
    let mut text = FABRIC.replacen(name, &format!("{name}\nquorum = \"majority\""), 1) + WITNESS;
    for (from, to) in changes {
        assert!(text.contains(from), "no `{from}` in\n{text}");
        text = text.replacen(from, to, 1);
    }
    text
}

#[test]
fn a_witness_changes_no_number_and_no_plan() {
    let (plain, whole) = (fabric(FABRIC).expect("valid"), fabric(&witnessed(&[])).expect("valid"));
    let of = whole.fabric();
    let witness = of.witness().expect("there");
    assert_eq!((of.gateway(witness).name.as_str(), of.world_size()), ("aside-0", 4));
    assert_eq!(of.gateway_named("east-0"), plain.fabric().gateway_named("east-0"));
    assert_eq!(of.without_witness(), plain.fabric().clone());
    assert_eq!(plan::make_plan(of), plan::make_plan(plain.fabric()));
    assert!(of.is_quorum(&[RegionId(0), RegionId(2)].into()));
    assert_eq!(whole.address(witness), Some("127.0.0.1:7600".parse().expect("an address")));
    assert_ne!(whole.identity(), plain.identity());
}

#[test]
fn a_witness_that_cannot_be_one_is_a_fault() {
    for (from, to, key) in [
        ("witness = true", "witness = true\nranks = 1", "region.aside.ranks"),
        ("witness = true", "witness = true\nspeeds = [1.0]", "region.aside.speeds"),
        ("aside-0]\n", "aside-0]\nranks = 1\n", "region.aside.gateway.aside-0.ranks"),
        ("[link.aside-west]\nrtt = \"70 ms\"", "", "region.aside"),
        ("\"majority\"", "\"all\"", "quorum"),
        ("\"majority\"", "[\"east\"]", "quorum"),
        ("witness = true", "witness = false", "region.aside.ranks"),
        ("aside.gateway.aside-0]\n", "aside.gateway.east-0]\n", "region.aside.gateway.east-0"),
    ] {
        let faults = fabric(&witnessed(&[(from, to)])).expect_err(to).into_iter();
        let faults: Vec<Fault> = faults.collect();
        assert_eq!(keys(&faults), [key], "{to}");
    }
}

#[test]
fn a_witness_has_no_job() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(directory.path().join("fabric.toml"), witnessed(&[])).expect("written");
    let path = directory.path().join("aside.toml");
    let text = EAST.replace("east-0", "aside-0");
    std::fs::write(&path, &text).expect("written");
    let faults: Vec<Fault> = RegionFile::load(&path).expect_err("jobs").into_iter().collect();
    assert!(keys(&faults).iter().all(|key| key.starts_with("job.")), "{faults:?}");
    let (without, _) = text.split_once("[job").expect("a job");
    std::fs::write(&path, without).expect("written");
    assert_eq!(RegionFile::load(&path).expect("valid").jobs().count(), 0);
}
