//! Timing of the all-reduces: from the messages of ranks and the counters of relay and gateways to
//! the report.

use super::messages::RankTimes;
use super::quickstart_options::QuickstartOptions;
use super::report::{AllReduce, DirectionCounters, StageSeconds};
use hier_collectives::bound;
use hier_collectives::topology::Fabric;

/// Counters of relay and gateways at one moment.
pub(super) struct TrafficCounters {
    /// Counters of the relay, east to west.
    pub east_west: DirectionCounters,
    /// Counters of the relay, west to east.
    pub west_east: DirectionCounters,
    /// Payload bytes that the gateways of east and west have sent, without retransmissions.
    pub payload: [u64; 2],
}

/// Times of one all-reduce over all ranks, on the machine's monotonic clock.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AllReduceTimes {
    /// Time of the last post.
    posted_ns: u64,
    /// Time of the first segment.
    wan_begin_ns: Option<u64>,
    /// Time of the last segment.
    wan_end_ns: u64,
    /// Time of the last result.
    ready_ns: u64,
}

impl AllReduceTimes {
    /// Extends the times of the all-reduce, so that they span those of one more rank.
    pub(super) fn add_rank(&mut self, rank: RankTimes) {
        let RankTimes { posted_ns, ready_ns, wan_begin_ns, wan_end_ns } = rank;
        self.posted_ns = self.posted_ns.max(posted_ns);
        self.ready_ns = self.ready_ns.max(ready_ns);
        self.wan_begin_ns = Some(self.wan_begin_ns.map_or(wan_begin_ns, |at| at.min(wan_begin_ns)));
        self.wan_end_ns = self.wan_end_ns.max(wan_end_ns);
    }

    /// Returns the time from the last post to the last result, in seconds.
    fn seconds(&self) -> f64 {
        self.ready_ns.saturating_sub(self.posted_ns) as f64 / 1e9
    }

    /// Splits the time from the last post to the last result into stages. Segments may leave before
    /// the last post; that time counts nowhere.
    fn stage_seconds(&self) -> StageSeconds {
        let begin = self.wan_begin_ns.unwrap_or(0).clamp(self.posted_ns, self.ready_ns);
        let end = self.wan_end_ns.clamp(begin, self.ready_ns);
        let seconds = |from: u64, to: u64| (to - from) as f64 / 1e9;
        StageSeconds {
            local_reduce: seconds(self.posted_ns, begin),
            wan: seconds(begin, end),
            deliver: seconds(end, self.ready_ns),
        }
    }
}

/// Summarizes the all-reduces between two readings of the counters: median time, efficiency,
/// goodput, payload and stages.
pub(super) fn summarize_all_reduces(
    options: &QuickstartOptions,
    fabric: &Fabric,
    iterations: &[AllReduceTimes],
    before: &TrafficCounters,
    after: &TrafficCounters,
) -> AllReduce {
    let mut order: Vec<&AllReduceTimes> = iterations.iter().collect();
    order.sort_by(|a, b| a.seconds().total_cmp(&b.seconds()));
    // Of an even number take the later of the two in the middle: the stages are then those of one
    // iteration and sum to its time.
    let median = order[order.len() / 2];
    let bound = bound::all_reduce_lower_bound(fabric, options.size).as_secs_f64();
    let sent = before.payload.iter().zip(after.payload).map(|(before, after)| after - before);
    AllReduce {
        bytes: options.size.get(),
        iterations: options.iterations.get(),
        seconds_median: median.seconds(),
        seconds: iterations.iter().map(AllReduceTimes::seconds).collect(),
        bound_seconds: bound,
        eta: bound / median.seconds(),
        goodput_bits_per_second: options.size.get() as f64 * 8.0 / median.seconds(),
        wan_payload_bytes_per_direction: sent.max().unwrap_or(0)
            / u64::from(options.iterations.get()),
        stage_seconds: median.stage_seconds(),
    }
}

/// Subtracts an earlier reading of the counters of the relay from a later one.
pub(super) fn relay_counters_between_all_reduces(
    after: &DirectionCounters,
    before: &DirectionCounters,
) -> DirectionCounters {
    DirectionCounters {
        ip_bytes: after.ip_bytes - before.ip_bytes,
        packets: after.packets - before.packets,
        drops_loss: after.drops_loss - before.drops_loss,
        drops_queue: after.drops_queue - before.drops_queue,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_sum_to_the_time_in_any_order() {
        for (begin, end) in [(5, 90), (20, 90), (20, 200), (300, 400)] {
            let mut iteration = AllReduceTimes::default();
            let times = |posted_ns, ready_ns, wan_begin_ns, wan_end_ns: u64| RankTimes {
                posted_ns,
                ready_ns,
                wan_begin_ns,
                wan_end_ns,
            };
            iteration.add_rank(times(10, 100, begin, end));
            iteration.add_rank(times(8, 95, begin + 1, end.saturating_sub(1)));
            let StageSeconds { local_reduce, wan, deliver } = iteration.stage_seconds();
            assert!((local_reduce + wan + deliver - 90e-9).abs() < 1e-15);
            assert!(local_reduce >= 0.0 && wan >= 0.0 && deliver >= 0.0);
        }
    }
}
