//! The processor time of both gateways for each gigabyte, beside quinn alone.

use crate::cell::{CUT_AFTER, CUT_AFTER_S};
use crate::contenders::peers::Tools;
use crate::lab::testbed::Lab;
use crate::row::Row;
use scenarios::testbed::collective_runs::CollectiveRuns;
use scenarios::testbed::controls::bare_quinn::{Setting, start_exchanges};
use scenarios::testbed::error::LabError;
use scenarios::testbed::gateways::{run_collectives, start_gateways};
use scenarios::testbed::processes::{Begins, Processes};
use serde::Serialize;

/// 64 MiB: the buffer that both are measured with.
const BYTES: u64 = 64 << 20;
/// 12 measured all-reduces of each round.
const ITERATIONS: u32 = 12;
/// Each after the other, so that a busy spell meets both; many, since on a machine that others use
/// as well a round may be half as dear again as the next.
const ROUNDS: usize = 9;
/// UDP payload of a packet, and the headers that make it an IP packet.
pub const PAYLOADS: [u16; 2] = [1452, 8900];
/// 28 bytes of IPv4 and UDP headers.
const HEADERS: u16 = 28;

/// One size of packets.
#[derive(Debug, Clone, Serialize)]
pub struct Cost {
    pub packet_payload_bytes: u16,
    /// Seconds of both gateways for each gigabyte of the buffer, one in each round.
    pub gateways: Vec<f64>,
    /// Seconds of both sides of quinn alone, with equal connections, packet sizes, bytes in flight
    /// and cipher.
    pub quinn: Vec<f64>,
    /// The median ratio of gateways to quinn.
    pub ratio: f64,
    /// Gbit/s each way, the medians: gateways, then quinn.
    pub gbit: [f64; 2],
}

/// Both, over loopback, at each size of packets.
pub fn measure(tools: &Tools) -> Result<Vec<Cost>, LabError> {
    PAYLOADS.iter().map(|payload| cost(tools, *payload)).collect()
}

fn cost(tools: &Tools, payload: u16) -> Result<Cost, LabError> {
    let row = Row::loopback();
    let (mut ours, mut theirs, mut ratios, mut gbit) = (vec![], vec![], vec![], [vec![], vec![]]);
    let fabric = row.shape().fabric();
    // As the lanes that ours begins with have: what the link carries in 4.25 round trips.
    let lanes = fabric.lanes_min();
    let window = fabric.links()[0].bdp().get() * 17 / 4 / u64::from(lanes);
    let (mtu, window) = (Some(payload), Some(window));
    let set = Setting { bytes: BYTES, iterations: ITERATIONS, lanes, mtu, window };
    let lab = Lab::loopback(&tools.landbridge, &row, payload + HEADERS)?;
    let gateways = start_gateways(&lab, &[], CUT_AFTER)?;
    // Memory of the gateways' own is there from here on.
    run_collectives(&lab, &CollectiveRuns::all_reduces(BYTES, 1), CUT_AFTER)?;
    for _ in 0..ROUNDS {
        let (seconds, cpu) = of_gateways(&lab, &gateways)?;
        ours.push(cpu);
        gbit[0].extend(seconds.iter().map(|seconds| BYTES as f64 * 8e-9 / seconds));
        let exchanges = start_exchanges(&lab, &tools.quinn, &set)?;
        let ran = exchanges.run_times(Begins::WithALine, CUT_AFTER)?;
        let cpu = ran.cpu_seconds_per_gb(BYTES).ok_or_else(|| cut("quinn alone"))?;
        theirs.push(cpu);
        gbit[1].extend(ran.seconds.iter().map(|seconds| BYTES as f64 * 8e-9 / seconds));
        ratios.push(ours[ours.len() - 1] / cpu);
    }
    let gbit = gbit.map(median);
    let ratio = median(ratios);
    Ok(Cost { packet_payload_bytes: payload, gateways: ours, quinn: theirs, ratio, gbit })
}

/// Seconds of each all-reduce, and processor time for each gigabyte, without what the first one of
/// a rank takes, whose memory is mapped then: quinn's is not measured either.
fn of_gateways(lab: &Lab, gateways: &Processes) -> Result<(Vec<f64>, f64), LabError> {
    let cpu_of = |iterations| {
        let before = gateways.cpu_seconds();
        let runs = CollectiveRuns::all_reduces(BYTES, iterations);
        let seconds = run_collectives(lab, &runs, CUT_AFTER)?.seconds;
        if seconds.len() < iterations as usize {
            return Err(cut("the gateways"));
        }
        Ok((seconds, gateways.cpu_seconds() - before))
    };
    let (_, first) = cpu_of(1)?;
    let (seconds, all) = cpu_of(1 + ITERATIONS)?;
    Ok((seconds, (all - first) / moved()))
}

/// The error of a run that timed out, whose cost says nothing.
fn cut(who: &str) -> LabError {
    LabError::Failed(format!("{who} took longer than {CUT_AFTER_S} s"))
}

/// Gigabytes of all measured buffers.
fn moved() -> f64 {
    BYTES as f64 * f64::from(ITERATIONS) / 1e9
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
