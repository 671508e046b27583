//! Targets for config files.
//!
//! An accepted file is written again by this module alone, and must be read as the same file.

use crate::bounds::AllocationBound;
use gateway::config::{ConfigFaults, FabricFile, RegionFile};
use gateway::wan::connect::peer_addresses::PeerAddresses;
use hier_collectives::ids::GatewayId;
use hier_collectives::topology::{Link, Patience};
use std::fmt::Write;
use std::path::Path;
use units::BitRate;

/// Parses `bytes` as a fabric file, and panics when the parser breaks a promise.
pub fn fabric_config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let path = Path::new(EXAMPLE_FOLDER).join("fabric.toml");
    match config_file_bound(text).enforce(bytes, || FabricFile::parse(&path, text)) {
        Err(faults) => check_config_faults(&faults, &path, text),
        Ok(file) => {
            let again = fabric_config_text(&file);
            assert_eq!(FabricFile::parse(&path, &again).as_ref(), Ok(&file), "{again}");
        }
    }
}

/// Parses `bytes` as a region file beside the example fabric, and panics when the parser breaks a
/// promise.
pub fn region_config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let path = Path::new(EXAMPLE_FOLDER).join("east.toml");
    match config_file_bound(text).enforce(bytes, || RegionFile::parse(&path, text)) {
        Err(faults) => check_config_faults(&faults, &path, text),
        Ok(file) => {
            let again = region_config_text(&file);
            assert_eq!(RegionFile::parse(&path, &again).as_ref(), Ok(&file), "{again}");
        }
    }
}

/// Checks that there is a fault, and that each names the problem, the place and accepted values.
fn check_config_faults(faults: &ConfigFaults, path: &Path, text: &str) {
    assert!(faults.iter().count() > 0, "refused without a fault");
    let lines = 1 + text.matches('\n').count();
    for fault in faults.iter() {
        assert!(!fault.problem.is_empty() && !fault.accepted.is_empty(), "{fault:?}");
        assert!(!fault.to_string().contains(char::is_control), "{fault:?}");
        // A fault in another file is in the fabric that this one names, which may be unreadable.
        if fault.file == path {
            // A file without a key has no place but itself.
            let has_place = fault.line.is_some() || !fault.key.is_empty();
            assert!(has_place || has_no_key(text), "no place: {fault:?}");
            assert!(fault.line.is_none_or(|line| (1..=lines).contains(&line)), "{fault:?}");
        }
    }
}

/// Whether `text` is comments and blank lines alone.
fn has_no_key(text: &str) -> bool {
    text.lines().map(str::trim_start).all(|line| line.is_empty() || line.starts_with('#'))
}

/// Writes an accepted fabric file as TOML.
fn fabric_config_text(file: &FabricFile) -> String {
    let fabric = file.fabric();
    let mut text = format!("name = \"{}\"\n", fabric.name());
    let mut line = |line: String| writeln!(text, "{line}").expect("a string takes all");
    if file.mtu_pinned() {
        line(format!("mtu = {}", fabric.mtu()));
    }
    if fabric.patience() != Patience::default() {
        line(format!("patience = \"{}\"", fabric.patience().span()));
    }
    if fabric.lanes_min() > 1 {
        line(format!("lanes = {}", fabric.lanes_min()));
    }
    for region in fabric.regions() {
        line(format!("[region.{}]\nranks = {}", region.name, region.ranks.len()));
        if region.speeds.iter().any(|speed| *speed != 1.0) {
            line(format!("speeds = {:?}", region.speeds));
        }
        for id in region.gateways.clone().map(GatewayId) {
            let gateway = fabric.gateway(id);
            line(format!("[region.{}.gateway.{}]", region.name, gateway.name));
            line(format!("ranks = {}", gateway.ranks.len()));
            if let Some(addresses) = file.lan_addresses(id) {
                line(format!("lan = {}", config_address_list(addresses)));
            }
            if let Some(addresses) = file.lane_addresses(id) {
                line(format!("wan = {}", config_address_list(addresses)));
            }
            if let Some(wan) = gateway.wan {
                line(format!("egress = \"{}\"\ningress = \"{}\"", wan.egress, wan.ingress));
            }
        }
    }
    for link in fabric.links() {
        line(format!("[link.{}]", config_link_name(file, link)));
        let Link { rate, rtt, loss, .. } = link;
        line(format!("rate = \"{rate}\"\nrtt = \"{rtt}\"\nloss = \"{loss}\""));
        let Some(policy) = file.policies().get(&(link.a, link.b)) else { continue };
        line(format!("controller = \"{}\"", policy.controller.name()));
        if let Some(schedule) = &policy.schedule {
            let entries: Vec<String> = schedule.entries().map(config_schedule_entry).collect();
            line(format!("schedule = [{}]", entries.join(", ")));
        }
    }
    text
}

