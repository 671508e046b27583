//! Sends between two ranks: their data, the bytes on links, and who hears of a failure.

use super::members::{Members, failure_of};
use gateway::client::{Client, Operation, SendSpec};
use gateway::simulate::simulated_address;
use hier_collectives::bound::{operation_lower_bound, payload_rate_fraction};
use hier_collectives::descriptor::{Dtype, Pattern, ReduceOp, SlotElements};
use hier_collectives::ids::{GatewayId, RankId, Tag};
use hier_collectives::post::FailureCode;
use scenarios::collectives::data;
use scenarios::lab::mesh::{Mesh, MeshGateway};
use scenarios::{Lab, mbit, simulate};
use units::{ByteCount, Span};

/// 48 MiB: the arena of each rank.
pub const ARENA_BYTES: u64 = 48 << 20;

/// One send: its ends, by their numbers in the group, and its data.
#[derive(Debug, Clone, Copy)]
pub struct OneSend {
    pub from: u32,
    pub to: u32,
    pub tag: u16,
    pub dtype: Dtype,
    pub elements: u64,
    /// Tells it from others of the same ends and tag.
    pub seed: u64,
}

impl OneSend {
    /// A send of so many bytes.
    pub fn of_bytes(from: u32, to: u32, tag: u16, elements: u64) -> Self {
        Self { from, to, tag, dtype: Dtype::U8, elements, seed: 0 }
    }

    /// Returns the bytes that it carries, of every kind.
    fn data(&self) -> Vec<u8> {
        let Self { from, to, tag, dtype, elements, seed } = *self;
        let salt = u64::from(from) * 131 + u64::from(to) * 17 + u64::from(tag) * 7 + seed * 1009;
        data::patterned(elements * dtype.size(), salt)
    }

    /// Posts the sender's end.
    pub async fn send(&self, members: &[Client]) -> Operation {
        let sender = &members[self.from as usize];
        let slots = SlotElements { contribution: self.elements, result: 0 };
        let mut tensor = sender.allocate_slots(self.dtype, slots).expect("room");
        tensor.write(&self.data());
        sender.send(tensor, SendSpec::new(RankId(self.to), Tag(self.tag))).await.expect("posted")
    }

    /// Posts the receiver's end.
    pub async fn receive(&self, members: &[Client]) -> Operation {
        let receiver = &members[self.to as usize];
        let slots = SlotElements { contribution: 0, result: self.elements };
        let tensor = receiver.allocate_slots(self.dtype, slots).expect("room");
        let spec = SendSpec::new(RankId(self.from), Tag(self.tag));
        receiver.receive(tensor, spec).await.expect("posted")
    }

    /// Waits for both ends, and checks what was received.
    pub async fn check(&self, mut sent: Operation, mut received: Operation) {
        received.ready().await.unwrap_or_else(|why| panic!("{self:?}: {why}"));
        assert!(received.result() == self.data(), "{self:?}: other bytes");
        sent.ready().await.unwrap_or_else(|why| panic!("{self:?}: {why}"));
        sent.reclaim().await.expect("reclaimed");
        received.reclaim().await.expect("reclaimed");
    }

    /// Carries it out alone.
    pub async fn run(&self, members: &[Client]) {
        let sent = self.send(members).await;
        let received = self.receive(members).await;
        self.check(sent, received).await;
    }
}

/// Runs a test with all ranks of a mesh attached.
pub fn simulate_ranks<F: Future<Output = ()>>(
    mesh: &Mesh,
    test: impl FnOnce(Lab, Vec<Client>) -> F,
) {
    simulate(async {
        let lab = mesh.start(1).await;
        let clients = lab.clients(ARENA_BYTES).await;
        test(lab, clients).await;
    });
}

/// Returns the payload bytes that a gateway sent to another, and the IP bytes on their link.
pub fn crossed(lab: &Lab, from: u16, to: u16) -> (u64, u64) {
    let [from, to] = [from, to].map(GatewayId);
    let payload = lab.gateways[usize::from(from.0)].peers.get(&to);
    let counters = lab.net.counters(simulated_address(from).ip(), simulated_address(to).ip());
    let payload = payload.map_or(0, |peer| peer.metrics.sent_bytes.get());
    (payload, counters.map_or(0, |counters| counters.ip_bytes))
}

