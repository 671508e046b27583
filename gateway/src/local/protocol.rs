//! The wire format between a trainer and its gateway; docs/protocol.md section 5.
//!
//! Every message follows its length as a 32-bit big-endian number. The first byte that a trainer
//! sends carries the file descriptor of its arena. Both ends use this module, on any thread.

use super::refusal::Refusal;
use hier_collectives::codec::{
    DecodeError, FieldReader, write_text, write_u16, write_u32, write_u64,
};
use hier_collectives::descriptor::{Counts, Descriptor};
use hier_collectives::ids::{Epoch, RankId, Sequence, Step};
use hier_collectives::post::{Commit, Failure, Post, RankEvent, Timing};
use hier_collectives::store::{StoreRequest, read_store_answer, write_store_answer};
use std::fmt;
use std::io;
use subtle::ConstantTimeEq;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use units::{Span, TimeNs};

/// 4: version of the wire format between trainer and gateway, which both ends send when attaching.
pub const LOCAL_VERSION: u16 = 4;
/// 64 KiB: the longest message between trainer and gateway, without its length field. Messages with
/// the longest names, failure texts and counts of 4,000 ranks by pair fit.
/// Tested by `requests_survive_the_wire` and `responses_survive_the_wire`.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// 256 collectives: the most that one rank may have under way at once, far more than fill a link.
pub const POSTS_MAX: usize = 256;
/// 128 requests: the most of one rank to its job's store that may wait at once.
pub const STORE_REQUESTS_MAX: usize = 128;
/// 256 KiB: the most bytes of one piece of a contribution or result on a connection without shared
/// memory. Other messages pass between two pieces, and each end holds one piece beside the arena.
pub const PIECE_BYTES_MAX: u32 = 1 << 18;

/// 32 bytes: length of a job's token, the secret that a trainer shows when it attaches.
pub const TOKEN_BYTES: usize = 32;

/// The secret that admits a trainer to a job. Its `Debug` form never shows the bytes.
#[derive(Clone, Copy)]
pub struct Token(pub [u8; TOKEN_BYTES]);

