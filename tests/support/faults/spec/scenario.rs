//! Scenarios: the deployment, its load, and the faults that strike it.

use crate::collectives::data::SplitMix64;
use crate::faults::judge::side_load::{GROUP_COLLECTIVES_MAX, SENDS_MAX};
use crate::faults::members::MEMBERS;
use crate::faults::spec::fault::{Fault, FaultKind, RawFault};
use crate::faults::spec::layout::Layout;
use crate::faults::spec::place::{Direction, FaultPlace, RegionPair};
use crate::{Shape, mbit, ppm};
use serde::Deserialize;
use std::fmt;
use units::{BitRate, ByteCount, Span};

/// The complete description of one run.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The name, or `random`.
    pub name: String,
    /// The seed of everything random.
    pub seed: u64,
    /// The regions, their gateways and the links between them.
    pub layout: Layout,
    /// The rate and delay of a link, jobs, memory.
    pub shape: Shape,
    /// The collectives that the ranks run.
    pub load: Load,
    /// The faults, in order.
    pub faults: Vec<Fault>,
    /// Whether every collective must succeed all the same.
    pub unharmed: bool,
}

/// Faults with a name.
#[derive(Debug, Clone)]
pub struct Named {
    /// The name.
    pub name: String,
    /// The faults, in order.
    pub faults: Vec<Fault>,
    /// Whether every collective must succeed all the same.
    pub unharmed: bool,
    /// Whether real processes play it too.
    pub processes: bool,
}

/// The load of each job: rounds of collectives, several in flight at once. A round begins when all
/// ranks have ended the last one. It is repeated until all of them have its results.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Number of rounds.
    pub rounds: u32,
    /// Collectives of a round.
    pub in_flight: u32,
    /// The time that a rank waits for the others to post.
    pub timeout: Span,
    /// The unit of pipelining.
    pub segment: ByteCount,
    /// Segments of a buffer, at most.
    pub segments_max: u64,
}

/// Name of the scenario whose faults are drawn from its seed.
pub const RANDOM: &str = "random";
/// Names of the jobs of every run, by number.
pub const JOBS: [&str; 2] = ["0", "1"];
/// 3 faults: the most in a random run.
const FAULTS_MAX: u64 = 3;
/// 4 ranks: the most in a region of a random run.
const RANKS_MAX: u64 = 4;
/// 1 KiB of an arena: the slots in which 32 ranks exchange their colors, 16 bytes of each.
const SPLIT_BYTES: u64 = 1 << 10;
/// 4 lanes between two gateways without others, of which faults strike single ones.
const LANES: u16 = 4;
/// 2 lanes between each two gateways of a mesh, which has many pairs.
const LANES_OF_MESH: u16 = 2;
/// 1 of 3 random runs has a mesh.
const SEEDS_BETWEEN_MESHES: u64 = 3;
/// 1 of 4 meshes has buffers above 1 MiB, whose blocks take trees of their own.
const MESHES_BETWEEN_LONG_BUFFERS: u64 = 4;
/// 128 KiB: the segment of long buffers.
const LONG_SEGMENT: ByteCount = ByteCount::new(128 << 10);
/// 12 segments: the longest of long buffers.
const LONG_SEGMENTS_MAX: u64 = 12;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    scenario: Vec<RawScenario>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawScenario {
    name: String,
    #[serde(default)]
    faults: Vec<RawFault>,
    #[serde(default)]
    unharmed: bool,
    #[serde(default)]
    processes: bool,
}

/// The list of named faults.
///
/// # Panics
/// When the list is at fault.
pub fn named() -> Vec<Named> {
    let file: RawFile = toml::from_str(include_str!("../../../scenarios.toml")).expect("a list");
    let scenario = |raw: RawScenario| {
        let faults: Result<Vec<Fault>, String> =
            raw.faults.into_iter().map(Fault::try_from).collect();
        let faults = faults.unwrap_or_else(|why| panic!("scenario {}: {why}", raw.name));
        let RawScenario { name, unharmed, processes, .. } = raw;
        Named { name, faults, unharmed, processes }
    };
    file.scenario.into_iter().map(scenario).collect()
}

