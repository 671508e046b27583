//! Links in netem's words: `delay 40ms 2ms distribution normal loss 1% rate 1gbit`.
//!
//! Every word has netem's meaning or is refused; docs/netem.md lists them all, with the few
//! of our own that netem lacks.

mod print;
mod value;

use crate::{GilbertElliott, Jitter, LinkSpec, Loss, Order, QueueSize, Reorder, Shape, SpecError};
use std::num::NonZeroU32;
use std::str::FromStr;
use units::{BitRate, ByteCount, Fraction, Span};
use value::one_word;
pub(crate) use value::{rate, span};

/// A link as netem's words describe it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Netem {
    /// The link, in one direction.
    pub link: LinkSpec,
    /// The seed, where the words name one.
    pub seed: Option<u64>,
}

/// Words that describe no link. The caller's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetemError {
    /// A word that is none of netem's, or stands in the wrong place.
    #[error("`{word}` is not understood here; accepted: {accepted}")]
    Unknown {
        /// The word.
        word: String,
        /// What could stand here.
        accepted: &'static str,
    },
    /// A word's value is missing or none.
    #[error("`{word}` wants {wanted}, not `{value}`")]
    Value {
        /// The word.
        word: &'static str,
        /// What stands there; empty at the end.
        value: String,
        /// What would be accepted.
        wanted: &'static str,
    },
    /// A word that came before: one of the two would have no effect.
    #[error("`{word}` is given twice: give one")]
    Twice {
        /// The word.
        word: String,
    },
    /// Netem knows it, this model does not.
    #[error("`{word}` is refused: {reason}")]
    Refused {
        /// The word, with its value where that is the trouble.
        word: String,
        /// Why, and what to do.
        reason: &'static str,
    },
    /// A word without effect by itself.
    #[error("`{word}` has no effect without {needed}")]
    Without {
        /// The word.
        word: &'static str,
        /// What it needs.
        needed: &'static str,
    },
    /// The words are understood, but no link can be like that.
    #[error("{0}")]
    Spec(#[from] SpecError),
}

impl FromStr for Netem {
    type Err = NetemError;
    fn from_str(text: &str) -> Result<Self, NetemError> {
        let mut words = Words(text.split_whitespace().collect());
        let mut parsed = Parsed::default();
        let mut seen = Vec::new();
        while let Some(word) = words.next() {
            let name = match word {
                "latency" => "delay",
                "drop" => "loss",
                other => other,
            };
            if seen.contains(&name) {
                return Err(NetemError::Twice { word: name.to_owned() });
            }
            seen.push(name);
            parsed.take(word, &mut words)?;
        }
        parsed.finish()
    }
}

/// What the words said, before it is known to make sense together.
#[derive(Default)]
struct Parsed {
    delay: Span,
    spread: Option<Span>,
    shape: Option<Shape>,
    order: Option<Order>,
    loss: Option<Loss>,
    ecn: bool,
    corrupt: Fraction,
    duplicate: Fraction,
    reorder: Option<Fraction>,
    gap: Option<NonZeroU32>,
    rate: Option<BitRate>,
    overhead_bytes: u16,
    limit: Option<Limit>,
    queue: Option<QueueSize>,
    mark_above: Option<ByteCount>,
    seed: Option<u64>,
}

