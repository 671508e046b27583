//! Whether a host shapes as it was told.

use super::HostCommands;
use crate::netem::Netem;
use crate::{LinkSpec, Loss};
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
}

/// Compares what `tc qdisc show dev DEVICE` printed with what was applied. The kernel does
/// not tell the distribution of a jitter, so that is not compared; nor are percentages
/// beyond the digits that `tc` prints.
///
/// # Errors
/// [`VerifyError`], for the first netem that is missing or different.
pub fn verify(commands: &HostCommands, shown: &str) -> Result<(), VerifyError> {
    for (handle, wanted) in &commands.netems {
        let start = format!("qdisc netem {handle} ");
        let line = shown.lines().find_map(|line| line.trim().strip_prefix(start.as_str()));
        let Some(line) = line else {
            let (handle, device) = (handle.clone(), commands.device.clone());
            return Err(VerifyError::Missing { handle, device });
        };
        if parsed(line).is_none() || parsed(line) != parsed(wanted) {
            let (handle, found) = (handle.clone(), line.to_owned());
            return Err(VerifyError::Different { handle, found, wanted: wanted.clone() });
        }
    }
    Ok(())
}

/// Whether what `tc qdisc show dev DEVICE` printed has a queue of ours at its root.
pub fn applied(shown: &str) -> bool {
    let root = shown.lines().any(|line| line.trim().starts_with("qdisc htb 1: root "));
    let netem = shown.lines().any(|line| line.trim().starts_with("qdisc netem 10: parent 1:1 "));
    root && netem
}

/// The link that the words describe, without what the kernel does not tell.
fn parsed(words: &str) -> Option<LinkSpec> {
    let mut kept = Vec::new();
    let mut words = words.split_whitespace();
    while let Some(word) = words.next() {
        match word {
            // Where it hangs, its seed, and the kernel's names of the burst model's parts.
            "parent" | "refcnt" | "seed" | "distribution" => {
                words.next()?;
            }
            "root" | "p" | "r" | "1-h" | "1-k" | "packetoverhead" => {}
            _ => kept.push(word),
        }
    }
    let link = kept.join(" ").parse::<Netem>().ok()?.link;
    let rounded = |chance: Fraction| Fraction::from_ppb(chance.ppb() / ROUNDING_PPB * ROUNDING_PPB);
    match link.loss() {
        Loss::Random(chance) => Some(link.with_loss(rounded(chance)?)),
        Loss::GilbertElliott(_) => Some(link),
    }
}

/// A hundred-thousandth of a percent.
const ROUNDING_PPB: u32 = 100;
