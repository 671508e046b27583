//! The summary of a trace: for each lane its phases, rates, RTTs and losses.

use gateway::wan::link_trace::{TraceLane, TraceRecord, TraceTransition};
use serde::Serialize;
use std::collections::BTreeMap;

/// The summary of a trace.
#[derive(Debug, Default, Serialize)]
pub(crate) struct TraceSummary {
    /// The gateway that wrote it; `None` where the first line is missing.
    pub gateway: Option<String>,
    /// Records that the trace lost.
    pub lost_records: u64,
    /// Its lanes, by peer and number.
    pub lanes: Vec<LaneSummary>,
    /// The changes of phases, in order.
    pub transitions: Vec<TraceTransition>,
}

/// The summary of a lane.
#[derive(Debug, Serialize)]
pub(crate) struct LaneSummary {
    /// The name of the peer.
    pub peer: String,
    /// The number of the lane.
    pub lane: u16,
    /// Round trips with traffic.
    pub rounds: u64,
    /// Round trips in which window or pace held the sender.
    pub held_rounds: u64,
    /// Round trips by phase.
    pub phases: BTreeMap<String, u64>,
    /// The greatest rate at which a round trip was acknowledged, in bits per second.
    pub greatest_bits_per_second: u64,
    /// The delivery rate at the end, in bits per second.
    pub last_bits_per_second: u64,
    /// The RTT without a queue at the end, in seconds.
    pub min_rtt_seconds: f64,
    /// The median of the rounds' RTTs, in seconds.
    pub median_rtt_seconds: f64,
    /// Bytes lost by the end on a shared link; 0 on others.
    pub lost_bytes: u64,
}

impl TraceSummary {
    /// Condenses the records of a trace: the rounds of each lane to a summary. Changes of phases
    /// are kept, and the last count of lost records; records of links are not used.
    pub fn of_records(records: &[TraceRecord]) -> Self {
        let mut summary = Self::default();
        let mut lanes: BTreeMap<(String, u16), Vec<&TraceLane>> = BTreeMap::new();
        for record in records {
            match record {
                TraceRecord::Begin(begin) => summary.gateway = Some(begin.gateway.clone()),
                TraceRecord::Lane(lane) => {
                    lanes.entry((lane.peer.clone(), lane.lane)).or_default().push(lane);
                }
                TraceRecord::Transition(change) => summary.transitions.push(change.clone()),
                TraceRecord::Lost { records } => summary.lost_records = *records,
                TraceRecord::Link(_) => {}
            }
        }
        summary.lanes = lanes.into_iter().map(|(id, rounds)| summarize_lane(id, &rounds)).collect();
        summary
    }
}

/// Condenses the rounds of a lane, of which there is one at least. Of an even number of RTTs the
/// median is the upper of the two in the middle.
fn summarize_lane((peer, lane): (String, u16), rounds: &[&TraceLane]) -> LaneSummary {
    let mut phases = BTreeMap::new();
    for round in rounds {
        *phases.entry(round.phase.clone()).or_default() += 1;
    }
    let mut rtts: Vec<f64> = rounds.iter().map(|round| round.rtt_seconds).collect();
    rtts.sort_by(f64::total_cmp);
    let last = rounds.last();
    let lost = last.and_then(|round| round.losses);
    LaneSummary {
        peer,
        lane,
        rounds: rounds.len() as u64,
        held_rounds: rounds.iter().filter(|round| round.is_held).count() as u64,
        phases,
        greatest_bits_per_second: rounds
            .iter()
            .map(|round| round.round_bits_per_second)
            .max()
            .unwrap_or(0),
        last_bits_per_second: last.map_or(0, |round| round.rate_bits_per_second),
        min_rtt_seconds: last.map_or(0.0, |round| round.min_rtt_seconds),
        median_rtt_seconds: rtts.get(rtts.len() / 2).copied().unwrap_or(0.0),
        lost_bytes: lost.map_or(0, |lost| lost.random_bytes + lost.queue_bytes + lost.outage_bytes),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Makes the record of a lane's round that ends `at_seconds` after the start. The lane's rate is
    /// `rate` bits per second, of which the round delivered half.
    pub(in crate::trace) fn lane_round_record(
        at_seconds: f64,
        phase: &str,
        rate: u64,
    ) -> TraceRecord {
        TraceRecord::Lane(TraceLane {
            at_seconds,
            peer: "west-0".to_owned(),
            lane: 0,
            phase: phase.to_owned(),
            rate_bits_per_second: rate,
            round_bits_per_second: rate / 2,
            pace_bits_per_second: Some(2 * rate),
            window_bytes: 64_000,
            in_flight_bytes: 32_000,
            rtt_seconds: at_seconds / 10.0,
            min_rtt_seconds: 0.08,
            is_held: phase != "startup",
            is_queued: Some(false),
            lost_packets: None,
            losses: None,
        })
    }

    #[test]
    fn a_summary_counts_the_rounds_of_each_phase() {
        let records = [(1.0, "startup"), (2.0, "cruise"), (3.0, "cruise")];
        let records: Vec<_> = records
            .into_iter()
            .map(|(at, phase)| lane_round_record(at, phase, (10.0 * at) as u64))
            .collect();
        let summary = TraceSummary::of_records(&records);
        let lane = &summary.lanes[0];
        assert_eq!((lane.rounds, lane.held_rounds), (3, 2));
        assert_eq!((lane.phases["startup"], lane.phases["cruise"]), (1, 2));
        assert_eq!((lane.greatest_bits_per_second, lane.last_bits_per_second), (15, 30));
        assert_eq!(lane.median_rtt_seconds, 0.2);
    }
}