impl Load {
    /// A rank's memory: a contribution and a result slot for each operation of an attempt.
    pub fn arena(&self) -> ByteCount {
        let slots = 2 * u64::from(self.operations());
        ByteCount::new(slots * (self.segments_max * self.segment.get() + 64) + SPLIT_BYTES)
    }

    /// The operations of an attempt of one job, at most.
    pub fn operations(&self) -> u32 {
        self.in_flight + GROUP_COLLECTIVES_MAX + SENDS_MAX
    }
}

impl Scenario {
    /// Deployment, load and faults drawn from the seed.
    pub fn random(seed: u64) -> Self {
        let mut dice = SplitMix64(seed);
        let pick = |dice: &mut SplitMix64| 1 + (dice.roll() % RANKS_MAX) as u32;
        let pair = Layout::pair(pick(&mut dice), pick(&mut dice));
        let mut scenario = Self::with(RANDOM, seed, pair, &mut dice);
        let mut of_mesh = SplitMix64(seed ^ MESH_DICE);
        if of_mesh.roll().is_multiple_of(SEEDS_BETWEEN_MESHES) {
            scenario.spread(Layout::mesh(&mut of_mesh), &mut of_mesh);
        }
        let count = (dice.roll() % (FAULTS_MAX * 3 + 1)).div_ceil(3);
        let within = Span::from_ms(1200 * u64::from(scenario.load.rounds));
        scenario.faults = (0..count).map(|_| fault(&mut dice, &scenario, within)).collect();
        scenario
    }

    /// The named faults on a deployment and load drawn from the seed.
    pub fn named(name: &str, seed: u64) -> Option<Self> {
        if name == RANDOM {
            return Some(Self::random(seed));
        }
        if name == MEMBERS {
            return Some(Self::with(name, seed, Layout::pair(1, 1), &mut SplitMix64(seed)));
        }
        let Named { faults, unharmed, .. } =
            named().into_iter().find(|known| known.name == name)?;
        let mut dice = SplitMix64(seed);
        Some(Self { faults, unharmed, ..Self::with(name, seed, Layout::pair(2, 2), &mut dice) })
    }

    fn with(name: &str, seed: u64, layout: Layout, dice: &mut SplitMix64) -> Self {
        let mut pick = |choices: &[u64]| choices[(dice.roll() % choices.len() as u64) as usize];
        let rtt = Span::from_ms(pick(&[2, 10, 30, 80, 150]));
        let shape = Shape {
            rate: BitRate::from_bits_per_second(pick(&[2, 5, 10, 20]) * 1_000_000),
            rtt,
            loss: ppm(pick(&[0, 0, 1_000, 10_000]) as u32),
            jitter: Span::from_ns(rtt.ns() * pick(&[0, 0, 1, 2]) / 8),
            memory: ByteCount::new(pick(&[1, 64 << 10, 256 << 10, 4 << 20])),
            jobs: JOBS.iter().map(|job| (*job, 1)).collect(),
            lanes: LANES,
            ..Shape::new(0, 0)
        };
        // Longer segments are of the other class of traffic; odd ones end in an odd place.
        let cut = [(4 << 10, 24), (16 << 10, 10), (16 << 10, 10), (20_544, 7), (96 << 10, 3)];
        let (segment, segments_max) = cut[pick(&[0, 1, 2, 3, 4]) as usize];
        let load = Load {
            rounds: pick(&[2, 3, 4]) as u32,
            in_flight: pick(&[1, 2, 3, 4]) as u32,
            timeout: Span::from_secs(pick(&[20, 40, 60])),
            segment: ByteCount::new(segment),
            segments_max,
        };
        Self { name: name.to_owned(), seed, layout, shape, load, faults: vec![], unharmed: false }
    }