#[test]
fn every_dtype_arrives_bit_for_bit() {
    let port = |ranks| MeshGateway::with_port(ranks, mbit(500));
    let many = Mesh::of_gateways(vec![vec![port(1), port(1)], vec![port(3)], vec![port(1)]]);
    let many = Mesh { segment: Some(ByteCount::new(16 << 10)), ..many };
    for mesh in [Mesh::of_ranks(&[2, 3, 1]), many] {
        simulate_ranks(&mesh, |_lab, clients| async move {
            let ends = [(0, 1), (1, 0), (0, 2), (4, 1), (4, 5), (2, 3), (5, 0)];
            let mut under_way = Vec::new();
            for (seed, dtype) in (0..).zip(Dtype::ALL) {
                for (index, (from, to)) in (0u64..).zip(ends) {
                    let elements = [0, 1, 1000, 30_000][(seed + index) as usize % 4];
                    let one = OneSend { from, to, tag: 3, dtype, elements, seed };
                    under_way.push((one, one.send(&clients).await, one.receive(&clients).await));
                }
            }
            for (one, sent, received) in under_way {
                one.check(sent, received).await;
            }
        });
    }
}

#[test]
fn a_send_after_an_epoch_waits_for_the_next() {
    simulate_ranks(&Mesh::of_ranks(&[1, 1]), |lab, clients| async move {
        for tag in 0..1024 {
            OneSend::of_bytes(0, 1, tag, 10).run(&clients).await;
        }
        let mut sent = OneSend::of_bytes(0, 1, 1024, 10).send(&clients).await;
        let failure = sent.ready().await.expect_err("one tag too many");
        assert_eq!(failure.code, FailureCode::EpochEnded, "{failure}");
        for seed in 0..3 {
            let one = OneSend { seed, ..OneSend::of_bytes(0, 1, 5, 1000) };
            let sent = one.send(&clients).await;
            // The other gateway enters the next epoch later.
            lab.sleep(Span::from_secs(1)).await;
            let received = one.receive(&clients).await;
            one.check(sent, received).await;
        }
    });
}

#[test]
fn a_late_sender_hears_that_the_receive_has_expired() {
    simulate_ranks(&Mesh::of_ranks(&[1, 1]), |lab, clients| async move {
        let tensor = clients[1].allocate(Dtype::U8, 10).expect("room");
        let timeout = Span::from_ms(200);
        let spec = SendSpec { timeout, ..SendSpec::new(RankId(0), Tag(7)) };
        let mut received = clients[1].receive(tensor, spec).await.expect("posted");
        let failure = received.ready().await.expect_err("nobody sends");
        assert!(failure.text.contains("of the sends with tag 7 from the lower rank"), "{failure}");
        lab.sleep(Span::from_secs(1)).await;
        let one = OneSend::of_bytes(0, 1, 7, 10);
        let failure = one.send(&clients).await.ready().await.expect_err("the receive is gone");
        assert_eq!(failure.code, FailureCode::TimedOut);
        assert!(
            failure.text.contains("the receive that matches this send expired on rank 1"),
            "{failure}"
        );
        one.run(&clients).await;
    });
}

#[test]
fn tags_meet_in_any_order() {
    simulate_ranks(&Mesh::of_ranks(&[2, 3, 1]), |_lab, clients| async move {
        for (from, to) in [(0, 1), (0, 2), (5, 3)] {
            let one = |tag: u16, seed: u64| OneSend {
                elements: 100 + 4000 * u64::from(tag % 7),
                seed,
                ..OneSend::of_bytes(from, to, tag, 0)
            };
            // Two of each tag. Receives of the second half are there first.
            let mut received = std::collections::BTreeMap::new();
            for seed in 0..2 {
                for tag in (20..40).rev() {
                    received.insert((tag, seed), one(tag, seed).receive(&clients).await);
                }
            }
            let mut sent = Vec::new();
            for tag in 0..40 {
                for seed in 0..2 {
                    sent.push((one(tag, seed), one(tag, seed).send(&clients).await));
                }
            }
            for seed in 0..2 {
                for tag in (0..20).rev() {
                    received.insert((tag, seed), one(tag, seed).receive(&clients).await);
                }
            }
            for (one, sent) in sent {
                let received = received.remove(&(one.tag, one.seed)).expect("posted");
                one.check(sent, received).await;
            }
        }
    });
}