impl Parsed {
    fn take(&mut self, word: &str, words: &mut Words<'_>) -> Result<(), NetemError> {
        match word {
            "delay" | "latency" => {
                self.delay = words.value("delay", TIME, span)?;
                self.spread = words.maybe(span);
                words.no_correlation("delay")?;
            }
            "distribution" => self.shape = Some(words.distribution()?),
            "loss" | "drop" => self.loss = Some(words.loss()?),
            "ecn" => self.ecn = true,
            "corrupt" => self.corrupt = words.chance("corrupt")?,
            "duplicate" => self.duplicate = words.chance("duplicate")?,
            "reorder" => self.reorder = Some(words.chance("reorder")?),
            "gap" => self.gap = Some(words.value("gap", COUNT, one_word)?),
            "rate" => {
                self.rate = Some(words.value("rate", RATE, rate)?);
                self.overhead_bytes = words.overhead()?;
            }
            "limit" => self.limit = Some(words.value("limit", LIMIT, value::limit)?),
            "seed" => self.seed = Some(words.value("seed", "a number", one_word)?),
            "queue" => self.queue = Some(words.value("queue", QUEUE, one_word)?),
            "mark-above" => self.mark_above = Some(words.value("mark-above", SIZE, one_word)?),
            "order" => self.order = Some(words.value("order", "kept or free", value::order)?),
            "slot" => {
                let reason = "packets are not released in slots; the nearest is delay with jitter";
                return Err(NetemError::Refused { word: word.into(), reason });
            }
            _ => {
                let number = word.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
                let accepted = if number { VALUES } else { ACCEPTED };
                return Err(NetemError::Unknown { word: word.into(), accepted });
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<Netem, NetemError> {
        self.check()?;
        let link = match self.rate {
            Some(rate) => LinkSpec::new(rate, self.delay)?.with_overhead(self.overhead_bytes),
            None => LinkSpec::unlimited(self.delay)?,
        };
        // Netem's queue is its limit; it holds 1,000 packets where nothing is said.
        let unlimited = ByteCount::new(if self.rate.is_some() { u64::MAX } else { 0 });
        let queue = self.queue.unwrap_or(QueueSize::Bytes(unlimited));
        let limit = match (self.limit, self.queue) {
            (None, None) => Some(LIMIT_DEFAULT),
            (Some(Limit::Packets(packets)), _) => Some(packets),
            (Some(Limit::None), _) | (None, Some(_)) => None,
        };
        // With a rate, netem sends a packet after the one before it; else jitter reorders.
        let order = self.order.unwrap_or(match self.rate {
            Some(_) => Order::Kept,
            None => Order::Free,
        });
        let link = link.with_queue(queue);
        link.check_queue(Some(queue))?;
        let mut link = link.with_duplicate(self.duplicate).with_corrupt(self.corrupt);
        if let Some(spread) = self.spread {
            let shape = self.shape.unwrap_or(Shape::Uniform);
            link = link.with_jitter(Jitter { spread, shape, order })?;
        }
        if let Some(limit) = limit {
            link = link.with_limit(limit);
        }
        if let Some(bytes) = self.mark_above {
            link = link.with_marking_above(bytes);
            if !link.marks_by_queue() {
                let needed = "a queue that holds more than that";
                return Err(NetemError::Without { word: "mark-above", needed });
            }
        }
        if let Some(loss) = self.loss {
            link = link.with_loss_model(loss);
        }
        if self.ecn {
            link = link.with_losses_marked();
        }
        if let Some(probability) = self.reorder {
            link = link.with_reorder(Reorder { probability, gap: self.gap.unwrap_or(GAP_NONE) });
        }
        Ok(Netem { link, seed: self.seed })
    }

    fn check(&self) -> Result<(), NetemError> {
        let jitters = self.spread.is_some_and(|spread| spread > Span::ZERO);
        let delays = self.delay > Span::ZERO;
        let limited = self.rate.is_some();
        let never = Fraction::default();
        let losses = self.loss.is_some_and(|loss| loss.loses());
        let reorders = self.reorder.is_some_and(|chance| chance != never);
        for (given, word, present, needed) in [
            (self.shape.is_some(), "distribution", jitters, "a jitter: delay TIME JITTER"),
            (self.order.is_some(), "order", jitters, "a jitter: delay TIME JITTER"),
            (self.ecn, "ecn", losses, "loss"),
            (self.reorder.is_some(), "reorder", delays, "a delay to skip"),
            (self.gap.is_some(), "gap", reorders, "reorder above 0%"),
            (self.queue.is_some(), "queue", limited, "rate"),
            (self.mark_above.is_some(), "mark-above", limited, "rate"),
        ] {
            if given && !present {
                return Err(NetemError::Without { word, needed });
            }
        }
        Ok(())
    }
}

/// Most packets in the link.
#[derive(Debug, Clone, Copy)]
enum Limit {
    Packets(NonZeroU32),
    None,
}

/// The words not yet taken.
struct Words<'a>(std::collections::VecDeque<&'a str>);

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<&'a str> {
        self.0.pop_front()
    }

    fn value<T>(
        &mut self,
        word: &'static str,
        wanted: &'static str,
        parse: fn(&str) -> Option<T>,
    ) -> Result<T, NetemError> {
        let value = self.next().unwrap_or_default();
        parse(value).ok_or_else(|| NetemError::Value { word, value: value.to_owned(), wanted })
    }

