//! The jobs of other gateways, as they describe them, and how these differ from the jobs here.
//!
//! The engine notes what gateways say (`engine_jobs`), and the status asks for the differences.

use crate::observe::status::JobDifferenceKind;
use hier_collectives::ids::{BootId, GatewayId, GroupId};
use hier_collectives::wire::JobFacts;
use std::collections::BTreeMap;

/// 256 jobs: the most that this gateway remembers of another one, so that no gateway can fill the
/// memory. Further jobs are ignored: the status does not compare them with the jobs here.
const PEER_JOBS_MAX: usize = 256;

/// The jobs of other gateways.
#[derive(Debug, Default)]
pub(super) struct PeerJobs {
    gateways: BTreeMap<GatewayId, GatewayJobs>,
}

/// The jobs of one start of a gateway. Another start may serve others.
#[derive(Debug)]
struct GatewayJobs {
    boot: BootId,
    jobs: BTreeMap<GroupId, PeerJob>,
}

/// A job at another gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PeerJob {
    /// The gateway serves it, with these facts.
    Served(JobFacts),
    /// The gateway does not serve it.
    Unserved,
}

/// A job in which another gateway differs from this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DifferingJob {
    pub gateway: GatewayId,
    pub job: String,
    pub kind: JobDifferenceKind,
}

impl PeerJobs {
    /// Records the state of a job at another gateway. An entry of an earlier start of it is void.
    /// Beyond [`PEER_JOBS_MAX`] jobs of a gateway, further ones are ignored.
    pub fn note_job(&mut self, from: GatewayId, boot: BootId, group: GroupId, job: PeerJob) {
        let new = || GatewayJobs { boot, jobs: BTreeMap::new() };
        let known = self.gateways.entry(from).or_insert_with(new);
        if known.boot != boot {
            *known = new();
        }
        if known.jobs.len() < PEER_JOBS_MAX || known.jobs.contains_key(&group) {
            known.jobs.insert(group, job);
        }
    }

    /// Returns every difference between the jobs of this gateway, `own`, and those of others, in
    /// the order of gateways and names.
    pub fn differences(&self, own: &BTreeMap<GroupId, &JobFacts>) -> Vec<DifferingJob> {
        let mut found = Vec::new();
        for (gateway, GatewayJobs { jobs, .. }) in &self.gateways {
            for (group, theirs) in jobs {
                let differing = compare_peer_job(own.get(group).copied(), theirs).into_iter();
                found.extend(differing.map(|(job, kind)| DifferingJob {
                    gateway: *gateway,
                    job: job.to_owned(),
                    kind,
                }));
            }
        }
        found.sort_by(|a, b| (a.gateway, &a.job).cmp(&(b.gateway, &b.job)));
        found
    }
}

/// Compares a job here with the same job at another gateway. Returns the differences, each with the
/// job's name.
fn compare_peer_job<'a>(
    ours: Option<&'a JobFacts>,
    theirs: &'a PeerJob,
) -> Vec<(&'a str, JobDifferenceKind)> {
    match (ours, theirs) {
        (None, PeerJob::Unserved) => vec![],
        (None, PeerJob::Served(theirs)) => {
            vec![(theirs.name.as_str(), JobDifferenceKind::MissingHere)]
        }
        (Some(ours), PeerJob::Unserved) => {
            vec![(ours.name.as_str(), JobDifferenceKind::MissingThere)]
        }
        (Some(ours), PeerJob::Served(theirs)) => {
            let mut found = Vec::new();
            if ours.token_digest != theirs.token_digest {
                found.push((ours.name.as_str(), JobDifferenceKind::OtherToken));
            }
            if ours.weight != theirs.weight {
                let (here, there) = (ours.weight, theirs.weight);
                found.push((ours.name.as_str(), JobDifferenceKind::OtherWeight { here, there }));
            }
            found
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEST: GatewayId = GatewayId(1);

    fn facts(name: &str, weight: u32, token: u8) -> JobFacts {
        JobFacts { name: name.to_owned(), weight, token_digest: [token; 16] }
    }

    /// Returns the differences between own jobs and what west has said, by job.
    fn differences(own: &[JobFacts], said: &PeerJobs) -> Vec<(String, JobDifferenceKind)> {
        let own = own.iter().map(|job| (job.group(), job)).collect();
        let found = said.differences(&own).into_iter();
        found.map(|differing| (differing.job, differing.kind)).collect()
    }

    /// Returns what west says in its first start.
    fn said(jobs: &[(&str, Option<JobFacts>)]) -> PeerJobs {
        let mut said = PeerJobs::default();
        for (name, facts) in jobs {
            let job = facts.clone().map_or(PeerJob::Unserved, PeerJob::Served);
            said.note_job(WEST, BootId(1), GroupId::of_job(name), job);
        }
        said
    }

    #[test]
    fn a_job_of_one_file_is_named_at_both_ends() {
        let zoo = facts("zoo", 1, 7);
        let there = said(&[("zoo", None)]);
        let missing_there = ("zoo".to_owned(), JobDifferenceKind::MissingThere);
        assert_eq!(differences(std::slice::from_ref(&zoo), &there), [missing_there]);
        assert_eq!(differences(&[], &there), [], "neither has it");
        let here = said(&[("zoo", Some(zoo.clone()))]);
        let missing_here = ("zoo".to_owned(), JobDifferenceKind::MissingHere);
        assert_eq!(differences(&[], &here), [missing_here]);
        assert_eq!(differences(&[zoo], &here), []);
    }

    #[test]
    fn other_tokens_and_weights_are_told_apart() {
        let ours = facts("train", 1, 7);
        let token = said(&[("train", Some(facts("train", 1, 8)))]);
        let found = differences(std::slice::from_ref(&ours), &token);
        assert_eq!(found, [("train".to_owned(), JobDifferenceKind::OtherToken)]);
        let weight = said(&[("train", Some(facts("train", 3, 7)))]);
        let kind = JobDifferenceKind::OtherWeight { here: 1, there: 3 };
        assert_eq!(differences(&[ours], &weight), [("train".to_owned(), kind)]);
    }

    #[test]
    fn another_start_of_a_gateway_is_another_gateway() {
        let mut said = said(&[("zoo", Some(facts("zoo", 1, 7)))]);
        assert_eq!(differences(&[], &said).len(), 1);
        let train = facts("train", 1, 7);
        said.note_job(WEST, BootId(2), train.group(), PeerJob::Served(train.clone()));
        assert_eq!(differences(&[train], &said), [], "zoo is gone with the first start");
    }

    #[test]
    fn no_gateway_fills_the_memory() {
        let mut said = PeerJobs::default();
        for number in 0..2 * PEER_JOBS_MAX as u64 {
            said.note_job(WEST, BootId(1), GroupId(number), PeerJob::Unserved);
        }
        assert_eq!(said.gateways[&WEST].jobs.len(), PEER_JOBS_MAX);
        said.note_job(WEST, BootId(1), GroupId(0), PeerJob::Served(facts("zoo", 1, 7)));
        assert_eq!(differences(&[], &said).len(), 1, "what is known may change");
    }
}