#[test]
fn ends_that_differ_are_both_told() {
    simulate_ranks(&Mesh::of_ranks(&[2, 3, 1]), |_lab, clients| async move {
        for (from, to) in [(0, 1), (1, 2), (5, 0)] {
            for (tag, elements, dtype, told) in [
                (1, 70_000, Dtype::U8, "length: "),
                (2, 3, Dtype::U8, "length: "),
                (3, 0, Dtype::U8, "length: "),
                (4, 4, Dtype::F32, "dtype: "),
            ] {
                let one = OneSend::of_bytes(from, to, tag, 4);
                let other = OneSend { elements, dtype, ..one };
                let ends = [one.send(&clients).await, other.receive(&clients).await];
                let mut texts = Vec::new();
                for end in ends {
                    let failure = failure_of(end).await;
                    assert_eq!(failure.code, FailureCode::Disagreement, "{failure}");
                    texts.push(failure.text);
                }
                assert_eq!(texts[0], texts[1]);
                let what = match dtype {
                    Dtype::U8 => ("4".to_owned(), elements.to_string()),
                    other => ("u8".to_owned(), other.to_string()),
                };
                for word in [told, &format!("rank {from} ("), &format!("rank {to} (")] {
                    assert!(texts[0].contains(word), "{word}: {}", texts[0]);
                }
                for value in [what.0, what.1] {
                    assert!(texts[0].contains(&format!("posted {value}")), "{}", texts[0]);
                }
                // The next send of the tag is another one.
                one.run(&clients).await;
            }
        }
    });
}

#[test]
fn a_send_crosses_its_link_once() {
    simulate_ranks(&Mesh::of_ranks(&[2, 3, 1]), |lab, clients| async move {
        // The gateways meet first.
        for (from, to) in [(0, 2), (2, 3)] {
            OneSend::of_bytes(from, to, 0, 1).run(&clients).await;
        }
        lab.sleep(Span::from_secs(1)).await;
        let links = || [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)];
        let all = |lab: &Lab| links().map(|(from, to)| crossed(lab, from, to));
        let bytes = 8 << 20;
        for (to, must) in [(2, bytes), (1, 0)] {
            let before = all(&lab);
            OneSend::of_bytes(0, to, 7, bytes).run(&clients).await;
            for ((link, before), now) in links().iter().zip(before).zip(all(&lab)) {
                let (payload, ip) = (now.0 - before.0, now.1 - before.1);
                let must = if *link == (0, 1) { must } else { 0 };
                assert_eq!(payload, must, "{link:?}");
                // Control messages, and acknowledgements on the way back.
                let full = (must as f64 / payload_rate_fraction(lab.fabric.mtu())) as u64;
                let back = if *link == (1, 0) { bytes / 25 } else { 0 };
                let most = full * 102 / 100 + back + (16 << 10);
                assert!(ip <= most, "{link:?}: {ip} IP bytes of {full}");
            }
        }
    });
}

#[test]
fn a_send_takes_the_delay_of_its_link() {
    // The links from a to b, a to c and b to c have round trips of 30, 50 and 60 ms.
    simulate_ranks(&Mesh::of_ranks(&[2, 3, 1]), |lab, clients| async move {
        // Rank 1 posts nothing, so that the job's own collective waits for it all the time.
        let tensor = clients[0].allocate(Dtype::U8, 10).expect("room");
        let waiting = clients[0].all_reduce(tensor, ReduceOp::Sum).await.expect("posted");
        for (from, to, delay_ms) in [(0, 2, 15), (2, 0, 15), (0, 5, 25), (2, 5, 30), (2, 3, 0)] {
            for tag in 0..3 {
                let one = OneSend::of_bytes(from, to, tag, 4096);
                let mut received = one.receive(&clients).await;
                let begin = lab.host.now();
                let sent = one.send(&clients).await;
                received.ready().await.expect("a result");
                let took = lab.host.now().since(begin);
                // The first one makes the group of both ranks.
                let most = Span::from_ms(delay_ms * if tag == 0 { 3 } else { 1 } + 3);
                assert!(took <= most, "{one:?} took {took}");
                one.check(sent, received).await;
            }
        }
        drop(waiting);
    });
}

