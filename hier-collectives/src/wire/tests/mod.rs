//! Every message survives encoding and decoding, and no bytes cause a panic.

mod versions;

use super::*;
use crate::codec::DecodeError;
use crate::descriptor::{
    AgreedCounts, ArrayShape, DIMENSIONS_MAX, Descriptor, Dtype, Pattern, ReduceOp,
};
use crate::ids::{
    BootId, Epoch, GatewayId, GroupId, RankId, RegionId, SegmentIndex, Sequence, Step, TreeIndex,
};
use crate::membership::{FabricVersion, RegionIntent, SignedFabric, Term, TermId, TermMessage};
use crate::plan::{BlockTree, Plan, PlanAlgorithm, Tree, TreeDirection};
use crate::post::{Committed, EpochId, Failure, FailureCode, PreparedSteps};
use crate::tail_fec::tail_fec_parity_max;
use crate::topology::LinkState;
use proptest::prelude::*;
use proptest::sample::select;
use units::{BitRate, ByteCount, Fraction, Span};

fn plans() -> impl Strategy<Value = Plan> {
    let parents = || proptest::collection::btree_map(0u16..9, 0u16..9, 0..9);
    let block_tree =
        (0u16..9, any::<u32>(), parents()).prop_map(|(root, share, parents)| BlockTree {
            root: RegionId(root),
            share,
            parents: parents.into_iter().map(|(a, b)| (RegionId(a), RegionId(b))).collect(),
        });
    let tree =
        (1u64..100, 0u8..3, 0u16..9, parents()).prop_map(|(share, direction, roots, parents)| {
            Tree {
                share,
                direction: TreeDirection::from_code(direction).expect("known"),
                roots: (0..roots).map(GatewayId).collect(),
                parents: parents.into_iter().map(|(a, b)| (GatewayId(a), GatewayId(b))).collect(),
            }
        });
    let (segment, express) = (any::<u64>(), any::<u64>());
    let trees = proptest::collection::vec(tree, 0..5);
    let block_trees = proptest::collection::vec(block_tree, 0..3);
    (".{0,40}", segment, express, trees, block_trees).prop_map(
        |(reason, segment, express, trees, block_trees)| Plan {
            algorithm: PlanAlgorithm::Swap,
            reason,
            segment: ByteCount::new(segment),
            express_bytes: ByteCount::new(express),
            trees,
            block_trees,
            block_bytes_min: ByteCount::new(segment >> 1),
        },
    )
}

fn failures() -> impl Strategy<Value = Failure> {
    (0..FailureCode::ALL.len(), ".{0,80}")
        .prop_map(|(code, text)| Failure::new(FailureCode::ALL[code], text))
}

fn keys() -> impl Strategy<Value = SegmentKey> {
    (any::<u64>(), any::<u16>(), 0..u32::MAX).prop_map(|(sequence, tree, segment)| SegmentKey {
        sequence: Sequence(sequence),
        tree: TreeIndex(tree),
        segment: SegmentIndex(segment),
    })
}

fn epoch_ids() -> impl Strategy<Value = EpochId> {
    let id = (any::<u64>(), any::<u64>());
    id.prop_map(|(term, number)| EpochId { term, number: Epoch(number) })
}

fn committed() -> impl Strategy<Value = Option<Committed>> {
    let step = (any::<u64>(), any::<u64>(), epoch_ids());
    proptest::option::of(step.prop_map(|(step, below, epoch)| Committed {
        step: Step(step),
        below: Sequence(below),
        epoch,
    }))
}

fn prepared_steps() -> impl Strategy<Value = PreparedSteps> {
    let step = (any::<u64>(), any::<u64>()).prop_map(|(below, step)| (Sequence(below), Step(step)));
    let steps = proptest::collection::vec(step, 0..5);
    (epoch_ids(), steps).prop_map(|(epoch, steps)| PreparedSteps { epoch, steps })
}

fn link_states() -> impl Strategy<Value = LinkState> {
    (8_000u64.., 0u64..=60_000_000_000, 0u32..500_000_000).prop_map(|(rate, rtt, loss)| LinkState {
        rate: BitRate::from_bits_per_second(rate),
        rtt: Span::from_ns(rtt),
        loss: Fraction::from_ppb(loss).expect("below 1"),
    })
}

