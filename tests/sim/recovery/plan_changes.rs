//! Links that change while collectives run lead to a new plan, which all gateways adopt at once.

use gateway::events::RateChange;
use hier_collectives::bound;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::GatewayId;
use scenarios::collectives::batch::{Case, outcomes, post_all};
use scenarios::lab::mesh::Mesh;
use scenarios::lab::shape::LONG_MTU;
use scenarios::{Lab, mbit, simulate, simulated_address};
use std::collections::{BTreeMap, BTreeSet};
use units::{ByteCount, Fraction, Span};
use wan_sim::{Jitter, LinkSpec};

const RTT: Span = Span::from_ms(60);
const ONE_WAY: Span = Span::from_ms(30);
/// 1,500 bytes, the ordinary MTU.
const MTU: u16 = 1500;

/// Regions with these ranks. Links are slower than ports, so that the plan depends on them.
fn mesh(ranks: &[u32], mtu: u16) -> Mesh {
    let mut mesh = Mesh { mtu, ..Mesh::of_ranks(ranks) };
    for link in &mut mesh.links {
        (link.rate, link.rtt) = (mbit(100), RTT);
    }
    mesh
}

/// The plan of each gateway, without repetition.
async fn plans(lab: &Lab) -> BTreeSet<String> {
    let mut hashes = BTreeSet::new();
    for id in lab.fabric.gateway_ids() {
        let status = lab.status(id).await;
        hashes.insert(status.jobs[0].plan.as_ref().expect("an epoch").hash.clone());
    }
    hashes
}

/// The straggler that each gateway names, where it names one.
async fn stragglers(lab: &Lab) -> BTreeMap<GatewayId, String> {
    let mut named = BTreeMap::new();
    for id in lab.fabric.gateway_ids() {
        let straggler = lab.status(id).await.jobs[0].straggler.clone();
        named.extend(straggler.map(|seen| (id, format!("{} {}", seen.kind, seen.name))));
    }
    named
}

async fn reason(lab: &Lab, at: GatewayId) -> String {
    lab.status(at).await.jobs[0].plan.as_ref().expect("an epoch").reason.clone()
}

/// Changes both directions of the link between the first two regions.
fn respec(lab: &Lab, spec: LinkSpec) {
    let [a, b] = [0, 1].map(|id| simulated_address(GatewayId(id)).ip());
    for (from, to) in [(a, b), (b, a)] {
        lab.net.set_spec(from, to, spec).expect("a link");
    }
}

/// Observations of a run, round by round.
#[derive(Debug, Default)]
struct Run {
    seconds: Vec<f64>,
    /// Plans in force after each round, over all gateways.
    plans: Vec<BTreeSet<String>>,
    /// The stragglers named after each round.
    stragglers: Vec<BTreeMap<GatewayId, String>>,
}

impl Run {
    /// Runs all-reduces one after the other, whose sums must be correct.
    async fn go_on(
        &mut self,
        lab: &Lab,
        clients: &[gateway::client::Client],
        case: &Case,
        rounds: u32,
    ) {
        let expected = case.in_any_order(lab.fabric.world_size());
        for _ in 0..rounds {
            let begin = lab.host.now();
            let mut operations = post_all(clients, case).await;
            for outcome in outcomes(&mut operations).await {
                assert!(outcome.expect("a result") == expected, "wrong bits: {self:?}");
            }
            self.seconds.push(lab.host.now().since(begin).as_secs_f64());
            for operation in operations {
                operation.reclaim().await.expect("its slots");
            }
            self.plans.push(plans(lab).await);
            self.stragglers.push(stragglers(lab).await);
        }
    }

    /// All plans except the first, and the round after which all gateways had the same one.
    fn changes(&self) -> (BTreeSet<&String>, Option<usize>) {
        let new = self.plans.iter().flatten().filter(|plan| !self.plans[0].contains(*plan));
        let all = self.plans.iter().position(|plans| plans.len() == 1 && *plans != self.plans[0]);
        (new.collect(), all)
    }
}

const BEFORE: u32 = 4;
const AFTER: u32 = 11;

