//! Whether a host shapes as it was told.

use super::HostCommands;
use crate::netem;
use std::collections::BTreeMap;
use units::Fraction;

/// What a host does otherwise.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// No such netem.
    #[error("no netem {handle} on {device}: apply first")]
    Missing {
        /// Its handle.
        handle: String,
        /// The network device.
        device: String,
    },
    /// Other words.
    #[error("netem {handle} is `{found}`, not `{wanted}`")]
    Different {
        /// Its handle.
        handle: String,
        /// As the kernel has it.
        found: String,
        /// As it should be.
        wanted: String,
    },
    /// TCP hands it buffers of many segments.
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

/// Compares what `tc qdisc show dev DEVICE` and `ip -d link show dev DEVICE` printed with what was
/// applied. The kernel does not tell the distribution of a jitter, so that is not compared; nor
/// are the digits that `tc` does not print.
///
/// # Errors
/// [`VerifyError`], for the first netem that is missing or different.
pub fn verify(commands: &HostCommands, shown: &str, link: &str) -> Result<(), VerifyError> {
    for (handle, wanted) in &commands.netems {
        let start = format!("qdisc netem {handle} ");
        let line = shown.lines().find_map(|line| line.trim().strip_prefix(start.as_str()));
        let Some(line) = line else {
            let (handle, device) = (handle.clone(), commands.device.clone());
            return Err(VerifyError::Missing { handle, device });
        };
        if !alike(&told(wanted), &told(line)) {
            let (handle, found) = (handle.clone(), line.to_owned());
            return Err(VerifyError::Different { handle, found, wanted: wanted.clone() });
        }
    }
    match segments(link) {
        Some(segments) if segments > 1 => {
            Err(VerifyError::Whole { device: commands.device.clone(), segments })
        }
        _ => Ok(()),
    }
}

/// Whether what `tc qdisc show dev DEVICE` printed has a queue of ours at its root.
pub fn applied(shown: &str) -> bool {
    let root = shown.lines().any(|line| line.trim().starts_with("qdisc htb 1: root "));
    let netem = shown.lines().any(|line| line.trim().starts_with("qdisc netem 10: parent 1:1 "));
    root && netem
}

/// Most segments in a buffer of TCP, as `ip -d link show dev DEVICE` printed it.
pub fn segments(link: &str) -> Option<u32> {
    number_after(link, "gso_max_segs")
}

/// Most that the device's driver lets it be, where the kernel tells.
pub fn most_segments(link: &str) -> Option<u32> {
    number_after(link, "tso_max_segs")
}

fn number_after(text: &str, name: &str) -> Option<u32> {
    text.split_whitespace().skip_while(|word| *word != name).nth(1)?.parse().ok()
}

/// What is told of a netem: by word, its values.
type Told<'a> = BTreeMap<&'a str, Vec<&'a str>>;

fn told(words: &str) -> Told<'_> {
    let mut told = Told::new();
    let mut last = "";
    let mut words = words.split_whitespace();
    while let Some(word) = words.next() {
        match word {
            // Where it hangs, its seed, and what the kernel does not tell.
            "parent" | "refcnt" | "seed" | "distribution" => {
                words.next();
            }
            // The kernel's names of a word's parts.
            "root" | "p" | "r" | "1-h" | "1-k" | "packetoverhead" => {}
            "limit" | "delay" | "loss" | "ecn" | "duplicate" | "corrupt" | "reorder" | "gap"
            | "rate" => {
                last = word;
                told.entry(word).or_default();
            }
            // A value, or a word that was never applied.
            _ => told.entry(last).or_default().push(word),
        }
    }
    // The kernel does not tell an overhead of zero.
    if let Some(rate) = told.get_mut("rate")
        && rate.get(1) == Some(&"0")
    {
        rate.pop();
    }
    told
}

fn alike(wanted: &Told<'_>, found: &Told<'_>) -> bool {
    wanted.len() == found.len()
        && wanted.iter().zip(found).all(|((word, wanted), (other, found))| {
            let mut values = wanted.iter().zip(found);
            word == other && wanted.len() == found.len() && values.all(|(w, f)| close(w, f))
        })
}

/// Whether `tc` may have printed `wanted` as `found`: it rounds times to three digits, cuts rates
/// to four, and rounds probabilities to six.
fn close(wanted: &str, found: &str) -> bool {
    if let (Some(wanted), Some(found)) = (netem::span(wanted), netem::span(found)) {
        return wanted.ns().abs_diff(found.ns()) <= wanted.ns() / 199;
    }
    if let (Some(wanted), Some(found)) = (netem::rate(wanted), netem::rate(found)) {
        let (wanted, found) = (wanted.bits_per_second(), found.bits_per_second());
        return found <= wanted && (wanted - found).saturating_mul(1000) < wanted;
    }
    let ppb = |word: &str| word.parse::<Fraction>().ok().map(|chance| u64::from(chance.ppb()));
    if let (Some(wanted), Some(found)) = (ppb(wanted), percent(found)) {
        // And the kernel keeps 32 bits of them.
        return wanted.abs_diff(found) <= wanted / 100_000 + 1;
    }
    wanted == found
}

/// A probability in parts per billion. `tc` prints small ones as `1e-05%`.
fn percent(word: &str) -> Option<u64> {
    let percent: f64 = word.strip_suffix('%')?.parse().ok()?;
    (0.0..=100.0).contains(&percent).then(|| (percent * 1e7).round() as u64)
}
