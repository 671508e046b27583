//! Seeds of the targets: every kind of message, the example files, and the spellings of the docs.

use crate::local::PIECE_STREAM_ARENA;
use gateway::events::{GroupNumber, GroupPlace};
use gateway::local::operator::OperatorRequest;
use gateway::local::protocol::{
    Attach, LOCAL_VERSION, MakeGroup, PIECE_BYTES_MAX, ProtocolRequest, ProtocolResponse,
    frame_protocol_message,
};
use gateway::local::refusal::{Refusal, RefusalReason};
use gateway::wan::link::link_message::{LinkLaneWishMessage, LinkMessage, LinkRateOverrideMessage};
use hier_collectives::descriptor::{
    AgreedCounts, ArrayShape, Counts, Descriptor, Dtype, Pattern, ReduceOp,
};
use hier_collectives::ids::{
    BootId, Epoch, GatewayId, GroupId, RankId, RegionId, SegmentIndex, Sequence, Step, Tag,
    TreeIndex,
};
use hier_collectives::membership::{Term, TermId, TermMessage, TermStanding};
use hier_collectives::mesh::MeshReport;
use hier_collectives::plan::{Plan, PlanAlgorithm, Tree, TreeDirection};
use hier_collectives::post::{Commit, Committed, Failure, FailureCode, Post, RankEvent, Timing};
use hier_collectives::sequence::SendSeries;
use hier_collectives::store::{StoreMessage, StoreOutcome, StoreQuery, StoreRequest};
use hier_collectives::tail_fec::tail_fec_parity_max;
use hier_collectives::topology::LinkState;
use hier_collectives::wire::{
    Envelope, GroupFacts, Hello, JobFacts, Message, SegmentHeader, SegmentKey, WIRE_VERSION,
};
use std::sync::Arc;
use units::{BitRate, ByteCount, Fraction, Span, TimeNs};

/// Descriptor of the collective in all seeds: an average of 25,000,000 bfloat16 elements.
const DESCRIPTOR: Descriptor = Descriptor {
    op: ReduceOp::Avg,
    dtype: Dtype::Bf16,
    elements: 25_000_000,
    layout_hash: 0x1234_5678_9abc_def0,
    shape: ArrayShape::FLAT,
    pattern: Pattern::AllReduce,
    counts: AgreedCounts::Even,
};
/// Key of the segment in all seeds: collective 41, tree 1, segment 7.
const KEY: SegmentKey =
    SegmentKey { sequence: Sequence(41), tree: TreeIndex(1), segment: SegmentIndex(7) };

/// Returns the descriptor of seeds for a matrix of as many elements.
fn matrix_descriptor() -> Descriptor {
    let shape = ArrayShape::new(&[5_000, 5_000]).expect("two dimensions");
    Descriptor { shape, ..DESCRIPTOR }
}

/// Returns the facts about the job of all seeds.
fn job_facts() -> JobFacts {
    JobFacts { name: "train".to_owned(), weight: 3, token_digest: [0x5a; 16] }
}

/// Returns the facts about the group of all seeds.
fn group_facts() -> GroupFacts {
    let job = GroupId::of_job("train");
    GroupFacts { job, parent: job, place: 1 << 63 | 7, ranks: vec![RankId(0), RankId(3)] }
}

/// Returns one message of each kind about terms.
fn term_messages() -> [TermMessage; 6] {
    let id = TermId { number: 7, boot: BootId(9) };
    let term = Term { id, regions: [RegionId(0), RegionId(2)].into() };
    [
        TermMessage::Ask,
        TermMessage::Standing(TermStanding {
            boot: BootId(9),
            latest: 7,
            voted: id,
            is_in_term: true,
            remembers: true,
        }),
        TermMessage::Propose { term: term.clone(), to: BootId(8) },
        TermMessage::Vote { term: id, boot: BootId(8), remembers: false },
        TermMessage::Refuse { term: id, latest: 8 },
        TermMessage::Begin(term),
    ]
}

