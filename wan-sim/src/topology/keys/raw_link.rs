//! A link as a file spells it, before defaults.

use super::change::RawChange;
use super::raw_queue::{RawCodel, RawPolicer, RawRed};
use super::spelling::{deserialize_optional_spelling, deserialize_spelling};
use super::whole_number;
use crate::netem::{Netem, NetemError};
use crate::{
    CapacitySource, Discipline, GilbertElliott, Jitter, LinkSpec, Loss, Order, QueueSize, Reorder,
    Shape, SpecError,
};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::num::NonZeroU32;
use units::{BitRate, ByteCount, Fraction, Span};

/// The keys of a link, of one direction of it, and of a preset.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::topology) struct RawLink {
    pub(in crate::topology) preset: Option<String>,
    netem: Option<String>,
    #[serde(deserialize_with = "deserialize_optional_spelling")]
    pub(in crate::topology) rtt: Option<Span>,
    #[serde(deserialize_with = "deserialize_optional_spelling")]
    pub(in crate::topology) delay: Option<Span>,
    #[serde(deserialize_with = "deserialize_optional_spelling")]
    jitter: Option<Span>,
    distribution: Option<Distribution>,
    reordering: Option<bool>,
    #[serde(deserialize_with = "deserialize_optional_spelling")]
    pub(in crate::topology) rate: Option<BitRate>,
    #[serde(deserialize_with = "whole_number::deserialize_whole_overhead_bytes")]
    overhead_bytes: Option<u16>,
    #[serde(deserialize_with = "deserialize_optional_spelling")]
    pub(in crate::topology) queue: Option<QueueSize>,
    #[serde(deserialize_with = "deserialize_optional_spelling")]
    mark_above: Option<ByteCount>,
    codel: Option<RawCodel>,
    red: Option<RawRed>,
    policer: Option<RawPolicer>,
    #[serde(deserialize_with = "deserialize_optional_spelling")]
    pub(in crate::topology) capacity: Option<CapacitySource>,
    pub(in crate::topology) parallel: Option<Vec<String>>,
    pub(in crate::topology) cross: Option<Vec<String>>,
    #[serde(deserialize_with = "whole_number::deserialize_whole_limit_packets")]
    limit_packets: Option<NonZeroU32>,
    #[serde(deserialize_with = "deserialize_optional_spelling")]
    pub(in crate::topology) loss: Option<Fraction>,
    pub(in crate::topology) bursts: Option<RawBursts>,
    mark_losses: Option<bool>,
    #[serde(deserialize_with = "deserialize_optional_spelling")]
    duplicate: Option<Fraction>,
    #[serde(deserialize_with = "deserialize_optional_spelling")]
    corrupt: Option<Fraction>,
    #[serde(deserialize_with = "deserialize_optional_spelling")]
    reorder: Option<Fraction>,
    #[serde(deserialize_with = "whole_number::deserialize_whole_gap")]
    gap: Option<NonZeroU32>,
    pub(in crate::topology) changes: Option<Vec<RawChange>>,
    #[serde(deserialize_with = "whole_number::deserialize_whole_drops")]
    pub(in crate::topology) drops: Option<Vec<u64>>,
    pub(in crate::topology) forward: Option<Box<RawLink>>,
    pub(in crate::topology) backward: Option<Box<RawLink>>,
    /// The gateways' policy for the link, ignored here; allowed in a fabric only.
    schedule: Option<IgnoredAny>,
    controller: Option<IgnoredAny>,
}

/// The spelling of a distribution of delays.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Distribution {
    Uniform,
    Normal,
}

/// The keys of losses in bursts.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::topology) struct RawBursts {
    #[serde(deserialize_with = "deserialize_spelling")]
    to_bad: Fraction,
    #[serde(deserialize_with = "deserialize_spelling")]
    to_good: Fraction,
    #[serde(deserialize_with = "deserialize_spelling")]
    loss_in_bad: Fraction,
    #[serde(deserialize_with = "deserialize_spelling")]
    loss_in_good: Fraction,
}

