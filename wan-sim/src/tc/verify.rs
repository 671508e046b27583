//! The comparison of a host's shaping with the file.

use super::shaping_commands::{CLASS_RATE, HostCommands};
use crate::netem;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use units::Fraction;

/// A difference between a host and the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// The root queue was not applied from here.
    #[error("the root queue of {device} is not one that was applied from here: apply first")]
    NotApplied {
        /// The network device.
        device: String,
    },
    /// A queue, a class or a filter of the file that is not there.
    #[error("there is no {what} on {device}: remove and apply again")]
    Missing {
        /// Which one.
        what: String,
        /// The network device.
        device: String,
    },
    /// One that the file does not have.
    #[error("{device} has `{what}`, which the file does not have: remove and apply again")]
    Unwanted {
        /// The kernel's text.
        what: String,
        /// The network device.
        device: String,
    },
    /// Other words.
    #[error("{what} is `{found}`, not `{wanted}`")]
    Different {
        /// Which queue, class or filter.
        what: String,
        /// The kernel's text.
        found: String,
        /// The expected text.
        wanted: String,
    },
    /// The device lets TCP hand netem buffers of many segments.
    #[error(
        "netem on {device} gets up to {segments} segments at once, and loses them as one: apply \
         again"
    )]
    Whole {
        /// The network device.
        device: String,
        /// Most segments in a buffer.
        segments: u32,
    },
}

/// The output of the tools for one device.
#[derive(Debug, Clone, Copy)]
pub struct ToolOutput<'a> {
    /// Output of `tc qdisc show dev DEVICE`.
    pub qdiscs: &'a str,
    /// Output of `tc class show dev DEVICE`.
    pub classes: &'a str,
    /// Output of `tc filter show dev DEVICE`.
    pub filters: &'a str,
    /// Output of `ip -d link show dev DEVICE`.
    pub link: &'a str,
}

/// Compares the output of the tools with the commands: root queue, classes, netems, the class of
/// each destination, and segments per buffer. More of these than the commands make are an error,
/// too.
///
/// The kernel does not report the distribution of a jitter, nor digits that `tc` does not print:
/// these are not compared.
///
/// # Errors
/// [`VerifyError`], for the first item that is missing, different or unwanted.
pub fn verify_shaping(commands: &HostCommands, shown: &ToolOutput<'_>) -> Result<(), VerifyError> {
    verify_root_queue(commands, shown.qdiscs)?;
    verify_netems(commands, shown.qdiscs)?;
    verify_classes(commands, shown.classes)?;
    verify_filters(commands, shown.filters)?;
    match verified_gso_segments(shown.link) {
        Some(segments) if segments > 1 => {
            Err(VerifyError::Whole { device: commands.device.clone(), segments })
        }
        _ => Ok(()),
    }
}

/// Checks that the root queue is the applied one, and passes packets unshaped that no filter names.
fn verify_root_queue(commands: &HostCommands, qdiscs: &str) -> Result<(), VerifyError> {
    let ours = qdiscs.lines().find_map(|line| line.trim().strip_prefix(ROOT_QUEUE_PREFIX));
    let Some(words) = ours else {
        return Err(VerifyError::NotApplied { device: commands.device.clone() });
    };
    match verified_value_after(words, "default") {
        Some("0" | "0x0") => Ok(()),
        found => Err(VerifyError::Different {
            what: "the root queue".to_owned(),
            found: format!("default {}", found.unwrap_or("of nothing")),
            wanted: "default 0".to_owned(),
        }),
    }
}

/// Checks that the device has the netems of the commands, and no others.
fn verify_netems(commands: &HostCommands, qdiscs: &str) -> Result<(), VerifyError> {
    let device = || commands.device.clone();
    let mut found = BTreeMap::new();
    for line in qdiscs.lines().map(str::trim) {
        if let Some((handle, words)) =
            line.strip_prefix("qdisc netem ").and_then(|rest| rest.split_once(' '))
        {
            found.insert(handle, words);
        }
    }
    for (class, (handle, wanted)) in (1..).zip(&commands.netems) {
        let what = format!("netem {handle}");
        let Some(words) = found.remove(handle.as_str()) else {
            return Err(VerifyError::Missing { what, device: device() });
        };
        let parent = format!("1:{class}");
        if verified_value_after(words, "parent") != Some(&parent)
            || !verify_netem_values(&parse_values_to_verify(wanted), &parse_values_to_verify(words))
        {
            let wanted = format!("parent {parent} {wanted}");
            return Err(VerifyError::Different { what, found: words.to_owned(), wanted });
        }
    }
    match found.pop_first() {
        Some((handle, words)) => {
            Err(VerifyError::Unwanted { what: format!("netem {handle} {words}"), device: device() })
        }
        None => Ok(()),
    }
}

