//! A golden file of the local plane's messages. The tests of the Python client read the same file,
//! so that both sides use the same bytes.
//!
//! After a change of the protocol, `LANDBRIDGE_WRITE_GOLDEN=1 cargo test -p gateway --test golden`
//! writes the file anew.

mod golden_file;

use gateway::events::GroupNumber;
use gateway::local::protocol::{
    Attach, LOCAL_VERSION, MakeGroup, PIECE_BYTES_MAX, ProtocolRequest, ProtocolResponse,
    TOKEN_BYTES,
};
use gateway::local::refusal::{Refusal, RefusalReason};
use hier_collectives::descriptor::{ArrayShape, Counts, Descriptor, Dtype, Pattern, ReduceOp};
use hier_collectives::ids::{Epoch, RankId, Sequence, Step, Tag};
use hier_collectives::post::{Commit, Failure, FailureCode, Post, RankEvent, Timing};
use hier_collectives::sequence::SendSeries;
use hier_collectives::store::{
    StoreAnswer, StoreCommand, StoreFailure, StoreFailureCode, StoreKey, StoreOutcome, StoreQuery,
    StoreRequest, write_request_answer,
};
use hier_collectives::wire::write_group_facts_ranks;
use serde_json::{Value, json};
use units::{Span, TimeNs};

const FILE: &str = "local_protocol.jsonl";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal");
    (0..text.len()).step_by(2).map(digits).collect()
}

fn pattern_of(dtype: Dtype, op: ReduceOp, root: RankId) -> Pattern {
    match (dtype, op) {
        (Dtype::F64, _) => Pattern::Reduce { to: root },
        (Dtype::F16, _) => Pattern::Broadcast { from: root },
        (Dtype::Bf16, _) => Pattern::Barrier,
        (Dtype::I64, ReduceOp::Sum) => Pattern::AllGather,
        (Dtype::I64, ReduceOp::Avg) => Pattern::ReduceScatter,
        (Dtype::I64, ReduceOp::Min) => Pattern::Gather { to: root },
        (Dtype::I64, ReduceOp::Max) => Pattern::Scatter { from: root },
        (Dtype::I64, _) => Pattern::AllToAll,
        (Dtype::I16, _) => Pattern::Send { from: root },
        _ => Pattern::AllReduce,
    }
}

fn counts_of(pattern: Pattern, elements: u64) -> Counts {
    match pattern {
        Pattern::AllGather | Pattern::Gather { .. } => {
            Counts::ByRank([elements, 0, u64::MAX].into())
        }
        Pattern::AllToAll => Counts::ByPair { to: [1, 0].into(), from: [].into() },
        _ => Counts::Even,
    }
}

/// Sends have numbers of their own, whatever the root is.
fn sequence_of(pattern: Pattern, index: u64) -> Sequence {
    let tag = Tag(0x1234 + index as u16);
    match pattern {
        Pattern::Send { from } => SendSeries { from, tag }.sequence_at(1 << (8 * index).min(40)),
        _ => Sequence(1 << (8 * index).min(63)),
    }
}