/// Puts the id of a job before a body, as in all messages between gateways.
fn behind_job_id(body: &[u8]) -> Vec<u8> {
    [&GroupId::of_job("train").0.to_be_bytes(), body].concat()
}

/// Returns seeds of segment headers: of a sum and of an average, of the first and the last segment,
/// with and without parity.
pub fn segment_header_seeds() -> Vec<Vec<u8>> {
    let header = |weight, bytes, segment, parity| SegmentHeader {
        epoch: Epoch(3),
        key: SegmentKey { segment: SegmentIndex(segment), ..KEY },
        bytes,
        digest: DESCRIPTOR.digest(),
        weight,
        parity,
    };
    let most = tail_fec_parity_max(1 << 20);
    let headers = [
        header(1.0, 1 << 20, 0, 0),
        header(2.5, 64, 7, 1),
        header(0.0, 0, u32::MAX - 1, 0),
        header(1.0, 1 << 20, 9, most),
    ];
    headers.iter().map(|header| behind_job_id(&header.encode())).collect()
}

/// Returns seeds of control messages of every kind.
pub fn control_message_seeds() -> Vec<Vec<u8>> {
    let (epoch, sequence) = (Epoch(3), Sequence(41));
    let failure = |code| Failure::new(code, "rank 2 posted f32, rank 0 bf16");
    let begin = |plan| Message::Begin {
        epoch,
        next: sequence,
        boots: vec![BootId(0x1111_2222), BootId(u64::MAX), BootId(7)],
        plan,
        committed: Some(Committed { below: sequence, step: Step(12) }),
    };
    let (rate, rtt) = (BitRate::from_bits_per_second(50_000_000), Span::from_ms(60));
    let state = LinkState { rate, rtt, loss: Fraction::default() };
    let (from, below, rank) = (Sequence(38), sequence, RankId(2));
    let announce = |descriptor, all| {
        let sent = None;
        Message::Announce { epoch, sequence, rank, descriptor, all, sent }
    };
    let (elements, pattern) = (0, Pattern::AllToAll);
    let by_pair = Descriptor { elements, pattern, counts: AgreedCounts::ByPair, ..DESCRIPTOR };
    let mut messages = vec![
        Message::Join { boot: BootId(9), last: epoch, next: sequence, committed: None },
        begin(three_roots_plan()),
        begin(four_trees_plan()),
        Message::Ready { epoch, link: None },
        Message::Ready { epoch, link: Some(state) },
        announce(DESCRIPTOR, false),
        announce(matrix_descriptor(), true),
        Message::Announce {
            epoch,
            sequence,
            rank,
            descriptor: by_pair,
            all: true,
            sent: Some([0, 25_000_000, 7].into()),
        },
        Message::Grant { epoch, sequence, tree: TreeIndex(1), limit: 12 },
        Message::Receipt { epoch, sequence, tree: TreeIndex(1), segments: 11..12 },
        Message::Receipt { epoch, sequence, tree: TreeIndex(0), segments: 0..4096 },
        Message::End { epoch, failure: failure(FailureCode::ShuttingDown) },
        Message::Done { epoch, from, below },
        Message::Ask { epoch, from, below, rank, step: Step(41) },
        Message::Drain { epoch, from },
        Message::Repeat,
        Message::Pause { epoch, change: 2 },
        Message::Paused { epoch, change: 2, from: sequence },
        Message::Change { epoch, change: 2, from: sequence, plan: four_trees_plan() },
        Message::Link { epoch, to: RegionId(1), state },
        Message::Moving { epoch },
        Message::Serves { boot: BootId(9), job: job_facts() },
        Message::Unserved { boot: BootId(9) },
        Message::Member { boot: BootId(9), facts: group_facts(), takes_part: true },
        Message::Disband { failure: failure(FailureCode::Disagreement) },
        Message::Store(Box::new(StoreMessage::Present { boot: BootId(9) })),
    ];
    messages.extend(term_messages().into_iter().map(Message::Term));
    let fail = |code| Message::Fail { epoch, sequence, failure: failure(code) };
    messages.extend(FailureCode::ALL.map(fail));
    let pattern = Pattern::Send { from: RankId(1) };
    messages.push(Message::Announce {
        epoch,
        sequence: SendSeries { from: RankId(1), tag: Tag(9) }.sequence_at(41),
        rank: RankId(1),
        descriptor: Descriptor { pattern, ..matrix_descriptor() },
        all: true,
        sent: None,
    });
    let envelope =
        Envelope { group: GroupId::of_job("train"), from: GatewayId(2), to: GatewayId(1), hops: 1 };
    let enveloped = |message: &Message| [&envelope.encode(), &*message.encode()].concat();
    messages.iter().map(enveloped).collect()
}

