//! Seeds of what trainers and operators send to a gateway, and of its answers.

use super::seed_facts::matrix_descriptor;
use crate::local::PIECE_STREAM_ARENA;
use gateway::events::{GroupNumber, GroupPlace};
use gateway::local::operator::OperatorRequest;
use gateway::local::protocol::{
    Attach, LOCAL_VERSION, MakeGroup, PIECE_BYTES_MAX, ProtocolRequest, ProtocolResponse,
    frame_protocol_message,
};
use gateway::local::refusal::{Refusal, RefusalReason};
use hier_collectives::descriptor::{Counts, Descriptor, Dtype, Pattern, ReduceOp};
use hier_collectives::ids::{Epoch, RankId, Sequence, Step, Tag};
use hier_collectives::post::{Commit, Failure, FailureCode, Post, RankEvent, Timing};
use hier_collectives::sequence::SendSeries;
use hier_collectives::store::{StoreOutcome, StoreQuery, StoreRequest};
use std::sync::Arc;
use units::{Span, TimeNs};

/// Returns seeds of a trainer's requests of every kind.
pub fn local_request_seeds() -> Vec<Vec<u8>> {
    let attach = |job: &str| {
        ProtocolRequest::Attach(Attach {
            version: LOCAL_VERSION,
            job: job.to_owned(),
            token: [0x5a; 32].into(),
            rank: RankId(1),
            arena_bytes: 1 << 30,
        })
    };
    let post = |op, dtype, weight| ProtocolRequest::Post {
        post: Post {
            epoch: Epoch(3),
            sequence: Sequence(41),
            descriptor: Descriptor { op, dtype, ..matrix_descriptor() },
            counts: Counts::Even,
            weight,
            timeout: Span::from_secs(1800),
        },
        contribution_offset: 0,
        result_offset: 64 << 20,
        streamed_bytes: 25_000_000,
    };
    let mut requests = vec![attach("train"), attach(""), ProtocolRequest::Detach];
    let ops = ReduceOp::ALL.into_iter().cycle();
    requests.extend(Dtype::ALL.into_iter().zip(ops).map(|(dtype, op)| post(op, dtype, 1.0)));
    requests.push(post(ReduceOp::Avg, Dtype::F32, f64::NAN));
    let [to, from]: [Arc<[u64]>; 2] = [[0, 25_000_000, 7].into(), [1, 2, 3].into()];
    for counts in [Counts::ByRank(Arc::clone(&to)), Counts::ByPair { to, from }] {
        let mut request = post(ReduceOp::Sum, Dtype::U8, 1.0);
        if let ProtocolRequest::Post { post, .. } = &mut request {
            post.descriptor.counts = counts.agreed();
            post.counts = counts;
        }
        requests.push(request);
    }
    let (epoch, step, timeout) = (Epoch(3), Step(12), Span::from_secs(1800));
    requests.push(ProtocolRequest::Commit(Commit { epoch, step, timeout }));
    let commit = Box::new(ProtocolRequest::Commit(Commit { epoch, step, timeout }));
    requests.push(ProtocolRequest::InGroup(GroupNumber(3), commit));
    requests.push(ProtocolRequest::MakeGroup(MakeGroup {
        number: GroupNumber(4),
        parent: GroupNumber(3),
        place: 1 << 32,
        ranks: vec![RankId(1), RankId(2), RankId(7)],
    }));
    requests.push(ProtocolRequest::LeaveGroup(GroupNumber(4)));
    requests.push(ProtocolRequest::MakeGroup(MakeGroup {
        number: GroupNumber(5),
        parent: GroupNumber::JOB,
        place: GroupPlace::of_pair().0,
        ranks: vec![RankId(1), RankId(7)],
    }));
    let mut send = post(ReduceOp::Sum, Dtype::U8, 1.0);
    if let ProtocolRequest::Post { post, .. } = &mut send {
        post.sequence = SendSeries { from: RankId(0), tag: Tag(9) }.sequence_at(41);
        post.descriptor.pattern = Pattern::Send { from: RankId(0) };
    }
    requests.push(send.in_group(GroupNumber(5)));
    requests.push(ProtocolRequest::ContributionPiece { offset: 64, bytes: PIECE_BYTES_MAX });
    let request = StoreRequest::Query(StoreQuery::Wait(vec![b"key".to_vec()]));
    requests.push(ProtocolRequest::Store { number: 7, timeout, request });
    requests.iter().map(ProtocolRequest::encode).collect()
}

