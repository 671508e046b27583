//! The virtual arm: whole gateways over simulated links, in no time that anybody waits.

use crate::cell::{CUT_AFTER_S, Cell};
use crate::row::{COMMON, Row};
use gateway::client::{Client, PostError};
use gateway::wan::link::controller_policy::{ControllerPolicy, LinkPolicy};
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::GatewayId;
use hier_collectives::plan::Operation;
use hier_collectives::post::Failure;
use scenarios::collectives::quinn_only::{self, Settings};
use scenarios::{Lab, Shape, simulate, simulated_address};
use std::time::Duration;
use units::{ByteCount, Fraction, Span};

/// Congestion window of the control with a fixed window, in bytes.
pub const FIXED_WINDOW: u64 = 1_250_000;
/// Ours, of which so many runs are made that their median is held to a bound.
pub const HELD: &str = "landbridge, 20 BDP";
/// The control with [`FIXED_WINDOW`] and data in one direction only.
pub const FIXED_ONE_WAY: &str = "quinn, window of 1.25 MB, one way";
/// Ours, in segments as long as the buffer.
pub const ONE_SEGMENT: &str = "one segment for the whole buffer";
/// Ours, with quinn's CUBIC.
pub const CUBIC: &str = "landbridge, CUBIC";
/// Packets of the lanes carry about this much payload.
pub const PACKET_PAYLOAD: u64 = 1433;
/// Gateways count what their lanes have lost once a second.
pub const COUNTED_WITHIN: Duration = Duration::from_millis(1100);

/// Runs of a cell: of those whose medians are held to a bound, and of what stands beside them.
#[derive(Debug, Clone, Copy)]
pub struct Seeds {
    pub held: u64,
    pub beside: u64,
}

/// Measures a row: every size of ours, and the controls at the common one; and where there is a
/// bound on eta, twenty BDP, beside what retransmission alone makes of them.
pub fn measure(row: &Row, seeds: Seeds) -> Vec<Cell> {
    let mut cells: Vec<Cell> =
        row.sizes.iter().map(|bytes| cell("landbridge", &row.shape(), *bytes, row, 1)).collect();
    if row.is_long() {
        let bytes = row.twenty_bdp();
        cells.push(cell(HELD, &row.shape(), bytes, row, seeds.held));
        if row.loss != Fraction::default() {
            // The link loses, but the fabric does not say so: no parity.
            let (loss, true_loss) = (Fraction::default(), Some(row.loss));
            let silent = Shape { loss, true_loss, ..row.shape() };
            cells.push(cell("landbridge, no tail repair", &silent, bytes, row, seeds.beside));
        }
    }
    let whole = Shape { segment: Some(ByteCount::new(COMMON)), ..row.shape() };
    cells.push(cell(ONE_SEGMENT, &whole, COMMON, row, 1));
    let policy = LinkPolicy { controller: ControllerPolicy::Cubic, ..LinkPolicy::default() };
    cells.push(cell(CUBIC, &Shape { policy, ..row.shape() }, COMMON, row, 1));
    cells.push(quinn("quinn, defaults", row, None, [COMMON; 2]));
    let window = ByteCount::new(FIXED_WINDOW);
    let fixed = Some(FIXED_WINDOW);
    cells.push(quinn(&format!("quinn, window of {window}"), row, fixed, [COMMON; 2]));
    cells.push(quinn(FIXED_ONE_WAY, row, fixed, [COMMON, 0]));
    cells
}

/// The exchange over one connection of quinn alone, of so many bytes each way.
fn quinn(who: &str, row: &Row, window: Option<u64>, bytes: [u64; 2]) -> Cell {
    let (shape, settings) = (row.shape(), Settings { mtu: None, window });
    let ran = quinn_only::simulated(&shape, settings, bytes, Span::from_secs(CUT_AFTER_S));
    let ran = ran.expect("nothing but the link's loss goes wrong");
    let bound = row.bound(Operation::AllReduce, &shape.fabric(), COMMON);
    let seconds = ran.seconds.into_iter().collect();
    let mut cell = Cell::new(who, "virtual", COMMON, seconds, bound);
    cell.queue_bytes_peak = Some(ran.queue_bytes_peak.get());
    cell
}

fn cell(who: &str, shape: &Shape, bytes: u64, row: &Row, seeds: u64) -> Cell {
    let runs: Vec<Run> = (1..=seeds).map(|seed| Run::of(shape, bytes, seed)).collect();
    // One that was cut is the slowest of all.
    let seconds = runs.iter().map(|run| run.seconds.unwrap_or(f64::INFINITY)).collect();
    let bound = row.bound(Operation::AllReduce, &shape.fabric(), bytes);
    let mut cell = Cell::new(who, "virtual", bytes, seconds, bound);
    let lost: u64 = runs.iter().map(|run| run.lost_packets).sum();
    cell.retransmitted_bytes = Some(lost * PACKET_PAYLOAD / seeds);
    cell.queue_bytes_peak = runs.iter().map(|run| run.queue_bytes_peak).max();
    cell
}

struct Run {
    /// Seconds of the all-reduce; `None` where it timed out.
    seconds: Option<f64>,
    lost_packets: u64,
    queue_bytes_peak: u64,
}

impl Run {
    /// One all-reduce of one rank in each region.
    fn of(shape: &Shape, bytes: u64, seed: u64) -> Self {
        simulate(async {
            let lab = Lab::start(shape, seed).await;
            let clients = lab.clients(2 * bytes + 4096).await;
            // Where the fabric has more lanes than one, the others are up a round trip later.
            lab.sleep(Span::from_secs(1)).await;
            let before = lost(&lab);
            let begin = lab.host.now();
            let cut = Duration::from_secs(CUT_AFTER_S);
            let done = tokio::time::timeout(cut, all_reduce(&clients, bytes)).await.ok();
            let seconds = done.map(|done| {
                done.expect("nothing but the link's loss goes wrong");
                lab.host.now().since(begin).as_secs_f64()
            });
            tokio::time::sleep(COUNTED_WITHIN).await;
            let [east, west] = [0, 1].map(|gateway| simulated_address(GatewayId(gateway)).ip());
            let peak = |from, to| lab.net.queue_bytes_peak(from, to).map_or(0, ByteCount::get);
            Self {
                seconds,
                lost_packets: lost(&lab) - before,
                queue_bytes_peak: peak(east, west).max(peak(west, east)),
            }
        })
    }
}

async fn all_reduce(clients: &[Client], bytes: u64) -> Result<(), Failure> {
    let mut operations = Vec::new();
    for client in clients {
        let tensor = client.allocate(Dtype::F32, bytes / 4).expect("room in the arena");
        let posted = client.all_reduce(tensor, ReduceOp::Sum).await;
        operations.push(posted.map_err(PostError::into_failure)?);
    }
    for operation in &mut operations {
        operation.ready().await?;
    }
    Ok(())
}

fn lost(lab: &Lab) -> u64 {
    let peers = lab.gateways.iter().flat_map(|gateway| gateway.peers.values());
    peers.map(|peer| peer.metrics.lost_packets.get()).sum()
}