/// Returns seeds of streams with parity: pieces in order, reversed and with gaps; the sender's
/// parity and forged parity; one shard and several, the last of them short.
pub fn parity_stream_seeds() -> Vec<Vec<u8>> {
    let seed = |length: u16, parity: u8, strange: u8, piece: u8, order: &dyn Fn(u8) -> u8| {
        let head = [&length.to_be_bytes()[..], &[parity, strange, piece]].concat();
        let picks: Vec<u8> = (0..=u8::MAX).map(order).collect();
        let content: Vec<u8> = (0..=u8::MAX).map(|at| at.wrapping_mul(31)).collect();
        [head, picks, content].concat()
    };
    vec![
        seed(1, 0, 0, 0, &|_| 0),
        seed(704, 1, 0, 10, &|_| 0),
        seed(705, 3, 0, 88, &|at| at),
        seed(7500, 11, 0, 170, &|at| at.wrapping_mul(97)),
        seed(7500, 11, 1, 170, &|at| u8::MAX - at),
        seed(7998, 12, 0, 60, &|at| at.wrapping_mul(7)),
        seed(7999, 12, 1, 255, &|at| at.wrapping_mul(13)),
    ]
}

/// Returns seeds of link messages: a rate override, its end, the control generation of a lane, a
/// report of connections, and numbers of lanes.
pub fn link_message_seeds() -> Vec<Vec<u8>> {
    let message = |ends: (u16, u16), number, rate: Option<u64>| {
        let ends = (RegionId(ends.0), RegionId(ends.1));
        LinkMessage::Rate(LinkRateOverrideMessage {
            ends,
            number,
            rate: rate.map(BitRate::from_bits_per_second),
        })
    };
    let messages = [
        message((0, 1), 1, Some(300_000_000)),
        message((0, 1), 2, None),
        message((3, 65_535), u64::MAX, Some(8_000)),
        LinkMessage::ControlGeneration(2),
        LinkMessage::Connections(MeshReport {
            gateway: GatewayId(1),
            number: 7,
            up: vec![GatewayId(0), GatewayId(3)],
            down: vec![GatewayId(2)],
        }),
        LinkMessage::Lanes(LinkLaneWishMessage { number: 1, wanted: 1, most: 4 }),
        LinkMessage::Lanes(LinkLaneWishMessage { number: u64::MAX, wanted: 16, most: 16 }),
    ];
    messages.iter().map(LinkMessage::encode).collect()
}

/// Makes a plan of one tree, whose root set has three gateways.
fn three_roots_plan() -> Plan {
    let roots = (0..3).map(GatewayId).collect();
    swap_plan(vec![Tree { share: 1, direction: TreeDirection::Both, roots, parents: [].into() }])
}