    /// Spreads the run over a mesh. Its links are faster, as each rank's bytes cross several; a part of
    /// all meshes has long buffers, in shorter rounds.
    fn spread(&mut self, layout: Layout, dice: &mut SplitMix64) {
        self.layout = layout;
        self.shape.rate = mbit([10, 20, 40][(dice.roll() % 3) as usize]);
        self.shape.lanes = LANES_OF_MESH;
        self.load.rounds = self.load.rounds.min(3);
        self.load.in_flight = self.load.in_flight.min(3);
        if dice.roll().is_multiple_of(MESHES_BETWEEN_LONG_BUFFERS) {
            self.shape.rate = mbit(100);
            self.load.rounds = 2;
            self.load.in_flight = 2;
            self.load.segment = LONG_SEGMENT;
            self.load.segments_max = LONG_SEGMENTS_MAX;
        }
    }

    /// The end of the last fault, counted from the start of the ranks' work.
    pub fn healed(&self) -> Span {
        self.faults.iter().map(Fault::end).max().unwrap_or(Span::ZERO)
    }

    /// The time that all collectives in flight may take on the link: their bytes at its rate, and a
    /// round trip for each segment where memory admits no more.
    pub fn link_time(&self) -> Span {
        let (shape, load) = (&self.shape, &self.load);
        let segments = u64::from(load.operations()) * load.segments_max;
        let bits = shape.jobs.len() as u64 * segments * load.segment.get() * 8;
        let sending = bits.saturating_mul(1_000_000_000) / shape.rate.bits_per_second();
        // Every group has an equal part of the memory for partials, whether or not it is used.
        let memory = shape.memory.get() / (1 + self.groups_max());
        let in_turn = (load.segment.get() * segments / memory.max(load.segment.get())).max(4);
        // A port sends to each other region what a link carries, and what it passes on.
        let links = self.layout.regions.len() as u64 - 1;
        let slowest = self.layout.links.iter().map(|link| link.slower).max().unwrap_or(1);
        let longest = self.layout.links.iter().map(|link| link.longer).max().unwrap_or(1);
        Span::from_ns(links * (sending * slowest + in_turn * shape.rtt.ns() * longest))
    }

    /// The groups of a job that a gateway knows at once, at most: that of an attempt, and each two
    /// ranks that have sent to each other.
    pub fn groups_max(&self) -> u64 {
        let ranks = u64::from(self.layout.world());
        1 + ranks * (ranks - 1) / 2
    }

    /// Returns the command that repeats the run.
    pub fn replay(&self) -> String {
        let scenario = match self.name.as_str() {
            RANDOM => String::new(),
            name => format!(" --scenario {name}"),
        };
        format!("cargo xtask simulate --seed {}{scenario}", self.seed)
    }
}

fn fault(dice: &mut SplitMix64, scenario: &Scenario, within: Span) -> Fault {
    let layout = &scenario.layout;
    let mut pick = |choices: u64| if choices == 1 { 0 } else { dice.roll() % choices };
    let at = Span::from_ms(pick(within.ns() / 1_000_000));
    let lasting = [50, 400, 2_000, 6_000, 9_000, 20_000][pick(6) as usize];
    let lasting = Span::from_ms(lasting + pick(lasting / 4));
    let direction = [Direction::Both, Direction::There, Direction::Back][pick(3) as usize];
    let delay = FaultKind::Delay(Span::from_ms([100, 500, 3_000, 9_000][pick(4) as usize]));
    let to_link = [FaultKind::Kill, FaultKind::Stop, FaultKind::Cut, delay, FaultKind::Disorder];
    // Lanes of a mesh have no sockets of their own.
    let to_lane: &[FaultKind] =
        if layout.is_mesh() { &[FaultKind::Kill] } else { &[FaultKind::Kill, FaultKind::Cut] };
    let (place, whats): (FaultPlace, &[FaultKind]) = match pick(8) {
        0 | 1 => {
            let job = pick(JOBS.len() as u64) as usize;
            let place = FaultPlace::Rank(job, pick(layout.world().into()) as u32);
            (place, &[FaultKind::Kill, FaultKind::Stop])
        }
        2 | 3 => {
            let gateway = pick(layout.gateways().count() as u64) as usize;
            let place = layout.gateways().nth(gateway).expect("one of them");
            let whats = &[FaultKind::Kill, FaultKind::Stop, FaultKind::Drain];
            (FaultPlace::Gateway(place), whats)
        }
        4 | 5 => {
            let lane = pick(scenario.shape.lanes.into()) as u16;
            (FaultPlace::Lane(lane, linked_pair(layout, &mut pick)), to_lane)
        }
        _ => (FaultPlace::Link(linked_pair(layout, &mut pick), direction), &to_link),
    };
    let what = whats[pick(whats.len() as u64) as usize];
    Fault { what, place, at, lasting }
}