/// Writes addresses as an array of TOML strings.
fn config_address_list(addresses: &PeerAddresses) -> String {
    let each: Vec<String> =
        addresses.all().iter().map(|address| format!("\"{address}\"")).collect();
    format!("[{}]", each.join(", "))
}

/// Writes an entry of a rate schedule as TOML; it begins at this second of the day.
fn config_schedule_entry((second, rate): (u32, BitRate)) -> String {
    let (hours, minutes, seconds) = (second / 3600, second / 60 % 60, second % 60);
    format!("{{ at = \"{hours:02}:{minutes:02}:{seconds:02}\", rate = \"{rate}\" }}")
}

/// Returns the name of a link, with its regions in an order that splits in one way only, since
/// names have hyphens.
fn config_link_name(file: &FabricFile, link: &Link) -> String {
    let name = |id| file.fabric().region(id).name.as_str();
    let known = |name: &str| file.fabric().regions().iter().any(|region| region.name == name);
    let splits = |joined: &str| {
        let ends = joined.match_indices('-').map(|(at, _)| (&joined[..at], &joined[at + 1..]));
        ends.filter(|(one, other)| known(one) && known(other) && one != other).count()
    };
    let forward = format!("{}-{}", name(link.a), name(link.b));
    if splits(&forward) == 1 { forward } else { format!("{}-{}", name(link.b), name(link.a)) }
}

/// Writes an accepted region file as TOML.
fn region_config_text(file: &RegionFile) -> String {
    let path = |path: &Path| config_toml_string(path.to_str().expect("it came from text"));
    let mut text = format!("fabric = {}\n", path(file.fabric().path()));
    let mut line = |line: String| writeln!(text, "{line}").expect("a string takes all");
    for gateway in file.gateways() {
        line(format!("[gateway.{}]\nstatus = \"{}\"", gateway.name, gateway.status));
        line(format!("socket = {}\nmemory = \"{}\"", path(&gateway.socket), gateway.memory));
        line(format!("certificate = {}", path(&gateway.certificate)));
        line(format!("key = {}\nca = {}", path(&gateway.key), path(&gateway.ca)));
        line(format!("segmentation_offload = {}", gateway.segmentation_offload));
        for (key, account) in [("user", &gateway.user), ("group", &gateway.group)] {
            if let Some(account) = account {
                line(format!("{key} = \"{account}\""));
            }
        }
        if let Some(listen) = &gateway.listen {
            line(format!("listen = {}", config_address_list(&listen.clone().into())));
        }
    }
    for job in file.jobs() {
        line(format!("[job.{}]\ntoken = {}", job.name, path(&job.token)));
        line(format!("memory = \"{}\"\nweight = {}", job.memory, job.weight));
    }
    text
}

/// Writes any text as a TOML string.
pub(crate) fn config_toml_string(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        if c.is_control() || matches!(c, '"' | '\\') {
            write!(quoted, "\\U{:08X}", u32::from(c)).expect("a string takes all");
        } else {
            quoted.push(c);
        }
    }
    quoted + "\""
}

/// Returns the bound of the memory for a config file with this text.
///
/// A key of a few bytes makes a fault of a few hundred, and a dot in a key a table of over a
/// thousand. A region has two copies of the speeds of up to 65,536 ranks.
fn config_file_bound(text: &str) -> AllocationBound {
    let regions = text.matches("ranks").count();
    AllocationBound { fixed: (64 << 10) + regions * (65_536 * 8 * 2), per_byte: 2048 }
}

/// Folder of the example fabric file and of the region files that refer to that fabric file.
const EXAMPLE_FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/two-region");