fn descriptors() -> impl Strategy<Value = Descriptor> {
    let pattern = (1u8..10, any::<u32>().prop_map(RankId)).prop_map(|(code, rank)| {
        let with_rank = Pattern::from_code(code, rank);
        with_rank.or(Pattern::from_code(code, RankId(0))).expect("known")
    });
    let shape = 0..DIMENSIONS_MAX;
    let counts = prop_oneof![
        Just(AgreedCounts::Even),
        any::<u64>().prop_map(|digest| AgreedCounts::ByRank { digest }),
        Just(AgreedCounts::ByPair),
    ];
    let (op, dtype) = (select(ReduceOp::ALL.to_vec()), select(Dtype::ALL.to_vec()));
    (op, dtype, any::<u64>(), any::<u64>(), shape, pattern, counts).prop_map(
        |(op, dtype, elements, layout_hash, ones, pattern, counts)| Descriptor {
            op,
            dtype,
            elements,
            layout_hash,
            shape: ArrayShape::new(&[&vec![1; ones][..], &[elements]].concat()).expect("few"),
            pattern,
            counts,
        },
    )
}

fn receipts() -> impl Strategy<Value = Message> {
    (any::<u64>(), keys(), 1..=u32::MAX).prop_map(|(epoch, key, count)| {
        let SegmentKey { sequence, tree, segment: SegmentIndex(segment) } = key;
        let segments = segment..segment.saturating_add(count);
        Message::Receipt { epoch: Epoch(epoch), sequence, tree, segments }
    })
}

fn group_members() -> impl Strategy<Value = Message> {
    let ranks = proptest::collection::btree_set(any::<u32>(), 1..20);
    (any::<[u64; 4]>(), ranks, any::<bool>()).prop_map(|(n, ranks, takes_part)| {
        let (job, parent) = (GroupId(n[1]), GroupId(n[2]));
        let ranks = ranks.into_iter().map(RankId).collect();
        let facts = GroupFacts { job, parent, place: n[3], ranks };
        Message::Member { boot: BootId(n[0]), facts, takes_part }
    })
}

fn term_ids() -> impl Strategy<Value = TermId> {
    (0..1u64 << 62, any::<u64>()).prop_map(|(number, boot)| TermId { number, boot: BootId(boot) })
}

fn intents() -> impl Strategy<Value = Vec<RegionIntent>> {
    let intent = (1..1u64 << 62, any::<bool>(), any::<u32>());
    let known = proptest::collection::btree_map(any::<u16>(), intent, 0..6);
    let made = |(region, (version, leaves, within_s))| RegionIntent {
        region: RegionId(region),
        version,
        leaves,
        within_s,
    };
    known.prop_map(move |known| known.into_iter().map(made).collect())
}

fn fabric_versions() -> impl Strategy<Value = FabricVersion> {
    (0..1u64 << 62, any::<[u8; 32]>()).prop_map(|(number, digest)| FabricVersion { number, digest })
}

fn signed_fabrics() -> impl Strategy<Value = TermMessage> {
    let bytes = proptest::collection::vec(any::<u8>(), 0..200);
    (fabric_versions(), bytes, any::<u32>()).prop_map(|(version, bytes, seconds)| {
        let version = FabricVersion { number: version.number.max(1), ..version };
        let fabric = SignedFabric { version, bytes: bytes.into() };
        TermMessage::Fabric { fabric, within: Span::from_secs(seconds.into()) }
    })
}

/// Messages about regions that leave and join, groups that end, and fabrics.
fn boundary_messages() -> impl Strategy<Value = Message> {
    let pair = (any::<u64>().prop_map(Epoch), any::<u64>().prop_map(Sequence));
    prop_oneof![
        (pair, any::<bool>(), failures()).prop_map(|((epoch, from), ends_step, failure)| {
            Message::Boundary { epoch, from, ends_step, failure }
        }),
        intents().prop_map(|intents| Message::Term(TermMessage::Intents(intents))),
        (term_ids(), failures())
            .prop_map(|(term, failure)| Message::Term(TermMessage::Pause { term, failure })),
        term_ids().prop_map(|term| Message::Term(TermMessage::Paused(term))),
        signed_fabrics().prop_map(Message::Term),
        (term_ids(), fabric_versions()).prop_map(|(id, fabric)| {
            let id = TermId { number: id.number.max(1), ..id };
            let regions = [RegionId(1), RegionId(3)].into();
            Message::Term(TermMessage::Begin(Term { id, regions, fabric }))
        }),
        failures().prop_map(|failure| Message::Disband { failure }),
    ]
}

