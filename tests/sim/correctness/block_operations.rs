//! Operations on blocks give every rank its bytes, and send over each link what must cross it.

use gateway::client::{Client, CollectiveSpec, Operation};
use gateway::simulate::simulated_address;
use hier_collectives::bound::payload_rate_fraction;
use hier_collectives::descriptor::{
    Counts, Descriptor, Dtype, KnownCounts, Pattern, ReduceOp, SlotElements,
};
use hier_collectives::ids::{GatewayId, RankId, RegionId};
use hier_collectives::parts::{BlockRanks, OperationPartSource};
use hier_collectives::topology::Fabric;
use scenarios::collectives::batch::{Case, weight};
use scenarios::lab::expected::reduced_in_tree_order;
use scenarios::lab::mesh::{Mesh, MeshGateway};
use scenarios::{Lab, mbit, simulate};
use std::ops::Range;
use std::sync::Arc;
use units::{ByteCount, Span};

/// One operation on blocks, with the contributions of all ranks.
#[derive(Debug, Clone)]
struct BlockCase {
    pattern: Pattern,
    /// How a reduce-scatter reduces.
    op: ReduceOp,
    dtype: Dtype,
    sizes: Sizes,
    seed: u64,
}

/// Elements of the blocks.
#[derive(Debug, Clone)]
enum Sizes {
    /// As many in each block.
    Even(u64),
    /// One number for each rank.
    ByRank(Vec<u64>),
    /// One number for each sender and receiver.
    ByPair(Vec<Vec<u64>>),
}

impl BlockCase {
    /// Returns the elements of a rank's block, or of the block from a rank to another.
    fn size(&self, from: u32, to: u32) -> u64 {
        match (&self.sizes, self.pattern) {
            (Sizes::Even(size), _) => *size,
            (Sizes::ByRank(list), Pattern::AllGather | Pattern::Gather { .. }) => {
                list[from as usize]
            }
            (Sizes::ByRank(list), _) => list[to as usize],
            (Sizes::ByPair(matrix), _) => matrix[from as usize][to as usize],
        }
    }

    /// Returns the counts that a rank posts.
    fn counts(&self, rank: u32) -> Counts {
        match &self.sizes {
            Sizes::Even(_) => Counts::Even,
            Sizes::ByRank(list) => Counts::ByRank(list[..].into()),
            Sizes::ByPair(matrix) => Counts::ByPair {
                to: matrix[rank as usize][..].into(),
                from: matrix.iter().map(|row| row[rank as usize]).collect(),
            },
        }
    }

    /// Returns the elements of a rank's slots.
    fn slots(&self, rank: u32, ranks: u32) -> SlotElements {
        let own = self.size(rank, rank);
        let whole = |of: &dyn Fn(u32) -> u64| (0..ranks).map(of).sum();
        let all = |_| whole(&|other| self.size(other, other));
        let root = |is_root: RankId, count: u64| if is_root.0 == rank { count } else { 0 };
        let (contribution, result) = match self.pattern {
            Pattern::AllGather => (own, all(())),
            Pattern::ReduceScatter => (all(()), own),
            Pattern::Gather { to } => (own, root(to, all(()))),
            Pattern::Scatter { from } => (root(from, all(())), own),
            _ => (whole(&|to| self.size(rank, to)), whole(&|from| self.size(from, rank))),
        };
        SlotElements { contribution, result }
    }

    /// Returns the contribution of a rank: bytes of every kind.
    fn contribution(&self, rank: u32, ranks: u32) -> Arc<Vec<u8>> {
        self.as_reduction(self.slots(rank, ranks).contribution).contribution(rank)
    }

    /// Returns an all-reduce with the same contributions, of this many elements.
    fn as_reduction(&self, elements: u64) -> Case {
        Case::new(self.op, self.dtype, elements, self.seed)
    }

    /// Returns the bytes of the block from a rank to another in a buffer of all blocks before it.
    fn range(&self, before: impl Iterator<Item = u64>, length: u64) -> Range<usize> {
        let start: u64 = before.sum();
        let bytes = |elements: u64| (elements * self.dtype.size()) as usize;
        bytes(start)..bytes(start + length)
    }

