//! The wire format between a trainer and its gateway; docs/protocol.md section 5.
//!
//! Every message follows its length as a 32-bit big-endian number. The first byte that a trainer
//! sends carries the file descriptor of its arena. Both ends use this module, on any thread.

mod token;

pub use token::{TOKEN_BYTES, Token};

use super::refusal::Refusal;
use crate::events::GroupNumber;
use hier_collectives::codec::{
    DecodeError, FieldReader, write_text, write_u16, write_u32, write_u64,
};
use hier_collectives::descriptor::{Counts, Descriptor};
use hier_collectives::ids::{Epoch, RankId, Sequence, Step};
use hier_collectives::post::{Commit, Failure, Post, RankEvent, Timing};
use hier_collectives::store::{StoreRequest, read_request_answer, write_request_answer};
use hier_collectives::wire::{read_group_facts_ranks, write_group_facts_ranks};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use units::{Span, TimeNs};

/// 6: version of the wire format between trainer and gateway, which both ends send when a trainer
/// attaches. A gateway refuses a trainer of another version.
pub const LOCAL_VERSION: u16 = 6;
/// 64 KiB: the longest message between trainer and gateway, without its length field; a receiver
/// ends the connection at a longer one. Messages with the longest names, failure texts and counts
/// of 4,000 ranks by pair fit.
/// Tested by `requests_survive_the_wire` and `responses_survive_the_wire`.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// 256 collectives: the most that one rank may have under way, far more than fill a link. A client
/// waits before it posts more; the gateway disconnects a trainer that does post more.
pub const POSTS_MAX: usize = 256;
/// 128 requests to its job's store: the most for which one rank may await an answer. The gateway
/// disconnects a trainer that sends more. The number is chosen; it bounds what a rank can make the
/// gateway remember.
pub const STORE_REQUESTS_MAX: usize = 128;
/// 256 KiB: the longest piece into which a contribution or result is cut on a connection without
/// shared memory. A longer piece ends the connection. Other messages pass between two pieces, and
/// each end holds one piece in addition to its arena.
pub const PIECE_BYTES_MAX: u32 = 1 << 18;

/// A message from a trainer.
#[derive(Debug, Clone, PartialEq)]
pub enum ProtocolRequest {
    /// The first message: attach as a rank.
    Attach(Attach),
    /// Start a collective.
    Post {
        /// The collective.
        post: Post,
        /// Offset of the contribution in the arena, in bytes.
        contribution_offset: u64,
        /// Offset of the result in the arena, in bytes.
        result_offset: u64,
        /// Bytes of the contribution that follow in pieces: all that the gateway reads, or none
        /// where it shares the arena.
        streamed_bytes: u64,
    },
    /// No more posts will follow; posted collectives go on.
    Detach,
    /// Report when a step is complete in every region.
    Commit(Commit),
    /// The next bytes of the contribution that was posted last. They follow behind the frame.
    ContributionPiece {
        /// Offset of the first byte in the contribution.
        offset: u64,
        /// Number of bytes, from 1 to [`PIECE_BYTES_MAX`].
        bytes: u32,
    },
    /// Read or change the job's store.
    Store {
        /// The trainer's number for the request, which the answer repeats.
        number: u64,
        /// The longest time until the answer.
        timeout: Span,
        /// The request.
        request: StoreRequest,
    },
    /// Make a group of ranks of the job.
    MakeGroup(MakeGroup),
    /// Leave a group, in which nothing of this rank is under way.
    LeaveGroup(GroupNumber),
    /// A post or commit in a group.
    InGroup(GroupNumber, Box<ProtocolRequest>),
}

/// A group that a rank makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MakeGroup {
    /// The number that the trainer gives it, above those of all groups that it has made so far.
    pub number: GroupNumber,
    /// The group of which it is a part.
    pub parent: GroupNumber,
    /// Its place in the parent, or the caller's tag. All its ranks give the same.
    pub place: u64,
    /// Its ranks by their numbers in the job, ascending.
    pub ranks: Vec<RankId>,
}

/// The first request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attach {
    /// [`LOCAL_VERSION`] of the trainer.
    pub version: u16,
    /// The job.
    pub job: String,
    /// The job's secret.
    pub token: Token,
    /// The rank.
    pub rank: RankId,
    /// Length of the trainer's arena.
    pub arena_bytes: u64,
}