fn requests() -> Vec<ProtocolRequest> {
    let token = std::array::from_fn::<u8, TOKEN_BYTES, _>(|at| 255 - at as u8);
    let attach = |rank, job: &str, arena_bytes| Attach {
        version: LOCAL_VERSION,
        job: job.to_owned(),
        token: token.into(),
        rank: RankId(rank),
        arena_bytes,
    };
    let mut requests = vec![
        ProtocolRequest::Attach(attach(0, "train", 1 << 28)),
        ProtocolRequest::Attach(attach(u32::MAX, "Überland", u64::MAX)),
        ProtocolRequest::Detach,
        ProtocolRequest::ContributionPiece { offset: (1 << 40) + 64, bytes: PIECE_BYTES_MAX },
        ProtocolRequest::Commit(Commit {
            epoch: Epoch(9),
            step: Step(1 << 40),
            timeout: Span::from_secs(60),
        }),
    ];
    requests.extend(group_requests());
    for (index, op) in (1u64..).zip(ReduceOp::ALL) {
        for dtype in Dtype::ALL {
            let sizes = match dtype {
                Dtype::F16 => vec![1, index * 1000 + 3],
                Dtype::I32 => vec![index, 1, 1, 1, 1, 1, 1, 5],
                Dtype::U8 | Dtype::Bool => vec![],
                _ => vec![index * 1000 + dtype as u64],
            };
            let elements: u64 = sizes.iter().product();
            let shape = ArrayShape::new(&sizes).expect("few dimensions");
            let layout_hash = 0x0102_0304_0506_0708 * index;
            let root = RankId(0x0102_0304 + index as u32);
            let pattern = pattern_of(dtype, op, root);
            let counts = counts_of(pattern, elements);
            let agreed = counts.agreed();
            requests.push(ProtocolRequest::Post {
                post: Post {
                    epoch: Epoch(u64::MAX - index),
                    sequence: sequence_of(pattern, index),
                    descriptor: Descriptor {
                        op,
                        dtype,
                        elements,
                        layout_hash,
                        shape,
                        pattern,
                        counts: agreed,
                    },
                    counts,
                    weight: 0.1 * index as f64,
                    timeout: Span::from_secs(1800),
                },
                contribution_offset: 64 * index,
                result_offset: 1 << 40,
                streamed_bytes: 4 * index,
            });
        }
    }
    for (number, request) in (1 << 40..).zip(store_requests()) {
        requests
            .insert(0, ProtocolRequest::Store { number, timeout: Span::from_secs(300), request });
    }
    requests
}

/// Each kind of request about groups.
fn group_requests() -> Vec<ProtocolRequest> {
    let (epoch, step, timeout) = (Epoch(2), Step(7), Span::from_secs(60));
    let commit = Box::new(ProtocolRequest::Commit(Commit { epoch, step, timeout }));
    vec![
        ProtocolRequest::MakeGroup(MakeGroup {
            number: GroupNumber(1 << 40),
            parent: GroupNumber(3),
            place: (1 << 63) | 5,
            ranks: vec![RankId(0), RankId(u32::MAX)],
        }),
        ProtocolRequest::LeaveGroup(GroupNumber(4)),
        ProtocolRequest::InGroup(GroupNumber(1 << 33), commit),
    ]
}

/// Each kind of request to the store.
fn store_requests() -> Vec<StoreRequest> {
    let key = || StoreKey::from("straße");
    let pairs = vec![(key(), b"value".to_vec()), (b"b".to_vec(), vec![])];
    let (expected, desired) = (vec![], vec![0, 255]);
    let commands = [
        StoreCommand::Set(pairs),
        StoreCommand::Add { key: key(), amount: -2 },
        StoreCommand::CompareSet { key: key(), expected, desired },
        StoreCommand::Delete(key()),
        StoreCommand::Append { key: key(), bytes: b"more".to_vec() },
        StoreCommand::Push { key: key(), item: b"item".to_vec() },
        StoreCommand::Pop(key()),
    ];
    let both = || vec![key(), b"b".to_vec()];
    let queries = [
        StoreQuery::Get(both()),
        StoreQuery::Wait(both()),
        StoreQuery::Check(both()),
        StoreQuery::Count,
        StoreQuery::List { prefix: b"a/".to_vec(), after: b"a/b".to_vec() },
        StoreQuery::QueueLength { key: key(), least: 1 },
        StoreQuery::QueueLength { key: key(), least: 0 },
    ];
    let commands = commands.into_iter().map(StoreRequest::Command);
    commands.chain(queries.into_iter().map(StoreRequest::Query)).collect()
}

/// Each kind of answer of the store.
fn store_answers() -> Vec<StoreAnswer> {
    let outcomes = [
        StoreOutcome::Done,
        StoreOutcome::Flag(true),
        StoreOutcome::Number(-5),
        StoreOutcome::Values(vec![b"value".to_vec(), vec![]]),
        StoreOutcome::Keys { keys: vec![StoreKey::from("straße")], is_last: false },
    ];
    let failures = StoreFailureCode::ALL.map(|code| {
        let text = format!("gateway straße {}", code as u8);
        Err(StoreFailure { code, text })
    });
    outcomes.into_iter().map(Ok).chain(failures).collect()
}