    /// Returns the result that a rank must get.
    fn expected(&self, rank: u32, mesh: &Mesh) -> Vec<u8> {
        let fabric = mesh.fabric();
        let ranks = fabric.world_size();
        let contribution = |of| self.contribution(of, ranks);
        let own = || self.range((0..rank).map(|of| self.size(of, of)), self.size(rank, rank));
        match self.pattern {
            Pattern::Gather { to } if to.0 != rank => vec![],
            Pattern::AllGather | Pattern::Gather { .. } => {
                (0..ranks).flat_map(|of| contribution(of).to_vec()).collect()
            }
            Pattern::Scatter { from } => contribution(from.0)[own()].to_vec(),
            Pattern::ReduceScatter => self.reduced(RankId(rank), mesh),
            _ => {
                let block = |from: u32| {
                    let before = (0..rank).map(|to| self.size(from, to));
                    contribution(from)[self.range(before, self.size(from, rank))].to_vec()
                };
                (0..ranks).flat_map(block).collect()
            }
        }
    }

    /// Returns the sums that a rank must get, each in the order of the tree along which its bytes go.
    fn reduced(&self, rank: RankId, mesh: &Mesh) -> Vec<u8> {
        let fabric = mesh.fabric();
        let ranks = fabric.world_size();
        let case = self.as_reduction(self.slots(rank.0, ranks).contribution);
        let descriptor = Descriptor::of_bytes(self.pattern, case.elements * self.dtype.size());
        let descriptor = Descriptor { dtype: self.dtype, elements: case.elements, ..descriptor };
        let mut counts = KnownCounts::default();
        counts.add_post(rank, &self.counts(rank.0));
        let (plan, owner_trees) = (mesh.plan(), mesh.plan().owner_trees(&fabric));
        let source = OperationPartSource {
            plan: &plan,
            owner_trees: &owner_trees,
            fabric: &fabric,
            descriptor: &descriptor,
            counts: &counts,
            only: None,
        };
        let mut sums = Vec::new();
        for part in source.parts() {
            for block in part.blocks.iter().filter(|block| block.receivers == BlockRanks::One(rank))
            {
                let Range { start, end } = block.part.range;
                let bytes = start as usize..end as usize;
                assert_eq!(block.result_start as usize, sums.len(), "in order, without gaps");
                sums.extend(reduced_in_tree_order(&fabric, &part.tree, &case, bytes));
            }
        }
        sums
    }

    /// Returns the bytes that must cross a link: from regions behind it, for regions beyond it.
    fn crossing(&self, fabric: &Fabric, behind: &[usize], beyond: &[usize]) -> u64 {
        let ranks = |regions: &[usize]| -> Vec<u32> {
            regions.iter().flat_map(|region| fabric.regions()[*region].ranks.clone()).collect()
        };
        let (from, to) = (ranks(behind), ranks(beyond));
        let own = |ranks: &[u32]| ranks.iter().map(|rank| self.size(*rank, *rank)).sum::<u64>();
        let elements = match self.pattern {
            Pattern::AllGather => own(&from),
            Pattern::ReduceScatter => own(&to),
            Pattern::Gather { to: root } => {
                if to.contains(&root.0) {
                    own(&from)
                } else {
                    0
                }
            }
            Pattern::Scatter { from: root } => {
                if from.contains(&root.0) {
                    own(&to)
                } else {
                    0
                }
            }
            _ => from.iter().flat_map(|one| to.iter().map(|other| self.size(*one, *other))).sum(),
        };
        elements * self.dtype.size()
    }
}

