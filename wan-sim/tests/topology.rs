//! Lab and fabric files.

use std::fs;
use std::path::{Path, PathBuf};
use units::{BitRate, ByteCount, Fraction, Span, TimeNs};
use wan_sim::topology::{FileError, Topology, presets};
use wan_sim::{Change, LinkSpec, Loss};

fn load(text: &str) -> Result<Topology, FileError> {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "lab.toml", text);
    Topology::load(&directory.path().join("lab.toml"))
}

fn write(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, text).unwrap();
    path
}

fn link(keys: &str) -> Result<LinkSpec, FileError> {
    load(&format!("[site.a]\n[site.b]\n[link.a-b]\n{keys}"))
        .map(|topology| topology.links[0].a_to_b)
}

#[test]
fn toml_and_netem_spell_the_same_links() {
    for (keys, words) in [
        ("rtt = '80 ms'\nrate = '1 Gbit/s'", "delay 40ms rate 1gbit queue 1bdp"),
        ("delay = '40 ms'", "delay 40ms limit none"),
        (
            "rtt = '80 ms'\nrate = '1 Gbit/s'\njitter = '2 ms'\ndistribution = 'normal'\nloss = '1 %'",
            "delay 40ms 2ms distribution normal rate 1gbit queue 1bdp loss 1%",
        ),
        (
            "rtt = '2 ms'\nrate = '1 Gbit/s'\nqueue = '20 ms'\nmark_above = '100 kB'\noverhead_bytes = 38\nlimit_packets = 9",
            "delay 1ms rate 1gbit 38 queue 20ms mark-above 100kB limit 9",
        ),
        (
            "rtt = '2 ms'\nrate = '1 Gbit/s'\nreorder = '1 %'\ngap = 5\nduplicate = '2 %'\ncorrupt = '3 %'\nloss = '1 %'\nmark_losses = true",
            "delay 1ms rate 1gbit queue 1bdp reorder 1% gap 5 duplicate 2% corrupt 3% loss 1% ecn",
        ),
        (
            "rtt = '2 ms'\nrate = '1 Gbit/s'\njitter = '1 ms'\nreordering = true\nbursts = { to_bad = '1 %', to_good = '10 %', loss_in_bad = '50 %', loss_in_good = '0 %' }",
            "delay 1ms 1ms order free rate 1gbit queue 1bdp loss gemodel 1% 10% 50% 0%",
        ),
    ] {
        let toml = link(keys).unwrap();
        let netem = link(&format!("netem = '{words}'")).unwrap();
        assert_eq!(toml, netem, "{keys}");
    }
}

#[test]
fn a_direction_overrides_its_link_and_a_link_its_preset() {
    let topology = load(
        "seed = 9\nmtu = 9000\n[site.west]\n[site.east]\n[link.west-east]\n\
         preset = 'degraded-loss'\nrate = '1 Gbit/s'\n[link.west-east.backward]\n\
         rate = '100 Mbit/s'\ndelay = '7 ms'\nloss = '2 %'\n",
    )
    .unwrap();
    assert_eq!((topology.seed, topology.mtu), (9, 9000));
    assert_eq!(topology.sites, ["east", "west"]);
    let [link] = topology.links.as_slice() else { panic!("{:?}", topology.links) };
    assert_eq!((link.a, link.b), (1, 0));
    let percent = |percent: u32| Loss::Random(Fraction::from_ppb(percent * 10_000_000).unwrap());
    assert_eq!(link.a_to_b.delay(), Span::from_ms(40));
    assert_eq!(link.a_to_b.loss(), percent(1));
    assert_eq!(link.b_to_a.rate(), Some(BitRate::from_bits_per_second(100_000_000)));
    assert_eq!(link.b_to_a.delay(), Span::from_ms(7));
    assert_eq!(link.b_to_a.loss(), percent(2));
    assert_eq!(link.b_to_a.queue(), ByteCount::new(175_000));
}

#[test]
fn a_lab_file_extends_a_fabric_file() {
    let directory = tempfile::tempdir().unwrap();
    let fabric = write(
        directory.path(),
        "fabric.toml",
        "name = 'two'\nmtu = 8928\n[region.east]\nranks = 3\n[region.east.gateway.east-0]\n\
         wan = '127.0.0.1:7400'\n[region.west]\nranks = 1\n[link.east-west]\n\
         rate = '500 Mbit/s'\nrtt = '80 ms'\nloss = '0.1 %'\n",
    );
    let plain = Topology::load(&fabric).unwrap();
    assert_eq!(
        (plain.sites.as_slice(), plain.mtu),
        (["east", "west"].map(String::from).as_slice(), 8928)
    );
    let text = "fabric = 'fabric.toml'\nseed = 4\n[link.east-west]\njitter = '1 ms'\n";
    let lab = Topology::load(&write(directory.path(), "lab.toml", text)).unwrap();
    assert_eq!((lab.seed, lab.mtu), (4, 8928));
    let (one, other) = (&plain.links[0].a_to_b, &lab.links[0].a_to_b);
    assert_eq!((one.rate(), one.loss()), (other.rate(), other.loss()));
    assert_eq!((one.jitter().spread, other.jitter().spread), (Span::ZERO, Span::from_ms(1)));
}

