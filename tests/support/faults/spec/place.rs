//! Places of faults: ranks, gateways, lanes and links, and their names.

use std::fmt;
use std::str::FromStr;

/// The process, lane or link that a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultPlace {
    /// A trainer: its job, by number, and its rank.
    Rank(usize, u32),
    /// A gateway.
    Gateway(GatewayPlace),
    /// A lane between the first gateways of two regions; of those killed, odd ones are closed by the
    /// second.
    Lane(u16, RegionPair),
    /// The link between two regions.
    Link(RegionPair, Direction),
}

/// A gateway, by its region and its number in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct GatewayPlace {
    /// The number of the region.
    pub region: u8,
    /// The number of the gateway in its region.
    pub number: u8,
}

/// Two regions, by their numbers, the lower one first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RegionPair(pub u8, pub u8);

/// A direction of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Both directions.
    Both,
    /// From the first region of a pair to the second.
    There,
    /// From the second region of a pair to the first.
    Back,
}

/// A set of gateways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatewaySet(u16);

/// Names of regions, by number, in the order that fabrics give them.
pub const REGIONS: [&str; 4] = ["east", "west", "x", "y"];

/// 4 gateways of a region, at most.
const GATEWAYS_OF_REGION_MAX: u8 = 4;

impl GatewayPlace {
    /// The first gateway of the first region.
    pub const EAST: Self = Self { region: 0, number: 0 };
    /// The first gateway of the second region.
    pub const WEST: Self = Self { region: 1, number: 0 };
}

impl RegionPair {
    /// The first two regions.
    pub const EAST_WEST: Self = Self(0, 1);

    /// Two different regions, in any order.
    pub fn of(one: u8, other: u8) -> Self {
        Self(one.min(other), one.max(other))
    }
}

impl GatewaySet {
    /// Every gateway.
    pub const ALL: Self = Self(u16::MAX);

    /// The set of some gateways.
    pub fn of(gateways: impl IntoIterator<Item = GatewayPlace>) -> Self {
        Self(gateways.into_iter().fold(0, |bits, gateway| bits | Self::bit(gateway)))
    }

    /// Whether a gateway is one of them.
    pub fn contains(self, gateway: GatewayPlace) -> bool {
        self.0 & Self::bit(gateway) != 0
    }

    /// The number of gateways.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether both regions have some of them.
    pub fn joins(self, RegionPair(one, other): RegionPair) -> bool {
        let region = |region: u8| 0xf << (GATEWAYS_OF_REGION_MAX * region);
        [one, other].into_iter().all(|number| self.0 & region(number) != 0)
    }

    fn bit(GatewayPlace { region, number }: GatewayPlace) -> u16 {
        1 << (GATEWAYS_OF_REGION_MAX * region + number)
    }
}

/// Returns the number of the region with a name.
fn region_named(name: &str) -> Option<u8> {
    (0..).zip(REGIONS).find(|(_, known)| *known == name).map(|(number, _)| number)
}

impl FromStr for GatewayPlace {
    type Err = String;

    /// Parses a region's name and a number, such as `east-0`.
    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('-');
        let place = parts.and_then(|(region, number)| {
            let number = number.parse().ok().filter(|number| *number < GATEWAYS_OF_REGION_MAX)?;
            Some(Self { region: region_named(region)?, number })
        });
        place.ok_or_else(|| format!("`{text}` is no gateway such as `east-0`"))
    }
}

impl fmt::Display for GatewayPlace {
    /// Prints region and number, such as `east-0`, which parses back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", REGIONS[usize::from(self.region)], self.number)
    }
}

impl FromStr for FaultPlace {
    type Err = String;

