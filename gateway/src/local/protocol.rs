//! The wire format between a trainer and its gateway; docs/protocol.md section 5.
//!
//! Every message follows its length as a 32-bit big-endian number. The first byte that a trainer
//! sends carries the file descriptor of its arena. Both ends use this module, on any thread.

use hier_collectives::codec::{DecodeError, Reader, put_text, put_u16, put_u32, put_u64};
use hier_collectives::descriptor::put_descriptor;
use hier_collectives::ids::{Epoch, RankId, Sequence, Step};
use hier_collectives::post::{Commit, Post, RankEvent, Timing, put_failure};
use std::fmt;
use std::io;
use subtle::ConstantTimeEq;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use units::{Span, TimeNs};

/// Version of the format in this module.
pub const LOCAL_VERSION: u16 = 1;
/// 4,096 bytes. Longest message without its length; the longest texts fit.
/// Tested by `requests_survive_the_wire` and `responses_survive_the_wire`.
pub const MAX_BYTES: usize = 4096;
/// 256: collectives that one rank may have posted and not got back; far above what fills a link.
pub const POSTS_MAX: usize = 256;
/// 32: length of a job's token in bytes.
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
    Refused(String),
    /// An event of the rank's collectives.
    Event(RankEvent),
}

impl From<[u8; TOKEN_BYTES]> for Token {
    fn from(bytes: [u8; TOKEN_BYTES]) -> Self {
        Self(bytes)
    }
}

/// Compares in constant time, wherever two tokens differ.
impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Token {}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Request {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(96);
        match self {
            Self::Attach(attach) => {
                out.push(1);
                put_u16(&mut out, attach.version);
                put_u32(&mut out, attach.rank.0);
                put_u64(&mut out, attach.arena_bytes);
                out.extend(attach.token.0);
                put_text(&mut out, &attach.job);
            }
            Self::Post { post, contribution_offset, result_offset } => {
                out.push(2);
                put_u64(&mut out, post.epoch.0);
                put_u64(&mut out, post.sequence.0);
                put_descriptor(&mut out, &post.descriptor);
                put_u64(&mut out, post.weight.to_bits());
                put_u64(&mut out, post.timeout.ns());
                put_u64(&mut out, *contribution_offset);
                put_u64(&mut out, *result_offset);
            }
            Self::Detach => out.push(3),
            Self::Commit(Commit { epoch, step, timeout }) => {
                out.push(4);
                put_u64(&mut out, epoch.0);
                put_u64(&mut out, step.0);
                put_u64(&mut out, timeout.ns());
            }
        }
        out
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// [`DecodeError`]: the trainer's fault.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader(bytes);
        let request = match reader.u8()? {
            1 => Self::Attach(Attach {
                version: reader.u16()?,
                rank: RankId(reader.u32()?),
                arena_bytes: reader.u64()?,
                token: Token(reader.array()?),
                job: reader.text()?,
            }),
            2 => Self::Post {
                post: Post {
                    epoch: Epoch(reader.u64()?),
                    sequence: Sequence(reader.u64()?),
                    descriptor: reader.descriptor()?,
                    weight: f64::from_bits(reader.u64()?),
                    timeout: Span::from_ns(reader.u64()?),
                },
                contribution_offset: reader.u64()?,
                result_offset: reader.u64()?,
            },
            3 => Self::Detach,
            4 => Self::Commit(Commit {
                epoch: Epoch(reader.u64()?),
                step: Step(reader.u64()?),
                timeout: Span::from_ns(reader.u64()?),
            }),
            _ => return Err(DecodeError::Unknown("request")),
        };
        reader.end(request)
    }
}

impl Response {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        match self {
            Self::Attached { version, world_size, fabric } => {
                out.push(1);
                put_u16(&mut out, *version);
                put_u32(&mut out, *world_size);
                put_text(&mut out, fabric);
            }
            Self::Refused(why) => {
                out.push(2);
                put_text(&mut out, why);
            }
            Self::Event(RankEvent::EpochBegan { epoch, next, committed }) => {
                out.push(3);
                put_u64(&mut out, epoch.0);
                put_u64(&mut out, next.0);
                out.push(u8::from(committed.is_some()));
                put_u64(&mut out, committed.map_or(0, |step| step.0));
            }
            Self::Event(RankEvent::ResultReady { sequence, timing }) => {
                out.push(4);
                put_u64(&mut out, sequence.0);
                for at in [timing.posted, timing.wan_begin, timing.wan_end, timing.ready] {
                    put_u64(&mut out, at.ns());
                }
            }
            Self::Event(RankEvent::ContributionFree { sequence }) => {
                out.push(5);
                put_u64(&mut out, sequence.0);
            }
            Self::Event(RankEvent::Failed { sequence, failure }) => {
                out.push(6);
                put_u64(&mut out, sequence.0);
                put_failure(&mut out, failure);
            }
            Self::Event(RankEvent::Committed { step }) => {
                out.push(7);
                put_u64(&mut out, step.0);
            }
            Self::Event(RankEvent::CommitFailed { step, failure }) => {
                out.push(8);
                put_u64(&mut out, step.0);
                put_failure(&mut out, failure);
            }
        }
        out
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// [`DecodeError`]: the gateway's fault.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader(bytes);
        let response = match reader.u8()? {
            1 => Self::Attached {
                version: reader.u16()?,
                world_size: reader.u32()?,
                fabric: reader.text()?,
            },
            2 => Self::Refused(reader.text()?),
            3 => {
                let (epoch, next) = (Epoch(reader.u64()?), Sequence(reader.u64()?));
                let committed = match (reader.u8()?, reader.u64()?) {
                    (0, 0) => None,
                    (1, step) => Some(Step(step)),
                    _ => return Err(DecodeError::Unknown("committed")),
                };
                Self::Event(RankEvent::EpochBegan { epoch, next, committed })
            }
            4 => {
                let sequence = Sequence(reader.u64()?);
                let timing = Timing {
                    posted: TimeNs::from_ns(reader.u64()?),
                    wan_begin: TimeNs::from_ns(reader.u64()?),
                    wan_end: TimeNs::from_ns(reader.u64()?),
                    ready: TimeNs::from_ns(reader.u64()?),
                };
                Self::Event(RankEvent::ResultReady { sequence, timing })
            }
            5 => {
                let sequence = Sequence(reader.u64()?);
                Self::Event(RankEvent::ContributionFree { sequence })
            }
            6 => {
                let (sequence, failure) = (Sequence(reader.u64()?), reader.failure()?);
                Self::Event(RankEvent::Failed { sequence, failure })
            }
            7 => Self::Event(RankEvent::Committed { step: Step(reader.u64()?) }),
            8 => {
                let (step, failure) = (Step(reader.u64()?), reader.failure()?);
                Self::Event(RankEvent::CommitFailed { step, failure })
            }
            _ => return Err(DecodeError::Unknown("response")),
        };
        reader.end(response)
    }
}

