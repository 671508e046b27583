//! Seeds of files and texts: the examples, and the spellings of the documents.

/// Returns seeds of fabric files: the examples, and keys that they lack.
pub fn fabric_config_seeds() -> Vec<Vec<u8>> {
    let five = include_str!("../../../configs/five-regions/fabric.toml");
    text_seeds(&[
        FABRIC,
        five,
        THREE_REGIONS,
        "name = 1\nmtu = [\n",
        "[link.a-b]\nrate = \"1 bit/s\"\n",
    ])
}

/// Returns seeds of region files: the examples, and keys that they lack.
pub fn region_config_seeds() -> Vec<Vec<u8>> {
    let full = format!("{EAST}weight = 3\n\n[job.zoo]\ntoken = '/etc/t'\nmemory = \"2MiB\"\n");
    let more = "user = \"landbridge\"\ngroup = \"1000\"\nlisten = \"[::]:7400\"\nstatus =";
    let full = full.replace("status =", more);
    text_seeds(&[EAST, WEST, &full, "fabric = \"fabric.toml\"\n[gateway]\n[job]\n"])
}

/// Returns seeds of quantities: every unit, and numbers at their edges.
pub fn quantities_seeds() -> Vec<Vec<u8>> {
    text_seeds(&[
        "500 Mbit/s",
        "8kbit/s",
        "0.5 Gbit/s",
        "18446744.073709551615 Tbit/s",
        "1 bit/s",
        "64 MiB",
        "1.5 KiB",
        "16777215.5 TiB",
        "18446744073709551615 B",
        "1 GiB",
        "3 TB",
        "2 GB",
        "7 MB",
        "9 kB",
        "0.1 %",
        "100%",
        "99.9999999 %",
        "0 %",
        "80 ms",
        "1.5 s",
        "20 us",
        "17 ns",
        "30 min",
        "5124095.5 h",
        "1 BDP",
        "0.125bdp",
        "1000000000000000000000",
    ])
}

/// Returns seeds of links in netem's syntax: the examples of docs/netem.md.
pub fn netem_words_seeds() -> Vec<Vec<u8>> {
    text_seeds(&[
        "delay 40ms 2ms distribution normal loss 1% rate 1gbit",
        "delay 10ms 2ms distribution uniform order free loss gemodel 1% 30% 90% 1% ecn \
         corrupt 5% duplicate 5% reorder 5% gap 3 rate 20mbit 8 queue 20kB mark-above 9kB limit 40",
        "latency 5msec drop random 10%",
        "delay 1ms rate 125mbps queue 1.5bdp seed 7",
        "delay 60ms 1ms rate 200mbit queue 20ms order kept",
        "delay 100usecs limit none",
        "loss gemodel 1%",
        "rate 8tbit limit 1000",
        "delay 1s gap 5",
        "loss state 1%",
        "slot 1ms",
    ])
}

/// Returns seeds of lab files: the example lab, and a fabric.
pub fn lab_file_seeds() -> Vec<Vec<u8>> {
    let over = "fabric = \"../two-region/fabric.toml\"\nseed = 7\nmtu = 9000\n[site.moon]\n\
                [link.east-west]\nqueue = \"1 BDP\"\n[link.east-moon]\nrtt = \"2.6 s\"\n\
                netem = \"delay 1ms\"\n";
    let every = "[site.a]\n[site.b]\n[link.a-b]\ndelay = \"1 ms\"\njitter = \"0.1 ms\"\n\
                 reordering = true\nrate = \"1 Gbit/s\"\noverhead_bytes = 38\nqueue = \"20 ms\"\n\
                 mark_above = \"100 kB\"\nlimit_packets = 9\nloss = \"1 %\"\nmark_losses = true\n\
                 duplicate = \"2 %\"\ncorrupt = \"3 %\"\nreorder = \"1 %\"\ngap = 5\n";
    let netem = "[site.a]\n[site.b]\n[link.a-b]\nforward.netem = \"delay 4ms\"\n\
                 backward.netem = \"delay 40ms 2ms rate 1mbit loss 1%\"\n";
    let scripted = "[site.a]\negress = \"1 Gbit/s\"\ningress = \"2 Gbit/s\"\nport_queue = \"1 MB\"\n\
                    [site.b]\n[link.a-b]\ndelay = \"1 ms\"\nrate = \"5 Gbit/s\"\n\
                    changes = [{ at = \"1 s\", rate = \"1 Mbit/s\", loss = \"1 %\" }, \
                    { at = \"2 s\", cut = true }, { at = \"3 s\", cut = false, delay = \"2 ms\" }]\n\
                    drops = [0, 7]\n";
    text_seeds(&[
        LAB,
        FABRIC,
        scripted,
        &over.replace("netem = \"delay 1ms\"\n", ""),
        over,
        every,
        netem,
    ])
}