#[test]
fn a_link_changes_at_stated_times_and_drops_stated_packets() {
    let text = "[site.a]\n[site.b]\n[link.a-b]\nrtt = '80 ms'\nrate = '1 Gbit/s'\n\
                changes = [{ at = '20 s', cut = true }, { at = '25 s', cut = false },\n\
                { at = '10 s', rate = '100 Mbit/s', loss = '1 %' }, { at = '30 s', delay = '5 ms' }]\n\
                [link.a-b.backward]\nchanges = []\ndrops = [3, 7]\n";
    let topology = load(text).unwrap();
    let link = &topology.links[0];
    let changes: Vec<_> = link.a_to_b_script.changes().collect();
    let at = |s: u64| TimeNs::from_ns(s * 1_000_000_000);
    let Change::Spec(slower) = changes[0].1 else { panic!("{changes:?}") };
    assert_eq!(slower.rate(), Some(BitRate::from_bits_per_second(100_000_000)));
    assert_eq!((changes[1], changes[2]), ((at(20), Change::Cut), (at(25), Change::Join)));
    assert_eq!(slower.queue(), link.a_to_b.queue());
    // What a change leaves out stays as the one before it left it.
    let nearer = slower.delay();
    let Change::Spec(last) = changes[3].1 else { panic!("{changes:?}") };
    assert_eq!(
        (nearer, last.delay(), last.rate()),
        (Span::from_ms(40), Span::from_ms(5), slower.rate())
    );
    assert_eq!(last.loss(), slower.loss());
    assert_eq!(link.b_to_a_script.changes().count(), 0);
    assert_eq!(link.b_to_a_script.dropped().collect::<Vec<_>>(), [3, 7]);
}

#[test]
fn a_change_of_the_link_leaves_the_queue_its_bytes() {
    for (queue, bytes) in [("", 10_000_000), ("queue = '20 ms'\n", 2_500_000)] {
        let keys = format!(
            "rtt = '80 ms'\nrate = '1 Gbit/s'\nloss = '1 %'\nmark_losses = true\n{queue}changes = \
             [{{ at = '1 s', rate = '100 Mbit/s', delay = '1 ms' }}, {{ at = '2 s', loss = '0 %' }}, \
             {{ at = '500 ms', delay = '9 ms' }}]\n"
        );
        let topology = load(&format!("[site.a]\n[site.b]\n[link.a-b]\n{keys}")).unwrap();
        let link = &topology.links[0];
        assert_eq!(link.a_to_b.queue(), ByteCount::new(bytes));
        for (_, change) in link.a_to_b_script.changes() {
            let Change::Spec(spec) = change else { panic!("{change:?}") };
            assert_eq!(spec.queue(), ByteCount::new(bytes));
        }
    }
}

#[test]
fn nothing_may_depend_on_what_is_zero() {
    for (keys, named) in [
        ("jitter = '0 ms'\ndistribution = 'normal'", "`distribution`"),
        ("jitter = '0 ms'\nreordering = true", "`reordering`"),
        ("loss = '0 %'\nmark_losses = true", "`mark_losses`"),
        (
            "bursts = { to_bad = '1 %', to_good = '10 %', loss_in_bad = '0 %', loss_in_good = '0 %' }\n\
             mark_losses = true",
            "`mark_losses`",
        ),
        (
            "bursts = { to_bad = '0 %', to_good = '10 %', loss_in_bad = '9 %', loss_in_good = '0 %' }\n\
             mark_losses = true",
            "`mark_losses`",
        ),
        ("reorder = '0 %'\ngap = 5", "`gap`"),
    ] {
        let error = link(&format!("delay = '5 ms'\n{keys}")).unwrap_err().to_string();
        assert!(error.contains(named) && error.contains("has no effect without"), "{error}");
    }
    // By itself it says that there is none.
    let none = "jitter = '0 ms'\nloss = '0 %'\nreorder = '0 %'\nduplicate = '0 %'";
    let words = |keys: &str| {
        let link = link(&format!("delay = '5 ms'\n{keys}")).unwrap();
        wan_sim::netem::Netem { link, seed: None }.to_string()
    };
    assert_eq!(words(none), words(""));
}