fn responses() -> Vec<ProtocolResponse> {
    let sequence = Sequence(0x1122_3344_5566_7788);
    let timing = Timing {
        posted: TimeNs::from_ns(1),
        wan_begin: TimeNs::from_ns(2),
        wan_end: TimeNs::from_ns(3),
        ready: TimeNs::from_ns(u64::MAX),
    };
    let fabric = "two-region".to_owned();
    let epoch_began = |committed, ended| {
        let (epoch, next) = (Epoch(7), Sequence(1 << 33));
        ProtocolResponse::Event(RankEvent::EpochBegan { epoch, next, committed, ended })
    };
    let disagreed = Failure::new(FailureCode::Disagreement, "ranks disagree on length");
    let disbanded = RankEvent::Disbanded { failure: disagreed.clone() };
    let mut responses = vec![
        ProtocolResponse::Attached { version: LOCAL_VERSION, world_size: 4, fabric },
        ProtocolResponse::Attached { version: 0xffff, world_size: u32::MAX, fabric: String::new() },
        epoch_began(None, None),
        epoch_began(Some(Step(1 << 40)), None),
        epoch_began(None, Some(disagreed)),
        ProtocolResponse::Event(RankEvent::WorldChanged { ranks: vec![RankId(1), RankId(258)] }),
        ProtocolResponse::Event(RankEvent::EpochAwaited { why: "gateway straße-0".to_owned() }),
        ProtocolResponse::ResultPiece { sequence: Sequence(258), offset: 1 << 33, bytes: 1 },
        ProtocolResponse::Event(RankEvent::ResultReady { sequence, timing }),
        ProtocolResponse::Event(RankEvent::ContributionFree { sequence }),
    ];
    for reason in RefusalReason::ALL {
        let why = "job `train`: no such job, or a wrong token";
        responses.push(ProtocolResponse::Refused(Refusal::new(reason, why)));
    }
    for code in FailureCode::ALL {
        let failure = Failure::new(code, format!("straße {}", code as u8).repeat(80));
        responses.push(ProtocolResponse::Event(RankEvent::Failed { sequence, failure }));
    }
    let step = Step(u64::MAX);
    let failure = Failure::new(FailureCode::RegionLost, "region east has all");
    responses.push(ProtocolResponse::Event(RankEvent::Committed { step }));
    for (number, answer) in (1 << 40..).zip(store_answers()) {
        responses.push(ProtocolResponse::Event(RankEvent::StoreAnswered { number, answer }));
    }
    responses.push(ProtocolResponse::Event(RankEvent::CommitFailed { step, failure }));
    responses.push(ProtocolResponse::Event(disbanded.clone()));
    responses.push(ProtocolResponse::Event(disbanded).of_group(GroupNumber(1 << 33)));
    responses
}

/// Every variant is named here, so that one without bytes in the file does not compile.
fn request_fields(request: &ProtocolRequest) -> (&'static str, Value) {
    match request {
        ProtocolRequest::Attach(attach) => {
            let fields = json!({
                "version": attach.version, "rank": attach.rank.0,
                "arena_bytes": attach.arena_bytes, "token": hex(&attach.token.0),
                "job": attach.job,
            });
            ("Attach", fields)
        }
        ProtocolRequest::Post { post, contribution_offset, result_offset, streamed_bytes } => {
            let Descriptor { op, dtype, elements, layout_hash, shape, pattern, counts: _ } =
                post.descriptor;
            let (operation, root) = pattern.wire_code();
            let fields = json!({
                "epoch": post.epoch.0, "sequence": post.sequence.0, "op": op as u8,
                "dtype": dtype as u8, "elements": elements, "layout_hash": layout_hash,
                "operation": operation, "root": root.0, "shape": shape.sizes(elements),
                "weight": post.weight, "timeout_ns": post.timeout.ns(),
                "contribution_offset": contribution_offset, "result_offset": result_offset,
                "streamed_bytes": streamed_bytes, "counts": count_lists(&post.counts),
            });
            ("Post", fields)
        }
        ProtocolRequest::Detach => ("Detach", json!({})),
        ProtocolRequest::ContributionPiece { offset, bytes } => {
            ("ContributionPiece", json!({ "offset": offset, "nbytes": bytes }))
        }
        ProtocolRequest::MakeGroup(MakeGroup { number, parent, place, ranks }) => {
            let mut bytes = Vec::new();
            write_group_facts_ranks(ranks, &mut bytes);
            let fields = json!({
                "number": number.0, "parent": parent.0, "place": place, "ranks": hex(&bytes),
            });
            ("MakeGroup", fields)
        }
        ProtocolRequest::LeaveGroup(number) => ("LeaveGroup", json!({ "number": number.0 })),
        ProtocolRequest::InGroup(number, request) => {
            let request = hex(&request.encode());
            ("GroupRequest", json!({ "number": number.0, "request": request }))
        }
        ProtocolRequest::Store { number, timeout, request } => {
            let mut bytes = Vec::new();
            request.write_encoding(&mut bytes);
            let fields = json!({
                "number": number, "timeout_ns": timeout.ns(), "request": hex(&bytes),
            });
            ("StoreRequest", fields)
        }
        ProtocolRequest::Commit(Commit { epoch, step, timeout }) => {
            let fields = json!({ "epoch": epoch.0, "step": step.0, "timeout_ns": timeout.ns() });
            ("Commit", fields)
        }
    }
}