/// Checks that the device has the `htb` classes of the commands, and no others.
fn verify_classes(commands: &HostCommands, classes: &str) -> Result<(), VerifyError> {
    let device = || commands.device.clone();
    let mut found = BTreeMap::new();
    for line in classes.lines().map(str::trim) {
        // Classes of another kind belong to other queues.
        let own = line.strip_prefix("class htb ").and_then(|rest| rest.split_once(' '));
        found.extend(own);
    }
    for (class, (handle, _)) in (1..).zip(&commands.netems) {
        let what = format!("class 1:{class}");
        let Some(words) = found.remove(&what["class ".len()..]) else {
            return Err(VerifyError::Missing { what, device: device() });
        };
        let fast = |word| {
            verified_value_after(words, word)
                .is_some_and(|rate| verified_value_matches(CLASS_RATE, rate))
        };
        if verified_value_after(words, "leaf") != Some(handle) || !fast("rate") || !fast("ceil") {
            let wanted = format!("leaf {handle} rate {CLASS_RATE} ceil {CLASS_RATE}");
            return Err(VerifyError::Different { what, found: words.to_owned(), wanted });
        }
    }
    match found.pop_first() {
        Some((class, _)) => {
            Err(VerifyError::Unwanted { what: format!("class {class}"), device: device() })
        }
        None => Ok(()),
    }
}

/// Checks that filters send each destination through its class, and that there are no others.
fn verify_filters(commands: &HostCommands, filters: &str) -> Result<(), VerifyError> {
    let device = || commands.device.clone();
    let mut wanted = commands.destinations.clone();
    for filter in VerifiedFilter::parse_all(filters) {
        let Some(class) = filter.destination().and_then(|to| wanted.remove(&to)) else {
            return Err(VerifyError::Unwanted { what: filter.to_string(), device: device() });
        };
        if filter.class != class {
            return Err(VerifyError::Different {
                what: format!("the filter `{}`", filter.matches.join(" ")),
                found: filter.class.to_owned(),
                wanted: class,
            });
        }
    }
    match wanted.pop_first() {
        Some((to, class)) => {
            let what = format!("filter that sends {to} through class {class}");
            Err(VerifyError::Missing { what, device: device() })
        }
        None => Ok(()),
    }
}

/// One entry of `tc filter show`: the line that has its class, and those that say what it matches.
struct VerifiedFilter<'a> {
    class: &'a str,
    matches: Vec<&'a str>,
}

impl<'a> VerifiedFilter<'a> {
    /// Parses all filters of the output of `tc filter show`.
    fn parse_all(shown: &'a str) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for line in shown.lines().map(str::trim) {
            let class = verified_value_after(line, "flowid")
                .or_else(|| verified_value_after(line, "*flowid"));
            match (class, all.last_mut()) {
                (Some(class), _) => all.push(Self { class, matches: Vec::new() }),
                // A line before the first class belongs to a table.
                (None, Some(last)) if !line.starts_with("filter ") && !line.is_empty() => {
                    last.matches.push(line);
                }
                (None, _) => {}
            }
        }
        all
    }

    /// Returns the destination address that the filter matches; `None` for another match.
    ///
    /// An address is at byte 16 of an IPv4 header, or from byte 24 of an IPv6 header.
    fn destination(&self) -> Option<IpAddr> {
        let words: Vec<(u32, u32)> = self
            .matches
            .iter()
            .map(|line| parse_verified_filter_match(line))
            .collect::<Option<_>>()?;
        match words[..] {
            [(16, v4)] => Some(IpAddr::V4(v4.into())),
            [(24, a), (28, b), (32, c), (36, d)] => {
                let bits = [a, b, c, d].iter().fold(0, |bits, word| bits << 32 | u128::from(*word));
                Some(IpAddr::V6(Ipv6Addr::from(bits)))
            }
            _ => None,
        }
    }
}

impl std::fmt::Display for VerifiedFilter<'_> {
    /// Prints `filter match cb007103/ffffffff at 16 flowid 1:10`: the matches, then the class, as
    /// tc shows them.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "filter {} flowid {}", self.matches.join(" "), self.class)
    }
}

/// Parses a line such as `match cb007103/ffffffff at 16` into the place in the header and the four
/// bytes there.
fn parse_verified_filter_match(line: &str) -> Option<(u32, u32)> {
    let (value, at) = line.strip_prefix("match ")?.split_once("/ffffffff at ")?;
    Some((at.trim().parse().ok()?, u32::from_str_radix(value, 16).ok()?))
}