/// Makes a plan of a common tree, two trees for partials and results, and an express tree.
fn four_trees_plan() -> Plan {
    let tree = |share, direction, root: u16| {
        let others = (0..3).filter(|id| *id != root);
        let parents = others.map(|id| (GatewayId(id), GatewayId(root))).collect();
        Tree { share, direction, roots: vec![GatewayId(root)], parents }
    };
    let (both, up, down) = (TreeDirection::Both, TreeDirection::Partials, TreeDirection::Results);
    let express_bytes = ByteCount::new(1 << 20);
    let trees = vec![tree(3, both, 0), tree(5, up, 2), tree(5, down, 2), tree(0, both, 1)];
    Plan { express_bytes, ..swap_plan(trees) }
}

/// Makes a plan of these trees, without an express limit.
fn swap_plan(trees: Vec<Tree>) -> Plan {
    let reason = "two regions: both send their partial once".to_owned();
    let (segment, express_bytes) = (ByteCount::new(1 << 20), ByteCount::default());
    Plan { algorithm: PlanAlgorithm::Swap, reason, segment, express_bytes, trees }
}

/// Returns seeds of hellos of this version and of the next.
pub fn hello_seeds() -> Vec<Vec<u8>> {
    let of = |version, gateway: &str, lane| Hello {
        version,
        fabric: [0xab; 32],
        gateway: gateway.to_owned(),
        boot: BootId(0x0123_4567_89ab_cdef),
        lane,
    };
    let longest = "a".repeat(63);
    let hellos = [
        of(WIRE_VERSION, "east-0", 0),
        of(WIRE_VERSION, &longest, 15),
        of(WIRE_VERSION + 1, "west-0", 3),
    ];
    hellos.iter().map(Hello::encode).collect()
}

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
    };
    let mut requests = vec![attach("train"), attach(""), ProtocolRequest::Detach];
    let ops = ReduceOp::ALL.into_iter().cycle();
    requests.extend(Dtype::ALL.into_iter().zip(ops).map(|(dtype, op)| post(op, dtype, 1.0)));
    requests.push(post(ReduceOp::Avg, Dtype::F32, f64::NAN));
    let [to, from]: [Arc<[u64]>; 2] = [[0, 25_000_000, 7].into(), [1, 2, 3].into()];
    for counts in [Counts::ByRank(Arc::clone(&to)), Counts::ByPair { to, from }] {
        let ProtocolRequest::Post { post, contribution_offset, result_offset } =
            post(ReduceOp::Sum, Dtype::U8, 1.0)
        else {
            continue;
        };
        let descriptor = Descriptor { counts: counts.agreed(), ..post.descriptor };
        let post = Post { descriptor, counts, ..post };
        requests.push(ProtocolRequest::Post { post, contribution_offset, result_offset });
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
    if let ProtocolRequest::Post { mut post, contribution_offset, result_offset } =
        post(ReduceOp::Sum, Dtype::U8, 1.0)
    {
        post.sequence = SendSeries { from: RankId(0), tag: Tag(9) }.sequence_at(41);
        post.descriptor.pattern = Pattern::Send { from: RankId(0) };
        let post = Box::new(ProtocolRequest::Post { post, contribution_offset, result_offset });
        requests.push(ProtocolRequest::InGroup(GroupNumber(5), post));
    }
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

/// Returns seeds of an operator's requests: one that limits a link, and one that ends the limit.
pub fn operator_request_seeds() -> Vec<Vec<u8>> {
    let request = |bits_per_second| OperatorRequest::SetRate {
        link: "east-west".to_owned(),
        bits_per_second,
    };
    let json = |request| serde_json::to_vec(&request).expect("keys are strings");
    vec![json(request(Some(800_000_000))), json(request(None))]
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

/// Returns seeds of fabric files: the examples, and keys that they lack.
pub fn fabric_config_seeds() -> Vec<Vec<u8>> {
    let five = include_str!("../../configs/five-regions/fabric.toml");
    text_seeds(&[
        FABRIC,
        five,
        THREE_REGIONS,
        "name = 1\nmtu = [\n",
        "[link.a-b]\nrate = \"1 bit/s\"\n",
    ])
}

/// Returns seeds of region files: the examples, and keys that they lack.
pub fn region_config_seeds() -> Vec<Vec<u8>> {
    let full = format!("{EAST}weight = 3\n\n[job.zoo]\ntoken = '/etc/t'\nmemory = \"2MiB\"\n");
    let more = "user = \"landbridge\"\ngroup = \"1000\"\nlisten = \"[::]:7400\"\nstatus =";
    let full = full.replace("status =", more);
    text_seeds(&[EAST, WEST, &full, "fabric = \"fabric.toml\"\n[gateway]\n[job]\n"])
}

/// Returns seeds of quantities: every unit, and numbers at their edges.
pub fn quantities_seeds() -> Vec<Vec<u8>> {
    text_seeds(&[
        "500 Mbit/s",
        "8kbit/s",
        "0.5 Gbit/s",
        "18446744.073709551615 Tbit/s",
        "1 bit/s",
        "64 MiB",
        "1.5 KiB",
        "16777215.5 TiB",
        "18446744073709551615 B",
        "1 GiB",
        "3 TB",
        "2 GB",
        "7 MB",
        "9 kB",
        "0.1 %",
        "100%",
        "99.9999999 %",
        "0 %",
        "80 ms",
        "1.5 s",
        "20 us",
        "17 ns",
        "30 min",
        "5124095.5 h",
        "1 BDP",
        "0.125bdp",
        "1000000000000000000000",
    ])
}

/// Returns seeds of links in netem's syntax: the examples of docs/netem.md.
pub fn netem_words_seeds() -> Vec<Vec<u8>> {
    text_seeds(&[
        "delay 40ms 2ms distribution normal loss 1% rate 1gbit",
        "delay 10ms 2ms distribution uniform order free loss gemodel 1% 30% 90% 1% ecn \
         corrupt 5% duplicate 5% reorder 5% gap 3 rate 20mbit 8 queue 20kB mark-above 9kB limit 40",
        "latency 5msec drop random 10%",
        "delay 1ms rate 125mbps queue 1.5bdp seed 7",
        "delay 60ms 1ms rate 200mbit queue 20ms order kept",
        "delay 100usecs limit none",
        "loss gemodel 1%",
        "rate 8tbit limit 1000",
        "delay 1s gap 5",
        "loss state 1%",
        "slot 1ms",
    ])
}

/// Returns seeds of lab files: the example lab, and a fabric.
pub fn lab_file_seeds() -> Vec<Vec<u8>> {
    let over = "fabric = \"../two-region/fabric.toml\"\nseed = 7\nmtu = 9000\n[site.moon]\n\
                [link.east-west]\nqueue = \"1 BDP\"\n[link.east-moon]\nrtt = \"2.6 s\"\n\
                netem = \"delay 1ms\"\n";
    let every = "[site.a]\n[site.b]\n[link.a-b]\ndelay = \"1 ms\"\njitter = \"0.1 ms\"\n\
                 reordering = true\nrate = \"1 Gbit/s\"\noverhead_bytes = 38\nqueue = \"20 ms\"\n\
                 mark_above = \"100 kB\"\nlimit_packets = 9\nloss = \"1 %\"\nmark_losses = true\n\
                 duplicate = \"2 %\"\ncorrupt = \"3 %\"\nreorder = \"1 %\"\ngap = 5\n";
    let netem = "[site.a]\n[site.b]\n[link.a-b]\nforward.netem = \"delay 4ms\"\n\
                 backward.netem = \"delay 40ms 2ms rate 1mbit loss 1%\"\n";
    let scripted = "[site.a]\negress = \"1 Gbit/s\"\ningress = \"2 Gbit/s\"\nport_queue = \"1 MB\"\n\
                    [site.b]\n[link.a-b]\ndelay = \"1 ms\"\nrate = \"5 Gbit/s\"\n\
                    changes = [{ at = \"1 s\", rate = \"1 Mbit/s\", loss = \"1 %\" }, \
                    { at = \"2 s\", cut = true }, { at = \"3 s\", cut = false, delay = \"2 ms\" }]\n\
                    drops = [0, 7]\n";
    text_seeds(&[
        LAB,
        FABRIC,
        scripted,
        &over.replace("netem = \"delay 1ms\"\n", ""),
        over,
        every,
        netem,
    ])
}

/// Returns seeds of recordings: every kind of line, with fates that a replay corrects.
pub fn recording_seeds() -> Vec<Vec<u8>> {
    let everything = "wan-sim recording 1\n\
        link 0 east_west delay 10ms 2ms distribution normal order free loss gemodel 1% 30% 90% 1% \
        ecn corrupt 5% duplicate 5% reorder 5% gap 3 rate 20mbit 8 queue 20kB mark-above 9kB \
        limit 40 seed 3\nlink 1 west_east delay 5ms loss 10% seed 4\n\
        0 0 1500 ect 10000000\n0 0 1500 ect 10000000\n1 170001 137 not 5170001\n\
        0 340002 174 not drop:loss\n0 set 340002 delay 7ms rate 5mbit queue 1bdp\n1 cut\n\
        1 510003 211 ect drop:blackhole\n1 join\n0 680004 248 ect 9 marked:queue bit:3 copy 10\n";
    let scripted = "wan-sim recording 1\nlink 0 a delay 1ms rate 1mbit seed 1\n\
        0 at 5000000 set delay 2ms rate 2mbit\n0 at 6000000 cut\n0 at 7000000 join\n0 drops 1\n\
        0 0 1500 not 13000000\n0 0 1500 not drop:script\n0 0 1500 not 15000000\n\
        0 set 1000000 delay 1ms rate 3mbit\n0 moved 0 5666666\n0 moved 2 1\n";
    let plain = "wan-sim recording 1\nlink 0 a delay 1ms limit none seed 1\n\
        0 0 100 not 1000000\n0 0 100 not 1000000\n0 5 65535 ect 1000005\n";
    text_seeds(&[everything, scripted, plain, "wan-sim recording 1\n"])
}

/// Turns texts into seeds.
fn text_seeds(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// Text of the example fabric of two regions.
const FABRIC: &str = include_str!("../../configs/two-region/fabric.toml");
/// Text of the region file of the example region `east`.
const EAST: &str = include_str!("../../configs/two-region/east.toml");
/// Text of the region file of the example region `west`.
const WEST: &str = include_str!("../../configs/two-region/west.toml");
/// Text of the example lab of three sites.
const LAB: &str = include_str!("../../configs/labs/three-sites.toml");

/// Text of a fabric file with three regions: gateways without a WAN port, compute speeds, names
/// with hyphens, and IPv6 addresses.
const THREE_REGIONS: &str = r#"
name = "three"
mtu = 9000
lanes = 2
region.us-east = { ranks = 3, speeds = [1, 0.5, 2e0] }
[region.us-east.gateway.a]
ranks = 2
wan = ["[2001:db8::1]:7400", "[2001:db8:1::1]:7400"]
lan = "[fd00::1]:7400"
egress = "1 Gbit/s"
ingress = "2 Gbit/s"
[region.us-east.gateway.b]
ranks = 0x1
lan = "[fd00::2]:7400"
[region.us-west]
ranks = 1
[region.us-west.gateway.c]
wan = "[2001:db8:2::1]:65520"
egress = "10Gbit/s"
ingress = "10Gbit/s"
[region.eu]
ranks = 1
[region.eu.gateway.d]
wan = "[2001:db8:2::1]:65504"
egress = "8 kbit/s"
ingress = "8 kbit/s"
[link.us-east-us-west]
rate = "1 Gbit/s"
rtt = "60 ms"
[link.eu-us-east]
rate = "1 Gbit/s"
rtt = "0.09 s"
loss = "49.9 %"
controller = "newreno"
schedule = [{ at = "08:00", rate = "300 Mbit/s" }, { at = "18:30:15", rate = "1 Gbit/s" }]
"#;