/// Writes one message.
///
/// # Errors
/// The connection is gone.
pub async fn write_message(
    stream: &mut (impl AsyncWrite + Unpin),
    message: &[u8],
) -> io::Result<()> {
    stream.write_all(&framed(message)).await?;
    stream.flush().await
}

/// Returns a message with its length in front.
pub fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes(), message].concat()
}

/// Reads one message.
///
/// # Errors
/// The connection is gone, or the message is longer than [`MAX_BYTES`].
pub async fn read_message(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let length = stream.read_u32().await? as usize;
    if length > MAX_BYTES {
        let text = format!("a message of {length} bytes, {MAX_BYTES} allowed");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hier_collectives::descriptor::{Descriptor, Dtype, Pattern, ReduceOp};
    use hier_collectives::post::{Failure, FailureCode};
    use proptest::prelude::*;

    #[test]
    fn a_tokens_debug_form_shows_no_byte() {
        let (version, job, rank) = (LOCAL_VERSION, "train".to_owned(), RankId(0));
        let attach = Attach { version, job, token: Token([137; 32]), rank, arena_bytes: 1 };
        let shown = format!("{:?}", Request::Attach(attach));
        assert!(shown.contains("train") && !shown.contains("137"), "{shown}");
    }

    proptest! {
        #[test]
        fn requests_survive_the_wire(n: [u64; 8], rank: u32, token: [u8; 32], job in ".{0,40}", kind in 0..4) {
            let op = ReduceOp::ALL[(n[0] % 5) as usize];
            let dtype = Dtype::ALL[(n[1] % 7) as usize];
            let pattern = match n[4] % 4 {
                0 => Pattern::AllReduce,
                1 => Pattern::Reduce { to: RankId(rank) },
                2 => Pattern::Broadcast { from: RankId(rank) },
                _ => Pattern::Barrier,
            };
            let (elements, layout_hash) = (n[2], n[3]);
            let descriptor = Descriptor { op, dtype, elements, layout_hash, pattern };
            let request = match kind {
                0 => Request::Attach(Attach {
                    version: 3, job, token: Token(token), rank: RankId(rank), arena_bytes: n[4],
                }),
                1 => Request::Post {
                    post: Post {
                        epoch: Epoch(n[4]),
                        sequence: Sequence(n[5]),
                        descriptor,
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
                _ => Request::Detach,
            };
            let bytes = request.encode();
            prop_assert!(bytes.len() <= MAX_BYTES);
            prop_assert_eq!(Request::decode(&bytes), Ok(request));
        }

        #[test]
        fn responses_survive_the_wire(n: [u64; 5], text in ".{0,300}", kind in 0..8) {
            let sequence = Sequence(n[0]);
            let timing = Timing {
                posted: TimeNs::from_ns(n[1]),
                wan_begin: TimeNs::from_ns(n[2]),
                wan_end: TimeNs::from_ns(n[3]),
                ready: TimeNs::from_ns(n[4]),
            };
            let response = match kind {
                0 => Response::Attached { version: 1, world_size: 4, fabric: text },
                1 => Response::Refused(text),
                2 => {
                    let committed = (n[2] % 2 == 0).then_some(Step(n[3]));
                    let epoch = Epoch(n[1]);
                    Response::Event(RankEvent::EpochBegan { epoch, next: sequence, committed })
                }
                3 => Response::Event(RankEvent::ResultReady { sequence, timing }),
                4 => Response::Event(RankEvent::ContributionFree { sequence }),
                5 => Response::Event(RankEvent::Committed { step: Step(n[1]) }),
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
            prop_assert!(bytes.len() <= MAX_BYTES);
            prop_assert_eq!(Response::decode(&bytes), Ok(response));
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (Request::decode(&bytes), Response::decode(&bytes));
        }
    }
}