/// Returns the lists of counts: none, one by rank, or those to and from each rank.
fn count_lists(counts: &Counts) -> Vec<Vec<u64>> {
    match counts {
        Counts::Even => vec![],
        Counts::ByRank(list) => vec![list.to_vec()],
        Counts::ByPair { to, from } => vec![to.to_vec(), from.to_vec()],
    }
}

fn response_fields(response: &ProtocolResponse) -> (&'static str, Value) {
    match response {
        ProtocolResponse::Attached { version, world_size, fabric } => {
            let fields = json!({ "version": version, "world_size": world_size, "fabric": fabric });
            ("Attached", fields)
        }
        ProtocolResponse::Refused(Refusal { reason, why }) => {
            ("Refused", json!({ "reason": *reason as u8, "why": why }))
        }
        ProtocolResponse::Event(RankEvent::EpochBegan { epoch, next, committed, ended }) => {
            let fields = json!({
                "epoch": epoch.0, "next_sequence": next.0,
                "has_committed": u8::from(committed.is_some()),
                "committed": committed.map_or(0, |step| step.0),
                "ended_code": ended.as_ref().map_or(0, |failure| failure.code as u8),
                "ended_text": ended.as_ref().map_or("", |failure| failure.text.as_str()),
            });
            ("EpochBegan", fields)
        }
        ProtocolResponse::Event(RankEvent::EpochAwaited { why }) => {
            ("EpochAwaited", json!({ "why": why }))
        }
        ProtocolResponse::ResultPiece { sequence, offset, bytes } => {
            let fields = json!({ "sequence": sequence.0, "offset": offset, "nbytes": bytes });
            ("ResultPiece", fields)
        }
        ProtocolResponse::Event(RankEvent::ResultReady { sequence, timing }) => {
            let fields = json!({
                "sequence": sequence.0, "posted_ns": timing.posted.ns(),
                "wan_begin_ns": timing.wan_begin.ns(), "wan_end_ns": timing.wan_end.ns(),
                "ready_ns": timing.ready.ns(),
            });
            ("ResultReady", fields)
        }
        ProtocolResponse::Event(RankEvent::ContributionFree { sequence }) => {
            ("ContributionFree", json!({ "sequence": sequence.0 }))
        }
        ProtocolResponse::Event(RankEvent::Failed { sequence, failure }) => {
            let fields = json!({
                "sequence": sequence.0, "code": failure.code as u8, "text": failure.text,
            });
            ("Failed", fields)
        }
        ProtocolResponse::Event(RankEvent::WorldChanged { ranks }) => {
            let mut bytes = Vec::new();
            write_group_facts_ranks(ranks, &mut bytes);
            ("WorldChanged", json!({ "ranks": hex(&bytes) }))
        }
        ProtocolResponse::Event(RankEvent::Disbanded { failure }) => {
            ("Disbanded", json!({ "code": failure.code as u8, "text": failure.text }))
        }
        ProtocolResponse::InGroup(number, response) => {
            let response = hex(&response.encode());
            ("GroupResponse", json!({ "number": number.0, "response": response }))
        }
        ProtocolResponse::Event(RankEvent::StoreAnswered { number, answer }) => {
            let mut bytes = Vec::new();
            write_request_answer(answer, &mut bytes);
            ("StoreAnswered", json!({ "number": number, "answer": hex(&bytes) }))
        }
        ProtocolResponse::Event(RankEvent::Committed { step }) => {
            ("Committed", json!({ "step": step.0 }))
        }
        ProtocolResponse::Event(RankEvent::CommitFailed { step, failure }) => {
            let fields =
                json!({ "step": step.0, "code": failure.code as u8, "text": failure.text });
            ("CommitFailed", fields)
        }
    }
}