/// A message to a trainer.
#[derive(Debug, Clone, PartialEq)]
pub enum ProtocolResponse {
    /// The trainer is attached.
    Attached {
        /// [`LOCAL_VERSION`] of the gateway.
        version: u16,
        /// Number of ranks in the fabric.
        world_size: u32,
        /// The fabric's name.
        fabric: String,
    },
    /// The connection ends, for this reason.
    Refused(Refusal),
    /// An event of the rank's collectives.
    Event(RankEvent),
    /// Bytes of a result, where the trainer has no arena in common. They follow behind the frame.
    ResultPiece {
        /// The collective, which is under way.
        sequence: Sequence,
        /// Offset of the first byte in the result slot.
        offset: u64,
        /// Number of bytes, from 1 to [`PIECE_BYTES_MAX`].
        bytes: u32,
    },
    /// An event or a piece of a group.
    InGroup(GroupNumber, Box<ProtocolResponse>),
}

impl ProtocolRequest {
    /// Returns the request as one about the trainer's group `number`; unchanged for the job itself.
    pub fn in_group(self, number: GroupNumber) -> Self {
        if number == GroupNumber::JOB { self } else { Self::InGroup(number, Box::new(self)) }
    }

    /// Encodes a trainer's request, without its length.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(96);
        match self {
            Self::Attach(attach) => {
                out.push(1);
                write_u16(&mut out, attach.version);
                write_u32(&mut out, attach.rank.0);
                write_u64(&mut out, attach.arena_bytes);
                out.extend(attach.token.0);
                write_text(&mut out, &attach.job);
            }
            Self::Post { post, contribution_offset, result_offset, streamed_bytes } => {
                out.push(2);
                write_u64(&mut out, post.epoch.0);
                write_u64(&mut out, post.sequence.0);
                post.descriptor.write_without_counts(&mut out);
                write_u64(&mut out, post.weight.to_bits());
                write_u64(&mut out, post.timeout.ns());
                write_u64(&mut out, *contribution_offset);
                write_u64(&mut out, *result_offset);
                write_u64(&mut out, *streamed_bytes);
                post.counts.write_to(&mut out);
            }
            Self::Detach => out.push(3),
            Self::Commit(Commit { epoch, step, timeout }) => {
                out.push(4);
                write_u64(&mut out, epoch.0);
                write_u64(&mut out, step.0);
                write_u64(&mut out, timeout.ns());
            }
            Self::ContributionPiece { offset, bytes } => {
                out.push(5);
                write_u64(&mut out, *offset);
                write_u32(&mut out, *bytes);
            }
            Self::MakeGroup(MakeGroup { number, parent, place, ranks }) => {
                out.push(6);
                [number.0, parent.0, *place].into_iter().for_each(|n| write_u64(&mut out, n));
                write_group_facts_ranks(ranks, &mut out);
            }
            Self::LeaveGroup(number) => {
                out.push(7);
                write_u64(&mut out, number.0);
            }
            Self::InGroup(number, request) => {
                out.push(8);
                write_u64(&mut out, number.0);
                out.extend(request.encode());
            }
            Self::Store { number, timeout, request } => {
                out.push(14);
                write_u64(&mut out, *number);
                write_u64(&mut out, timeout.ns());
                request.write_encoding(&mut out);
            }
        }
        out
    }

    /// Decodes a request of a trainer; its length is not part of `bytes`.
    ///
    /// # Errors
    /// [`DecodeError`]: the trainer's fault.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader(bytes);
        let request = match reader.read_u8()? {
            6 => Self::MakeGroup(MakeGroup {
                number: GroupNumber(reader.read_u64()?),
                parent: GroupNumber(reader.read_u64()?),
                place: reader.read_u64()?,
                ranks: read_group_facts_ranks(&mut reader)?,
            }),
            7 => Self::LeaveGroup(GroupNumber(reader.read_u64()?)),
            8 => {
                let number = GroupNumber(reader.read_u64()?);
                let request = match reader.read_u8()? {
                    2 => Self::read_post(&mut reader)?,
                    4 => Self::read_commit(&mut reader)?,
                    _ => return Err(DecodeError::Unknown("request in a group")),
                };
                Self::InGroup(number, Box::new(request))
            }
            1 => Self::Attach(Attach {
                version: reader.read_u16()?,
                rank: RankId(reader.read_u32()?),
                arena_bytes: reader.read_u64()?,
                token: Token(reader.read_array()?),
                job: reader.read_text()?,
            }),
            2 => Self::read_post(&mut reader)?,
            3 => Self::Detach,
            4 => Self::read_commit(&mut reader)?,
            5 => Self::ContributionPiece {
                offset: reader.read_u64()?,
                bytes: read_protocol_piece_length(&mut reader)?,
            },
            14 => Self::Store {
                number: reader.read_u64()?,
                timeout: Span::from_ns(reader.read_u64()?),
                request: StoreRequest::read_encoding(&mut reader)?,
            },
            _ => return Err(DecodeError::Unknown("request")),
        };
        reader.check_end(request)
    }
}

