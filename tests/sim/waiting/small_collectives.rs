//! Many small all-reduces, one behind the other, over lanes that come, go, and lose packets.

use gateway::client::Client;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use scenarios::collectives::data::SplitMix64;
use scenarios::{EAST, Lab, Shape, WEST, mbit, ppm, simulate};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use units::Span;

/// All-reduces of each seed.
const STEPS: u64 = 100;
/// Elements of each: one segment of 16 KiB.
const ELEMENTS: u64 = 4096;

/// Returns a pause of mostly no time, else of up to some milliseconds, rarely of up to half a second.
fn pause(dice: &mut SplitMix64) -> Duration {
    let most_us = match dice.roll() % 40 {
        0..16 => return Duration::ZERO,
        16..39 => 4000,
        _ => 500_000,
    };
    Duration::from_micros(dice.roll() % most_us)
}

/// Takes part in all all-reduces as one rank. `ended` counts those that it has the result of.
async fn take_all_steps(client: Client, mut dice: SplitMix64, ended: &AtomicU64) {
    let mut before = None;
    for step in 0..STEPS {
        tokio::time::sleep(pause(&mut dice)).await;
        let mut tensor = client.allocate(Dtype::F32, ELEMENTS).expect("room");
        tensor.write_f32(&[step as f32; ELEMENTS as usize]);
        let mut operation = client.all_reduce(tensor, ReduceOp::Sum).await.expect("posted");
        operation.ready().await.expect("a result");
        assert!(operation.result_f32().iter().all(|sum| *sum == 3.0 * step as f32), "{step}");
        ended.fetch_add(1, Ordering::Relaxed);
        // Its slots may be taken back at once, or while the next one is under way.
        let kept = (dice.roll().is_multiple_of(2)).then_some(operation);
        if let Some(operation) = std::mem::replace(&mut before, kept) {
            operation.reclaim().await.expect("free");
        }
    }
}

/// Closes lanes, and makes their threads seem busy and idle, so that gateways try and drop lanes.
async fn disturb_lanes(lab: &Lab, mut dice: SplitMix64) {
    loop {
        lab.sleep(Span::from_ms(1 + dice.roll() % 300)).await;
        let [one, other] = if dice.roll().is_multiple_of(2) { [EAST, WEST] } else { [WEST, EAST] };
        match dice.roll() % 3 {
            0 => lab.set_thread_load((dice.roll() % 3) as f64 / 2.0),
            _ if lab.status(one).await.peers[0].lanes_up < 2 => {}
            lane => {
                let lane = u16::try_from(lane - 1).expect("small");
                lab.gateways[usize::from(one.0)].close_lane(other, lane).await;
                // The next one waits until this one is back, since the last one takes the epoch along.
                lab.sleep(Span::from_secs(3)).await;
            }
        }
    }
}

/// Runs all steps of three ranks, two of them without shared memory.
fn run_small_steps(seed: u64) {
    simulate(async {
        let mut dice = SplitMix64(seed);
        let loss = [0, 1000, 20_000][(dice.roll() % 3) as usize];
        let rtt = [1, 1, 20][(dice.roll() % 3) as usize];
        let lanes = 1 + (dice.roll() % 2) as u16;
        let link = Shape { rate: mbit(4000), rtt: Span::from_ms(rtt), ..Shape::new(2, 1) };
        let lab = Lab::start(&Shape { loss: ppm(loss), lanes, ..link }, seed).await;
        let clients = lab.mixed_clients(16 << 20).await;
        let ended = AtomicU64::new(0);
        let mut rank =
            |client: &Client| take_all_steps(client.clone(), SplitMix64(dice.roll()), &ended);
        let [first, second, third] = [rank(&clients[0]), rank(&clients[1]), rank(&clients[2])];
        let steps = async { tokio::join!(first, second, third) };
        let disturbing = disturb_lanes(&lab, SplitMix64(dice.roll()));
        let watching = async {
            // Nothing here takes longer than a few lost packets and a lane that is replaced.
            let mut known = u64::MAX;
            while known != ended.load(Ordering::Relaxed) {
                known = ended.load(Ordering::Relaxed);
                tokio::time::sleep(Duration::from_secs(8)).await;
            }
            known
        };
        tokio::select! {
            _ = steps => {}
            () = disturbing => unreachable!("it has no end"),
            known = watching => panic!("seed {seed}: nothing ended behind {known} of {}", 3 * STEPS),
        }
    });
}

#[test]
fn small_all_reduces_end_while_lanes_come_and_go() {
    (0..6).for_each(run_small_steps);
}