/// Whether the output of `tc qdisc show` has the queues that this program installs.
pub fn verify_queues_are_ours(shown: &str) -> bool {
    let root = shown.lines().any(|line| line.trim().starts_with(ROOT_QUEUE_PREFIX));
    let netem = shown.lines().any(|line| line.trim().starts_with("qdisc netem 10: parent 1:1 "));
    root && netem
}

/// Returns the most segments in a buffer of TCP, from the output of `ip -d link show dev DEVICE`.
/// `None` where it does not tell.
pub fn verified_gso_segments(link: &str) -> Option<u32> {
    verified_value_after(link, "gso_max_segs")?.parse().ok()
}

/// Returns the most segments in a buffer that the driver of the device allows, from the output of
/// `ip -d link show dev DEVICE`. `None` where the kernel does not report it.
pub fn verified_driver_segments_max(link: &str) -> Option<u32> {
    verified_value_after(link, "tso_max_segs")?.parse().ok()
}

/// Returns the word that follows `name` in `text`.
fn verified_value_after<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.split_whitespace().skip_while(|word| *word != name).nth(1)
}

/// The words of a netem, each with its values, as `tc` spells them.
type NetemValues<'a> = BTreeMap<&'a str, Vec<&'a str>>;

/// Parses netem's words into the values of each, without words that need not be equal.
fn parse_values_to_verify(words: &str) -> NetemValues<'_> {
    let mut values = NetemValues::new();
    let mut last = "";
    let mut words = words.split_whitespace();
    while let Some(word) = words.next() {
        match word {
            // The place of the netem, its seed, and values that the kernel does not report.
            "parent" | "refcnt" | "seed" | "distribution" => {
                words.next();
            }
            // The kernel's names of a word's parts.
            "root" | "p" | "r" | "1-h" | "1-k" | "packetoverhead" => {}
            "limit" | "delay" | "loss" | "ecn" | "duplicate" | "corrupt" | "reorder" | "gap"
            | "rate" => {
                last = word;
                values.entry(word).or_default();
            }
            // A value, or a word that was never applied.
            _ => values.entry(last).or_default().push(word),
        }
    }
    // The kernel does not report an overhead of zero.
    if let Some(rate) = values.get_mut("rate")
        && rate.get(1) == Some(&"0")
    {
        rate.pop();
    }
    values
}

/// Returns whether two netems have the same words with matching values.
fn verify_netem_values(wanted: &NetemValues<'_>, found: &NetemValues<'_>) -> bool {
    wanted.len() == found.len()
        && wanted.iter().zip(found).all(|((word, wanted), (other, found))| {
            let mut values = wanted.iter().zip(found);
            word == other
                && wanted.len() == found.len()
                && values.all(|(w, f)| verified_value_matches(w, f))
        })
}

/// Returns whether `tc` may have printed `wanted` as `found`: `tc` rounds times to three digits,
/// cuts rates to four, and rounds probabilities to six.
fn verified_value_matches(wanted: &str, found: &str) -> bool {
    if let (Some(wanted), Some(found)) =
        (netem::parse_netem_span_value(wanted), netem::parse_netem_span_value(found))
    {
        return wanted.ns().abs_diff(found.ns()) <= wanted.ns() / 199;
    }
    if let (Some(wanted), Some(found)) =
        (netem::parse_netem_rate_value(wanted), netem::parse_netem_rate_value(found))
    {
        let (wanted, found) = (wanted.bits_per_second(), found.bits_per_second());
        return found <= wanted && (wanted - found).saturating_mul(1000) < wanted;
    }
    let ppb = |word: &str| word.parse::<Fraction>().ok().map(|chance| u64::from(chance.ppb()));
    if let (Some(wanted), Some(found)) = (ppb(wanted), parse_verified_percent(found)) {
        // The kernel keeps 32 bits of a probability.
        return wanted.abs_diff(found) <= wanted / 100_000 + 1;
    }
    wanted == found
}

/// Parses a probability in percent into parts per billion. `tc` prints small ones as `1e-05%`.
fn parse_verified_percent(word: &str) -> Option<u64> {
    let percent: f64 = word.strip_suffix('%')?.parse().ok()?;
    (0.0..=100.0).contains(&percent).then(|| (percent * 1e7).round() as u64)
}

/// The beginning of the line of `tc qdisc show` for the root queue that the shaping commands
/// create. A device without such a line was not shaped by them.
const ROOT_QUEUE_PREFIX: &str = "qdisc htb 1: root ";