#[test]
fn a_sites_links_share_its_port() {
    let site = |keys: &str| {
        let text = format!("[site.a]\n{keys}\n[site.b]\n[site.c]\n");
        let links = "[link.a-b]\nrtt = '40 ms'\nrate = '1 Gbit/s'\n\
                     [link.a-c]\nrtt = '80 ms'\nrate = '1 Gbit/s'\n";
        load(&(text + links)).map(|topology| topology.ports[0])
    };
    let port = site("egress = '1.5 Gbit/s'\ningress = '2 Gbit/s'").unwrap();
    let egress = port.egress.unwrap();
    // One BDP of its own rate and its longest link.
    assert_eq!(egress.rate(), Some(BitRate::from_bits_per_second(1_500_000_000)));
    assert_eq!((egress.queue(), egress.delay()), (ByteCount::new(15_000_000), Span::ZERO));
    // It can carry all its links at once.
    assert_eq!(port.ingress, None);
    let port = site("ingress = '100 Mbit/s'\nport_queue = '10 ms'").unwrap();
    assert_eq!(port.ingress.unwrap().queue(), ByteCount::new(125_000));
    for (keys, named) in [
        ("port_queue = '10 ms'", "`port_queue` has no effect"),
        ("egress = '0 bit/s'", "above zero"),
        ("egress = '1'", "Gbit/s"),
    ] {
        let error = site(keys).unwrap_err().to_string();
        assert!(error.contains(named) && !error.contains('\n'), "{error}");
    }
}

#[test]
fn a_region_has_the_ports_of_its_gateways_together() {
    let directory = tempfile::tempdir().unwrap();
    let gateway = |name: &str, ip: &str| {
        format!(
            "[region.{name}]\nranks = 1\n[region.{name}.gateway.{name}-0]\n\
                 wan = '{ip}:1'\negress = '300 Mbit/s'\ningress = '1 Gbit/s'\n"
        )
    };
    let more = "[region.a.gateway.a-1]\nwan = '192.0.2.9:1'\negress = '100 Mbit/s'\n\
                [region.a.gateway.a-2]\n";
    let link = "[link.a-b]\nrate = '500 Mbit/s'\nrtt = '80 ms'\n";
    let text = gateway("a", "192.0.2.1") + more + &gateway("b", "192.0.2.2") + link;
    let path = write(directory.path(), "fabric.toml", &text);
    let topology = Topology::load(&path).unwrap();
    let rates = |site: usize| {
        let port = topology.ports[site];
        [port.egress, port.ingress].map(|spec| spec.and_then(|spec| spec.rate()))
    };
    let megabits = |rate: u64| Some(BitRate::from_bits_per_second(rate * 1_000_000));
    // One gateway of `a` does not say what it receives; that of `b` exceeds the link.
    assert_eq!((rates(0), rates(1)), ([megabits(400), None], [megabits(300), None]));
}

#[test]
fn every_preset_makes_a_lab() {
    for preset in presets() {
        let link = link(&format!("preset = '{}'\nrate = '1 Gbit/s'", preset.name)).unwrap();
        assert_eq!(link.delay(), preset.link.delay(), "{}", preset.name);
        assert!(link.rate().is_some() && preset.link.rate().is_none());
    }
}

#[test]
fn the_examples_and_every_fabric_are_good() {
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs");
    let inside = |folder: &Path| -> Vec<_> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    let labs = inside(&configs.join("labs"));
    let fabrics = inside(&configs).into_iter().map(|folder| folder.join("fabric.toml"));
    let fabrics: Vec<_> = fabrics.filter(|file| file.exists()).collect();
    assert!(!labs.is_empty() && fabrics.len() > 1);
    for file in labs.iter().chain(&fabrics) {
        Topology::load(file).unwrap();
    }
}

#[test]
fn every_direction_generates_its_own_capacity() {
    let text = "[site.a]\n[site.b]\n[link.a-b]\nrtt = '40 ms'\ncapacity = 'cellular'";
    let topology = load(text).unwrap();
    assert_eq!(load(text).unwrap(), topology);
    let link = &topology.links[0];
    assert_ne!(link.a_to_b_conditions, link.b_to_a_conditions);
    let capacity = link.a_to_b_conditions.capacity.as_ref().unwrap();
    assert_eq!(link.a_to_b.rate(), Some(capacity.mean_rate()));
    let other = load(&format!("seed = 2\n{text}")).unwrap();
    assert_ne!(other.links[0].a_to_b_conditions, link.a_to_b_conditions);
}

