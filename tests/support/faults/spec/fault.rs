//! One fault: its kind, place, time and duration.

use hier_collectives::ids::GatewayId;
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

/// The process, lane or link that a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultPlace {
    /// A trainer: its job, by number, and its rank.
    Rank(usize, u32),
    /// A gateway.
    Gateway(GatewayId),
    /// A lane between the two gateways; of those killed, odd ones are closed by west.
    Lane(u16),
    /// The link between the regions.
    Link(Direction),
}

/// A direction of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Both directions.
    Both,
    /// From east to west.
    EastWest,
    /// From west to east.
    WestEast,
}

/// Names of the gateways of both regions, by gateway id.
pub const GATEWAYS: [&str; 2] = ["east-0", "west-0"];

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
            FaultPlace::Link(Direction::Both) => "link, both ways".to_owned(),
            FaultPlace::Link(_) => "link, one way".to_owned(),
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
                | (Kill | Cut, Lane(_))
                | (Kill | Stop | Cut | Delay(_) | Disorder, Link(_))
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

impl FromStr for FaultPlace {
    type Err = String;

    /// Parses `rank 0 of job 0`, `gateway east-0`, `lane 0`, `link`, `link east-west` or
    /// `link west-east`. Ranks and lanes may have other numbers.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is none of `rank 0 of job 0`, `gateway east-0`, `lane 0`, `link`, \
                 `link east-west`, `link west-east`"
            )
        };
        let number = |text: &str| text.parse::<u32>().map_err(|_| wrong());
        match text.split(' ').collect::<Vec<_>>()[..] {
            ["rank", rank, "of", "job", job] => {
                Ok(Self::Rank(number(job)? as usize, number(rank)?))
            }
            ["gateway", name] => {
                let id = (0..).map(GatewayId).zip(GATEWAYS).find(|(_, known)| *known == name);
                id.map(|(id, _)| Self::Gateway(id)).ok_or_else(wrong)
            }
            ["lane", lane] => lane.parse().map(Self::Lane).map_err(|_| wrong()),
            ["link"] => Ok(Self::Link(Direction::Both)),
            ["link", "east-west"] => Ok(Self::Link(Direction::EastWest)),
            ["link", "west-east"] => Ok(Self::Link(Direction::WestEast)),
            _ => Err(wrong()),
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

impl fmt::Display for FaultPlace {
    /// Prints the place, such as `gateway east-0` or `link east-west`, which parses back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rank(job, rank) => write!(f, "rank {rank} of job {job}"),
            Self::Gateway(id) => write!(f, "gateway {}", GATEWAYS[usize::from(id.0)]),
            Self::Lane(lane) => write!(f, "lane {lane}"),
            Self::Link(Direction::Both) => f.write_str("link"),
            Self::Link(Direction::EastWest) => f.write_str("link east-west"),
            Self::Link(Direction::WestEast) => f.write_str("link west-east"),
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
    fn a_displayed_fault_parses_back() {
        use FaultKind::{Cut, Delay, Disorder, Drain, Kill, Stop};
        for what in [Kill, Stop, Drain, Cut, Delay(Span::from_ms(2)), Disorder] {
            assert_eq!(what.to_string().parse(), Ok(what));
        }
        let links =
            [Direction::Both, Direction::EastWest, Direction::WestEast].map(FaultPlace::Link);
        let places =
            [FaultPlace::Rank(1, 3), FaultPlace::Gateway(GatewayId(1)), FaultPlace::Lane(2)];
        for place in places.into_iter().chain(links) {
            assert_eq!(place.to_string().parse(), Ok(place));
        }
        assert!("rank 1".parse::<FaultPlace>().is_err());
        assert!("gateway north-0".parse::<FaultPlace>().is_err());
        assert!("delay much".parse::<FaultKind>().is_err());
    }
}