/// Returns seeds of recordings: every kind of line, with fates that a replay corrects.
pub fn recording_seeds() -> Vec<Vec<u8>> {
    let everything = "wan-sim recording 1\n\
        link 0 east_west delay 10ms 2ms distribution normal order free loss gemodel 1% 30% 90% 1% \
        ecn corrupt 5% duplicate 5% reorder 5% gap 3 rate 20mbit 8 queue 20kB mark-above 9kB \
        limit 40 seed 3\nlink 1 west_east delay 5ms loss 10% seed 4\n\
        0 0 1500 ect 10000000\n0 0 1500 ect 10000000\n1 170001 137 not 5170001\n\
        0 340002 174 not drop:loss\n0 set 340002 delay 7ms rate 5mbit queue 1bdp\n1 cut\n\
        1 510003 211 ect drop:blackhole\n1 join\n0 680004 248 ect 9 marked:queue bit:3 copy 10\n";
    let scripted = "wan-sim recording 1\nlink 0 a delay 1ms rate 1mbit seed 1\n\
        0 at 5000000 set delay 2ms rate 2mbit\n0 at 6000000 cut\n0 at 7000000 join\n0 drops 1\n\
        0 0 1500 not 13000000\n0 0 1500 not drop:script\n0 0 1500 not 15000000\n\
        0 set 1000000 delay 1ms rate 3mbit\n0 moved 0 5666666\n0 moved 2 1\n";
    let plain = "wan-sim recording 1\nlink 0 a delay 1ms limit none seed 1\n\
        0 0 100 not 1000000\n0 0 100 not 1000000\n0 5 65535 ect 1000005\n";
    text_seeds(&[everything, scripted, plain, "wan-sim recording 1\n"])
}

/// Turns texts into seeds.
fn text_seeds(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// Text of the example fabric of two regions.
const FABRIC: &str = include_str!("../../../configs/two-region/fabric.toml");

/// Text of the region file of the example region `east`.
const EAST: &str = include_str!("../../../configs/two-region/east.toml");

/// Text of the region file of the example region `west`.
const WEST: &str = include_str!("../../../configs/two-region/west.toml");

/// Text of the example lab of three sites.
const LAB: &str = include_str!("../../../configs/labs/three-sites.toml");

/// Text of a fabric file with three regions: gateways without a WAN port, compute speeds, names
/// with hyphens, and IPv6 addresses.
const THREE_REGIONS: &str = r#"
name = "three"
mtu = 9000
lanes = 2
region.us-east = { ranks = 3, speeds = [1, 0.5, 2e0] }
[region.us-east.gateway.a]
ranks = 2
wan = ["[2001:db8::1]:7400", "[2001:db8:1::1]:7400"]
lan = "[fd00::1]:7400"
egress = "1 Gbit/s"
ingress = "2 Gbit/s"
[region.us-east.gateway.b]
ranks = 0x1
lan = "[fd00::2]:7400"
[region.us-west]
ranks = 1
[region.us-west.gateway.c]
wan = "[2001:db8:2::1]:65520"
egress = "10Gbit/s"
ingress = "10Gbit/s"
[region.eu]
ranks = 1
[region.eu.gateway.d]
wan = "[2001:db8:2::1]:65504"
egress = "8 kbit/s"
ingress = "8 kbit/s"
[link.us-east-us-west]
rate = "1 Gbit/s"
rtt = "60 ms"
[link.eu-us-east]
rate = "1 Gbit/s"
rtt = "0.09 s"
loss = "49.9 %"
controller = "newreno"
schedule = [{ at = "08:00", rate = "300 Mbit/s" }, { at = "18:30:15", rate = "1 Gbit/s" }]
"#;
