//! Many all-reduces over one link. Only times and sizes count; contents are arbitrary, and the
//! ranks' memory maps onto few pages.

use crate::{JOB, Lab, Shape, simulate};
use gateway::client::{Client, DEFAULT_TIMEOUT, Operation};
use hier_collectives::bound;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use std::collections::VecDeque;
use units::{ByteCount, Span};

/// The outcome of collectives in a row.
#[derive(Debug, Clone, Copy)]
pub struct SeriesOutcome {
    /// The bound for all their bytes, over the time from the first post to the last result.
    pub eta: f64,
    /// Lanes that are up at the end, and their full number.
    pub lanes: (u16, u16),
    /// Payload retransmitted because a lane was lost.
    pub resent: ByteCount,
}

/// Returns the seconds of `count` all-reduces of `bytes`, each alone on the link, in ascending
/// order.
///
/// # Panics
/// When one fails.
pub fn alone(shape: &Shape, bytes: u64, count: usize, seed: u64) -> Vec<f64> {
    let mut times = simulate(async {
        let (lab, clients) = start(shape, 4 * bytes, seed).await;
        let mut times = Vec::new();
        for _ in 0..count {
            times.push(seconds(&lab, &mut post(&clients, bytes).await).await);
            lab.sleep(PAUSE).await;
        }
        times
    });
    times.sort_by(f64::total_cmp);
    times
}

/// Returns the value below which the fraction `part` of ascending values lies.
pub fn quantile(ascending: &[f64], part: f64) -> f64 {
    let rank = (part * ascending.len() as f64).ceil() as usize;
    ascending[rank.clamp(1, ascending.len()) - 1]
}

/// Runs `count` all-reduces of `bytes`, with the next one always posted.
///
/// # Panics
/// When one fails.
pub fn in_a_row(shape: &Shape, bytes: u64, count: u64, seed: u64) -> SeriesOutcome {
    simulate(async {
        let (lab, clients) = start(shape, 8 * bytes, seed).await;
        let begin = lab.host.now();
        let mut under_way = VecDeque::from([post(&clients, bytes).await]);
        for left in (0..count).rev() {
            if left > 0 {
                under_way.push_back(post(&clients, bytes).await);
            }
            ready(&mut under_way.pop_front().expect("posted")).await;
        }
        let took = lab.host.now().since(begin).as_secs_f64();
        let bound =
            bound::all_reduce_lower_bound(&lab.fabric, ByteCount::new(count * bytes)).as_secs_f64();
        let peer = &lab.status(hier_collectives::ids::GatewayId(0)).await.peers[0];
        let peers = lab.gateways.iter().flat_map(|gateway| gateway.peers.values());
        let resent = peers.map(|peer| peer.metrics.resent_bytes.get()).sum();
        let lanes = (peer.lanes_up, peer.lanes);
        SeriesOutcome { eta: bound / took, lanes, resent: ByteCount::new(resent) }
    })
}

/// Returns the seconds of all-reduces of `small` bytes, one posted after each of `pauses` while one
/// of `large` bytes is under way.
///
/// # Panics
/// When one fails, or the large one ends first.
pub fn behind(shape: &Shape, small: u64, large: u64, pauses: &[Span], seed: u64) -> Vec<f64> {
    simulate(async {
        let (lab, clients) = start(shape, 2 * large + 8 * small, seed).await;
        let mut operations = post(&clients, large).await;
        let mut times = Vec::new();
        for pause in pauses {
            lab.sleep(*pause).await;
            times.push(seconds(&lab, &mut post(&clients, small).await).await);
        }
        for operation in &mut operations {
            let ended = tokio::time::timeout(std::time::Duration::ZERO, operation.ready()).await;
            assert!(ended.is_err(), "the large one has ended: {ended:?}");
        }
        times
    })
}

async fn start(shape: &Shape, arena: u64, seed: u64) -> (Lab, Vec<Client>) {
    let lab = Lab::start(shape, seed).await;
    let mut clients = Vec::new();
    for rank in 0..lab.fabric.world_size() {
        clients.push(lab.attach_folded(JOB, rank, arena, DEFAULT_TIMEOUT).await.expect("attaches"));
    }
    // All lanes are up a round trip after the first.
    lab.sleep(Span::from_secs(1)).await;
    (lab, clients)
}

/// Posts an all-reduce of `bytes` on every rank.
///
/// # Panics
/// When one cannot be posted.
pub async fn post(clients: &[Client], bytes: u64) -> Vec<Operation> {
    let mut operations = Vec::new();
    for client in clients {
        let tensor = client.allocate(Dtype::F32, bytes / 4).expect("room");
        operations.push(client.all_reduce(tensor, ReduceOp::Sum).await.expect("posted"));
    }
    operations
}

/// Waits for all results.
///
/// # Panics
/// When one fails.
pub async fn ready(operations: &mut [Operation]) {
    for operation in operations {
        operation.ready().await.expect("a result");
    }
}

/// Returns the seconds from now until all results are there.
///
/// # Panics
/// When one fails.
pub async fn seconds(lab: &Lab, operations: &mut [Operation]) -> f64 {
    let begin = lab.host.now();
    ready(operations).await;
    lab.host.now().since(begin).as_secs_f64()
}

/// 200 ms: the pause between two all-reduces that are measured alone, so that receipts and
/// acknowledgements have arrived.
const PAUSE: Span = Span::from_ms(200);

#[cfg(test)]
mod tests {
    use super::quantile;

    #[test]
    fn a_quantile_is_one_of_the_values() {
        let values: Vec<f64> = (1..=200u8).map(f64::from).collect();
        assert_eq!(
            [0.0, 0.5, 0.99, 1.0].map(|part| quantile(&values, part)),
            [1.0, 100.0, 198.0, 200.0]
        );
    }
}
