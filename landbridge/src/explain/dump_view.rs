//! One view of the dumps of several regions, for those who search it.

use super::dump::{Dump, DumpedGateway, DumpedPlace};
use gateway::observe::status::{GatewayReport, PeerReport};
use std::collections::BTreeMap;

/// The dumps of one fabric: of each gateway the latest answer.
#[derive(Debug)]
pub(super) struct DumpView<'a> {
    places: &'a [DumpedPlace],
    gateways: BTreeMap<&'a str, &'a DumpedGateway>,
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
            (place.first_rank..place.first_rank + place.ranks).contains(&rank)
        };
        self.places.iter().find(serves)
    }

    /// Returns whether a trainer is attached for a rank of a job; `None` where no dump tells.
    pub fn is_rank_attached(&self, job: &str, rank: u32) -> Option<bool> {
        let mut jobs = self.statuses().flat_map(|status| &status.jobs).filter(|one| one.job == job);
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

/// Returns the names of the regions that no dump covers.
pub(crate) fn regions_without_dump(dumps: &[Dump]) -> Vec<&str> {
    DumpView::of_dumps(dumps).regions_not_asked()
}
