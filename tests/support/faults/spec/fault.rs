//! One fault: its kind, place, time and duration.

use super::place::{Direction, FaultPlace};
use serde::Deserialize;
use std::fmt;
use std::str::FromStr;
use units::Span;

/// One fault. Times count from when the ranks begin to work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The kind of fault.
    pub what: FaultKind,
    /// The process, lane or link that it strikes.
    pub place: FaultPlace,
    /// The time when it begins.
    pub at: Span,
    /// Its duration. At its end killed processes start again, stopped ones resume, and cut links
    /// are joined.
    pub lasting: Span,
}

/// The kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// A process ends without a word, a lane's connection is closed, a link loses what is
    /// under way and everything else until it is back.
    Kill,
    /// A process does nothing, as after SIGSTOP; a link holds what its buffer takes, loses the
    /// rest, and brings all of it when it goes on.
    Stop,
    /// A gateway finishes what is posted and ends, as after SIGTERM. If it has not ended by the
    /// end of the fault it is killed.
    Drain,
    /// Packets vanish.
    Cut,
    /// Packets take that much longer.
    Delay(Span),
    /// Some packets come twice, some overtake others.
    Disorder,
}

/// A fault as a file spells it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::faults) struct RawFault {
    what: String,
    #[serde(rename = "where")]
    place: String,
    at: String,
    #[serde(rename = "for")]
    lasting: Option<String>,
}

impl Fault {
    /// The kinds of fault and place, for counts: `kill gateway`.
    pub fn kind(&self) -> String {
        let first = |text: String| text.split(' ').next().unwrap_or_default().to_owned();
        let place = match self.place {
            FaultPlace::Link(_, Direction::Both) => "link, both ways".to_owned(),
            FaultPlace::Link(..) => "link, one way".to_owned(),
            place => first(place.to_string()),
        };
        format!("{} {place}", first(self.what.to_string()))
    }

    /// Whether it can happen there.
    pub fn is_possible(&self) -> bool {
        use FaultKind::{Cut, Delay, Disorder, Drain, Kill, Stop};
        use FaultPlace::{Gateway, Lane, Link, Rank};
        matches!(
            (self.what, self.place),
            (Kill | Stop, Rank(..))
                | (Kill | Stop | Drain, Gateway(_))
                | (Kill | Cut, Lane(..))
                | (Kill | Stop | Cut | Delay(_) | Disorder, Link(..))
        )
    }

    /// The time when it is over.
    pub fn end(&self) -> Span {
        self.at + self.lasting
    }
}

impl TryFrom<RawFault> for Fault {
    type Error = String;

    /// Parses the texts of a fault; fails if one does not parse, or if the fault cannot happen at
    /// its place. Without `for` the duration is zero.
    fn try_from(raw: RawFault) -> Result<Self, String> {
        let span = |text: &str| text.parse::<Span>().map_err(|error| error.to_string());
        let lasting = raw.lasting.as_deref().map_or(Ok(Span::ZERO), span)?;
        let (what, place) = (raw.what.parse()?, raw.place.parse()?);
        let fault = Self { what, place, at: span(&raw.at)?, lasting };
        if fault.is_possible() { Ok(fault) } else { Err(format!("nobody can {what} {place}")) }
    }
}

impl FromStr for FaultKind {
    type Err = String;

    /// Parses `kill`, `stop`, `drain`, `cut`, `disorder`, or `delay` with a time, such as
    /// `delay 100 ms`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(' ').unwrap_or((text, "")) {
            ("kill", "") => Ok(Self::Kill),
            ("stop", "") => Ok(Self::Stop),
            ("drain", "") => Ok(Self::Drain),
            ("cut", "") => Ok(Self::Cut),
            ("disorder", "") => Ok(Self::Disorder),
            ("delay", by) => by.parse().map(Self::Delay).map_err(|error| error.to_string()),
            _ => Err(format!("`{text}` is none of kill, stop, drain, cut, delay TIME, disorder")),
        }
    }
}

impl fmt::Display for FaultKind {
    /// Prints the kind, such as `kill` or `delay 100 ms`, which parses back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill => f.write_str("kill"),
            Self::Stop => f.write_str("stop"),
            Self::Drain => f.write_str("drain"),
            Self::Cut => f.write_str("cut"),
            Self::Delay(by) => write!(f, "delay {by}"),
            Self::Disorder => f.write_str("disorder"),
        }
    }
}

impl fmt::Display for Fault {
    /// Prints `kill gateway east-0 at 2 s for 400 ms`; a fault of zero duration has no `for`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} at {}", self.what, self.place, self.at)?;
        if self.lasting > Span::ZERO { write!(f, " for {}", self.lasting) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_displayed_kind_parses_back() {
        use FaultKind::{Cut, Delay, Disorder, Drain, Kill, Stop};
        for what in [Kill, Stop, Drain, Cut, Delay(Span::from_ms(2)), Disorder] {
            assert_eq!(what.to_string().parse(), Ok(what));
        }
        assert!("delay much".parse::<FaultKind>().is_err());
    }
}