/// Posts an operation on one rank.
async fn post(client: &Client, case: &BlockCase) -> Operation {
    let (rank, ranks) = (client.rank().0, client.world_size());
    let slots = case.slots(rank, ranks);
    let mut tensor = client.allocate_slots(case.dtype, slots).expect("room in the arena");
    tensor.write(&case.contribution(rank, ranks));
    let counts = case.counts(rank);
    let posted = match case.pattern {
        Pattern::AllGather => client.all_gather(tensor, counts).await,
        Pattern::ReduceScatter => {
            let spec = CollectiveSpec::new(case.pattern, case.op);
            let spec = CollectiveSpec { weight: weight(rank), ..spec };
            client.post_with_counts(tensor, spec, counts).await
        }
        Pattern::Gather { to } => client.gather(tensor, to, counts).await,
        Pattern::Scatter { from } => client.scatter(tensor, from, counts).await,
        _ => client.all_to_all(tensor, counts).await,
    };
    posted.expect("posted")
}

/// Runs all cases at once; each must give every rank the expected bits.
async fn check_together(lab: &Lab, mesh: &Mesh, cases: &[BlockCase]) {
    let clients = lab.clients(64 << 20).await;
    let mut under_way = Vec::new();
    for case in cases {
        for client in &clients {
            under_way.push(post(client, case).await);
        }
    }
    let mut operations = under_way.into_iter();
    for case in cases {
        for rank in 0..clients.len() as u32 {
            let mut operation = operations.next().expect("posted");
            let ready = operation.ready().await;
            ready.unwrap_or_else(|why| panic!("{mesh:?} {case:?}: rank {rank}: {why}"));
            let right = operation.result() == case.expected(rank, mesh);
            assert!(right, "{mesh:?} {case:?}: rank {rank} has other bits");
            operation.reclaim().await.expect("its slots");
        }
    }
}

/// Returns all operations on blocks for so many ranks, each with even, ragged and missing blocks. The
/// dtypes take turns.
fn every_case(ranks: u32, scale: u64) -> Vec<BlockCase> {
    let dtypes = Dtype::ALL.into_iter().cycle();
    let shapes = every_shape(ranks, scale).into_iter().zip(dtypes);
    shapes
        .map(|((pattern, sizes), dtype)| BlockCase {
            pattern,
            op: ReduceOp::Sum,
            dtype,
            sizes,
            seed: scale,
        })
        .collect()
}

/// Returns all operations on blocks for so many ranks, with every dtype, and reductions by every
/// op that accepts it.
fn every_case_and_dtype(ranks: u32, scale: u64) -> Vec<BlockCase> {
    let mut cases = Vec::new();
    for (pattern, sizes) in every_shape(ranks, scale) {
        for dtype in Dtype::ALL {
            let ops = match pattern {
                Pattern::ReduceScatter => &ReduceOp::ALL[..],
                _ => &[ReduceOp::Sum],
            };
            for op in ops.iter().filter(|op| op.accepts(dtype)) {
                let sizes = sizes.clone();
                cases.push(BlockCase { pattern, op: *op, dtype, sizes, seed: cases.len() as u64 });
            }
        }
    }
    cases
}

/// Returns the pattern of every operation on blocks with even, ragged and missing blocks.
fn every_shape(ranks: u32, scale: u64) -> Vec<(Pattern, Sizes)> {
    let ragged = |at: u32| [3 * scale + 1, 0, scale, 7, 0, 2 * scale + 5][at as usize % 6];
    let roots = [RankId(0), RankId(ranks - 1)];
    let of_ranks = roots
        .iter()
        .flat_map(|root| [Pattern::Gather { to: *root }, Pattern::Scatter { from: *root }]);
    let patterns = [Pattern::AllGather, Pattern::ReduceScatter].into_iter().chain(of_ranks);
    let mut cases = Vec::new();
    for pattern in patterns {
        for sizes in [Sizes::Even(scale), Sizes::ByRank((0..ranks).map(ragged).collect())] {
            cases.push((pattern, sizes));
        }
    }
    let matrix = |from: u32| (0..ranks).map(|to| ragged(from * 5 + to * 2)).collect();
    cases.push((Pattern::AllToAll, Sizes::Even(scale)));
    cases.push((Pattern::AllToAll, Sizes::ByPair((0..ranks).map(matrix).collect())));
    cases.push((Pattern::AllToAll, Sizes::ByPair(vec![vec![0; ranks as usize]; ranks as usize])));
    cases
}

