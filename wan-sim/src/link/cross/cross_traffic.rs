//! The description of a flow of cross traffic, and its spelling.

use crate::netem::{
    parse_netem_rate_value, parse_netem_span_value, print_netem_rate, print_netem_span,
};
use std::fmt;
use std::str::FromStr;
use units::{BitRate, Span};

/// A flow that shares the queue of a link.
///
/// Spelled in words: `cubic`, `newreno`, `bbr`, or `onoff rate 20mbit on 500ms off 2s`; each may be
/// followed by `start 5s` and `stop 30s`, times since the start of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CrossTraffic {
    /// How it decides when to send.
    pub kind: CrossKind,
    /// When it starts, after the start of the link.
    pub start: Span,
    /// When it stops; `None` for never.
    pub stop: Option<Span>,
}

/// How a flow of cross traffic decides when to send. All but `OnOff` always have data to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrossKind {
    /// By a window that grows and shrinks as RFC 9438 has it.
    Cubic,
    /// By a window that grows by a packet each round trip and halves at a loss, as RFC 5681 has it.
    NewReno,
    /// By a model of rate and round trip, with the phases of BBR version 1.
    Bbr,
    /// At a rate in bursts, without regard to losses. RawBursts and pauses last exponentially
    /// distributed times.
    OnOff {
        /// The rate during a burst.
        rate: BitRate,
        /// The mean time of a burst.
        on: Span,
        /// The mean time of a pause.
        off: Span,
    },
}

/// Words that describe no cross traffic. The caller's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CrossTrafficError {
    /// The first word is no kind.
    #[error("`{0}` is no cross traffic; accepted: cubic, newreno, bbr, onoff")]
    Kind(String),
    /// A word that is not understood, or given twice.
    #[error("cross traffic: `{word}` is not understood here or given twice; accepted: {accepted}")]
    Word {
        /// The word.
        word: String,
        /// The words that are accepted after the kind.
        accepted: &'static str,
    },
    /// A word whose value is missing or wrong.
    #[error("cross traffic: `{word}` wants {wanted}, not `{value}`")]
    Value {
        /// The word.
        word: &'static str,
        /// The value found; empty at the end of the text.
        value: String,
        /// The values that are accepted.
        wanted: &'static str,
    },
    /// On-off traffic without one of its three values.
    #[error("cross traffic: onoff needs `{0}`, as in `onoff rate 20mbit on 500ms off 2s`")]
    Missing(&'static str),
    /// A stop that is not after the start.
    #[error("cross traffic: the stop at {stop} is not after the start at {start}")]
    NeverRuns {
        /// The time of the start.
        start: Span,
        /// The time of the stop.
        stop: Span,
    },
}

impl CrossTraffic {
    /// Makes a flow that starts with the link and never stops.
    pub const fn new(kind: CrossKind) -> Self {
        Self { kind, start: Span::ZERO, stop: None }
    }

    /// Returns this flow with another start.
    pub const fn starting_at(self, start: Span) -> Self {
        Self { start, ..self }
    }
}

impl FromStr for CrossTraffic {
    type Err = CrossTrafficError;
    /// Parses the words of a flow.
    fn from_str(text: &str) -> Result<Self, CrossTrafficError> {
        let mut words = text.split_whitespace();
        let kind = words.next().unwrap_or_default();
        let accepted = match kind {
            "cubic" | "newreno" | "bbr" => "start, stop",
            "onoff" => "rate, on, off, start, stop",
            _ => return Err(CrossTrafficError::Kind(kind.to_owned())),
        };
        let (mut rate, mut on, mut off) = (None, None, None);
        let (mut start, mut stop) = (None, None);
        while let Some(word) = words.next() {
            let value = words.next().unwrap_or_default();
            match word {
                "rate" if kind == "onoff" && rate.is_none() => {
                    rate = Some(parse_cross_traffic_value(
                        "rate",
                        value,
                        "20mbit",
                        parse_netem_rate_value,
                    )?);
                }
                "on" if kind == "onoff" && on.is_none() => {
                    on = Some(parse_cross_traffic_span("on", value)?)
                }
                "off" if kind == "onoff" && off.is_none() => {
                    off = Some(parse_cross_traffic_span("off", value)?);
                }
                "start" if start.is_none() => {
                    start = Some(parse_cross_traffic_value(
                        "start",
                        value,
                        TIME_FORM,
                        parse_netem_span_value,
                    )?);
                }
                "stop" if stop.is_none() => stop = Some(parse_cross_traffic_span("stop", value)?),
                _ => return Err(CrossTrafficError::Word { word: word.to_owned(), accepted }),
            }
        }
        let kind = match kind {
            "cubic" => CrossKind::Cubic,
            "newreno" => CrossKind::NewReno,
            "bbr" => CrossKind::Bbr,
            _ => CrossKind::OnOff {
                rate: rate.ok_or(CrossTrafficError::Missing("rate"))?,
                on: on.ok_or(CrossTrafficError::Missing("on"))?,
                off: off.ok_or(CrossTrafficError::Missing("off"))?,
            },
        };
        let start = start.unwrap_or_default();
        match stop {
            Some(stop) if stop <= start => Err(CrossTrafficError::NeverRuns { start, stop }),
            _ => Ok(Self { kind, start, stop }),
        }
    }
}

impl fmt::Display for CrossTraffic {
    /// Writes the words of the flow, which parse as an equal flow.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            CrossKind::Cubic => write!(f, "cubic")?,
            CrossKind::NewReno => write!(f, "newreno")?,
            CrossKind::Bbr => write!(f, "bbr")?,
            CrossKind::OnOff { rate, on, off } => {
                let (rate, on, off) =
                    (print_netem_rate(rate), print_netem_span(on), print_netem_span(off));
                write!(f, "onoff rate {rate} on {on} off {off}")?;
            }
        }
        if self.start > Span::ZERO {
            write!(f, " start {}", print_netem_span(self.start))?;
        }
        self.stop.map_or(Ok(()), |stop| write!(f, " stop {}", print_netem_span(stop)))
    }
}

/// Parses the time that follows `word`, which must be above zero.
fn parse_cross_traffic_span(word: &'static str, value: &str) -> Result<Span, CrossTrafficError> {
    let parse = |value: &str| parse_netem_span_value(value).filter(|span| *span > Span::ZERO);
    parse_cross_traffic_value(word, value, TIME_FORM, parse)
}

/// Parses the value that follows `word`; an error names the accepted form.
fn parse_cross_traffic_value<T>(
    word: &'static str,
    value: &str,
    wanted: &'static str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<T, CrossTrafficError> {
    let error = || CrossTrafficError::Value { word, value: value.to_owned(), wanted };
    parse(value).ok_or_else(error)
}

/// The accepted form of a time in the words of cross traffic, which the error about a wrong time
/// shows.
const TIME_FORM: &str = "a time such as 500ms";
