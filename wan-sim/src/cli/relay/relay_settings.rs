//! The links of a relay: as the flags describe them, and as commands change them.

use super::relay_args::RelayArgs;
use crate::{CapacitySourceError, Conditions, Jitter, LinkSpec, QueueSize, SpecError};
use std::path::Path;
use std::sync::Arc;
use units::{BitRate, Fraction, Span};

/// The links of a relay as they are now.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::large_enum_variant, reason = "a relay has one")]
pub(super) enum RelaySettings {
    /// Described by flags, equal both ways.
    Flags { rtt: Span, rate: BitRate, loss: Fraction, jitter: Span, queue: Option<QueueSize> },
    /// In netem's words: there and back.
    Netem(LinkSpec, LinkSpec),
}

impl RelaySettings {
    /// Takes the settings of the links from the flags: the netem words, if given. Without `--rate`
    /// the rate is the mean of the recorded capacity in `conditions`.
    pub(super) fn new(args: &RelayArgs, conditions: &Conditions) -> Self {
        if let Some(there) = args.netem {
            return Self::Netem(there.link, args.netem_back.unwrap_or(there).link);
        }
        let RelayArgs { rtt, rate, loss, jitter, queue, .. } = *args;
        let rate = rate.or(conditions.capacity.as_ref().map(|capacity| capacity.mean_rate()));
        // Clap requires both where there are no words.
        let (rtt, rate) = (rtt.unwrap_or_default(), rate.unwrap_or(RATE_MISSING));
        Self::Flags { rtt, rate, loss, jitter, queue }
    }

    /// Returns the forward and the backward link.
    ///
    /// # Errors
    /// [`SpecError`], where the flags describe no possible link.
    pub(super) fn link_specs(&self) -> Result<(LinkSpec, LinkSpec), SpecError> {
        match *self {
            Self::Netem(there, back) => Ok((there, back)),
            Self::Flags { rtt, rate, loss, jitter, queue } => {
                let spec = LinkSpec::new(rate, Span::from_ns(rtt.ns() / 2))?
                    .with_loss(loss)
                    .with_jitter(Jitter { spread: jitter, ..Jitter::NONE })?;
                let spec = queue.map_or(spec, |queue| spec.with_queue(queue));
                spec.check_queue(queue)?;
                Ok((spec, spec))
            }
        }
    }
}

/// Returns the recorded capacity, parallel paths and cross traffic that the flags describe.
///
/// # Errors
/// [`CapacitySourceError`]: the recording cannot be read.
pub(super) fn relay_settings_conditions(
    args: &RelayArgs,
    seed: u64,
) -> Result<Conditions, CapacitySourceError> {
    let capacity = args.capacity.as_ref().map(|source| source.load(Path::new(""), seed));
    Ok(Conditions {
        capacity: capacity.transpose()?.map(Arc::new),
        parallel: args.parallel.iter().map(|words| words.link).collect(),
        cross: args.cross.clone(),
    })
}

/// 0 bit/s: stands for the rate where the option `--rate` is missing, which the parser of command
/// lines refuses. [`LinkSpec::new`] refuses this rate too.
const RATE_MISSING: BitRate = BitRate::from_bits_per_second(0);