impl ProtocolRequest {
    /// Reads the fields of a trainer's commit: epoch, step and timeout.
    fn read_commit(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        Ok(Self::Commit(Commit {
            epoch: Epoch(reader.read_u64()?),
            step: Step(reader.read_u64()?),
            timeout: Span::from_ns(reader.read_u64()?),
        }))
    }

    /// Reads the fields of a post. The part of its counts on which all ranks must agree is computed
    /// from them.
    fn read_post(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let (epoch, sequence) = (Epoch(reader.read_u64()?), Sequence(reader.read_u64()?));
        let descriptor = Descriptor::read_without_counts(reader)?;
        let weight = f64::from_bits(reader.read_u64()?);
        let timeout = Span::from_ns(reader.read_u64()?);
        let (contribution_offset, result_offset) = (reader.read_u64()?, reader.read_u64()?);
        let streamed_bytes = reader.read_u64()?;
        let counts = Counts::read_from(reader)?;
        let descriptor = Descriptor { counts: counts.agreed(), ..descriptor };
        let post = Post { epoch, sequence, descriptor, counts, weight, timeout };
        Ok(Self::Post { post, contribution_offset, result_offset, streamed_bytes })
    }
}

/// Appends an event of a rank to the message `out`: its number, then its fields.
fn write_protocol_event(event: &RankEvent, out: &mut Vec<u8>) {
    match event {
        RankEvent::EpochBegan { epoch, next, committed, ended } => {
            out.push(3);
            [epoch.0, next.0].into_iter().for_each(|n| write_u64(out, n));
            out.push(u8::from(committed.is_some()));
            write_u64(out, committed.map_or(0, |step| step.0));
            write_protocol_failure(ended.as_ref(), out);
        }
        RankEvent::ResultReady { sequence, timing } => {
            out.push(4);
            write_u64(out, sequence.0);
            for at in [timing.posted, timing.wan_begin, timing.wan_end, timing.ready] {
                write_u64(out, at.ns());
            }
        }
        RankEvent::ContributionFree { sequence } => {
            out.push(5);
            write_u64(out, sequence.0);
        }
        RankEvent::Failed { sequence, failure } => {
            out.push(6);
            write_u64(out, sequence.0);
            failure.write_to(out);
        }
        RankEvent::Committed { step } => {
            out.push(7);
            write_u64(out, step.0);
        }
        RankEvent::CommitFailed { step, failure } => {
            out.push(8);
            write_u64(out, step.0);
            failure.write_to(out);
        }
        RankEvent::EpochAwaited { why } => {
            out.push(9);
            write_text(out, why);
        }
        RankEvent::StoreAnswered { number, answer } => {
            out.push(19);
            write_u64(out, *number);
            write_request_answer(answer, out);
        }
        RankEvent::WorldChanged { ranks } => {
            out.push(13);
            write_group_facts_ranks(ranks, out);
        }
        RankEvent::Disbanded { failure } => {
            out.push(12);
            failure.write_to(out);
        }
    }
}

impl ProtocolResponse {
    /// Returns the response as one about the trainer's group `number`; unchanged for the job
    /// itself.
    pub fn of_group(self, number: GroupNumber) -> Self {
        if number == GroupNumber::JOB { self } else { Self::InGroup(number, Box::new(self)) }
    }

