//! The parties that may be at fault, their names, and which fault explains which other one.

use super::dump_view::DumpView;
use serde::Serialize;

/// The kind of the party at fault. The names are values of the JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CulpritKind {
    /// The training script: posts of ranks contradict each other.
    Script,
    /// A gateway, its host or its clock.
    Gateway,
    /// The path between two gateways.
    Link,
    /// The files of a gateway.
    Files,
    /// A rank.
    Rank,
    /// A region that is slow.
    Region,
}

/// A party that may be at fault. Pairs of names are in alphabetical order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Party {
    /// The training script of a job.
    Script(String),
    /// A gateway, by its name.
    Gateway(String),
    /// The clock of a gateway's host, by the gateway's name.
    Clock(String),
    /// A file that differs between gateways, or that others refuse.
    Files {
        /// The file, such as `certificate`.
        what: String,
        /// The gateways of which one or each has the wrong one.
        gateways: Vec<String>,
    },
    /// The path between two gateways, by their names.
    Path([String; 2]),
    /// The link between two regions, by their names.
    Link([String; 2]),
    /// A rank.
    Rank(u32),
    /// A region, by its name.
    Region(String),
    /// A job without an epoch. Others are at fault, and nobody tells who.
    Job(String),
}

/// A party at fault, with what shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    /// The party.
    pub party: Party,
    /// The observation that shows the fault, as a sentence.
    pub found: String,
    /// The action to take, where one is known.
    pub remedy: Option<String>,
}

impl Finding {
    /// Makes a finding with a remedy.
    pub fn of_party(party: Party, found: String, remedy: &str) -> Self {
        Self { party, found, remedy: Some(remedy.to_owned()) }
    }
}

impl Party {
    /// The name of a gateway's certificate as a file at fault.
    pub const CERTIFICATE: &str = "certificate";

    /// Makes the party of the path between two gateways.
    pub fn of_path(one: &str, other: &str) -> Self {
        let (first, second) = if one < other { (one, other) } else { (other, one) };
        Self::Path([first.to_owned(), second.to_owned()])
    }

    /// Makes the party of a file of some gateways.
    pub fn of_files(what: &str, gateways: &[&str]) -> Self {
        let mut gateways: Vec<String> = gateways.iter().map(|name| (*name).to_owned()).collect();
        gateways.sort();
        Self::Files { what: what.to_owned(), gateways }
    }

    /// Returns the kind of the party.
    pub const fn kind(&self) -> CulpritKind {
        match self {
            Self::Script(_) => CulpritKind::Script,
            Self::Gateway(_) | Self::Clock(_) | Self::Job(_) => CulpritKind::Gateway,
            Self::Files { .. } => CulpritKind::Files,
            Self::Path(_) | Self::Link(_) => CulpritKind::Link,
            Self::Rank(_) => CulpritKind::Rank,
            Self::Region(_) => CulpritKind::Region,
        }
    }

    /// Returns the name of the party for operators, such as `rank 1 (east)`.
    pub fn culprit_name(&self, view: &DumpView<'_>) -> String {
        let with_region = |name: &str| match view.region_of_gateway(name) {
            Some(region) => format!("gateway {name} ({region})"),
            None => format!("gateway {name}"),
        };
        match self {
            Self::Script(job) => format!("the script of job {job}"),
            Self::Gateway(name) => with_region(name),
            Self::Clock(name) => format!("the clock of {}", with_region(name)),
            Self::Files { what, gateways } => match &gateways[..] {
                [name] => format!("the {what} of {}", with_region(name)),
                names => format!("the {what} of gateways {}", names.join(" and ")),
            },
            Self::Path([one, other]) => format!("the path between {one} and {other}"),
            Self::Link([one, other]) => format!("link {one}-{other}"),
            Self::Rank(rank) => {
                let place = view.place_of_rank(*rank);
                place.map_or_else(
                    || format!("rank {rank}"),
                    |place| format!("rank {rank} ({})", place.region),
                )
            }
            Self::Region(name) => format!("region {name}"),
            Self::Job(name) => format!("job {name}"),
        }
    }

    /// Returns whether a fault of this party explains what was found of another one, so that the
    /// other one is innocent or the same.
    pub fn explains(&self, other: &Self, view: &DumpView<'_>) -> bool {
        let is_joined = |ends: &[String; 2], regions: &[String; 2]| {
            let of = |name: &String| view.region_of_gateway(name).unwrap_or_default();
            let mut found = [of(&ends[0]), of(&ends[1])];
            found.sort_unstable();
            found == [&*regions[0], &*regions[1]]
        };
        let is_in = |gateway: &str, regions: &[String]| {
            view.region_of_gateway(gateway)
                .is_some_and(|region| regions.iter().any(|known| known == region))
        };
        match (self, other) {
            (one, other) if one == other => true,
            (Self::Gateway(name) | Self::Clock(name), Self::Path(ends)) => ends.contains(name),
            (Self::Gateway(name) | Self::Clock(name), Self::Link(regions)) => is_in(name, regions),
            (Self::Files { gateways, .. }, Self::Link(regions)) => {
                gateways.iter().any(|name| is_in(name, regions))
            }
            (Self::Gateway(name), Self::Region(region)) => {
                is_in(name, std::slice::from_ref(region))
            }
            (Self::Clock(_), Self::Files { what, .. }) => what == Self::CERTIFICATE,
            (Self::Files { gateways, .. }, Self::Path(ends)) => {
                gateways.iter().any(|name| ends.contains(name))
            }
            (Self::Files { what, gateways }, Self::Files { what: other, gateways: among }) => {
                what == other && gateways.iter().all(|name| among.contains(name))
            }
            (Self::Path(ends), Self::Link(regions)) | (Self::Link(regions), Self::Path(ends)) => {
                is_joined(ends, regions)
            }
            (Self::Rank(rank), Self::Region(region)) => {
                view.place_of_rank(*rank).is_some_and(|place| place.region == *region)
            }
            (Self::Script(_) | Self::Rank(_) | Self::Region(_) | Self::Job(_), Self::Job(_)) => {
                false
            }
            (_, Self::Job(_)) => true,
            _ => false,
        }
    }
}
