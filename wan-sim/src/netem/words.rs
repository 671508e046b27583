//! The words that are not parsed yet, and the values that may follow each of them.

use super::error::NetemError;
use super::value::one_word;
use crate::{GilbertElliott, Loss, Shape};
use std::collections::VecDeque;
use units::Fraction;

/// The words not yet taken.
pub(super) struct Words<'a>(VecDeque<&'a str>);

impl<'a> Words<'a> {
    /// The words of `text`, none of them taken yet.
    pub(super) fn of(text: &'a str) -> Self {
        Self(text.split_whitespace().collect())
    }

    pub(super) fn next(&mut self) -> Option<&'a str> {
        self.0.pop_front()
    }

    pub(super) fn value<T>(
        &mut self,
        word: &'static str,
        wanted: &'static str,
        parse: fn(&str) -> Option<T>,
    ) -> Result<T, NetemError> {
        let value = self.next().unwrap_or_default();
        parse(value).ok_or_else(|| NetemError::Value { word, value: value.to_owned(), wanted })
    }

    /// The next word, if it is such a value.
    pub(super) fn maybe<T>(&mut self, parse: fn(&str) -> Option<T>) -> Option<T> {
        let value = parse(self.0.front()?)?;
        self.0.pop_front();
        Some(value)
    }

    pub(super) fn chance(&mut self, word: &'static str) -> Result<Fraction, NetemError> {
        let chance = self.value(word, PERCENT, one_word)?;
        self.no_correlation(word)?;
        Ok(chance)
    }

    pub(super) fn no_correlation(&mut self, word: &'static str) -> Result<(), NetemError> {
        match self.maybe(one_word::<Fraction>) {
            None => Ok(()),
            Some(correlation) => Err(NetemError::Refused {
                word: format!("{word} .. {correlation}"),
                reason: "correlated draws are not modelled; for bursts use loss gemodel",
            }),
        }
    }

    pub(super) fn distribution(&mut self) -> Result<Shape, NetemError> {
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

    pub(super) fn loss(&mut self) -> Result<Loss, NetemError> {
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

    pub(super) fn overhead(&mut self) -> Result<u16, NetemError> {
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

/// The spelling of percentages, for errors.
const PERCENT: &str = "a percentage such as 0.1%, from 0% to 100%";

/// The probability of 100 %.
const ALWAYS: Fraction = Fraction::from_ppb(1_000_000_000).expect("one");