    /// The next word, if it is such a value.
    fn maybe<T>(&mut self, parse: fn(&str) -> Option<T>) -> Option<T> {
        let value = parse(self.0.front()?)?;
        self.0.pop_front();
        Some(value)
    }

    fn chance(&mut self, word: &'static str) -> Result<Fraction, NetemError> {
        let chance = self.value(word, PERCENT, one_word)?;
        self.no_correlation(word)?;
        Ok(chance)
    }

    fn no_correlation(&mut self, word: &'static str) -> Result<(), NetemError> {
        match self.maybe(one_word::<Fraction>) {
            None => Ok(()),
            Some(correlation) => Err(NetemError::Refused {
                word: format!("{word} .. {correlation}"),
                reason: "correlated draws are not modelled; for bursts use loss gemodel",
            }),
        }
    }

    fn distribution(&mut self) -> Result<Shape, NetemError> {
        match self.next().unwrap_or_default() {
            "uniform" => Ok(Shape::Uniform),
            "normal" => Ok(Shape::Normal),
            word @ ("pareto" | "paretonormal") => Err(NetemError::Refused {
                word: format!("distribution {word}"),
                reason: "only uniform and normal are modelled",
            }),
            value => Err(NetemError::Value {
                word: "distribution",
                value: value.to_owned(),
                wanted: "uniform or normal",
            }),
        }
    }

    fn loss(&mut self) -> Result<Loss, NetemError> {
        match self.0.front().copied() {
            Some("gemodel") => {
                self.next();
                let to_bad: Fraction = self.value("gemodel", PERCENT, one_word)?;
                let rest = ALWAYS.ppb() - to_bad.ppb();
                let complement = Fraction::from_ppb(rest).unwrap_or_default();
                Ok(Loss::GilbertElliott(GilbertElliott {
                    to_bad,
                    to_good: self.maybe(one_word).unwrap_or(complement),
                    loss_in_bad: self.maybe(one_word).unwrap_or(ALWAYS),
                    loss_in_good: self.maybe(one_word).unwrap_or_default(),
                }))
            }
            Some("state") => Err(NetemError::Refused {
                word: "loss state".to_owned(),
                reason: "the chain of four states is not modelled; for bursts use loss gemodel",
            }),
            Some("random") => {
                self.next();
                self.chance("loss").map(Loss::Random)
            }
            _ => self.chance("loss").map(Loss::Random),
        }
    }

    fn overhead(&mut self) -> Result<u16, NetemError> {
        let Some(overhead) = self.maybe(one_word::<i64>) else {
            return Ok(0);
        };
        let refused = |what: &str, reason| NetemError::Refused { word: what.to_owned(), reason };
        if self.maybe(one_word::<i64>).is_some() {
            return Err(refused("rate .. CELLSIZE", "packets are not cut into cells"));
        }
        u16::try_from(overhead)
            .map_err(|_| refused("rate .. PACKETOVERHEAD", "it must be 0 to 65535 bytes"))
    }
}

const ACCEPTED: &str = "delay, distribution, loss, ecn, corrupt, duplicate, reorder, gap, rate, \
                        limit, seed, queue, mark-above, order";
const VALUES: &str = "after a word that wants one, a value with its unit, such as 2ms, 0.1%, \
                      1gbit or 5MB";
const TIME: &str = "a time such as 40ms (ns, us, ms, s)";
const RATE: &str = "a rate above zero such as 1gbit (bit, kbit, mbit, gbit, tbit, bps, kbps, \
                    mbps, gbps)";
const PERCENT: &str = "a percentage such as 0.1%, from 0% to 100%";
const COUNT: &str = "a whole number above zero";
const LIMIT: &str = "a whole number above zero, or none";
const SIZE: &str = "a size such as 100kB";
const QUEUE: &str = "a size, a time or a multiple of the bandwidth-delay product, such as 5MB, \
                     20ms or 1bdp";

/// What netem holds, waiting or under way, where nothing is said.
const LIMIT_DEFAULT: NonZeroU32 = NonZeroU32::new(1000).expect("not zero");
const GAP_NONE: NonZeroU32 = NonZeroU32::MIN;
const ALWAYS: Fraction = Fraction::from_ppb(1_000_000_000).expect("one");

#[cfg(test)]
mod tests;