/// Why a link's keys make no link. The caller's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::topology) enum LinkError {
    #[error("`{one}` and `{other}` say the same thing: give one")]
    Both { one: &'static str, other: &'static str },
    #[error("`{one}` and `{other}`: a queue has one discipline, so give one")]
    Disciplines { one: &'static str, other: &'static str },
    #[error("`{key}` has no effect without `{needed}`")]
    Without { key: &'static str, needed: &'static str },
    #[error("changes: `{key}` cannot change beside `{by}`: leave it out, or give only cuts")]
    Fixed { key: &'static str, by: &'static str },
    #[error(
        "`red` has no effect: its lower threshold of {min} is not less than the queue of {queue}"
    )]
    RedMin { min: ByteCount, queue: ByteCount },
    #[error("changes: the one at {at} has none of rate, delay, loss, cut")]
    NoChange { at: Span },
    #[error("give `rtt`, or `delay` one way")]
    NoDelay,
    #[error("`mark_above` has no effect: {above} is not less than the queue of {queue}")]
    MarkAbove { above: ByteCount, queue: ByteCount },
    #[error("netem: the seed is the whole file's: seed = 7 at its top")]
    Seed,
    #[error("netem: {0}")]
    Netem(#[from] NetemError),
    #[error("{0}")]
    Spec(#[from] SpecError),
}

impl RawLink {
    /// Returns the first given key that tells gateways how to use a link (`schedule`,
    /// `controller`). Only the link of a fabric may have it, not that of a lab.
    pub(in crate::topology) fn fabric_only_key(&self) -> Option<&'static str> {
        let own = [("schedule", self.schedule), ("controller", self.controller)];
        own.into_iter().find_map(|(key, given)| given.map(|_| key))
    }

    /// Returns these keys, with the keys of `base` where one is missing. `rtt` and `delay` count as
    /// one key, as do `loss` and `bursts`. Where these have netem's words, only `changes`, `drops`,
    /// `capacity`, `parallel` and `cross` come from `base`.
    pub(in crate::topology) fn with_defaults_from(self, base: &Self) -> Self {
        if self.netem.is_some() {
            let changes = self.changes.or_else(|| base.changes.clone());
            let drops = self.drops.or_else(|| base.drops.clone());
            let capacity = self.capacity.or_else(|| base.capacity.clone());
            let parallel = self.parallel.or_else(|| base.parallel.clone());
            let cross = self.cross.or_else(|| base.cross.clone());
            return Self { changes, drops, capacity, parallel, cross, ..self };
        }
        let (rtt, delay) = match (self.rtt, self.delay) {
            (None, None) => (base.rtt, base.delay),
            given => given,
        };
        let (loss, bursts) = match (self.loss, self.bursts) {
            (None, None) => (base.loss, base.bursts),
            given => given,
        };
        Self {
            preset: self.preset.or_else(|| base.preset.clone()),
            netem: base.netem.clone(),
            rtt,
            delay,
            jitter: self.jitter.or(base.jitter),
            distribution: self.distribution.or(base.distribution),
            reordering: self.reordering.or(base.reordering),
            rate: self.rate.or(base.rate),
            overhead_bytes: self.overhead_bytes.or(base.overhead_bytes),
            queue: self.queue.or(base.queue),
            mark_above: self.mark_above.or(base.mark_above),
            codel: self.codel.or(base.codel),
            red: self.red.or(base.red),
            policer: self.policer.or(base.policer),
            capacity: self.capacity.or_else(|| base.capacity.clone()),
            parallel: self.parallel.or_else(|| base.parallel.clone()),
            cross: self.cross.or_else(|| base.cross.clone()),
            limit_packets: self.limit_packets.or(base.limit_packets),
            loss,
            bursts,
            mark_losses: self.mark_losses.or(base.mark_losses),
            duplicate: self.duplicate.or(base.duplicate),
            corrupt: self.corrupt.or(base.corrupt),
            reorder: self.reorder.or(base.reorder),
            gap: self.gap.or(base.gap),
            changes: self.changes.or_else(|| base.changes.clone()),
            drops: self.drops.or_else(|| base.drops.clone()),
            forward: self.forward.or_else(|| base.forward.clone()),
            backward: self.backward.or_else(|| base.backward.clone()),
            schedule: self.schedule.or(base.schedule),
            controller: self.controller.or(base.controller),
        }
    }

    /// Returns whether netem's words describe the link, in place of keys.
    pub(in crate::topology) fn is_in_netem_words(&self) -> bool {
        self.netem.is_some()
    }

    /// Builds the link of one direction.
    ///
    /// # Errors
    /// [`LinkError`], where keys are missing, have no effect or contradict each other.
    pub(in crate::topology) fn build(&self) -> Result<LinkSpec, LinkError> {
        self.check_keys()?;
        let link = self.build_unchecked()?;
        if self.netem.is_none() {
            link.check_queue(self.queue)?;
        }
        match link.discipline() {
            Discipline::Red(red) if red.min >= link.queue() => {
                return Err(LinkError::RedMin { min: red.min, queue: link.queue() });
            }
            _ => {}
        }
        match link.mark_above() {
            Some(above) if !link.marks_by_queue() => {
                Err(LinkError::MarkAbove { above, queue: link.queue() })
            }
            _ => Ok(link),
        }
    }

    /// Builds the link of one direction without a check of the keys together. A change may leave a
    /// key without another that it needs.
    pub(in crate::topology) fn build_unchecked(&self) -> Result<LinkSpec, LinkError> {
        if let Some(words) = &self.netem {
            let words: Netem = words.parse()?;
            return if words.seed.is_some() { Err(LinkError::Seed) } else { Ok(words.link) };
        }
        let delay = match (self.delay, self.rtt) {
            (Some(delay), _) => delay,
            (None, Some(rtt)) => Span::from_ns(rtt.ns() / 2),
            (None, None) => return Err(LinkError::NoDelay),
        };
        let mut link = match self.rate {
            Some(rate) => LinkSpec::new(rate, delay)?,
            None => LinkSpec::unlimited(delay)?,
        };
        link = link
            .with_overhead(self.overhead_bytes.unwrap_or_default())
            .with_duplicate(self.duplicate.unwrap_or_default())
            .with_corrupt(self.corrupt.unwrap_or_default())
            .with_loss(self.loss.unwrap_or_default());
        if let Some(queue) = self.queue {
            link = link.with_queue(queue);
        }
        if let Some(bytes) = self.mark_above {
            link = link.with_marking_above(bytes);
        }
        if let Some(codel) = self.codel {
            link = link.with_discipline(Discipline::Codel(codel.build()))?;
        }
        if let Some(red) = self.red {
            link = link.with_discipline(Discipline::Red(red.build()))?;
        }
        if let Some(policer) = self.policer {
            link = link.with_policer(policer.build())?;
        }
        if let Some(packets) = self.limit_packets {
            link = link.with_limit(packets);
        }
        if let Some(bursts) = self.bursts {
            link = link.with_loss_model(bursts.loss_model());
        }
        if self.mark_losses == Some(true) {
            link = link.with_losses_marked();
        }
        if let Some(probability) = self.reorder {
            let gap = self.gap.unwrap_or(NonZeroU32::MIN);
            link = link.with_reorder(Reorder { probability, gap });
        }
        Ok(link.with_jitter(self.build_jitter())?)
    }

    /// Builds the jitter from the keys `jitter`, `distribution` and `reordering`.
    fn build_jitter(&self) -> Jitter {
        Jitter {
            spread: self.jitter.unwrap_or_default(),
            shape: match self.distribution {
                Some(Distribution::Normal) => Shape::Normal,
                Some(Distribution::Uniform) | None => Shape::Uniform,
            },
            order: if self.reordering == Some(true) { Order::Free } else { Order::Kept },
        }
    }

    /// Checks that no two keys contradict each other, and that none lacks a key that it needs.
    fn check_keys(&self) -> Result<(), LinkError> {
        let words_say = [
            (self.preset.is_some(), "preset"),
            (self.rtt.is_some(), "rtt"),
            (self.delay.is_some(), "delay"),
            (self.jitter.is_some(), "jitter"),
            (self.distribution.is_some(), "distribution"),
            (self.reordering.is_some(), "reordering"),
            (self.rate.is_some(), "rate"),
            (self.overhead_bytes.is_some(), "overhead_bytes"),
            (self.queue.is_some(), "queue"),
            (self.mark_above.is_some(), "mark_above"),
            (self.codel.is_some(), "codel"),
            (self.red.is_some(), "red"),
            (self.policer.is_some(), "policer"),
            (self.limit_packets.is_some(), "limit_packets"),
            (self.loss.is_some(), "loss"),
            (self.bursts.is_some(), "bursts"),
            (self.mark_losses.is_some(), "mark_losses"),
            (self.duplicate.is_some(), "duplicate"),
            (self.corrupt.is_some(), "corrupt"),
            (self.reorder.is_some(), "reorder"),
            (self.gap.is_some(), "gap"),
        ];
        if self.netem.is_some()
            && let Some((_, one)) = words_say.iter().find(|(given, _)| *given)
        {
            return Err(LinkError::Both { one, other: "netem" });
        }
        if self.rtt.is_some() && self.delay.is_some() {
            return Err(LinkError::Both { one: "rtt", other: "delay" });
        }
        if self.loss.is_some() && self.bursts.is_some() {
            return Err(LinkError::Both { one: "loss", other: "bursts" });
        }
        let disciplines = [
            (self.codel.is_some(), "codel"),
            (self.red.is_some(), "red"),
            (self.mark_above.is_some(), "mark_above"),
        ];
        let mut given = disciplines.into_iter().filter(|(given, _)| *given);
        if let (Some((_, one)), Some((_, other))) = (given.next(), given.next()) {
            return Err(LinkError::Disciplines { one, other });
        }
        let delays = [self.delay, self.rtt].into_iter().flatten().any(|time| time > Span::ZERO);
        let losses = self.loss.is_some_and(is_raw_chance_above_zero)
            || self.bursts.is_some_and(|bursts| bursts.loss_model().is_lossy());
        let jitters = self.jitter.is_some_and(|spread| spread > Span::ZERO);
        let reorders = self.reorder.is_some_and(is_raw_chance_above_zero);
        for (given, key, present, needed) in [
            (self.distribution.is_some(), "distribution", jitters, "jitter"),
            (self.reordering.is_some(), "reordering", jitters, "jitter"),
            (self.queue.is_some(), "queue", self.rate.is_some(), "rate"),
            (self.mark_above.is_some(), "mark_above", self.rate.is_some(), "rate"),
            (self.codel.is_some(), "codel", self.rate.is_some(), "rate"),
            (self.red.is_some(), "red", self.rate.is_some(), "rate"),
            (self.overhead_bytes.is_some(), "overhead_bytes", self.rate.is_some(), "rate"),
            (self.mark_losses.is_some(), "mark_losses", losses, "loss"),
            (self.gap.is_some(), "gap", reorders, "reorder"),
            (self.reorder.is_some(), "reorder", delays, "delay"),
        ] {
            if given && !present {
                return Err(LinkError::Without { key, needed });
            }
        }
        Ok(())
    }
}

impl RawBursts {
    /// Returns the loss model of these bursts.
    fn loss_model(self) -> Loss {
        let Self { to_bad, to_good, loss_in_bad, loss_in_good } = self;
        Loss::GilbertElliott(GilbertElliott { to_bad, to_good, loss_in_bad, loss_in_good })
    }
}

/// Returns whether a probability is above zero.
fn is_raw_chance_above_zero(chance: Fraction) -> bool {
    chance.ppb() > 0
}