fn joins() -> impl Strategy<Value = Message> {
    let fields = (any::<[u64; 3]>(), committed(), prepared_steps());
    fields.prop_map(|([boot, last, next], committed, prepared)| Message::Join {
        boot: BootId(boot),
        last: Epoch(last),
        next: Sequence(next),
        committed,
        prepared,
    })
}

fn messages() -> impl Strategy<Value = Message> {
    let (epoch, sequence) = (any::<u64>().prop_map(Epoch), any::<u64>().prop_map(Sequence));
    let pair = (epoch, sequence);
    let descriptor = descriptors();
    prop_oneof![
        joins(),
        (pair.clone(), proptest::collection::vec(any::<u64>(), 0..9), plans(), committed())
            .prop_map(|((epoch, next), boots, plan, committed)| Message::Begin {
                epoch,
                next,
                boots: boots.into_iter().map(BootId).collect(),
                plan,
                committed
            }),
        (pair.clone(), 1..u64::MAX, any::<Option<(u32, u64)>>()).prop_map(
            |((epoch, from), span, commit)| {
                let from = Sequence(from.0.min(u64::MAX - span));
                let below = Sequence(from.0 + span);
                match commit.map(|(rank, step)| (RankId(rank), Step(step))) {
                    Some((rank, step)) => Message::Ask { epoch, from, below, rank, step },
                    None => Message::Done { epoch, from, below },
                }
            }
        ),
        pair.clone().prop_map(|(epoch, from)| Message::Drain { epoch, from }),
        boundary_messages(),
        (pair.clone(), proptest::option::of(link_states()))
            .prop_map(|((epoch, _), link)| Message::Ready { epoch, link }),
        pair.clone().prop_map(|(epoch, _)| Message::Moving { epoch }),
        Just(Message::Repeat),
        (any::<u64>(), any::<u16>(), link_states()).prop_map(|(epoch, to, state)| {
            Message::Link { epoch: Epoch(epoch), to: RegionId(to), state }
        }),
        (pair.clone(), any::<u32>(), proptest::option::of(plans())).prop_map(
            |((epoch, from), change, plan)| match plan {
                Some(plan) => Message::Change { epoch, change, from, plan },
                None if change & 1 == 0 => Message::Pause { epoch, change },
                None => Message::Paused { epoch, change, from },
            }
        ),
        (pair.clone(), any::<u32>(), descriptor, any::<bool>(), any::<Vec<u64>>()).prop_map(
            |((epoch, sequence), rank, descriptor, all, sent)| Message::Announce {
                epoch,
                sequence,
                rank: RankId(rank),
                descriptor,
                all,
                sent: (descriptor.counts == AgreedCounts::ByPair).then(|| sent.into()),
            }
        ),
        (pair.clone(), any::<u16>(), any::<u32>()).prop_map(|((epoch, sequence), tree, limit)| {
            Message::Grant { epoch, sequence, tree: TreeIndex(tree), limit }
        }),
        receipts(),
        (any::<u64>(), "\\PC{1,15}", any::<u32>(), any::<[u8; 16]>()).prop_map(
            |(boot, name, weight, token_digest)| {
                let job = JobFacts { name, weight, token_digest };
                Message::Serves { boot: BootId(boot), job }
            }
        ),
        any::<u64>().prop_map(|boot| Message::Unserved { boot: BootId(boot) }),
        group_members(),
        (pair.clone(), failures()).prop_map(|((epoch, sequence), failure)| Message::Fail {
            epoch,
            sequence,
            failure
        }),
        (pair, failures()).prop_map(|((epoch, _), failure)| Message::End { epoch, failure }),
    ]
}