/// Bytes that neither side may take for a message.
fn refused() -> Vec<Value> {
    let side = |side: &str, bytes: &[u8]| json!({ "side": side, "refused": hex(bytes) });
    let post = requests().pop().expect("a post").encode();
    let mut unknown_op = post.clone();
    unknown_op[17] = 99;
    let mut unknown_dtype = post.clone();
    unknown_dtype[18] = 99;
    // The last post is of a scalar: one element and no dimension.
    let (mut two_elements, mut many_dimensions) = (post.clone(), post.clone());
    two_elements[26] = 2;
    many_dimensions[40] = 9;
    let is_failed =
        |r: &ProtocolResponse| matches!(r, ProtocolResponse::Event(RankEvent::Failed { .. }));
    let failed = responses().into_iter().rfind(is_failed).expect("a failure").encode();
    let mut unknown_code = failed.clone();
    unknown_code[9] = 99;
    let too_long = [&[6][..], &[0; 8], &[1, 4, 1], &[b'x'; 1025]].concat();
    vec![
        side("request", &[]),
        side("request", &[0]),
        side("request", &[3, 0]),
        side("request", &post[..post.len() - 1]),
        side("request", &unknown_op),
        side("request", &unknown_dtype),
        side("request", &two_elements),
        side("request", &many_dimensions),
        side("response", &[200]),
        // A step where it says that there is none.
        side("response", &[&[3][..], &[0; 16], &[0, 0, 0, 0, 0, 0, 0, 0, 1]].concat()),
        side("response", &[2, 1, 0, 2, 0xc3, 0x28]),
        side("response", &[2, 1, 0, 3, b'a', b'b']),
        // A reason where no epoch ended, and one of an unknown code.
        side("response", &unknown_code),
        side("response", &too_long),
        side("response", &[&failed[..], &[0]].concat()),
    ]
}

fn golden() -> Vec<Value> {
    let message = |side: &str, (name, fields): (&str, Value), bytes: Vec<u8>| json!({ "side": side, "message": name, "fields": fields, "bytes": hex(&bytes) });
    let requests = requests();
    let requests = requests.iter().map(|r| {
        let mut line = message("request", request_fields(r), r.encode());
        if let ProtocolRequest::Store { request, .. } = r {
            line["may_wait"] = json!(request.may_wait());
        }
        line
    });
    let responses = responses();
    let responses = responses.iter().map(|r| message("response", response_fields(r), r.encode()));
    requests.chain(responses).chain(refused()).collect()
}

#[test]
fn the_protocol_encodes_the_golden_bytes() {
    golden_file::compare(FILE, &golden());
}

#[test]
fn the_golden_bytes_are_decoded() {
    for request in requests() {
        assert_eq!(ProtocolRequest::decode(&request.encode()), Ok(request));
    }
    for response in responses() {
        assert_eq!(ProtocolResponse::decode(&response.encode()), Ok(response));
    }
    for line in refused() {
        let bytes = unhex(line["refused"].as_str().expect("bytes"));
        let read = match line["side"].as_str() {
            Some("request") => ProtocolRequest::decode(&bytes).is_ok(),
            _ => ProtocolResponse::decode(&bytes).is_ok(),
        };
        assert!(!read, "{line}");
    }
}
