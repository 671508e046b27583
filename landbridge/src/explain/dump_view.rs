//! One view of the dumps of several regions, for those who search it.

use super::dump::{Dump, DumpedGateway, DumpedPlace};
use gateway::observe::status::{FlightReport, GatewayReport, JobReport, PeerReport};
use std::collections::{BTreeMap, BTreeSet};

/// The dumps of one fabric: of each gateway the latest answer.
#[derive(Debug)]
pub(super) struct DumpView<'a> {
    places: &'a [DumpedPlace],
    gateways: BTreeMap<&'a str, &'a DumpedGateway>,
}

/// The state of a rank's post of a collective, as far as dumps tell.
#[derive(Debug, Clone, Copy)]
pub(super) enum DumpedPost<'a> {
    /// The rank's gateway has the post.
    Posted {
        /// Seconds from the start of 1970 to the post, by the clock of whoever asked.
        unix_seconds: f64,
        /// The rank's gateway.
        at: &'a DumpedGateway,
    },
    /// The rank's gateway has no such post.
    Missing,
    /// The rank's gateway was asked and gave no status.
    GatewayGone,
    /// The rank's gateway was not asked.
    NotAsked,
}

impl<'a> DumpView<'a> {
    /// Joins dumps. Later ones replace earlier ones of the same gateway.
    pub fn of_dumps(dumps: &'a [Dump]) -> Self {
        let mut sorted: Vec<&Dump> = dumps.iter().collect();
        sorted.sort_by(|one, other| one.taken_unix_seconds.total_cmp(&other.taken_unix_seconds));
        let gateways = sorted.iter().flat_map(|dump| &dump.gateways);
        Self {
            places: sorted.last().map_or(&[], |dump| &dump.places),
            gateways: gateways.map(|gateway| (&*gateway.gateway, gateway)).collect(),
        }
    }

    /// Iterates over the gateways that were asked.
    pub fn gateways(&self) -> impl Iterator<Item = &'a DumpedGateway> + '_ {
        self.gateways.values().copied()
    }

    /// Iterates over the statuses of the gateways that answered.
    pub fn statuses(&self) -> impl Iterator<Item = &'a GatewayReport> + '_ {
        self.gateways().filter_map(|gateway| gateway.status.as_ref())
    }