#[test]
fn a_send_of_twenty_bdp_fills_its_link() {
    check_filled_by_send(2);
}

#[test]
fn a_send_between_two_of_four_regions_fills_their_ports() {
    check_filled_by_send(4);
}

/// Sends from the first of so many regions to the second, and checks the efficiency.
fn check_filled_by_send(regions: usize) {
    let port = mbit(500);
    let mesh = Mesh::of_gateways(vec![vec![MeshGateway::with_port(1, port)]; regions]);
    simulate_ranks(&mesh, |lab, clients| async move {
        // The gateways meet first.
        OneSend::of_bytes(0, 1, 0, 1).run(&clients).await;
        lab.sleep(Span::from_secs(1)).await;
        let rtt = lab.fabric.links()[0].rtt.as_secs_f64();
        let bytes = (20.0 * port.bytes_per_second() * rtt) as u64;
        let one = OneSend::of_bytes(0, 1, 1, bytes);
        let mut received = one.receive(&clients).await;
        let begin = lab.host.now();
        let sent = one.send(&clients).await;
        received.ready().await.expect("a result");
        let seconds = lab.host.now().since(begin).as_secs_f64();
        let operation = Pattern::Send { from: RankId(0) }.over_gateways(&lab.fabric);
        let operation = operation.expect("a rank of the fabric");
        let bound = operation_lower_bound(&lab.fabric, operation, ByteCount::new(bytes));
        let eta = bound.as_secs_f64() / seconds;
        assert!((0.93..=1.0).contains(&eta), "eta {eta:.4}");
        one.check(sent, received).await;
    });
}

#[test]
fn a_send_without_a_receive_holds_little() {
    simulate_ranks(&Mesh::of_ranks(&[1, 1]), |lab, clients| async move {
        let held = async |tag, bytes| {
            let one = OneSend::of_bytes(0, 1, tag, bytes);
            (one, one.send(&clients).await)
        };
        let waiting = [held(1, 16 << 20).await, held(2, 16 << 20).await];
        lab.sleep(Span::from_secs(5)).await;
        // Two lengths of the unsolicited window of a group, and a segment of each.
        let (payload, _) = crossed(&lab, 0, 1);
        assert!(payload <= 256 << 10, "{payload} bytes");
        // Another tag passes them.
        OneSend::of_bytes(0, 1, 3, 8 << 20).run(&clients).await;
        for (one, sent) in waiting {
            let received = one.receive(&clients).await;
            one.check(sent, received).await;
        }
    });
}

#[test]
fn a_lost_rank_is_told_to_its_other_end_alone() {
    simulate_ranks(&Mesh::of_ranks(&[2, 2]), |_lab, mut clients| async move {
        let (lost, other) = (OneSend::of_bytes(0, 2, 1, 9), OneSend::of_bytes(1, 2, 1, 9));
        lost.run(&clients).await;
        let waits =
            [lost.receive(&clients).await, OneSend::of_bytes(2, 0, 4, 9).send(&clients).await];
        let received = other.receive(&clients).await;
        drop(clients.remove(0));
        for end in waits {
            let failure = failure_of(end).await;
            assert_eq!(failure.code, FailureCode::RankLost, "{failure}");
            assert!(failure.text.contains("rank 0 (a)"), "{failure}");
        }
        clients.insert(0, clients[0].clone());
        let sent = other.send(&clients).await;
        other.check(sent, received).await;
        OneSend::of_bytes(2, 3, 1, 9).run(&clients).await;
    });
}

#[test]
fn a_send_waits_for_a_rank_that_is_back() {
    simulate_ranks(&Mesh::of_ranks(&[2, 2]), |lab, mut clients| async move {
        OneSend::of_bytes(0, 2, 1, 9).run(&clients).await;
        drop(clients.remove(0));
        clients.insert(0, lab.client(0, ARENA_BYTES).await);
        lab.sleep(Span::from_secs(1)).await;
        let one = OneSend::of_bytes(2, 0, 1, 9);
        let sent = one.send(&clients).await;
        lab.sleep(Span::from_secs(5)).await;
        let received = one.receive(&clients).await;
        one.check(sent, received).await;
    });
}