/// 16 KiB, the segments of a plan with many of them.
const SEGMENT: ByteCount = ByteCount::new(16 << 10);

fn run(mesh: Mesh, seed: u64) {
    let mesh = Mesh { segment: Some(SEGMENT), ..mesh };
    simulate(async {
        let lab = mesh.start(seed).await;
        let ranks = mesh.fabric().world_size();
        check_together(&lab, &mesh, &every_case(ranks, 1 + seed)).await;
    });
    simulate(async {
        let lab = mesh.start(seed + 100).await;
        let ranks = mesh.fabric().world_size();
        check_together(&lab, &mesh, &every_case(ranks, 9001)).await;
    });
}

#[test]
fn blocks_reach_their_ranks_in_two_regions() {
    run(Mesh::of_ranks(&[1, 1]), 1);
    run(Mesh::of_ranks(&[3, 1]), 2);
}

#[test]
fn blocks_reach_their_ranks_in_several_regions() {
    run(Mesh::of_ranks(&[2, 3, 1]), 3);
    run(Mesh::of_ranks(&[1, 8, 2, 5]), 4);
}

/// Runs every operation with every dtype at once.
fn run_every_dtype(mesh: Mesh, seed: u64) {
    let mesh = Mesh { segment: Some(SEGMENT), ..mesh };
    simulate(async {
        let lab = mesh.start(seed).await;
        let ranks = mesh.fabric().world_size();
        check_together(&lab, &mesh, &every_case_and_dtype(ranks, 11)).await;
    });
}

