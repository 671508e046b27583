//! The parser: words to a link, each with netem's meaning or refused.

use super::error::NetemError;
use super::netem_link::Netem;
use super::netem_words::NetemWords;
use super::parse_value::{
    Limit, parse_netem_limit_value, parse_netem_order_value, parse_netem_rate_value,
    parse_netem_span_value, parse_netem_word_value,
};
use crate::{
    Codel, Discipline, Jitter, LinkSpec, Loss, Order, Policer, QueueSize, Red, Reorder, Shape,
};
use std::num::NonZeroU32;
use std::str::FromStr;
use units::{BitRate, ByteCount, Fraction, Span};

impl FromStr for Netem {
    type Err = NetemError;
    /// Parses a link from netem's words; each word has netem's meaning or is refused.
    fn from_str(text: &str) -> Result<Self, NetemError> {
        let mut words = NetemWords::new(text);
        let mut parsed = NetemParser::default();
        let mut seen = Vec::new();
        while let Some(word) = words.next_word() {
            let name = match word {
                "latency" => "delay",
                "drop" => "loss",
                other => other,
            };
            if seen.contains(&name) {
                return Err(NetemError::Twice { word: name.to_owned() });
            }
            seen.push(name);
            parsed.take_word(word, &mut words)?;
        }
        parsed.into_netem()
    }
}

/// The parsed words, before they are checked together.
#[derive(Default)]
struct NetemParser {
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
    codel: Option<Codel>,
    red: Option<Red>,
    policer: Option<Policer>,
    seed: Option<u64>,
}

impl NetemParser {
    /// Reads the values of `word` from `words`.
    fn take_word(&mut self, word: &str, words: &mut NetemWords<'_>) -> Result<(), NetemError> {
        match word {
            "delay" | "latency" => {
                self.delay = words.take_value("delay", TIME_SPELLING, parse_netem_span_value)?;
                self.spread = words.take_value_if_any(parse_netem_span_value);
                words.refuse_correlation("delay")?;
            }
            "distribution" => self.shape = Some(words.take_distribution()?),
            "loss" | "drop" => self.loss = Some(words.take_loss()?),
            "ecn" => self.ecn = true,
            "corrupt" => self.corrupt = words.take_probability("corrupt")?,
            "duplicate" => self.duplicate = words.take_probability("duplicate")?,
            "reorder" => self.reorder = Some(words.take_probability("reorder")?),
            "gap" => {
                self.gap = Some(words.take_value("gap", GAP_SPELLING, parse_netem_word_value)?)
            }
            "rate" => {
                self.rate =
                    Some(words.take_value("rate", RATE_SPELLING, parse_netem_rate_value)?);
                self.overhead_bytes = words.take_overhead_bytes()?;
            }
            "limit" => {
                self.limit =
                    Some(words.take_value("limit", LIMIT_SPELLING, parse_netem_limit_value)?)
            }
            "seed" => {
                self.seed = Some(words.take_value("seed", "a number", parse_netem_word_value)?)
            }
            "queue" => {
                self.queue =
                    Some(words.take_value("queue", QUEUE_SPELLING, parse_netem_word_value)?)
            }
            "mark-above" => {
                self.mark_above =
                    Some(words.take_value("mark-above", SIZE_SPELLING, parse_netem_word_value)?)
            }
            "codel" => self.codel = Some(words.take_codel()?),
            "red" => self.red = Some(words.take_red()?),
            "policer" => self.policer = Some(words.take_policer()?),
            "order" => {
                self.order =
                    Some(words.take_value("order", "kept or free", parse_netem_order_value)?)
            }
            "slot" => {
                let reason = "packets are not released in slots; the nearest is delay with jitter";
                return Err(NetemError::Refused { word: word.into(), reason });
            }
            _ => {
                let number = word.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
                let accepted = if number { ACCEPTED_VALUES } else { ACCEPTED_WORDS };
                return Err(NetemError::Unknown { word: word.into(), accepted });
            }
        }
        Ok(())
    }

