//! Messages by which gateways agree on terms, and their encoding.

use super::fabric_version::{FabricVersion, SignedFabric};
use super::region_intents::{RegionIntent, read_region_intents, write_region_intents};
use super::term::{Term, TermId, read_term_regions, write_term_regions};
use crate::codec::{DecodeError, FieldReader, write_u32, write_u64};
use crate::ids::{BootId, RegionId};
use crate::post::Failure;
use std::collections::BTreeSet;
use units::Span;

/// A message between gateways about terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TermMessage {
    /// The sender may propose a term, and asks for the receiver's standing.
    Ask,
    /// The standing of the sender.
    Standing(TermStanding),
    /// The sender proposes a term.
    Propose {
        /// The term.
        term: Term,
        /// The start of the receiver that the sender knows of. Another start does not vote.
        to: BootId,
    },
    /// The sender votes for a term: it has left every earlier one, and enters none but this or a
    /// later one.
    Vote {
        /// The term.
        term: TermId,
        /// The sender's start.
        boot: BootId,
        /// Whether an epoch of a term has begun at the sender since it started.
        remembers: bool,
    },
    /// The sender does not vote for a term.
    Refuse {
        /// The term.
        term: TermId,
        /// The greatest number of a term that the sender knows of.
        latest: u64,
    },
    /// All gateways of a term's regions have voted for it, so that it begins.
    Begin(Term),
    /// The sender proposes a term to the witness, whose vote it needs.
    ProposeToWitness {
        /// The term.
        term: Term,
        /// The start of the receiver that the sender knows of. Another start does not vote.
        to: BootId,
        /// The regions of the term that remember an earlier one; ascending, at least one.
        remembering: BTreeSet<RegionId>,
    },
    /// An epoch of a term has begun at the sender, which is in it. The witness notes this.
    Begun {
        /// The term.
        term: Term,
        /// The start of the receiver that the sender knows of. Another start ignores this.
        to: BootId,
    },
    /// The last intents of operators for regions that the sender knows of.
    Intents(Vec<RegionIntent>),
    /// The sender is about to replace a term: the jobs of its gateways come to a boundary.
    Pause {
        /// The term.
        term: TermId,
        /// The failure of posts behind the boundary.
        failure: Failure,
    },
    /// All jobs of the sender have come to a boundary in a term.
    Paused(TermId),
    /// The newest signed fabric that the sender holds.
    Fabric {
        /// The fabric.
        fabric: SignedFabric,
        /// The time for which a boundary is awaited before it is put in force, in whole seconds.
        within: Span,
    },
}

/// The words of a gateway about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TermStanding {
    /// Its start.
    pub boot: BootId,
    /// The greatest number of a term that it knows of.
    pub latest: u64,
    /// The term that it has voted for last and has not left; of a witness that answers to
    /// [`TermMessage::Begun`], the term of that.
    pub voted: TermId,
    /// Whether it is in that term.
    pub is_in_term: bool,
    /// Whether an epoch of a term has begun there since it started.
    pub remembers: bool,
    /// The fabric in force there: that of the last term that it entered, or of its own file.
    pub in_force: FabricVersion,
    /// The newest fabric that it holds, which may be that in force.
    pub newest: FabricVersion,
    /// The last signed fabric that it cannot put in force; the default if there is none.
    pub refused: FabricVersion,
}

impl TermStanding {
    /// Whether the sender could enter a term with a fabric.
    pub(super) fn has_fabric(&self, version: FabricVersion) -> bool {
        self.in_force == version || self.newest == version
    }

    /// Whether the fabric in force there is that of a term: its epoch has begun there, or it is in it.
    pub(super) fn has_fabric_of_term(&self) -> bool {
        self.remembers || self.is_in_term
    }
}

