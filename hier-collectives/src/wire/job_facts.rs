//! A job as gateways describe it to each other, and its encoding.

use crate::codec::{DecodeError, FieldReader, write_text, write_u32};
use crate::ids::GroupId;

/// The facts about a job that all its gateways should share. Nothing in them is secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFacts {
    /// The job's name, as in the region files.
    pub name: String,
    /// The job's share of a link in relation to other jobs.
    pub weight: u32,
    /// A digest of the job's token: equal tokens have equal digests, and none tells its token.
    pub token_digest: [u8; JobFacts::TOKEN_DIGEST_BYTES],
}

impl JobFacts {
    /// 63 bytes: the longest name of a job; a peer's message with a longer one is refused as
    /// malformed. All names in config files have this limit.
    pub const NAME_BYTES_MAX: usize = 63;
    /// 16 bytes: the length of the digest by which gateways compare their tokens of a job, too long
    /// for two tokens to share a digest.
    pub const TOKEN_DIGEST_BYTES: usize = 16;

    /// Returns the group that stands for the job on the wire.
    pub fn group(&self) -> GroupId {
        GroupId::of_job(&self.name)
    }

    /// Appends the facts to the message `out`: weight, digest of the token, name.
    pub(super) fn write_to(&self, out: &mut Vec<u8>) {
        write_u32(out, self.weight);
        out.extend(self.token_digest);
        write_text(out, &self.name);
    }

    /// Reads the facts: weight, digest of the token, name. A name fits a line of the log.
    pub(super) fn read_from(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let (weight, token_digest) = (reader.read_u32()?, reader.read_array()?);
        let name = reader.read_text()?;
        let fits = (1..=Self::NAME_BYTES_MAX).contains(&name.len());
        if fits && !name.chars().any(char::is_control) {
            Ok(Self { name, weight, token_digest })
        } else {
            Err(DecodeError::Invalid("name of a job"))
        }
    }
}
