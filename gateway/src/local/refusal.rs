//! The reasons why a gateway refuses a trainer; docs/protocol.md section 5.
//!
//! The code of a reason says by itself whether another attempt can succeed. So every client, in
//! whatever language, decides by one rule. The local server and the trainers' tasks refuse; clients
//! read the reason, on any thread.

use hier_collectives::codec::{DecodeError, FieldReader, write_text};
use std::fmt;

/// 128: a trainer that was refused for a reason with this code or a higher one may try again, since
/// the reason passes with time. A reason with a lower code lasts until somebody changes a file or a
/// program.
pub const TEMPORARY_CODE_MIN: u8 = 128;

/// The kind of a refusal, with its code on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum RefusalReason {
    /// A message that is malformed or out of place, or a breach of the rules on slots and limits.
    BadRequest = 1,
    /// Client and gateway speak different versions of the local protocol.
    Version = 2,
    /// The gateway has no such job, or the token is wrong.
    Unauthorized = 3,
    /// Another gateway serves the rank.
    OtherGateway = 4,
    /// The arena cannot be used: not sealed, of another size, or with missing pages.
    BadArena = 5,
    /// The arena exceeds the memory that the region file gives to the job.
    ArenaTooLarge = 6,
    /// The gateway is shutting down.
    ShuttingDown = 128,
    /// Another trainer is attached as the rank.
    RankTaken = 129,
    /// Other arenas take up the memory of the job.
    MemoryInUse = 130,
    /// The attachment ended: the trainer detached, or did not read its events.
    Detached = 131,
    /// The gateway's host lacks something, such as memory for a mapping.
    NoResources = 132,
}

impl RefusalReason {
    /// All reasons for which a gateway refuses a trainer, by which codes on the wire are decoded.
    pub const ALL: [Self; 11] = [
        Self::BadRequest,
        Self::Version,
        Self::Unauthorized,
        Self::OtherGateway,
        Self::BadArena,
        Self::ArenaTooLarge,
        Self::ShuttingDown,
        Self::RankTaken,
        Self::MemoryInUse,
        Self::Detached,
        Self::NoResources,
    ];

    /// Returns whether the reason passes with time, so that another attempt may succeed.
    pub fn is_temporary(self) -> bool {
        self as u8 >= TEMPORARY_CODE_MIN
    }

    /// Returns the reason with this code on the wire, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|known| *known as u8 == code)
    }
}

/// The gateway's answer to a trainer that it does not serve, or not any longer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The kind of refusal.
    pub reason: RefusalReason,
    /// The text for the trainer's user.
    pub why: String,
}

impl Refusal {
    /// Makes a refusal with the text `why`.
    pub fn new(reason: RefusalReason, why: impl Into<String>) -> Self {
        Self { reason, why: why.into() }
    }

    /// Makes the refusal of a trainer that broke a rule of the protocol.
    pub fn bad_request(why: impl Into<String>) -> Self {
        Self::new(RefusalReason::BadRequest, why)
    }

    /// Appends the refusal to a message: the code, then the text.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        out.push(self.reason as u8);
        write_text(out, &self.why);
    }

    /// Reads a refusal: one byte of reason, then the text.
    ///
    /// # Errors
    /// [`DecodeError`] when the reason is unknown or bytes are missing: the fault of the gateway
    /// that sent them.
    pub fn read_from(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let reason = RefusalReason::from_code(reader.read_u8()?);
        let reason = reason.ok_or(DecodeError::Unknown("refusal reason"))?;
        Ok(Self { reason, why: reader.read_text()? })
    }
}

impl fmt::Display for Refusal {
    /// Prints the text for the trainer's user.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_configurations_and_programs_cause_lasting_refusals() {
        let lasting = |reason: &RefusalReason| !reason.is_temporary();
        let lasting: Vec<RefusalReason> = RefusalReason::ALL.into_iter().filter(lasting).collect();
        let expected = [
            RefusalReason::BadRequest,
            RefusalReason::Version,
            RefusalReason::Unauthorized,
            RefusalReason::OtherGateway,
            RefusalReason::BadArena,
            RefusalReason::ArenaTooLarge,
        ];
        assert_eq!(lasting, expected);
        for reason in RefusalReason::ALL {
            assert_eq!(RefusalReason::from_code(reason as u8), Some(reason));
        }
        assert_eq!(RefusalReason::from_code(0), None);
    }
}