#[test]
fn blocks_of_every_dtype_reach_their_ranks() {
    run_every_dtype(Mesh::of_ranks(&[1, 1]), 1);
    run_every_dtype(Mesh::of_ranks(&[3, 1]), 2);
    run_every_dtype(Mesh::of_ranks(&[2, 1, 1]).without(0, 1), 3);
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn blocks_of_every_dtype_reach_many_ranks() {
    run_every_dtype(Mesh::of_ranks(&[2, 3, 1]), 4);
    run_every_dtype(Mesh::of_ranks(&[1, 8, 2, 5]), 5);
    run_every_dtype(Mesh::of_ranks(&[1, 8, 2, 5]).without(0, 3), 6);
}

#[test]
fn blocks_go_round_a_missing_link() {
    run(Mesh::of_ranks(&[2, 1, 2]).without(0, 1), 5);
    run(Mesh::of_ranks(&[1, 1, 2, 1]).without(0, 2).without(0, 3).without(1, 3), 6);
}

#[test]
fn blocks_reach_ranks_behind_several_gateways() {
    let port = |ranks| MeshGateway::with_port(ranks, mbit(500));
    let sidecar = MeshGateway::sidecar;
    run(Mesh::of_gateways(vec![vec![port(2), port(1)], vec![port(1), sidecar(2)]]), 7);
    run(
        Mesh::of_gateways(vec![vec![sidecar(1), port(1)], vec![port(1)], vec![port(1), port(2)]]),
        8,
    );
}

/// An all-reduce sends next to nothing over some of the pairs of gateways.
#[test]
fn blocks_reach_ranks_behind_equal_gateways_in_three_regions() {
    let gateways = vec![MeshGateway::with_port(1, mbit(500)); 2];
    run(Mesh::of_gateways(vec![gateways; 3]), 9);
}

/// Returns the payload and the IP bytes on the link from one region to another.
fn crossed(lab: &Lab, from: RegionId, to: RegionId) -> (u64, u64) {
    let fabric = &lab.fabric;
    let of = |region| fabric.gateway_ids().filter(move |id| fabric.gateway(*id).region == region);
    let pairs = of(from).flat_map(|one| of(to).map(move |other| (one, other)));
    let pair = |(one, other): (GatewayId, GatewayId)| {
        let peer = lab.gateways[usize::from(one.0)].peers.get(&other);
        let payload = peer.map_or(0, |peer| peer.metrics.sent_bytes.get());
        let counters = lab.net.counters(simulated_address(one).ip(), simulated_address(other).ip());
        (payload, counters.map_or(0, |counters| counters.ip_bytes))
    };
    pairs.map(pair).fold((0, 0), |(a, b), (payload, ip)| (a + payload, b + ip))
}

/// Runs one operation alone; each link must carry what must cross it, and at most 2 % more.
fn check_bytes(mesh: &Mesh, case: &BlockCase, ways: &[(usize, usize, &[usize], &[usize])]) {
    simulate(async {
        let lab = mesh.start(case.seed).await;
        let clients = lab.clients(96 << 20).await;
        let region = |index: usize| RegionId(index as u16);
        let before: Vec<_> =
            ways.iter().map(|(from, to, ..)| crossed(&lab, region(*from), region(*to))).collect();
        let mut operations = Vec::new();
        for client in &clients {
            operations.push(post(client, case).await);
        }
        for operation in &mut operations {
            operation.ready().await.expect("a result");
        }
        for ((from, to, behind, beyond), before) in ways.iter().zip(before) {
            let now = crossed(&lab, region(*from), region(*to));
            let (payload, ip) = (now.0 - before.0, now.1 - before.1);
            let must = case.crossing(&lab.fabric, behind, beyond);
            assert!(
                (must..=must * 102 / 100).contains(&payload),
                "{case:?}: {from} to {to}: {payload} of {must}"
            );
            // Control messages, acknowledgements of the other direction, and packets that are not full.
            let full = (must as f64 / payload_rate_fraction(lab.fabric.mtu())) as u64;
            let back = case.crossing(&lab.fabric, beyond, behind);
            let most = full * 102 / 100 + back / 25 + (64 << 10);
            assert!(ip <= most, "{case:?}: {from} to {to}: {ip} IP bytes of {full}");
        }
    });
}

#[test]
fn a_link_carries_only_what_must_cross_it() {
    for case in every_case(6, 100_000) {
        let ways: [(usize, usize, &[usize], &[usize]); 6] = [
            (0, 1, &[0], &[1]),
            (1, 0, &[1], &[0]),
            (0, 2, &[0], &[2]),
            (2, 0, &[2], &[0]),
            (1, 2, &[1], &[2]),
            (2, 1, &[2], &[1]),
        ];
        check_bytes(&Mesh::of_ranks(&[2, 3, 1]), &case, &ways);
        // Region 2 is between the others.
        let ways: [(usize, usize, &[usize], &[usize]); 4] = [
            (0, 2, &[0], &[1, 2]),
            (2, 0, &[1, 2], &[0]),
            (1, 2, &[1], &[0, 2]),
            (2, 1, &[0, 2], &[1]),
        ];
        check_bytes(&Mesh::of_ranks(&[2, 3, 1]).without(0, 1), &case, &ways);
    }
}

/// Small operations wait for one delay, or for two where blocks pass a region.
#[test]
fn small_operations_take_the_delays_of_their_hops() {
    for case in every_case(6, 40) {
        for (mesh, hops) in
            [(Mesh::of_ranks(&[2, 3, 1]), 1), (Mesh::of_ranks(&[2, 3, 1]).without(0, 1), 2)]
        {
            simulate(async {
                let lab = mesh.start(1).await;
                let clients = lab.clients(1 << 20).await;
                lab.sleep(Span::from_secs(1)).await;
                let begin = lab.host.now();
                let mut operations = Vec::new();
                for client in &clients {
                    operations.push(post(client, &case).await);
                }
                for operation in &mut operations {
                    operation.ready().await.expect("a result");
                }
                let took = lab.host.now().since(begin);
                let farthest = lab.fabric.links().iter().map(|link| link.rtt.ns() / 2).max();
                let most = hops * farthest.expect("links") + Span::from_ms(3).ns();
                assert!(took.ns() <= most, "{case:?} took {took} over {hops} hops");
            });
        }
    }
}