#[test]
fn ranks_send_again_after_a_gateway_drained() {
    simulate(async {
        let mut lab = Mesh::of_ranks(&[1, 1]).start(1).await;
        let mut clients = lab.clients(ARENA_BYTES).await;
        lab.gateways[1].drain(Span::from_secs(1)).await;
        let tensor = clients[0].allocate(Dtype::U8, 9).expect("room");
        let refused = clients[0].send(tensor, SendSpec::new(RankId(1), Tag(1))).await;
        let failure = refused.expect_err("it drains").into_failure();
        assert_eq!(failure.code, FailureCode::ShuttingDown, "{failure}");
        lab.stop_gateway(GatewayId(1)).await;
        lab.sleep(Span::from_secs(1)).await;
        lab.start_gateway(GatewayId(1)).await;
        clients[1] = lab.client(1, ARENA_BYTES).await;
        // Each is the first to send once: both know of the group that is over.
        for (from, to) in [(1, 0), (0, 1)] {
            let one = OneSend::of_bytes(from, to, 1, 9);
            let sent = one.send(&clients).await;
            lab.sleep(Span::from_secs(1)).await;
            let received = one.receive(&clients).await;
            one.check(sent, received).await;
        }
    });
}

#[test]
fn a_lost_gateway_leaves_other_sends_alone() {
    simulate(async {
        let mut lab = Mesh::of_ranks(&[1, 1, 1]).start(1).await;
        let mut clients = lab.clients(ARENA_BYTES).await;
        let (lost, other) = (OneSend::of_bytes(0, 1, 1, 9), OneSend::of_bytes(0, 2, 1, 9));
        lost.run(&clients).await;
        other.run(&clients).await;
        let (waits, received) = (lost.send(&clients).await, other.receive(&clients).await);
        lab.stop_gateway(GatewayId(1)).await;
        let failure = failure_of(waits).await;
        assert!(
            matches!(failure.code, FailureCode::RegionLost | FailureCode::ShuttingDown),
            "{failure}"
        );
        let sent = other.send(&clients).await;
        other.check(sent, received).await;
        lab.sleep(Span::from_secs(20)).await;
        lab.start_gateway(GatewayId(1)).await;
        clients[1] = lab.client(1, ARENA_BYTES).await;
        OneSend { seed: 2, ..lost }.run(&clients).await;
        other.run(&clients).await;
    });
}

#[test]
fn a_send_fails_if_its_gateway_is_lost_first() {
    simulate(async {
        let mut lab = Mesh::of_ranks(&[1, 1]).start(1).await;
        let mut clients = lab.clients(ARENA_BYTES).await;
        let tensor = clients[0].allocate(Dtype::U8, 9).expect("room");
        let sender = &clients[0];
        let send = sender.send(tensor, SendSpec::new(RankId(1), Tag(1)));
        let began = lab.host.now();
        let (refused, ()) = tokio::join!(send, lab.stop_gateway(GatewayId(1)));
        let failure = refused.expect_err("never made").into_failure();
        assert_eq!(failure.code, FailureCode::RegionLost, "{failure}");
        let waited = lab.host.now().since(began);
        assert!(waited < Span::from_secs(16), "{waited}: {failure}");
        lab.sleep(Span::from_secs(1)).await;
        lab.start_gateway(GatewayId(1)).await;
        clients[1] = lab.client(1, ARENA_BYTES).await;
        OneSend::of_bytes(0, 1, 1, 9).run(&clients).await;
        OneSend::of_bytes(1, 0, 1, 9).run(&clients).await;
    });
}

/// Lets a rank receive so many bytes from rank 0, which sends them only after the receive has timed
/// out. Both ends fail alike, and the next send of the tag arrives.
pub(super) async fn check_late_send(clients: &[Client], to: u32, bytes: u64) {
    let one = OneSend::of_bytes(0, to, 5, bytes);
    let receiver = &clients[to as usize];
    let tensor = receiver.allocate(Dtype::U8, bytes).expect("room");
    let spec = SendSpec::new(RankId(0), Tag(5));
    let short = SendSpec { timeout: Span::from_secs(2), ..spec };
    let received = receiver.receive(tensor, short).await.expect("posted");
    let failure = failure_of(received).await;
    assert_eq!(failure.code, FailureCode::TimedOut, "{failure}");
    assert!(failure.text.contains("waiting for rank 0 (a)"), "{failure}");
    // Its send comes later, and meets no other receive.
    let late = failure_of(one.send(clients).await).await;
    assert_eq!(late, failure);
    OneSend { seed: 1, ..one }.run(clients).await;
}

