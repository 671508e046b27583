//! The faults: the process that each strikes, and the time within which ranks must notice.

use hier_collectives::post::FailureCode;
use scenarios::faults::{Direction, Fault, FaultKind, FaultPlace, Limits, RegionPair, named};
use std::time::Duration;

/// A process of the deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// A rank, by number.
    Rank(usize),
    /// A gateway: 0 in east, 1 in west.
    Gateway(usize),
    /// The relay between the regions.
    Relay,
}

/// The fault that strikes a process.
#[derive(Debug, Clone, Copy)]
pub enum Blow {
    /// SIGKILL, and a new process once all others have got an outcome.
    Kill(Victim),
    /// SIGSTOP, and SIGCONT so much later.
    Stop(Victim, Duration),
    /// The relay drops everything that goes this way for so long, and may duplicate and swap
    /// neighbours afterwards.
    Cut { way: Direction, lasting: Duration, disorder: bool },
}

/// A scenario that real processes play.
#[derive(Debug)]
pub struct Case {
    pub name: String,
    pub blow: Blow,
}

/// 2 ranks of east; the rank after them is in west.
pub const EAST_RANKS: usize = 2;
/// 3 ranks in all.
pub const RANKS: usize = 3;
/// 10 s on top of the limits of docs/failures.md, for a busy machine and the all-reduce under way.
const BUSY: Duration = Duration::from_secs(10);

/// Returns the time within which every survivor gets an outcome after any fault.
pub fn verdict_within() -> Duration {
    let limits = Limits::of_the_page();
    let longest = FailureCode::ALL.into_iter().map(|code| limits.of(code).duration()).max();
    longest.unwrap_or_default() + BUSY
}

/// Returns the time within which all ranks work again after a fault.
pub fn recovery_within() -> Duration {
    Limits::of_the_page().recovery.duration() + BUSY
}

impl Case {
    /// Returns all cases of `tests/scenarios.toml`; an error if processes cannot play one.
    pub fn all() -> Result<Vec<Self>, String> {
        let wanted = named().into_iter().filter(|scenario| scenario.processes);
        wanted
            .map(|scenario| match blow(&scenario.faults) {
                Some(blow) => Ok(Self { name: scenario.name, blow }),
                None => Err(format!("scenario {}: processes cannot play it", scenario.name)),
            })
            .collect()
    }

    /// Returns true if the fault only delays collectives and fails none.
    pub fn fails_nothing(&self) -> bool {
        matches!(self.blow, Blow::Stop(Victim::Rank(_), _) | Blow::Cut { .. })
    }

    /// Returns the share of the bytes of a collective at which the fault strikes for `point`, drawn
    /// from its part of 5 to 94 %. The segment under way then ends below 95 %.
    pub fn strikes_at(&self, seed: u64, point: u32, points: u32) -> f64 {
        let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(point);
        for byte in self.name.bytes() {
            z = (z ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let drawn = (z >> 11) as f64 / (1u64 << 53) as f64;
        0.05 + 0.89 * (f64::from(point) + drawn) / f64::from(points)
    }

    /// Returns the longest time that a rank may wait for a result or for this failure. Only its own
    /// gateway reports to a rank, so the time of a stopped gateway counts.
    pub fn longest_wait(&self, rank: usize, failed: Option<FailureCode>) -> Duration {
        let own = |gateway| (gateway == 0) == (rank < EAST_RANKS);
        let stopped = match self.blow {
            Blow::Stop(Victim::Gateway(gateway), lasting) if own(gateway) => lasting,
            Blow::Stop(Victim::Rank(_), lasting) => lasting,
            _ => Duration::ZERO,
        };
        // A result may come late without harm, for as long as a peer may be silent.
        stopped
            + failed.map_or_else(verdict_within, |code| {
                Limits::of_the_page().of(code).duration() + BUSY
            })
    }
}

fn blow(faults: &[Fault]) -> Option<Blow> {
    let (first, rest) = faults.split_first()?;
    let disorder = matches!(rest, [Fault { what: FaultKind::Disorder, .. }]);
    let lasting = first.lasting.duration();
    match (first.what, first.place) {
        (FaultKind::Cut, FaultPlace::Link(RegionPair::EAST_WEST, way))
            if disorder || rest.is_empty() =>
        {
            Some(Blow::Cut { way, lasting, disorder })
        }
        (FaultKind::Kill, place) if rest.is_empty() => Some(Blow::Kill(victim(place)?)),
        (FaultKind::Stop, place) if rest.is_empty() => Some(Blow::Stop(victim(place)?, lasting)),
        _ => None,
    }
}

fn victim(place: FaultPlace) -> Option<Victim> {
    match place {
        FaultPlace::Rank(0, rank) => {
            Some(Victim::Rank(rank as usize)).filter(|_| rank < RANKS as u32)
        }
        FaultPlace::Gateway(place) => Some(Victim::Gateway(usize::from(place.region))),
        FaultPlace::Link(RegionPair::EAST_WEST, Direction::Both) => Some(Victim::Relay),
        FaultPlace::Rank(..) | FaultPlace::Lane(..) | FaultPlace::Link(..) => None,
    }
}