/// Returns seeds of a trainer's stream without shared memory: requests, with bytes behind pieces.
pub fn piece_stream_seeds() -> Vec<Vec<u8>> {
    let piece = |offset: u64, bytes: usize| {
        let request = ProtocolRequest::ContributionPiece { offset, bytes: bytes as u32 };
        [frame_protocol_message(&request.encode()), vec![0x3c; bytes]].concat()
    };
    let others: Vec<u8> =
        local_request_seeds().iter().flat_map(|request| frame_protocol_message(request)).collect();
    let detach = frame_protocol_message(&ProtocolRequest::Detach.encode());
    vec![
        [piece(0, 100), piece(100, 28), detach.clone()].concat(),
        [piece(PIECE_STREAM_ARENA - 1, 1), piece(PIECE_STREAM_ARENA, 1)].concat(),
        [piece(64, 3000), piece(u64::MAX, 4)].concat(),
        [others, piece(0, 1), detach].concat(),
    ]
}

/// Returns seeds of an operator's requests: those that limit a link and end the limit, and those about
/// members.
pub fn operator_request_seeds() -> Vec<Vec<u8>> {
    let request = |bits_per_second| OperatorRequest::SetRate {
        link: "east-west".to_owned(),
        bits_per_second,
    };
    let json = |request| serde_json::to_vec(&request).expect("keys are strings");
    let region = || "west".to_owned();
    let leave = OperatorRequest::Leave { region: region(), within_seconds: 600 };
    let join = OperatorRequest::Join { region: region(), within_seconds: 0 };
    let fabric = OperatorRequest::Fabric {
        text: "name = \"two-region\"\nversion = 2\n".to_owned(),
        signature: "landbridge fabric signature 1\n".to_owned(),
        within_seconds: 600,
        dry_run: true,
    };
    let asks = [OperatorRequest::Membership, OperatorRequest::FabricVersion];
    let others = [leave, join, fabric].into_iter().chain(asks).map(json);
    [json(request(Some(800_000_000))), json(request(None))].into_iter().chain(others).collect()
}

/// Returns seeds of responses to a trainer of every kind.
pub fn local_response_seeds() -> Vec<Vec<u8>> {
    let sequence = Sequence(41);
    let at = TimeNs::from_ns;
    let timing = Timing {
        posted: at(1_000_000_000),
        wan_begin: at(1_000_200_000),
        wan_end: at(2_164_000_000),
        ready: at(2_165_000_000),
    };
    let failed = |code| {
        let failure = Failure::new(code, "gateway west-0 cannot be reached on any lane");
        ProtocolResponse::Event(RankEvent::Failed { sequence, failure })
    };
    let epoch_began = |committed, ended| {
        let (epoch, next) = (Epoch(3), sequence);
        ProtocolResponse::Event(RankEvent::EpochBegan { epoch, next, committed, ended })
    };
    let disagreed = Failure::new(FailureCode::Disagreement, "rank 2 posted f32, rank 0 bf16");
    let mut responses = vec![
        ProtocolResponse::Event(RankEvent::WorldChanged { ranks: vec![RankId(1), RankId(2)] }),
        ProtocolResponse::Attached {
            version: LOCAL_VERSION,
            world_size: 4,
            fabric: "two-region".into(),
        },
        ProtocolResponse::Refused(Refusal::new(
            RefusalReason::Unauthorized,
            "the token is not that of job `train`",
        )),
        epoch_began(None, None),
        epoch_began(Some(Step(12)), Some(disagreed)),
        ProtocolResponse::Event(RankEvent::EpochAwaited {
            why: "job train: gateway west-0".to_owned(),
        }),
        ProtocolResponse::Event(RankEvent::ResultReady { sequence, timing }),
        ProtocolResponse::Event(RankEvent::ContributionFree { sequence }),
        ProtocolResponse::Event(RankEvent::Committed { step: Step(12) }),
        ProtocolResponse::Event(RankEvent::CommitFailed {
            step: Step(12),
            failure: Failure::new(FailureCode::RegionLost, "region east has all"),
        }),
    ];
    responses.extend(FailureCode::ALL.map(failed));
    let disbanded = RankEvent::Disbanded { failure: Failure::new(FailureCode::BadPost, "full") };
    responses.push(ProtocolResponse::Event(disbanded.clone()));
    responses.push(ProtocolResponse::InGroup(
        GroupNumber(4),
        Box::new(ProtocolResponse::Event(disbanded)),
    ));
    let answer = Ok(StoreOutcome::Number(7));
    responses.push(ProtocolResponse::Event(RankEvent::StoreAnswered { number: 7, answer }));
    responses.push(ProtocolResponse::ResultPiece { sequence, offset: 1 << 20, bytes: 4096 });
    responses.iter().map(ProtocolResponse::encode).collect()
}