    /// Parses `rank 0 of job 0`, `gateway east-0`, `lane 0`, `link`, `link east-west` or
    /// `link west-east`. Other regions than the first two have `lane 0 between west and x` and
    /// `link between west and x`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is none of `rank 0 of job 0`, `gateway east-0`, `lane 0`, `link`, \
                 `link east-west`, `link west-east`, `link between west and x`"
            )
        };
        let number = |text: &str| text.parse::<u32>().map_err(|_| wrong());
        let lane = |text: &str| text.parse::<u16>().map_err(|_| wrong());
        let pair = |one: &str, other: &str| {
            let regions = region_named(one).zip(region_named(other));
            regions.filter(|(one, other)| one != other).ok_or_else(wrong)
        };
        let between = |one: &str, other: &str| -> Result<RegionPair, String> {
            pair(one, other).map(|(one, other)| RegionPair::of(one, other))
        };
        match text.split(' ').collect::<Vec<_>>()[..] {
            ["rank", rank, "of", "job", job] => {
                Ok(Self::Rank(number(job)? as usize, number(rank)?))
            }
            ["gateway", name] => name.parse().map(Self::Gateway).map_err(|_| wrong()),
            ["lane", number] => Ok(Self::Lane(lane(number)?, RegionPair::EAST_WEST)),
            ["lane", number, "between", one, "and", other] => {
                Ok(Self::Lane(lane(number)?, between(one, other)?))
            }
            ["link"] => Ok(Self::Link(RegionPair::EAST_WEST, Direction::Both)),
            ["link", "between", one, "and", other] => {
                Ok(Self::Link(between(one, other)?, Direction::Both))
            }
            ["link", way] => {
                let (one, other) = way.split_once('-').ok_or_else(wrong)?;
                let (from, to) = pair(one, other)?;
                let direction = if from < to { Direction::There } else { Direction::Back };
                Ok(Self::Link(RegionPair::of(from, to), direction))
            }
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for FaultPlace {
    /// Prints the place, such as `gateway east-0` or `link east-west`, which parses back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |RegionPair(one, other): RegionPair| {
            (REGIONS[usize::from(one)], REGIONS[usize::from(other)])
        };
        let between = |pair: RegionPair| match pair {
            RegionPair::EAST_WEST => String::new(),
            _ => format!(" between {} and {}", names(pair).0, names(pair).1),
        };
        match self {
            Self::Rank(job, rank) => write!(f, "rank {rank} of job {job}"),
            Self::Gateway(gateway) => write!(f, "gateway {gateway}"),
            Self::Lane(lane, pair) => write!(f, "lane {lane}{}", between(*pair)),
            Self::Link(pair, Direction::Both) => write!(f, "link{}", between(*pair)),
            Self::Link(pair, Direction::There) => {
                write!(f, "link {}-{}", names(*pair).0, names(*pair).1)
            }
            Self::Link(pair, Direction::Back) => {
                write!(f, "link {}-{}", names(*pair).1, names(*pair).0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_displayed_place_parses_back() {
        let pairs = [RegionPair::EAST_WEST, RegionPair(1, 2), RegionPair(0, 3)];
        let links = pairs.into_iter().flat_map(|pair| {
            [Direction::Both, Direction::There, Direction::Back]
                .map(|direction| FaultPlace::Link(pair, direction))
        });
        let lanes = pairs.map(|pair| FaultPlace::Lane(2, pair));
        let gateways = [GatewayPlace::WEST, GatewayPlace { region: 2, number: 1 }];
        let others = [FaultPlace::Rank(1, 3)].into_iter().chain(gateways.map(FaultPlace::Gateway));
        for place in others.chain(lanes).chain(links) {
            assert_eq!(place.to_string().parse(), Ok(place));
        }
        for wrong in ["rank 1", "gateway north-0", "gateway east-9", "link east-east", "lane x"] {
            assert!(wrong.parse::<FaultPlace>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_set_joins_regions_where_it_has_gateways() {
        let set = GatewaySet::of([GatewayPlace::EAST, GatewayPlace { region: 3, number: 1 }]);
        assert!(set.contains(GatewayPlace::EAST) && !set.contains(GatewayPlace::WEST));
        assert!(set.joins(RegionPair(0, 3)) && !set.joins(RegionPair::EAST_WEST));
        assert_eq!(set.count(), 2);
        assert!(GatewaySet::ALL.joins(RegionPair(2, 3)));
    }
}