impl TermMessage {
    /// Appends the message to `out`: its code, then its fields.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        match self {
            Self::Ask => out.push(1),
            Self::Standing(standing) => {
                out.push(2);
                write_u64(out, standing.boot.0);
                write_u64(out, standing.latest);
                standing.voted.write_to(out);
                out.extend([u8::from(standing.is_in_term), u8::from(standing.remembers)]);
                let TermStanding { in_force, newest, refused, .. } = standing;
                [in_force, newest, refused].into_iter().for_each(|version| version.write_to(out));
            }
            Self::Propose { term, to } => {
                out.push(3);
                term.write_to(out);
                write_u64(out, to.0);
            }
            Self::Vote { term, boot, remembers } => {
                out.push(4);
                term.write_to(out);
                write_u64(out, boot.0);
                out.push(u8::from(*remembers));
            }
            Self::Refuse { term, latest } => {
                out.push(5);
                term.write_to(out);
                write_u64(out, *latest);
            }
            Self::Begin(term) => {
                out.push(6);
                term.write_to(out);
            }
            Self::ProposeToWitness { term, to, remembering } => {
                out.push(7);
                term.write_to(out);
                write_u64(out, to.0);
                write_term_regions(out, remembering);
            }
            Self::Begun { term, to } => {
                out.push(8);
                term.write_to(out);
                write_u64(out, to.0);
            }
            Self::Intents(intents) => {
                out.push(9);
                write_region_intents(out, intents);
            }
            Self::Pause { term, failure } => {
                out.push(10);
                term.write_to(out);
                failure.write_to(out);
            }
            Self::Paused(term) => {
                out.push(11);
                term.write_to(out);
            }
            Self::Fabric { fabric, within } => {
                out.push(12);
                fabric.write_to(out);
                let seconds = within.ns().div_ceil(Span::from_secs(1).ns());
                write_u32(out, u32::try_from(seconds).unwrap_or(u32::MAX));
            }
        }
    }

    /// Reads a message about terms.
    ///
    /// # Errors
    /// [`DecodeError`] when the bytes are a malformed message.
    pub fn read_from(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        // The bound of numbers holds for all of them.
        let latest = |reader: &mut FieldReader<'_>| {
            let number = reader.read_u64()?;
            let is_counted = number < TermId::NUMBERS_BOUND;
            is_counted.then_some(number).ok_or(DecodeError::Invalid("number of a term"))
        };
        Ok(match reader.read_u8()? {
            1 => Self::Ask,
            2 => Self::Standing(TermStanding {
                boot: BootId(reader.read_u64()?),
                latest: latest(reader)?,
                voted: TermId::read_from(reader)?,
                is_in_term: reader.read_flag()?,
                remembers: reader.read_flag()?,
                in_force: FabricVersion::read_from(reader)?,
                newest: FabricVersion::read_from(reader)?,
                refused: FabricVersion::read_from(reader)?,
            }),
            3 => Self::Propose { term: Term::read_from(reader)?, to: BootId(reader.read_u64()?) },
            4 => Self::Vote {
                term: TermId::read_from(reader)?,
                boot: BootId(reader.read_u64()?),
                remembers: reader.read_flag()?,
            },
            5 => Self::Refuse { term: TermId::read_from(reader)?, latest: latest(reader)? },
            6 => Self::Begin(Term::read_from(reader)?),
            7 => Self::ProposeToWitness {
                term: Term::read_from(reader)?,
                to: BootId(reader.read_u64()?),
                remembering: read_term_regions(reader)?,
            },
            8 => Self::Begun { term: Term::read_from(reader)?, to: BootId(reader.read_u64()?) },
            9 => Self::Intents(read_region_intents(reader)?),
            10 => Self::Pause {
                term: TermId::read_from(reader)?,
                failure: Failure::read_from(reader)?,
            },
            11 => Self::Paused(TermId::read_from(reader)?),
            12 => Self::Fabric {
                fabric: SignedFabric::read_from(reader)?,
                within: Span::from_secs(u64::from(reader.read_u32()?)),
            },
            _ => return Err(DecodeError::Unknown("message about terms")),
        })
    }
}