    /// Encodes a gateway's response, without its length.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        match self {
            Self::Attached { version, world_size, fabric } => {
                out.push(1);
                write_u16(&mut out, *version);
                write_u32(&mut out, *world_size);
                write_text(&mut out, fabric);
            }
            Self::Refused(refusal) => {
                out.push(2);
                refusal.write_to(&mut out);
            }
            Self::Event(event) => write_protocol_event(event, &mut out),
            Self::ResultPiece { sequence, offset, bytes } => {
                out.push(10);
                [sequence.0, *offset].into_iter().for_each(|n| write_u64(&mut out, n));
                write_u32(&mut out, *bytes);
            }
            Self::InGroup(number, response) => {
                out.push(11);
                write_u64(&mut out, number.0);
                out.extend(response.encode());
            }
        }
        out
    }

    /// Decodes a response of a gateway; its length is not part of `bytes`.
    ///
    /// # Errors
    /// [`DecodeError`]: the gateway's fault.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader(bytes);
        let response = match reader.read_u8()? {
            1 => Self::Attached {
                version: reader.read_u16()?,
                world_size: reader.read_u32()?,
                fabric: reader.read_text()?,
            },
            2 => Self::Refused(Refusal::read_from(&mut reader)?),
            11 => {
                let number = GroupNumber(reader.read_u64()?);
                let kind = reader.read_u8()?;
                Self::InGroup(number, Box::new(Self::read_group_response(&mut reader, kind)?))
            }
            19 => {
                let (number, answer) = (reader.read_u64()?, read_request_answer(&mut reader)?);
                Self::Event(RankEvent::StoreAnswered { number, answer })
            }
            kind => Self::read_group_response(&mut reader, kind)?,
        };
        reader.check_end(response)
    }

    /// Reads a response of type `kind` that can be about any group: an event or a piece.
    fn read_group_response(reader: &mut FieldReader<'_>, kind: u8) -> Result<Self, DecodeError> {
        Ok(match kind {
            3 => {
                let (epoch, next) = (Epoch(reader.read_u64()?), Sequence(reader.read_u64()?));
                let committed = match (reader.read_u8()?, reader.read_u64()?) {
                    (0, 0) => None,
                    (1, step) => Some(Step(step)),
                    _ => return Err(DecodeError::Unknown("committed")),
                };
                let ended = read_protocol_failure(reader)?;
                Self::Event(RankEvent::EpochBegan { epoch, next, committed, ended })
            }
            4 => {
                let sequence = Sequence(reader.read_u64()?);
                let timing = Timing {
                    posted: TimeNs::from_ns(reader.read_u64()?),
                    wan_begin: TimeNs::from_ns(reader.read_u64()?),
                    wan_end: TimeNs::from_ns(reader.read_u64()?),
                    ready: TimeNs::from_ns(reader.read_u64()?),
                };
                Self::Event(RankEvent::ResultReady { sequence, timing })
            }
            13 => Self::Event(RankEvent::WorldChanged { ranks: read_group_facts_ranks(reader)? }),
            5 => {
                let sequence = Sequence(reader.read_u64()?);
                Self::Event(RankEvent::ContributionFree { sequence })
            }
            6 => {
                let (sequence, failure) =
                    (Sequence(reader.read_u64()?), Failure::read_from(reader)?);
                Self::Event(RankEvent::Failed { sequence, failure })
            }
            7 => Self::Event(RankEvent::Committed { step: Step(reader.read_u64()?) }),
            8 => {
                let (step, failure) = (Step(reader.read_u64()?), Failure::read_from(reader)?);
                Self::Event(RankEvent::CommitFailed { step, failure })
            }
            9 => {
                let why = reader.read_text()?;
                if why.len() > Failure::TEXT_BYTES_MAX {
                    return Err(DecodeError::Invalid("text"));
                }
                Self::Event(RankEvent::EpochAwaited { why })
            }
            10 => Self::ResultPiece {
                sequence: Sequence(reader.read_u64()?),
                offset: reader.read_u64()?,
                bytes: read_protocol_piece_length(reader)?,
            },
            12 => Self::Event(RankEvent::Disbanded { failure: Failure::read_from(reader)? }),
            _ => return Err(DecodeError::Unknown("response")),
        })
    }
}

/// Reads the number of bytes of a piece, which is neither empty nor too long.
fn read_protocol_piece_length(reader: &mut FieldReader<'_>) -> Result<u32, DecodeError> {
    match reader.read_u32()? {
        bytes @ 1..=PIECE_BYTES_MAX => Ok(bytes),
        _ => Err(DecodeError::Invalid("length of a piece")),
    }
}

/// Appends an optional failure to a message: its code and its text, or 0 and no text.
fn write_protocol_failure(failure: Option<&Failure>, out: &mut Vec<u8>) {
    match failure {
        Some(failure) => failure.write_to(out),
        None => {
            out.push(0);
            write_text(out, "");
        }
    }
}

/// Reads an optional failure: its code and its text, or 0 and no text.
fn read_protocol_failure(reader: &mut FieldReader<'_>) -> Result<Option<Failure>, DecodeError> {
    if reader.0.first() != Some(&0) {
        return Failure::read_from(reader).map(Some);
    }
    reader.read_u8()?;
    if reader.read_text()?.is_empty() { Ok(None) } else { Err(DecodeError::Invalid("failure")) }
}

/// Writes one encoded message with its length in front.
///
/// # Errors
/// The connection is gone.
pub async fn write_protocol_message(
    stream: &mut (impl AsyncWrite + Unpin),
    message: &[u8],
) -> io::Result<()> {
    stream.write_all(&frame_protocol_message(message)).await?;
    stream.flush().await
}

/// Returns an encoded message with its length in front, as 32-bit big-endian number.
pub fn frame_protocol_message(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes(), message].concat()
}

/// Reads one message, and returns its bytes without the length.
///
/// # Errors
/// The connection is gone, or the message is longer than [`MESSAGE_BYTES_MAX`].
pub async fn read_protocol_message(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let length = stream.read_u32().await? as usize;
    if length > MESSAGE_BYTES_MAX {
        let text = format!("a message of {length} bytes, {MESSAGE_BYTES_MAX} allowed");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
