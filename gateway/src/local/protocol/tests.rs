//! Every message survives encoding and decoding, and no bytes cause a panic.

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
    let shown = format!("{:?}", ProtocolRequest::Attach(attach));
    assert!(shown.contains("train") && !shown.contains("137"), "{shown}");
}

proptest! {
    #[test]
    fn requests_survive_the_wire(
        n: [u64; 8],
        rank: u32,
        token: [u8; 32],
        job in ".{0,40}",
        kind in 0..8,
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
            0 => ProtocolRequest::Attach(Attach {
                version: LOCAL_VERSION, job, token: Token(token), rank: RankId(rank), arena_bytes: n[4],
            }),
            1 => ProtocolRequest::Post {
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
                streamed_bytes: n[1],
            },
            2 => ProtocolRequest::Commit(Commit {
                epoch: Epoch(n[0]),
                step: Step(n[1]),
                timeout: Span::from_ns(n[2]),
            }),
            3 => ProtocolRequest::ContributionPiece {
                offset: n[0],
                bytes: 1 + rank % PIECE_BYTES_MAX,
            },
            4 => ProtocolRequest::MakeGroup(MakeGroup {
                number: GroupNumber(n[0]),
                parent: GroupNumber(n[1]),
                place: n[2],
                ranks: (0..1 + rank % 9).map(|more| RankId(7 * more)).collect(),
            }),
            5 => ProtocolRequest::LeaveGroup(GroupNumber(n[0])),
            6 => {
                let (epoch, step) = (Epoch(n[0]), Step(n[1]));
                let commit = Commit { epoch, step, timeout: Span::from_ns(n[2]) };
                ProtocolRequest::InGroup(GroupNumber(n[3]), Box::new(ProtocolRequest::Commit(commit)))
            }
            _ => ProtocolRequest::Detach,
        };
        let bytes = request.encode();
        prop_assert!(bytes.len() <= MESSAGE_BYTES_MAX);
        prop_assert_eq!(ProtocolRequest::decode(&bytes), Ok(request));
    }

    #[test]
    fn responses_survive_the_wire(n: [u64; 5], text in ".{0,300}", kind in 0..11) {
        let sequence = Sequence(n[0]);
        let timing = Timing {
            posted: TimeNs::from_ns(n[1]),
            wan_begin: TimeNs::from_ns(n[2]),
            wan_end: TimeNs::from_ns(n[3]),
            ready: TimeNs::from_ns(n[4]),
        };
        let response = match kind {
            0 => ProtocolResponse::Attached { version: 1, world_size: 4, fabric: text },
            1 => {
                let reason = RefusalReason::ALL[n[1] as usize % RefusalReason::ALL.len()];
                ProtocolResponse::Refused(Refusal::new(reason, text))
            }
            2 => {
                let committed = (n[2] % 2 == 0).then_some(Step(n[3]));
                let (epoch, next) = (Epoch(n[1]), sequence);
                let failure = Failure::new(FailureCode::Disagreement, text);
                let ended = (n[4] % 2 == 0).then_some(failure);
                ProtocolResponse::Event(RankEvent::EpochBegan { epoch, next, committed, ended })
            }
            3 => ProtocolResponse::Event(RankEvent::ResultReady { sequence, timing }),
            4 => ProtocolResponse::Event(RankEvent::ContributionFree { sequence }),
            5 => ProtocolResponse::Event(RankEvent::Committed { step: Step(n[1]) }),
            8 => {
                let bytes = 1 + n[2] as u32 % PIECE_BYTES_MAX;
                ProtocolResponse::ResultPiece { sequence, offset: n[1], bytes }
            }
            7 => {
                let why = Failure::truncate_text(text);
                ProtocolResponse::Event(RankEvent::EpochAwaited { why })
            }
            6 => {
                let failure = Failure::new(FailureCode::RegionLost, text);
                ProtocolResponse::Event(RankEvent::CommitFailed { step: Step(n[1]), failure })
            }
            9 => {
                let failure = Failure::new(FailureCode::Disagreement, text);
                let disbanded = ProtocolResponse::Event(RankEvent::Disbanded { failure });
                ProtocolResponse::InGroup(GroupNumber(n[1]), Box::new(disbanded))
            }
            _ => {
                let failure = Failure::new(FailureCode::Stalled, text);
                ProtocolResponse::Event(RankEvent::Failed { sequence, failure })
            }
        };
        let bytes = response.encode();
        prop_assert!(bytes.len() <= MESSAGE_BYTES_MAX);
        prop_assert_eq!(ProtocolResponse::decode(&bytes), Ok(response));
    }

    #[test]
    fn pieces_of_other_lengths_are_refused(offset: u64, more in PIECE_BYTES_MAX + 1..) {
        for bytes in [0, more] {
            let request = ProtocolRequest::ContributionPiece { offset, bytes };
            prop_assert!(ProtocolRequest::decode(&request.encode()).is_err());
            let response = ProtocolResponse::ResultPiece { sequence: Sequence(1), offset, bytes };
            prop_assert!(ProtocolResponse::decode(&response.encode()).is_err());
        }
    }

    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = (ProtocolRequest::decode(&bytes), ProtocolResponse::decode(&bytes));
    }
}