proptest! {
    #[test]
    fn messages_survive_the_wire(message in messages()) {
        prop_assert_eq!(Message::decode(&message.encode()), Ok(message));
    }

    #[test]
    fn no_prefix_of_a_message_is_a_message(message in messages(), cut in 0.0..1.0f64) {
        let bytes = message.encode();
        let end = (bytes.len() as f64 * cut) as usize;
        prop_assert!(Message::decode(&bytes[..end]).is_err());
    }

    #[test]
    fn headers_survive_the_wire(
        epoch: u64, key in keys(), bytes: u32, digest: u64, weight in 0.0..1e300f64,
        parity: u16,
    ) {
        let parity = parity.min(tail_fec_parity_max(u64::from(bytes)));
        let header = SegmentHeader { epoch: Epoch(epoch), key, bytes, digest, weight, parity };
        prop_assert_eq!(SegmentHeader::decode(&header.encode()), Ok(header));
    }

    #[test]
    fn hellos_survive_the_wire(fabric: [u8; 32], gateway in ".{0,30}", boot: u64, lane: u16) {
        let boot = BootId(boot);
        let versions = WireVersions::OWN;
        let hello = Hello { versions, fabric, gateway, boot, lane };
        let bytes = hello.encode();
        prop_assert!(bytes.len() <= Hello::BYTES_MAX);
        prop_assert_eq!(Hello::decode(&bytes, versions), Ok((hello, WIRE_VERSION)));
    }

    #[test]
    fn no_bytes_cause_a_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        head: [u8; SegmentHeader::BYTES],
    ) {
        let _ = (Message::decode(&bytes), Hello::decode(&bytes, WireVersions::OWN), SegmentHeader::decode(&head));
    }

    #[test]
    fn a_changed_byte_never_panics(message in messages(), at: usize, to: u8) {
        let mut bytes = message.encode();
        let at = at % bytes.len();
        bytes[at] = to;
        let _ = Message::decode(&bytes);
    }
}

#[test]
fn the_reserved_segment_index_is_refused() {
    let of = |segment| {
        let (sequence, tree) = (Sequence(1), TreeIndex(0));
        let key = SegmentKey { sequence, tree, segment: SegmentIndex(segment) };
        let (epoch, weight) = (Epoch(1), 1.0);
        let header = SegmentHeader { epoch, key, bytes: 4, digest: 0, weight, parity: 0 };
        SegmentHeader::decode(&header.encode()).map(|_| ())
    };
    assert_eq!(of(u32::MAX), Err(DecodeError::Invalid("segment")));
    assert_eq!(of(u32::MAX - 1), Ok(()));
}

#[test]
fn an_invalid_weight_is_refused() {
    let key = SegmentKey { sequence: Sequence(1), tree: TreeIndex(0), segment: SegmentIndex(0) };
    for weight in [f64::NAN, f64::INFINITY, -1.0] {
        let header = SegmentHeader { epoch: Epoch(1), key, bytes: 4, digest: 0, weight, parity: 0 };
        assert_eq!(SegmentHeader::decode(&header.encode()), Err(DecodeError::Invalid("weight")));
    }
}

#[test]
fn a_plan_has_one_wire_form() {
    let parents = [(GatewayId(1), GatewayId(0)), (GatewayId(2), GatewayId(0))].into();
    let tree =
        Tree { share: 1, direction: TreeDirection::Results, roots: vec![GatewayId(0)], parents };
    let plan = Plan {
        algorithm: PlanAlgorithm::Swap,
        reason: String::new(),
        segment: ByteCount::new(1 << 20),
        express_bytes: ByteCount::default(),
        trees: vec![tree],
        block_trees: vec![],
        block_bytes_min: ByteCount::default(),
    };
    let begin =
        Message::Begin { epoch: Epoch(1), next: Sequence(0), boots: vec![], plan, committed: None };
    let mut bytes = begin.encode();
    assert_eq!(Message::decode(&bytes), Ok(begin));
    // The number of trees of blocks follows, and the least bytes for these.
    let edges = bytes.len() - 18;
    for other_order in [[0, 2, 0, 0, 0, 1, 0, 0], [0, 1, 0, 0, 0, 1, 0, 0]] {
        bytes[edges..edges + 8].copy_from_slice(&other_order);
        assert_eq!(Message::decode(&bytes), Err(DecodeError::Invalid("order of parents")));
    }
}

#[test]
fn a_name_that_no_job_has_is_refused() {
    let decode = |name: &str| {
        let (name, boot) = (name.to_owned(), BootId(1));
        let job = JobFacts { name, weight: 1, token_digest: [7; 16] };
        Message::decode(&Message::Serves { boot, job }.encode()).map(|_| ())
    };
    assert_eq!(decode(&"a".repeat(JobFacts::NAME_BYTES_MAX)), Ok(()));
    for name in ["", "two\nlines", &"a".repeat(JobFacts::NAME_BYTES_MAX + 1)] {
        assert_eq!(decode(name), Err(DecodeError::Invalid("name of a job")), "{name:?}");
    }
}