#[test]
fn a_timeout_ends_both_ends_and_the_next_meet() {
    simulate_ranks(&Mesh::of_ranks(&[1, 1]), |_lab, clients| async move {
        check_late_send(&clients, 1, 40).await;
    });
}

#[test]
fn ranks_that_cannot_meet_are_named() {
    simulate_ranks(&Mesh::of_ranks(&[1, 1, 1]), |_lab, clients| async move {
        for (to, words) in [(0, "rank 0 sends to itself"), (3, "rank 3 is not one of the 3 ranks")]
        {
            let tensor = clients[0].allocate(Dtype::U8, 4).expect("room");
            let refused = clients[0].send(tensor, SendSpec::new(RankId(to), Tag(0))).await;
            let failure = refused.expect_err("refused").into_failure();
            assert_eq!(failure.code, FailureCode::BadPost, "{failure}");
            assert!(failure.text.contains(words), "{failure}");
        }
        OneSend::of_bytes(0, 1, 0, 4).run(&clients).await;
    });
}

/// An all-reduce of the job sends next to nothing over some of the pairs of gateways.
#[test]
fn every_pair_of_gateways_has_a_rate_for_sends() {
    let gateways = vec![MeshGateway::with_port(1, mbit(500)); 2];
    let mesh = Mesh::of_gateways(vec![gateways; 3]);
    simulate_ranks(&mesh, |lab, clients| async move {
        for (from, to) in (0..6).flat_map(|from| (0..6).map(move |to| (from, to))) {
            if from == to {
                continue;
            }
            OneSend::of_bytes(from, to, 1, 1 << 10).run(&clients).await;
            let begin = lab.host.now();
            OneSend::of_bytes(from, to, 2, 4 << 20).run(&clients).await;
            let took = lab.host.now().since(begin);
            // 4 MiB at a sixteenth of the port take 1.1 s.
            assert!(took < Span::from_ms(1500), "{from} to {to}: {took}");
        }
    });
}

#[test]
fn groups_have_tags_of_their_own() {
    simulate_ranks(&Mesh::of_ranks(&[2, 2]), |_lab, clients| async move {
        let Members(members) = Members::make(&clients, &[0, 2, 3], 1).await;
        // Rank 0 of the job sends to rank 2 of the job, which is 1 in the group.
        let (in_job, in_group) = (OneSend::of_bytes(0, 2, 1, 9), OneSend::of_bytes(0, 1, 1, 9));
        let received = [in_group.receive(&members).await, in_job.receive(&clients).await];
        let sent = [in_job.send(&clients).await, in_group.send(&members).await];
        let ([to_member, to_rank], [of_rank, of_member]) = (received, sent);
        in_job.check(of_rank, to_rank).await;
        in_group.check(of_member, to_member).await;
        // Leaving the group leaves the sends of its ranks.
        drop(members);
        let Members(again) = Members::make(&clients, &[0, 2, 3], 1).await;
        in_group.run(&again).await;
    });
}

#[test]
fn many_sends_of_a_rank_wait_for_room() {
    simulate_ranks(&Mesh::of_ranks(&[1, 2]), |_lab, clients| async move {
        let clients = std::sync::Arc::new(clients);
        // More than a rank may have under way, to two others.
        let sending = std::sync::Arc::clone(&clients);
        let sent = tokio::spawn(async move {
            let mut sent = Vec::new();
            for tag in 0..200 {
                for to in [1, 2] {
                    let one = OneSend::of_bytes(0, to, tag, 64);
                    sent.push((one, one.send(&sending).await));
                }
            }
            sent
        });
        let mut received = Vec::new();
        for tag in 0..200 {
            for to in [1, 2] {
                received.push(OneSend::of_bytes(0, to, tag, 64).receive(&clients).await);
            }
        }
        for ((one, sent), received) in sent.await.expect("no panic").into_iter().zip(received) {
            one.check(sent, received).await;
        }
    });
}
