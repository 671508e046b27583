//! Seeds of what gateways send to each other: segments, control and link messages, hellos.

use super::seed_facts::{DESCRIPTOR, KEY, group_facts, job_facts, matrix_descriptor};
use gateway::wan::link::link_message::{
    LinkLaneWishMessage, LinkMessage, LinkPortRateMessage, LinkRateOverrideMessage,
};
use gateway::wan::stream::packet_train::train_message::{TRAIN_BYTES_MAX, TrainMessage};
use hier_collectives::descriptor::{AgreedCounts, Descriptor, Pattern};
use hier_collectives::ids::{
    BootId, Epoch, GatewayId, GroupId, RankId, RegionId, SegmentIndex, Sequence, Step, Tag,
    TreeIndex,
};
use hier_collectives::membership::{
    FabricVersion, RegionIntent, SignedFabric, Term, TermId, TermMessage, TermStanding,
};
use hier_collectives::mesh::MeshReport;
use hier_collectives::plan::{Plan, PlanAlgorithm, Tree, TreeDirection};
use hier_collectives::post::{Committed, EpochId, Failure, FailureCode, PreparedSteps};
use hier_collectives::sequence::SendSeries;
use hier_collectives::store::StoreMessage;
use hier_collectives::tail_fec::tail_fec_parity_max;
use hier_collectives::topology::LinkState;
use hier_collectives::wire::{
    Envelope, Hello, Message, SegmentHeader, SegmentKey, WIRE_VERSION, WireVersion, WireVersions,
};
use units::{BitRate, ByteCount, Fraction, Span};

/// Returns one message of each kind about terms.
fn term_messages() -> [TermMessage; 12] {
    let id = TermId { number: 7, boot: BootId(9) };
    let fabric = FabricVersion { number: 5, digest: [7; 32] };
    let term = Term { id, regions: [RegionId(0), RegionId(2)].into(), fabric };
    [
        TermMessage::Ask,
        TermMessage::Standing(TermStanding {
            boot: BootId(9),
            latest: 7,
            voted: id,
            is_in_term: true,
            remembers: true,
            in_force: fabric,
            newest: FabricVersion { number: 6, digest: [8; 32] },
            refused: FabricVersion::default(),
        }),
        TermMessage::Propose { term: term.clone(), to: BootId(8) },
        TermMessage::Vote { term: id, boot: BootId(8), remembers: false },
        TermMessage::Refuse { term: id, latest: 8 },
        TermMessage::Begin(term.clone()),
        TermMessage::ProposeToWitness {
            term: term.clone(),
            to: BootId(8),
            remembering: [RegionId(2)].into(),
        },
        TermMessage::Begun { term, to: BootId(8) },
        TermMessage::Intents(vec![
            RegionIntent { region: RegionId(0), version: 2, leaves: false, within_s: 0 },
            RegionIntent { region: RegionId(2), version: 1, leaves: true, within_s: 600 },
        ]),
        TermMessage::Pause {
            term: id,
            failure: Failure::new(FailureCode::MembershipChanged, "region west leaves"),
        },
        TermMessage::Paused(id),
        TermMessage::Fabric {
            fabric: SignedFabric { version: fabric, bytes: [0x5a; 80].into() },
            within: Span::from_secs(600),
        },
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

/// Returns seeds of packet trains and reports on them.
pub fn train_message_seeds() -> Vec<Vec<u8>> {
    let messages = [
        TrainMessage::Train { number: 1, bytes: 14_000 },
        TrainMessage::Train { number: u32::MAX, bytes: TRAIN_BYTES_MAX },
        TrainMessage::Report { number: 1, bytes: 12_600, span_ns: 2_016_000 },
        TrainMessage::Report { number: 2, bytes: 0, span_ns: 0 },
    ];
    messages.iter().map(|message| message.encode().to_vec()).collect()
}

/// Returns a Join after an epoch and a collective.
fn join(last: Epoch, next: Sequence, prepared: PreparedSteps) -> Message {
    Message::Join { boot: BootId(9), last, next, committed: None, prepared }
}

/// Returns seeds of control messages of every kind.
pub fn control_message_seeds() -> Vec<Vec<u8>> {
    let (epoch, sequence) = (Epoch(3), Sequence(41));
    let id = EpochId { term: 2, number: epoch };
    let failure = |code| Failure::new(code, "rank 2 posted f32, rank 0 bf16");
    let begin = |plan| Message::Begin {
        epoch,
        next: sequence,
        boots: vec![BootId(0x1111_2222), BootId(u64::MAX), BootId(7)],
        plan,
        committed: Some(Committed { below: sequence, step: Step(12), epoch: id }),
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
        join(epoch, sequence, PreparedSteps::default()),
        join(
            epoch,
            sequence,
            PreparedSteps { epoch: id, steps: vec![(from, Step(12)), (sequence, Step(13))] },
        ),
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
    let changed = failure(FailureCode::MembershipChanged);
    messages.push(Message::Boundary { epoch, from, ends_step: true, failure: changed });
    let fail = |code| Message::Fail { epoch, sequence, failure: failure(code) };
    messages.extend(FailureCode::ALL.map(fail));
    messages.push(announced_send());
    let envelope =
        Envelope { group: GroupId::of_job("train"), from: GatewayId(2), to: GatewayId(1), hops: 1 };
    let enveloped = |message: &Message| [&envelope.encode(), &*message.encode()].concat();
    messages.iter().map(enveloped).collect()
}

/// Returns a send that a rank announces.
fn announced_send() -> Message {
    let pattern = Pattern::Send { from: RankId(1) };
    Message::Announce {
        epoch: Epoch(3),
        sequence: SendSeries { from: RankId(1), tag: Tag(9) }.sequence_at(41),
        rank: RankId(1),
        descriptor: Descriptor { pattern, ..matrix_descriptor() },
        all: true,
        sent: None,
    }
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
        LinkMessage::PortRate(LinkPortRateMessage { number: 1, rate: None }),
        LinkMessage::PortRate(LinkPortRateMessage {
            number: 2,
            rate: Some(BitRate::from_bits_per_second(1)),
        }),
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
    Plan {
        algorithm: PlanAlgorithm::Swap,
        reason,
        segment,
        express_bytes,
        trees,
        block_trees: vec![],
        block_bytes_min: ByteCount::default(),
    }
}

/// Returns seeds of hellos of this version, of the next alone, and of both, with fields that the next
/// may add.
pub fn hello_seeds() -> Vec<Vec<u8>> {
    let next = WireVersion(WIRE_VERSION.0 + 1);
    let of = |oldest, newest, gateway: &str, lane| Hello {
        versions: WireVersions::new(oldest, newest).expect("in order"),
        fabric: [0xab; 32],
        gateway: gateway.to_owned(),
        boot: BootId(0x0123_4567_89ab_cdef),
        lane,
    };
    let longest = "a".repeat(63);
    let hellos = [
        of(WIRE_VERSION, WIRE_VERSION, "east-0", 0),
        of(WIRE_VERSION, WIRE_VERSION, &longest, 15),
        of(next, next, "west-0", 3),
        of(WIRE_VERSION, next, "west-1", 3),
    ];
    let longer = [&hellos[3].encode()[..], &[7; 9]].concat();
    hellos.iter().map(Hello::encode).chain([longer]).collect()
}