    /// Checks the words together and builds the link.
    fn into_netem(self) -> Result<Netem, NetemError> {
        self.check_combinations()?;
        let link = match self.rate {
            Some(rate) => LinkSpec::new(rate, self.delay)?.with_overhead(self.overhead_bytes),
            None => LinkSpec::unlimited(self.delay)?,
        };
        // Netem's queue is its limit; it holds 1,000 packets where nothing is said.
        let unlimited = ByteCount::new(if self.rate.is_some() { u64::MAX } else { 0 });
        let queue = self.queue.unwrap_or(QueueSize::Bytes(unlimited));
        let limit = match (self.limit, self.queue) {
            (None, None) => Some(LIMIT_PACKETS_DEFAULT),
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
        if let Some(codel) = self.codel {
            link = link.with_discipline(Discipline::Codel(codel))?;
        }
        if let Some(red) = self.red {
            link = link.with_discipline(Discipline::Red(red))?;
            if red.min >= link.queue() {
                let needed = "a queue that holds more than its lower threshold";
                return Err(NetemError::Without { word: "red", needed });
            }
        }
        if let Some(policer) = self.policer {
            link = link.with_policer(policer)?;
        }
        if let Some(loss) = self.loss {
            link = link.with_loss_model(loss);
        }
        if self.ecn {
            link = link.with_losses_marked();
        }
        if let Some(probability) = self.reorder {
            link = link.with_reorder(Reorder { probability, gap: self.gap.unwrap_or(GAP_DEFAULT) });
        }
        Ok(Netem { link, seed: self.seed })
    }

    /// Checks that no word lacks another that it needs.
    fn check_combinations(&self) -> Result<(), NetemError> {
        let jitters = self.spread.is_some_and(|spread| spread > Span::ZERO);
        let delays = self.delay > Span::ZERO;
        let limited = self.rate.is_some();
        let never = Fraction::default();
        let losses = self.loss.is_some_and(|loss| loss.is_lossy());
        let reorders = self.reorder.is_some_and(|chance| chance != never);
        for (given, word, present, needed) in [
            (self.shape.is_some(), "distribution", jitters, "a jitter: delay TIME JITTER"),
            (self.order.is_some(), "order", jitters, "a jitter: delay TIME JITTER"),
            (self.ecn, "ecn", losses, "loss"),
            (self.reorder.is_some(), "reorder", delays, "a delay to skip"),
            (self.gap.is_some(), "gap", reorders, "reorder above 0%"),
            (self.queue.is_some(), "queue", limited, "rate"),
            (self.mark_above.is_some(), "mark-above", limited, "rate"),
            (self.codel.is_some(), "codel", limited, "rate"),
            (self.red.is_some(), "red", limited, "rate"),
        ] {
            if given && !present {
                return Err(NetemError::Without { word, needed });
            }
        }
        let disciplines = [
            (self.codel.is_some(), "codel"),
            (self.red.is_some(), "red"),
            (self.mark_above.is_some(), "mark-above"),
        ];
        let mut given = disciplines.into_iter().filter(|(given, _)| *given);
        match (given.next(), given.next()) {
            (Some(_), Some((_, word))) => Err(NetemError::Refused {
                word: word.to_owned(),
                reason: "a queue has one discipline: give one of codel, red, mark-above",
            }),
            _ => Ok(()),
        }
    }
}

/// All words of a link in netem's syntax that are accepted, which the error about an unknown word
/// lists.
pub(super) const ACCEPTED_WORDS: &str = "delay, distribution, loss, ecn, corrupt, duplicate, \
                                         reorder, gap, rate, limit, seed, queue, mark-above, codel, \
                                         red, policer, order";

/// The place and spelling of values in netem's syntax, which the error about a value without its
/// word shows.
const ACCEPTED_VALUES: &str = "after a word that wants one, a value with its unit, such as 2ms, \
                               0.1%, 1gbit or 5MB";

/// The spelling of a time in netem's syntax, which the error about a wrong time shows.
const TIME_SPELLING: &str = "a time such as 40ms (ns, us, ms, s)";

/// The spelling of a rate in netem's syntax, which the error about a wrong rate shows.
const RATE_SPELLING: &str = "a rate above zero such as 1gbit (bit, kbit, mbit, gbit, tbit, bps, \
                             kbps, mbps, gbps)";

/// The spelling of netem's `gap`, a count of packets, which the error about a wrong value shows.
const GAP_SPELLING: &str = "a whole number above zero";

/// The spelling of netem's `limit` on packets, which the error about a wrong value shows.
const LIMIT_SPELLING: &str = "a whole number above zero, or none";

/// The spelling of a size in bytes in netem's syntax, which the error about a wrong size shows.
const SIZE_SPELLING: &str = "a size such as 100kB";

/// The spelling of a queue's size in netem's syntax, which the error about a wrong size shows.
const QUEUE_SPELLING: &str = "a size, a time or a multiple of the bandwidth-delay product, such as \
                              5MB, 20ms or 1bdp";

/// 1,000 packets: netem's limit on packets that wait or are in flight on a link whose words state
/// neither `limit` nor `queue`. Further packets are dropped.
const LIMIT_PACKETS_DEFAULT: NonZeroU32 = NonZeroU32::new(1000).expect("not zero");

/// 1 packet: netem's default gap between two packets that may skip the delay, where words state
/// none. Every packet may then skip the delay.
const GAP_DEFAULT: NonZeroU32 = NonZeroU32::MIN;