/// A message from a trainer.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
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
    },
    /// No more posts will follow; posted collectives go on.
    Detach,
    /// Report when a step is complete in every region.
    Commit(Commit),
    /// Write bytes to the arena, where the gateway has it. The bytes follow behind the frame.
    ContributionPiece {
        /// Offset of the first byte in the arena.
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
pub enum Response {
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
}

impl From<[u8; TOKEN_BYTES]> for Token {
    /// Makes a token of its bytes; any bytes are a token.
    fn from(bytes: [u8; TOKEN_BYTES]) -> Self {
        Self(bytes)
    }
}

/// Comparison takes equally long for all pairs of tokens, so that its time tells nothing.
impl PartialEq for Token {
    /// Compares all bytes in constant time.
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Token {}

impl fmt::Debug for Token {
    /// Prints `Token(..)` for logs, which must not show the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Request {
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
            Self::Post { post, contribution_offset, result_offset } => {
                out.push(2);
                write_u64(&mut out, post.epoch.0);
                write_u64(&mut out, post.sequence.0);
                post.descriptor.write_without_counts(&mut out);
                write_u64(&mut out, post.weight.to_bits());
                write_u64(&mut out, post.timeout.ns());
                write_u64(&mut out, *contribution_offset);
                write_u64(&mut out, *result_offset);
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
            Self::Store { number, timeout, request } => {
                out.push(14);
                write_u64(&mut out, *number);
                write_u64(&mut out, timeout.ns());
                request.write_to(&mut out);
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
            1 => Self::Attach(Attach {
                version: reader.read_u16()?,
                rank: RankId(reader.read_u32()?),
                arena_bytes: reader.read_u64()?,
                token: Token(reader.read_array()?),
                job: reader.read_text()?,
            }),
            2 => Self::read_post(&mut reader)?,
            3 => Self::Detach,
            4 => Self::Commit(Commit {
                epoch: Epoch(reader.read_u64()?),
                step: Step(reader.read_u64()?),
                timeout: Span::from_ns(reader.read_u64()?),
            }),
            5 => Self::ContributionPiece {
                offset: reader.read_u64()?,
                bytes: read_local_piece_length(&mut reader)?,
            },
            14 => Self::Store {
                number: reader.read_u64()?,
                timeout: Span::from_ns(reader.read_u64()?),
                request: StoreRequest::read_from(&mut reader)?,
            },
            _ => return Err(DecodeError::Unknown("request")),
        };
        reader.check_end(request)
    }
}

impl Request {
    /// Reads the fields of a post. What ranks must agree on of its counts follows from them.
    fn read_post(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let (epoch, sequence) = (Epoch(reader.read_u64()?), Sequence(reader.read_u64()?));
        let descriptor = Descriptor::read_without_counts(reader)?;
        let weight = f64::from_bits(reader.read_u64()?);
        let timeout = Span::from_ns(reader.read_u64()?);
        let (contribution_offset, result_offset) = (reader.read_u64()?, reader.read_u64()?);
        let counts = Counts::read_from(reader)?;
        let descriptor = Descriptor { counts: counts.agreed(), ..descriptor };
        let post = Post { epoch, sequence, descriptor, counts, weight, timeout };
        Ok(Self::Post { post, contribution_offset, result_offset })
    }
}

impl Response {
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
            Self::Event(RankEvent::EpochBegan { epoch, next, committed, ended }) => {
                out.push(3);
                write_u64(&mut out, epoch.0);
                write_u64(&mut out, next.0);
                out.push(u8::from(committed.is_some()));
                write_u64(&mut out, committed.map_or(0, |step| step.0));
                write_local_failure(ended.as_ref(), &mut out);
            }
            Self::Event(RankEvent::ResultReady { sequence, timing }) => {
                out.push(4);
                write_u64(&mut out, sequence.0);
                for at in [timing.posted, timing.wan_begin, timing.wan_end, timing.ready] {
                    write_u64(&mut out, at.ns());
                }
            }
            Self::Event(RankEvent::ContributionFree { sequence }) => {
                out.push(5);
                write_u64(&mut out, sequence.0);
            }
            Self::Event(RankEvent::Failed { sequence, failure }) => {
                out.push(6);
                write_u64(&mut out, sequence.0);
                failure.write_to(&mut out);
            }
            Self::Event(RankEvent::Committed { step }) => {
                out.push(7);
                write_u64(&mut out, step.0);
            }
            Self::Event(RankEvent::CommitFailed { step, failure }) => {
                out.push(8);
                write_u64(&mut out, step.0);
                failure.write_to(&mut out);
            }
            Self::Event(RankEvent::EpochAwaited { why }) => {
                out.push(9);
                write_text(&mut out, why);
            }
            Self::Event(RankEvent::StoreAnswered { number, answer }) => {
                out.push(19);
                write_u64(&mut out, *number);
                write_store_answer(answer, &mut out);
            }
            Self::ResultPiece { sequence, offset, bytes } => {
                out.push(10);
                write_u64(&mut out, sequence.0);
                write_u64(&mut out, *offset);
                write_u32(&mut out, *bytes);
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
            3 => {
                let (epoch, next) = (Epoch(reader.read_u64()?), Sequence(reader.read_u64()?));
                let committed = match (reader.read_u8()?, reader.read_u64()?) {
                    (0, 0) => None,
                    (1, step) => Some(Step(step)),
                    _ => return Err(DecodeError::Unknown("committed")),
                };
                let ended = read_local_failure(&mut reader)?;
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
            5 => {
                let sequence = Sequence(reader.read_u64()?);
                Self::Event(RankEvent::ContributionFree { sequence })
            }
            6 => {
                let (sequence, failure) =
                    (Sequence(reader.read_u64()?), Failure::read_from(&mut reader)?);
                Self::Event(RankEvent::Failed { sequence, failure })
            }
            7 => Self::Event(RankEvent::Committed { step: Step(reader.read_u64()?) }),
            8 => {
                let (step, failure) = (Step(reader.read_u64()?), Failure::read_from(&mut reader)?);
                Self::Event(RankEvent::CommitFailed { step, failure })
            }
            9 => {
                let why = reader.read_text()?;
                if why.len() > Failure::MAX_TEXT_BYTES {
                    return Err(DecodeError::Invalid("text"));
                }
                Self::Event(RankEvent::EpochAwaited { why })
            }
            10 => Self::ResultPiece {
                sequence: Sequence(reader.read_u64()?),
                offset: reader.read_u64()?,
                bytes: read_local_piece_length(&mut reader)?,
            },
            19 => {
                let (number, answer) = (reader.read_u64()?, read_store_answer(&mut reader)?);
                Self::Event(RankEvent::StoreAnswered { number, answer })
            }
            _ => return Err(DecodeError::Unknown("response")),
        };
        reader.check_end(response)
    }
}

/// Reads the number of bytes of a piece, which is neither empty nor too long.
fn read_local_piece_length(reader: &mut FieldReader<'_>) -> Result<u32, DecodeError> {
    match reader.read_u32()? {
        bytes @ 1..=PIECE_BYTES_MAX => Ok(bytes),
        _ => Err(DecodeError::Invalid("length of a piece")),
    }
}

/// Appends an optional failure to a message: its code and its text, or 0 and no text.
fn write_local_failure(failure: Option<&Failure>, out: &mut Vec<u8>) {
    match failure {
        Some(failure) => failure.write_to(out),
        None => {
            out.push(0);
            write_text(out, "");
        }
    }
}

/// Reads an optional failure: its code and its text, or 0 and no text.
fn read_local_failure(reader: &mut FieldReader<'_>) -> Result<Option<Failure>, DecodeError> {
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
pub async fn write_local_message(
    stream: &mut (impl AsyncWrite + Unpin),
    message: &[u8],
) -> io::Result<()> {
    stream.write_all(&frame_local_message(message)).await?;
    stream.flush().await
}

/// Returns an encoded message with its length in front, as 32-bit big-endian number.
pub fn frame_local_message(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes(), message].concat()
}

/// Reads one message, and returns its bytes without the length.
///
/// # Errors
/// The connection is gone, or the message is longer than [`MESSAGE_BYTES_MAX`].
pub async fn read_local_message(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
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
mod tests {
    use super::*;
    use crate::local::refusal::RefusalReason;
    use hier_collectives::descriptor::{ArrayShape, Dtype, Pattern, ReduceOp};
    use hier_collectives::post::{Failure, FailureCode};
    use proptest::prelude::*;
    use std::sync::Arc;

    #[test]
    fn a_tokens_debug_form_shows_no_byte() {
        let (version, job, rank) = (LOCAL_VERSION, "train".to_owned(), RankId(0));
        let attach = Attach { version, job, token: Token([137; 32]), rank, arena_bytes: 1 };
        let shown = format!("{:?}", Request::Attach(attach));
        assert!(shown.contains("train") && !shown.contains("137"), "{shown}");
    }

    proptest! {
        #[test]
        fn requests_survive_the_wire(
            n: [u64; 8],
            rank: u32,
            token: [u8; 32],
            job in ".{0,40}",
            kind in 0..5,
            counts: Vec<u64>,
        ) {
            let op = ReduceOp::ALL[(n[0] % ReduceOp::ALL.len() as u64) as usize];
            let dtype = Dtype::ALL[(n[1] % Dtype::ALL.len() as u64) as usize];
            let code = 1 + (n[4] % 9) as u8;
            let pattern = Pattern::from_code(code, RankId(rank));
            let pattern = pattern.or(Pattern::from_code(code, RankId(0))).expect("known");
            let counts: Arc<[u64]> = counts.into();
            let counts = match n[6] % 3 {
                0 => Counts::Even,
                1 => Counts::ByRank(counts),
                _ => Counts::ByPair { to: Arc::clone(&counts), from: counts },
            };
            let agreed = counts.agreed();
            let (elements, layout_hash) = (n[2], n[3]);
            let shape = if n[5] % 2 == 0 { vec![elements] } else { vec![1, elements] };
            let shape = ArrayShape::new(&shape).expect("few dimensions");
            let descriptor =
                Descriptor { op, dtype, elements, layout_hash, shape, pattern, counts: agreed };
            let request = match kind {
                0 => Request::Attach(Attach {
                    version: 3, job, token: Token(token), rank: RankId(rank), arena_bytes: n[4],
                }),
                1 => Request::Post {
                    post: Post {
                        epoch: Epoch(n[4]),
                        sequence: Sequence(n[5]),
                        descriptor,
                        counts,
                        weight: 2.5,
                        timeout: Span::from_ns(n[6]),
                    },
                    contribution_offset: n[7],
                    result_offset: n[0],
                },
                2 => Request::Commit(Commit {
                    epoch: Epoch(n[0]),
                    step: Step(n[1]),
                    timeout: Span::from_ns(n[2]),
                }),
                3 => Request::ContributionPiece {
                    offset: n[0],
                    bytes: 1 + rank % PIECE_BYTES_MAX,
                },
                _ => Request::Detach,
            };
            let bytes = request.encode();
            prop_assert!(bytes.len() <= MESSAGE_BYTES_MAX);
            prop_assert_eq!(Request::decode(&bytes), Ok(request));
        }

        #[test]
        fn responses_survive_the_wire(n: [u64; 5], text in ".{0,300}", kind in 0..10) {
            let sequence = Sequence(n[0]);
            let timing = Timing {
                posted: TimeNs::from_ns(n[1]),
                wan_begin: TimeNs::from_ns(n[2]),
                wan_end: TimeNs::from_ns(n[3]),
                ready: TimeNs::from_ns(n[4]),
            };
            let response = match kind {
                0 => Response::Attached { version: 1, world_size: 4, fabric: text },
                1 => {
                    let reason = RefusalReason::ALL[n[1] as usize % RefusalReason::ALL.len()];
                    Response::Refused(Refusal::new(reason, text))
                }
                2 => {
                    let committed = (n[2] % 2 == 0).then_some(Step(n[3]));
                    let (epoch, next) = (Epoch(n[1]), sequence);
                    let failure = Failure::new(FailureCode::Disagreement, text);
                    let ended = (n[4] % 2 == 0).then_some(failure);
                    Response::Event(RankEvent::EpochBegan { epoch, next, committed, ended })
                }
                3 => Response::Event(RankEvent::ResultReady { sequence, timing }),
                4 => Response::Event(RankEvent::ContributionFree { sequence }),
                5 => Response::Event(RankEvent::Committed { step: Step(n[1]) }),
                8 => {
                    let bytes = 1 + n[2] as u32 % PIECE_BYTES_MAX;
                    Response::ResultPiece { sequence, offset: n[1], bytes }
                }
                7 => {
                    let why = Failure::truncate_text(text);
                    Response::Event(RankEvent::EpochAwaited { why })
                }
                6 => {
                    let failure = Failure::new(FailureCode::RegionLost, text);
                    Response::Event(RankEvent::CommitFailed { step: Step(n[1]), failure })
                }
                _ => {
                    let failure = Failure::new(FailureCode::Stalled, text);
                    Response::Event(RankEvent::Failed { sequence, failure })
                }
            };
            let bytes = response.encode();
            prop_assert!(bytes.len() <= MESSAGE_BYTES_MAX);
            prop_assert_eq!(Response::decode(&bytes), Ok(response));
        }

        #[test]
        fn pieces_of_other_lengths_are_refused(offset: u64, more in PIECE_BYTES_MAX + 1..) {
            for bytes in [0, more] {
                let request = Request::ContributionPiece { offset, bytes };
                prop_assert!(Request::decode(&request.encode()).is_err());
                let response = Response::ResultPiece { sequence: Sequence(1), offset, bytes };
                prop_assert!(Response::decode(&response.encode()).is_err());
            }
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (Request::decode(&bytes), Response::decode(&bytes));
        }
    }
}