    /// Returns the gateway of that name, if it was asked.
    pub fn gateway(&self, name: &str) -> Option<&'a DumpedGateway> {
        self.gateways.get(name).copied()
    }

    /// Returns the jobs of all gateways that answered.
    pub fn jobs(&self) -> Vec<&'a JobReport> {
        self.statuses().flat_map(|status| &status.jobs).collect()
    }

    /// Returns the names of the jobs of all gateways that answered, each once.
    pub fn job_names(&self) -> BTreeSet<&'a str> {
        self.jobs().into_iter().map(|job| &*job.job).collect()
    }

    /// Returns the places of all gateways of the fabric.
    pub fn places(&self) -> &'a [DumpedPlace] {
        self.places
    }

    /// Returns the region of a gateway; `None` for a name that the fabric lacks.
    pub fn region_of_gateway(&self, name: &str) -> Option<&'a str> {
        self.places.iter().find(|place| place.gateway == name).map(|place| &*place.region)
    }

    /// Returns the regions of a link by its name, such as `east-west`; `None` for no such regions.
    pub fn link_named(&self, name: &str) -> Option<[String; 2]> {
        let regions: BTreeSet<&str> = self.places.iter().map(|place| &*place.region).collect();
        let pairs = regions.iter().flat_map(|a| regions.iter().map(move |b| [*a, *b]));
        let mut named = pairs.filter(|pair| pair.join("-") == name);
        named.next().map(|pair| pair.map(str::to_owned))
    }

    /// Returns what the dumps tell of a rank's post of a collective of a job.
    pub fn post_of_rank(&self, job: &str, rank: u32, sequence: u64) -> DumpedPost<'a> {
        let place = self.place_of_rank(rank);
        let Some(at) = place.and_then(|place| self.gateway(&place.gateway)) else {
            return DumpedPost::NotAsked;
        };
        let Some(status) = &at.status else { return DumpedPost::GatewayGone };
        if let Some(flight) = at.flight(job, sequence) {
            // The posts of a collective that failed are void, and its number may come again.
            let has_failed = flight.end.as_ref().is_some_and(|end| end.code.is_some());
            let mut posts = flight.posts.iter().filter(|_| !has_failed);
            let post = posts.find(|post| post.rank == rank);
            return post.map_or(DumpedPost::Missing, |post| DumpedPost::Posted {
                unix_seconds: at.asked_unix_seconds - post.seconds_ago,
                at,
            });
        }
        // The flight recorder has dropped a collective of a rank that is far ahead.
        let jobs = status.jobs.iter().filter(|report| report.job == job);
        let mut live = jobs.flat_map(|report| &report.collectives);
        match live.find(|live| live.sequence == sequence) {
            Some(live) if !live.awaited.contains(&rank) => {
                DumpedPost::Posted { unix_seconds: at.asked_unix_seconds, at }
            }
            _ => DumpedPost::Missing,
        }
    }

    /// Returns the seconds from the start of 1970 to the last post of a collective that the flight
    /// recorders have; `None` if they have none.
    pub fn last_post_unix_seconds(&self, job: &str, sequence: u64) -> Option<f64> {
        let of_gateway = |gateway: &'a DumpedGateway| {
            let posts = gateway.flight(job, sequence)?.posts.iter();
            posts.map(|post| gateway.asked_unix_seconds - post.seconds_ago).reduce(f64::max)
        };
        self.gateways().filter_map(of_gateway).reduce(f64::max)
    }

    /// Returns the names of regions of which no gateway was asked.
    pub fn regions_not_asked(&self) -> Vec<&'a str> {
        let mut regions: Vec<&str> = self.places.iter().map(|place| &*place.region).collect();
        regions.dedup();
        regions.retain(|region| self.gateways().all(|gateway| gateway.region != *region));
        regions
    }

    /// Returns the place of the gateway that serves a rank, or `None` for a rank that the fabric
    /// lacks.
    pub fn place_of_rank(&self, rank: u32) -> Option<&'a DumpedPlace> {
        let serves = |place: &&DumpedPlace| {
            (place.first_rank..place.first_rank.saturating_add(place.ranks)).contains(&rank)
        };
        self.places.iter().find(serves)
    }

    /// Returns whether a limit on processors holds back the gateway that serves a rank.
    pub fn is_gateway_of_rank_held_back(&self, rank: u32) -> bool {
        let gateway = self.place_of_rank(rank).and_then(|place| self.gateway(&place.gateway));
        let status = gateway.and_then(|gateway| gateway.status.as_ref());
        status.is_some_and(|status| status.processor_problem.is_some())
    }

    /// Returns whether a trainer is attached for a rank of a job; `None` where no dump tells.
    pub fn is_rank_attached(&self, job: &str, rank: u32) -> Option<bool> {
        let mut jobs = self.jobs().into_iter().filter(|one| one.job == job);
        jobs.find_map(|one| {
            one.ranks.iter().find(|report| report.rank == rank).map(|report| report.attached)
        })
    }

    /// Returns what other gateways say of a gateway as their peer.
    pub fn peer_reports(&self, name: &str) -> Vec<(&'a str, &'a PeerReport)> {
        let peer = |status: &'a GatewayReport| {
            let peer = status.peers.iter().find(|peer| peer.gateway == name)?;
            Some((&*status.gateway, peer))
        };
        self.statuses().filter_map(peer).collect()
    }
}

impl DumpedGateway {
    /// Returns what the flight recorder of a job has of a collective; `None` if it has nothing.
    pub(super) fn flight(&self, job: &str, sequence: u64) -> Option<&FlightReport> {
        let of_job = self.flights.iter().find(|flights| flights.job == job)?;
        of_job.collectives.iter().find(|flight| flight.sequence == sequence)
    }
}

/// Returns the names of the regions that no dump covers.
pub(crate) fn regions_without_dump(dumps: &[Dump]) -> Vec<&str> {
    DumpView::of_dumps(dumps).regions_not_asked()
}
