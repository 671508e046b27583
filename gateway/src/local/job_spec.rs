//! The jobs whose trainers a gateway serves.

use super::protocol::Token;
use crate::warnings::Warnings;
use hier_collectives::ids::GroupId;
use hier_collectives::wire::JobFacts;
use ring::hmac;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::watch;
use units::ByteCount;

/// A job whose trainers this gateway serves.
#[derive(Debug, Clone)]
pub struct JobSpec {
    /// The job's name.
    pub name: String,
    /// The token that its trainers must present.
    pub token: Token,
    /// Limit on the sum of its trainers' arenas.
    pub memory: ByteCount,
    /// Its share of a link, relative to the weights of the other jobs.
    pub weight: NonZeroU32,
}

impl JobSpec {
    /// Returns the id of the group that stands for this job on the wire.
    pub fn group(&self) -> GroupId {
        GroupId::of_job(&self.name)
    }

    /// Returns the facts about this job that other gateways may know. The digest of the token among
    /// them is keyed with the token, so that it proves equal tokens and tells nothing else of them.
    pub fn facts(&self) -> JobFacts {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.token.0);
        let digest = hmac::sign(&key, format!("token of job {}", self.name).as_bytes());
        let mut token_digest = [0; JobFacts::TOKEN_DIGEST_BYTES];
        token_digest.copy_from_slice(&digest.as_ref()[..JobFacts::TOKEN_DIGEST_BYTES]);
        JobFacts { name: self.name.clone(), weight: self.weight.get(), token_digest }
    }
}

/// Settings of the local plane.
#[derive(Debug, Clone)]
pub struct LocalSpec {
    /// Ranks that this gateway serves.
    pub ranks: Range<u32>,
    /// Number of ranks in the fabric.
    pub world_size: u32,
    /// The fabric's name.
    pub fabric: String,
    /// The jobs now, which the daemon replaces when it reads the region file again.
    pub jobs: watch::Receiver<Arc<Vec<JobSpec>>>,
    /// Decides which log lines are warnings.
    pub warnings: Warnings,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_of_a_token_depends_on_token_and_job() {
        let digest = |name: &str, token: u8| {
            let job = JobSpec {
                name: name.to_owned(),
                token: [token; 32].into(),
                memory: ByteCount::new(1),
                weight: NonZeroU32::MIN,
            };
            job.facts().token_digest
        };
        assert_eq!(digest("train", 7), digest("train", 7));
        assert_ne!(digest("train", 7), digest("train", 8));
        assert_ne!(digest("train", 7), digest("zoo", 7), "no job learns of another's token");
        assert!(digest("train", 7).iter().any(|byte| *byte != 7));
    }
}