/// Policies of gateways do not change the link.
#[test]
fn only_fabric_files_may_set_gateway_policies() {
    let link = "[link.a-b]\nrtt = \"2 ms\"\nrate = \"1 Gbit/s\"\ncontroller = \"cubic\"\n";
    let gateway = |region| {
        format!(
            "[region.{region}.gateway.{region}-0]\nwan = [\"10.0.0.1:7400\", \"10.0.1.1:7400\"]\n"
        )
    };
    let fabric = load(&format!("{}{}{link}", gateway("a"), gateway("b"))).unwrap();
    assert_eq!(fabric.hosts[0].addresses.len(), 2);
    let refused = load(&format!("[site.a]\n[site.b]\n{link}")).unwrap_err().to_string();
    assert!(refused.contains("link.a-b.controller"), "{refused}");
}

#[test]
fn a_wrong_file_is_named_with_the_accepted_words() {
    for (text, line, parts) in WRONG {
        let error = load(&format!("[site.a]\n[site.b]\n{text}")).unwrap_err().to_string();
        assert!(!error.contains('\n'), "{error}");
        if *line > 0 {
            assert!(error.contains(&format!("lab.toml:{line}:")), "{text}: {error}");
        }
        for part in *parts {
            assert!(error.contains(part), "{text}: {error}");
        }
    }
    for (top, parts) in [
        ("mtu = 1", ["`mtu`", "`1`", "1280"]),
        ("mtu = 99999", ["`mtu`", "`99999`", "65535"]),
        ("seed = -1", ["`seed`", "`-1`", "from 0"]),
    ] {
        let error = load(&format!("{top}\n[site.a]\n")).unwrap_err().to_string();
        assert!(error.contains("lab.toml:1:") && !error.contains('\n'), "{error}");
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
    let missing = Topology::load(Path::new("/nonexistent/lab.toml")).unwrap_err().to_string();
    assert!(missing.contains("/nonexistent/lab.toml"));
    let endless = Topology::load(Path::new("/dev/zero")).unwrap_err().to_string();
    assert!(endless.contains("/dev/zero") && endless.contains("longer"), "{endless}");
    let empty = load("").unwrap_err().to_string();
    assert!(empty.contains("[site.NAME]"), "{empty}");
}

/// After two lines with the sites a and b: text, the line named, what the error contains.
const WRONG: &[(&str, usize, &[&str])] = &[
    ("[link.a-b]\nrat = '1 Gbit/s'", 4, &["`rat`", "`rate`"]),
    ("[link.a-b]\nrtt = '80'", 4, &["`80`", "80 ms"]),
    ("[link.a-b]\nrtt = '-1 ms'", 4, &["`-1 ms`", "80 ms"]),
    ("[link.a-b]\nrtt = '1 ms'\nloss = '101 %'", 5, &["`101 %`", "100 %"]),
    ("[link.a-b]\nrtt = 80", 4, &["`80`", "80 ms"]),
    ("[link.a-b]\nrtt = '1 ms'\nrate = '0 bit/s'", 0, &["link.a-b", "above zero"]),
    ("[link.a-b]\nrtt = '1 ms'\njitter = '1 ms'", 0, &["link.a-b", "before it left"]),
    ("[link.a-b]\nrate = '1 Gbit/s'", 0, &["link.a-b", "`rtt`", "km-1000"]),
    ("[link.a-b]\npreset = 'moon'", 0, &["`moon`", "geostationary"]),
    ("[link.a-b]\nrtt = '1 ms'\nqueue = '1 MB'", 0, &["`queue`", "`rate`"]),
    ("[link.a-b]\nrtt = '0 ms'\nrate = '1 Gbit/s'", 0, &["link.a-b", "`queue`", "20 ms"]),
    ("[link.a-b]\nrtt = '1 us'\nrate = '1 Gbit/s'\nqueue = '2 BDP'", 0, &["`queue`", "250 B"]),
    (
        "[link.a-b]\nrtt = '1 ms'\nrate = '1 Gbit/s'\nqueue = '1 kB'\nmark_above = '1 GiB'",
        0,
        &["`mark_above`", "1 GiB", "1 kB"],
    ),
    ("[link.a-b]\nrtt = '1 ms'\ndelay = '1 ms'", 0, &["`rtt`", "`delay`"]),
    ("[link.a-b]\nnetem = 'delay 1ms'\nloss = '1 %'", 0, &["`loss`", "`netem`"]),
    ("[link.a-b]\nnetem = 'delay 1ms'\ncorrupt = '1 %'", 0, &["`corrupt`", "`netem`"]),
    ("[link.a-b]\nnetem = 'delay 1ms'\npreset = 'km-30'", 0, &["`preset`", "`netem`"]),
    ("[link.a-b]\ndelay = '0 ms'\nreorder = '1 %'", 0, &["`reorder`", "`delay`"]),
    ("[link.a-b]\nrtt = '1 ms'\nloss = 0.5", 5, &["`0.5`", "0.1 %"]),
    ("[link.a-b]\nrtt = '1 ms'\nloss = true", 5, &["unit, in quotes"]),
    ("[link.a-b]\npreset = 5", 4, &["`preset`", "`5`", "a string"]),
    ("[link.a-b]\nrtt = '1 ms'\nmark_losses = 'yes'", 5, &["`mark_losses`", "a boolean"]),
    (
        "[link.a-b]\nrtt = '1 ms'\nchanges = [{ at = '1 s', cut = 'on' }]",
        5,
        &["`cut`", "a boolean"],
    ),
    ("[link.a-b]\nnetem = 'teleport'", 0, &["`teleport`", "delay"]),
    ("[link.a-c]\nrtt = '1 ms'", 0, &["link.a-c", "a, b"]),
    ("[link.a-b]\nrtt = '1 ms'\n[link.b-a]\nrtt = '1 ms'", 0, &["link.b-a", "already"]),
    ("[site.c]\nport = 1", 4, &["`port`"]),
    ("[site.'../x']", 0, &["../x", "a-z"]),
    ("[link.a-b]\nnetem = 'delay 1ms seed 7'", 0, &["seed", "top"]),
    ("[link.a-b]\nrtt = '1 ms'\ngap = 0", 5, &["`gap`", "`0`", "from 1 to 4294967295"]),
    ("[link.a-b]\nrtt = '1 ms'\ngap = '5'", 5, &["`gap`", "\"5\"", "whole number"]),
    ("[link.a-b]\nlimit_packets = 0", 4, &["`limit_packets`", "`0`", "from 1 to 4294967295"]),
    ("[link.a-b]\noverhead_bytes = 99999", 4, &["`overhead_bytes`", "`99999`", "0 to 65535"]),
    ("[link.a-b]\ndrops = [3, -1]", 4, &["`drops`", "`-1`", "from 0"]),
    ("[link.a-b]\ndrops = 3", 4, &["`drops`", "`3`", "[3, 7]"]),
    ("[link.a-b]\nrtt = '1 ms'\nrtt = '2 ms'", 5, &["`rtt`", "give one"]),
    ("[link.a-b]\nrtt = '1 ms'\nchanges = [{ at = '1 s' }]", 0, &["1 s", "rate, delay, loss, cut"]),
    ("[link.a-b]\nrtt = '1 ms'\nchanges = [{ at = '1' }]", 5, &["`1`", "80 ms"]),
    ("[link.a-b]\nrtt = '1 ms'\nchanges = [{ at = '1 s', rat = '1 Gbit/s' }]", 5, &["`rat`"]),
    ("[link.a-b]\nnetem = 'delay 1ms'\nchanges = [{ at = '1 s', loss = '1 %' }]", 0, &["netem"]),
];

#[test]
fn an_error_is_one_line_whatever_the_names_are() {
    for text in ["[site.\"a\\nb\"]", "fabric = 'x'\n[site.\"\\u001b[2J\"]", "fabric = \"x\\ny\""] {
        let line = load(text).unwrap_err().to_string();
        assert!(!line.contains(char::is_control), "{line:?}");
    }
}

#[test]
fn port_rates_that_overflow_count_as_unlimited() {
    let most = format!("rate = '{} bit/s'", u64::MAX);
    let lab = format!(
        "[site.a]\negress = '1 Gbit/s'\n[site.b]\n[site.c]\n[link.a-b]\ndelay = '1 ms'\n{most}\n\
         [link.a-c]\ndelay = '1 ms'\n{most}\n"
    );
    let port = load(&lab).unwrap().ports[0].egress.unwrap();
    assert_eq!(port.rate().unwrap().to_string(), "1 Gbit/s");
    let gateway = |name, port| {
        let rate = most.replace("rate", "egress");
        format!("[region.a.gateway.{name}]\nwan = '192.0.2.1:{port}'\n{rate}\n")
    };
    let fabric = gateway("one", 7400) + &gateway("two", 7500);
    assert!(load(&fabric).is_ok());
}