/// Halves the link of the first two regions after some rounds. Checks the number of new plans
/// within ten more rounds, and at least 90 % of the best plan's rate in the last five. Returns the
/// stragglers named after each round.
fn halved(
    (ranks, mtu): (&[u32], u16),
    new_plans: usize,
    seed: u64,
    halve: impl AsyncFnOnce(&Lab),
) -> Vec<BTreeMap<GatewayId, String>> {
    simulate(async {
        let lab = mesh(ranks, mtu).start(seed).await;
        // Forty BDP of a link.
        let case = Case::new(ReduceOp::Sum, Dtype::I32, 7_500_000, seed);
        let clients = lab.clients(8 * case.elements + (1 << 20)).await;
        lab.sleep(Span::from_secs(1)).await;
        let mut run = Run::default();
        run.go_on(&lab, &clients, &case, BEFORE).await;
        halve(&lab).await;
        run.go_on(&lab, &clients, &case, AFTER).await;
        let mut links = lab.fabric.links().to_vec();
        links[0].rate = mbit(50);
        let bytes = ByteCount::new(4 * case.elements);
        let [before, bound] = [(*lab.fabric).clone(), lab.fabric.with_links(links)]
            .map(|fabric| bound::all_reduce_lower_bound(&fabric, bytes).as_secs_f64());
        // In one of them lanes may drain, to see the RTT without a queue.
        let last = run.seconds[run.seconds.len() - 5..].iter().sum::<f64>() / 5.0;
        println!(
            "seed {seed}: {:.3?} s; bound {before:.3} s, then {bound:.3} s; changes {:?}; \
             named {:?}",
            run.seconds,
            run.changes(),
            run.stragglers,
        );
        let (new, all) = run.changes();
        assert_eq!(new.len(), new_plans, "seed {seed}: new plans: {new:?}");
        assert!(bound / last >= 0.9, "seed {seed}: {last} s, bound {bound} s");
        if new_plans == 0 {
            return run.stragglers;
        }
        assert!(
            all.is_some_and(|all| all < (BEFORE + 10) as usize),
            "seed {seed}: of all gateways, within ten collectives: {all:?}"
        );
        for id in lab.fabric.gateway_ids() {
            let reason = reason(&lab, id).await;
            assert!(reason.contains("link a-b now carries"), "{reason}");
        }
        run.stragglers
    })
}

/// Checks that only the link's ends name stragglers, and only the link, within three collectives of
/// its change. In the third all may have a plan that fits the link, which then delays nothing.
fn named_by_its_ends(stragglers: &[BTreeMap<GatewayId, String>]) {
    let link = "link a-b".to_owned();
    let all = stragglers.iter().flat_map(BTreeMap::values);
    assert!(all.clone().all(|named| *named == link), "{stragglers:?}");
    let third = &stragglers[BEFORE as usize + 2];
    let by_ends = !third.is_empty() && third.keys().all(|id| id.0 < 2);
    assert!(by_ends, "{stragglers:?}");
}

/// Checks that a link at its operator's rate is never named.
fn nobody_is_named(stragglers: &[BTreeMap<GatewayId, String>]) {
    assert!(stragglers.iter().all(BTreeMap::is_empty), "{stragglers:?}");
}

/// Halves the link without notice.
async fn respec_to_half(lab: &Lab) {
    respec(lab, LinkSpec::new(mbit(50), ONE_WAY).expect("a link"));
}

/// Halves the rate by an operator's request at the other end.
async fn hold_to_half(lab: &Lab) {
    let change = RateChange { link: "a-b".to_owned(), rate: Some(mbit(50)) };
    lab.gateways[1].change_link_rate(change).await.expect("runs").expect("a link");
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn a_halved_link_gets_a_new_plan_within_ten_collectives() {
    for (seed, mtu) in [(1, MTU), (2, LONG_MTU), (3, LONG_MTU)] {
        named_by_its_ends(&halved((&[1, 1, 1], mtu), 1, seed, respec_to_half));
    }
    named_by_its_ends(&halved((&[3, 1, 2, 1], LONG_MTU), 1, 4, respec_to_half));
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn a_link_that_an_operator_halves_is_planned_for() {
    nobody_is_named(&halved((&[1, 1, 1], MTU), 1, 5, hold_to_half));
    nobody_is_named(&halved((&[3, 1, 2, 1], LONG_MTU), 1, 6, hold_to_half));
}

/// Two regions have no other path.
#[test]
#[ignore = "long: cargo xtask test --long"]
fn the_only_link_keeps_its_plan_at_half_rate() {
    for (seed, mtu) in [(2, MTU), (7, LONG_MTU)] {
        named_by_its_ends(&halved((&[2, 1], mtu), 0, seed, respec_to_half));
    }
    nobody_is_named(&halved((&[2, 1], LONG_MTU), 0, 8, hold_to_half));
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn a_steady_link_keeps_its_plan_despite_loss_and_jitter() {
    for seed in [1, 2] {
        simulate(async {
            let lab = mesh(&[1, 1, 1], MTU).start(seed).await;
            let loss = Fraction::from_ppb(10_000_000).expect("1 %");
            let spec = LinkSpec::new(mbit(100), ONE_WAY).expect("a link").with_loss(loss);
            respec(
                &lab,
                spec.with_jitter(Jitter { spread: Span::from_ms(5), ..Jitter::NONE })
                    .expect("short"),
            );
            let case = Case::new(ReduceOp::Sum, Dtype::I32, 250_000, seed);
            let clients = lab.clients(8 * case.elements + (1 << 20)).await;
            let mut run = Run::default();
            run.go_on(&lab, &clients, &case, 100).await;
            assert!(run.changes().0.is_empty(), "seed {seed}: {:?}", run.changes());
            nobody_is_named(&run.stragglers);
        });
    }
}