/// Draws two linked regions.
fn linked_pair(layout: &Layout, pick: &mut impl FnMut(u64) -> u64) -> RegionPair {
    layout.links[pick(layout.links.len() as u64) as usize].regions
}

/// A number that keeps the dice of meshes apart from those of the rest of a seed.
const MESH_DICE: u64 = 0x3e5_4000;

impl fmt::Display for Scenario {
    /// Prints name and seed, a line of shape and one of load, then a line for each fault, or
    /// `no fault`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shape, load) = (&self.shape, &self.load);
        writeln!(f, "scenario {}, seed {}", self.name, self.seed)?;
        if self.name == MEMBERS {
            return Ok(());
        }
        writeln!(
            f,
            "  {}\n  {} jobs; link {}, RTT {}, loss {}, jitter {}; memory {}",
            self.layout,
            shape.jobs.len(),
            shape.rate,
            shape.rtt,
            shape.loss,
            shape.jitter,
            shape.memory,
        )?;
        writeln!(
            f,
            "  {} rounds of {} collectives, up to {} segments of {}; ranks wait {} for each other",
            load.rounds, load.in_flight, load.segments_max, load.segment, load.timeout,
        )?;
        if self.faults.is_empty() {
            writeln!(f, "  no fault")?;
        }
        self.faults.iter().try_for_each(|fault| writeln!(f, "  fault: {fault}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_can_be_read_and_names_are_unique() {
        let mut names: Vec<String> = named().into_iter().map(|known| known.name).collect();
        assert!(names.len() > 10);
        assert!(names.iter().all(|name| name != RANDOM));
        names.sort();
        names.dedup();
        assert_eq!(names.len(), named().len());
    }

    #[test]
    fn seeds_draw_every_possible_kind_of_fault() {
        let mut kinds = std::collections::BTreeSet::new();
        for seed in 0..2000 {
            let scenario = Scenario::random(seed);
            assert!(scenario.faults.len() as u64 <= FAULTS_MAX);
            for fault in scenario.faults {
                assert!(fault.is_possible(), "{fault}");
                kinds.insert(fault.kind());
            }
        }
        assert_eq!(kinds.len(), 2 + 3 + 2 + 2 * 5, "{kinds:?}");
    }

    #[test]
    fn a_third_of_the_seeds_draw_meshes() {
        let (mut meshes, mut long) = (0, 0);
        for seed in 0..600 {
            let scenario = Scenario::random(seed);
            meshes += u32::from(scenario.layout.is_mesh());
            long += u32::from(scenario.load.segment == LONG_SEGMENT);
            for fault in scenario.faults {
                match fault.place {
                    FaultPlace::Rank(_, rank) => assert!(rank < scenario.layout.world()),
                    FaultPlace::Gateway(place) => {
                        assert!(scenario.layout.gateways().any(|there| there == place));
                    }
                    FaultPlace::Lane(_, pair) | FaultPlace::Link(pair, _) => {
                        assert!(scenario.layout.link(pair).is_some(), "{pair:?}");
                    }
                }
            }
        }
        assert!((160..240).contains(&meshes) && (25..75).contains(&long), "{meshes}, {long}");
    }
}
