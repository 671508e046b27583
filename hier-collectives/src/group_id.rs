//! The id of a job on the wire, from the job's name.

use crate::codec::fnv1a_hash;
use crate::ids::GroupId;

impl GroupId {
    /// 8 bytes: the encoded length of the id of a job or group, which precedes every control
    /// message and segment header.
    pub const BYTES: usize = 8;

    /// Returns the id of the job called `job`: the FNV-1a hash of its name.
    pub fn of_job(job: &str) -> Self {
        Self(fnv1a_hash(job.as_bytes()))
    }
}
