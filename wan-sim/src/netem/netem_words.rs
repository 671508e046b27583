//! The words that are not parsed yet, and the values that may follow each of them.

use super::error::NetemError;
use super::parse_value::{parse_netem_rate_value, parse_netem_span_value, parse_netem_word_value};
use crate::link::RED_WEIGHT_DEFAULT;
use crate::{Codel, GilbertElliott, Loss, Policer, Red, Shape};
use std::collections::VecDeque;
use units::Fraction;

/// The words of a text that are not parsed yet.
pub(super) struct NetemWords<'a>(VecDeque<&'a str>);

impl<'a> NetemWords<'a> {
    /// Splits `text` into its words.
    pub(super) fn new(text: &'a str) -> Self {
        Self(text.split_whitespace().collect())
    }

    /// Takes the next word; `None` at the end of the text.
    pub(super) fn next_word(&mut self) -> Option<&'a str> {
        self.0.pop_front()
    }

    /// Takes the next word as the value of `word`, by `parse`. An error says what is `wanted`.
    pub(super) fn take_value<T>(
        &mut self,
        word: &'static str,
        wanted: &'static str,
        parse: fn(&str) -> Option<T>,
    ) -> Result<T, NetemError> {
        let value = self.next_word().unwrap_or_default();
        parse(value).ok_or_else(|| NetemError::Value { word, value: value.to_owned(), wanted })
    }

    /// Takes the next word if `parse` accepts it as a value.
    pub(super) fn take_value_if_any<T>(&mut self, parse: fn(&str) -> Option<T>) -> Option<T> {
        let value = parse(self.0.front()?)?;
        self.0.pop_front();
        Some(value)
    }

    /// Reads a probability in percent as the value of `word`, and refuses a correlation after it.
    pub(super) fn take_probability(&mut self, word: &'static str) -> Result<Fraction, NetemError> {
        let chance = self.take_value(word, PERCENT_SPELLING, parse_netem_word_value)?;
        self.refuse_correlation(word)?;
        Ok(chance)
    }

    /// Checks that no correlation follows the value of `word`, since draws are independent.
    pub(super) fn refuse_correlation(&mut self, word: &'static str) -> Result<(), NetemError> {
        match self.take_value_if_any(parse_netem_word_value::<Fraction>) {
            None => Ok(()),
            Some(correlation) => Err(NetemError::Refused {
                word: format!("{word} .. {correlation}"),
                reason: "correlated draws are not modelled; for bursts use loss gemodel",
            }),
        }
    }

    /// Reads the distribution of delays: `uniform` or `normal`.
    pub(super) fn take_distribution(&mut self) -> Result<Shape, NetemError> {
        match self.next_word().unwrap_or_default() {
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

    /// Reads a loss model: a probability, or `gemodel` with its one to four probabilities.
    pub(super) fn take_loss(&mut self) -> Result<Loss, NetemError> {
        match self.0.front().copied() {
            Some("gemodel") => {
                self.next_word();
                let to_bad: Fraction =
                    self.take_value("gemodel", PERCENT_SPELLING, parse_netem_word_value)?;
                let rest = PROBABILITY_ONE.ppb() - to_bad.ppb();
                let complement = Fraction::from_ppb(rest).unwrap_or_default();
                Ok(Loss::GilbertElliott(GilbertElliott {
                    to_bad,
                    to_good: self.take_value_if_any(parse_netem_word_value).unwrap_or(complement),
                    loss_in_bad: self
                        .take_value_if_any(parse_netem_word_value)
                        .unwrap_or(PROBABILITY_ONE),
                    loss_in_good: self
                        .take_value_if_any(parse_netem_word_value)
                        .unwrap_or_default(),
                }))
            }
            Some("state") => Err(NetemError::Refused {
                word: "loss state".to_owned(),
                reason: "the chain of four states is not modelled; for bursts use loss gemodel",
            }),
            Some("random") => {
                self.next_word();
                self.take_probability("loss").map(Loss::Random)
            }
            _ => self.take_probability("loss").map(Loss::Random),
        }
    }

    /// Reads target and interval of CoDel; RFC 8289's values where none are given.
    pub(super) fn take_codel(&mut self) -> Result<Codel, NetemError> {
        let Some(target) = self.take_value_if_any(parse_netem_span_value) else {
            return Ok(Codel::RECOMMENDED);
        };
        let interval = self.take_value("codel", CODEL_SPELLING, parse_netem_span_value)?;
        Ok(Codel { target, interval })
    }

    /// Reads thresholds, probability and perhaps weight of RED.
    pub(super) fn take_red(&mut self) -> Result<Red, NetemError> {
        let min = self.take_value("red", RED_SPELLING, parse_netem_word_value)?;
        let max = self.take_value("red", RED_SPELLING, parse_netem_word_value)?;
        let probability = self.take_value("red", RED_SPELLING, parse_netem_word_value)?;
        let weight = self.take_value_if_any(parse_netem_word_value).unwrap_or(RED_WEIGHT_DEFAULT);
        Ok(Red { min, max, probability, weight })
    }

    /// Reads rate and burst of a policer.
    pub(super) fn take_policer(&mut self) -> Result<Policer, NetemError> {
        let rate = self.take_value("policer", POLICER_SPELLING, parse_netem_rate_value)?;
        let burst = self.take_value("policer", POLICER_SPELLING, parse_netem_word_value)?;
        Ok(Policer { rate, burst })
    }

    /// Reads the overhead of a rate in bytes a packet; 0 where none is given.
    pub(super) fn take_overhead_bytes(&mut self) -> Result<u16, NetemError> {
        let Some(overhead) = self.take_value_if_any(parse_netem_word_value::<i64>) else {
            return Ok(0);
        };
        let refused = |what: &str, reason| NetemError::Refused { word: what.to_owned(), reason };
        if self.take_value_if_any(parse_netem_word_value::<i64>).is_some() {
            return Err(refused("rate .. CELLSIZE", "packets are not cut into cells"));
        }
        u16::try_from(overhead)
            .map_err(|_| refused("rate .. PACKETOVERHEAD", "it must be 0 to 65535 bytes"))
    }
}

/// The spelling of a probability in netem's syntax, in percent, which the error about a wrong value
/// shows.
const PERCENT_SPELLING: &str = "a percentage such as 0.1%, from 0% to 100%";

/// The spelling of CoDel's values in words of a link, which the error about wrong values shows.
const CODEL_SPELLING: &str = "nothing, or target and interval such as 5ms 100ms";

/// The spelling of RED's values in words of a link, which the error about wrong values shows.
const RED_SPELLING: &str = "two thresholds of the average queue, a probability at the upper one and \
                            perhaps a weight, such as 100kB 300kB 10% 0.2%";

/// The spelling of a policer's values in words of a link, which the error about wrong values shows.
const POLICER_SPELLING: &str = "rate and burst such as 100mbit 150kB";

/// 100 %: the probability of a certain event, and of loss in the bad state where netem's `gemodel`
/// states none.
const PROBABILITY_ONE: Fraction = Fraction::from_ppb(1_000_000_000).expect("one");
