//! What is done to which process, and how long anybody may wait for it.

use std::time::Duration;

/// What strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blow {
    /// SIGKILL, and a new process once everybody else has heard.
    Kill,
    /// SIGSTOP, and SIGCONT [`STOPPED_FOR`] later.
    Stop,
    /// A rank that is stopped while the others post: [`LATE_BY`] later it posts too.
    Late,
    /// The relay drops everything that goes one way for [`CUT_FOR`]; afterwards it duplicates
    /// and swaps neighbours.
    CutOneWay(Way),
}

/// One direction over the long haul.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    EastToWest,
    WestToEast,
}

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

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    pub blow: Blow,
    pub victim: Victim,
}

/// Ranks of east; the one after them is west's.
pub const EAST_RANKS: usize = 2;
/// Ranks in all.
pub const RANKS: usize = 3;
/// How long a stopped process is stopped.
pub const STOPPED_FOR: Duration = Duration::from_secs(20);
/// How much later than the others a late rank posts.
pub const LATE_BY: Duration = Duration::from_secs(90);
/// How long nothing passes one way.
pub const CUT_FOR: Duration = Duration::from_secs(5);
/// A silent peer is lost after QUIC's idle timeout of 15 s, and an exchange that does not move
/// ends sooner; the rest is for a busy machine.
pub const VERDICT_WITHIN: Duration = Duration::from_secs(15 + 10);

impl Fault {
    /// Every fault that is tried.
    pub const ALL: [Self; 11] = [
        Self { blow: Blow::Late, victim: Victim::Rank(0) },
        Self { blow: Blow::CutOneWay(Way::EastToWest), victim: Victim::Relay },
        Self { blow: Blow::CutOneWay(Way::WestToEast), victim: Victim::Relay },
        Self { blow: Blow::Kill, victim: Victim::Rank(0) },
        Self { blow: Blow::Kill, victim: Victim::Rank(2) },
        Self { blow: Blow::Kill, victim: Victim::Gateway(0) },
        Self { blow: Blow::Kill, victim: Victim::Gateway(1) },
        Self { blow: Blow::Kill, victim: Victim::Relay },
        Self { blow: Blow::Stop, victim: Victim::Gateway(0) },
        Self { blow: Blow::Stop, victim: Victim::Gateway(1) },
        Self { blow: Blow::Stop, victim: Victim::Relay },
    ];

    pub fn name(self) -> String {
        let blow = match self.blow {
            Blow::Kill => "kill",
            Blow::Stop => "stop",
            Blow::Late => "late",
            Blow::CutOneWay(Way::EastToWest) => return "cut east to west".to_owned(),
            Blow::CutOneWay(Way::WestToEast) => return "cut west to east".to_owned(),
        };
        match self.victim {
            Victim::Rank(rank) => format!("{blow} rank {rank}"),
            Victim::Gateway(gateway) => format!("{blow} gateway {}", ["east-0", "west-0"][gateway]),
            Victim::Relay => format!("{blow} relay"),
        }
    }

    /// Slow is not dead: what is late or silent for a while costs time, and nothing else.
    pub fn fails_nothing(self) -> bool {
        matches!(self.blow, Blow::Late | Blow::CutOneWay(_))
    }

    /// The share of a collective's bytes at which the `point`-th of `points` blows falls:
    /// drawn from its part of 5 to 95 %.
    pub fn strikes_at(self, seed: u64, point: u32, points: u32) -> f64 {
        let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(point);
        for byte in self.name().bytes() {
            z = (z ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let drawn = (z >> 11) as f64 / (1u64 << 53) as f64;
        0.05 + 0.9 * (f64::from(point) + drawn) / f64::from(points)
    }

    /// The longest that a rank may wait for one collective's outcome. Nobody but its own
    /// gateway tells a rank anything, so a stopped one is waited for.
    pub fn longest_wait(self, rank: usize) -> Duration {
        let own = |gateway| (gateway == 0) == (rank < EAST_RANKS);
        match self {
            Self { blow: Blow::Stop, victim: Victim::Gateway(gateway) } if own(gateway) => {
                STOPPED_FOR + VERDICT_WITHIN
            }
            Self { blow: Blow::Late, .. } => LATE_BY + VERDICT_WITHIN,
            _ => VERDICT_WITHIN,
        }
    }
}
