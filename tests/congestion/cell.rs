//! One cell of the matrix: transfers of whole gateways over a link whose rate they do not know.

use gateway::client::Client;
use gateway::wan::link::controller_policy::{ControllerPolicy, LinkPolicy};
use gateway::wan::link_trace::{LinkTrace, LinkTraceReader, TraceRecord};
use hier_collectives::bound;
use scenarios::collectives::series::{post, seconds};
use scenarios::lab::shape::LONG_MTU;
use scenarios::{JOB, Lab, Shape, mbit, ppm, simulate};
use serde::Serialize;
use units::{ByteCount, Span};

/// 50 BDP: the size of a transfer, as the targets have it.
const TRANSFER_BDPS: u64 = 50;
/// 10: the ports of the gateways are so many times as fast as the link, which is all they know.
const PORT_FACTOR: u64 = 10;
/// 1 s, 1 s and ten minutes: the idle times after the first transfers.
const PAUSES: [Span; 3] = [Span::from_secs(1), Span::from_secs(1), Span::from_secs(600)];
/// 400 Mbit/s: packets are long on faster links, since a simulated byte then costs a quarter.
const LONG_PACKETS_MBIT: u64 = 400;

/// A link, and the seed of its randomness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Cell {
    pub rate_mbit: u64,
    pub rtt_ms: u64,
    pub loss_ppm: u32,
    pub queue_thousandths: u32,
    pub seed: u64,
}

/// The efficiencies of a cell's transfers, as parts of the bound.
#[derive(Debug, Clone, Serialize)]
pub struct CellOutcome {
    #[serde(flatten)]
    pub cell: Cell,
    /// The first transfer after start.
    pub first: f64,
    /// The next two, after a second each.
    pub later: [f64; 2],
    /// The one after ten idle minutes.
    pub after_idle: f64,
    /// The trace of the first gateway.
    #[serde(skip)]
    pub trace: Vec<TraceRecord>,
}

impl Cell {
    fn shape(&self) -> Shape {
        let policy = LinkPolicy { controller: ControllerPolicy::Shared, ..LinkPolicy::default() };
        Shape {
            rate: mbit(self.rate_mbit),
            said_rate: Some(mbit(PORT_FACTOR * self.rate_mbit)),
            rtt: Span::from_ms(self.rtt_ms),
            loss: ppm(self.loss_ppm),
            queue_thousandths: self.queue_thousandths,
            mtu: if self.rate_mbit > LONG_PACKETS_MBIT { LONG_MTU } else { 1500 },
            policy,
            // Windows are those of the ports.
            memory: ByteCount::new(1 << 30),
            ..Shape::new(1, 1)
        }
    }

    /// Simulates the transfers of the cell.
    pub fn measure(self) -> CellOutcome {
        let shape = self.shape();
        let bdp = shape.rate.bytes_per_second() * shape.rtt.as_secs_f64();
        let bytes = (bdp as u64 * TRANSFER_BDPS).next_multiple_of(4);
        let fabric = Shape { said_rate: None, ..shape.clone() }.fabric();
        let bound = bound::all_reduce_lower_bound(&fabric, ByteCount::new(bytes)).as_secs_f64();
        let (etas, trace) = simulate(async {
            let (trace, mut reader) = LinkTrace::with_reader();
            let lab = Lab::start_traced(&shape, self.seed, trace).await;
            let clients = ranks(&lab, 4 * bytes).await;
            let (mut etas, mut records) = (Vec::new(), Vec::new());
            for pause in [Span::ZERO].iter().chain(&PAUSES) {
                lab.sleep(*pause).await;
                let took = seconds(&lab, &mut post(&clients, bytes).await).await;
                etas.push(bound / took);
                drain(&mut reader, &mut records);
            }
            (etas, records)
        });
        CellOutcome {
            cell: self,
            first: etas[0],
            later: [etas[1], etas[2]],
            after_idle: etas[3],
            trace,
        }
    }
}

async fn ranks(lab: &Lab, arena: u64) -> Vec<Client> {
    let mut clients = Vec::new();
    for rank in 0..lab.fabric.world_size() {
        let patience = Span::from_secs(60);
        clients.push(lab.attach_folded(JOB, rank, arena, patience).await.expect("attaches"));
    }
    lab.sleep(Span::from_secs(1)).await;
    clients
}

fn drain(reader: &mut LinkTraceReader, records: &mut Vec<TraceRecord>) {
    records.extend(std::iter::from_fn(|| reader.waiting_record()));
}
