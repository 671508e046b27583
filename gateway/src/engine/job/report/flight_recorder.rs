//! The last collectives of a job: when each local rank posted, and how each collective ended.
//!
//! `report` and the handler of posts record them on the engine's task. A dump shows them, so that
//! `landbridge explain` can tell a rank that has not posted from a post that did not arrive.

use crate::observe::status::{FlightEndReport, FlightPostReport, FlightReport};
use hier_collectives::descriptor::Descriptor;
use hier_collectives::ids::{RankId, Sequence};
use hier_collectives::post::FailureCode;
use std::collections::BTreeMap;
use units::TimeNs;

/// 64 collectives: the most that a job's flight recorder keeps, with the posts of local ranks. At
/// one more the one of lowest number is dropped. The number is chosen: some steps of some buckets.
/// Tested by `the_last_collectives_are_recorded`.
const RECORDED_MAX: usize = 64;

/// The last collectives of one job, by their numbers.
#[derive(Debug, Default)]
pub(in crate::engine) struct FlightRecorder {
    last: BTreeMap<Sequence, RecordedFlight>,
}

/// One recorded collective.
#[derive(Debug)]
struct RecordedFlight {
    op: &'static str,
    bytes: u64,
    /// The time at which each local rank posted.
    posts: BTreeMap<RankId, TimeNs>,
    /// The time of its end here, and the code if it failed.
    end: Option<(TimeNs, Option<FailureCode>)>,
}

impl FlightRecorder {
    /// Records that a local rank posted a collective at `now`. A rank that posts a number again, as
    /// in another epoch, begins a new record.
    pub fn record_post(
        &mut self,
        sequence: Sequence,
        rank: RankId,
        descriptor: &Descriptor,
        now: TimeNs,
    ) {
        if self.last.get(&sequence).is_some_and(|known| known.posts.contains_key(&rank)) {
            self.last.remove(&sequence);
        }
        let flight = self.last.entry(sequence).or_insert_with(|| RecordedFlight {
            op: descriptor.name(),
            bytes: descriptor.bytes(),
            posts: BTreeMap::new(),
            end: None,
        });
        flight.posts.insert(rank, now);
        if self.last.len() > RECORDED_MAX {
            self.last.pop_first();
        }
    }

    /// Records that a collective ended here at `now`: with its result, or with the code of its
    /// failure. Ignores one of which no local post is recorded.
    pub fn record_end(&mut self, sequence: Sequence, code: Option<FailureCode>, now: TimeNs) {
        if let Some(flight) = self.last.get_mut(&sequence) {
            flight.end = Some((now, code));
        }
    }

    /// Returns the recorded collectives in the form of a dump, in the order of their numbers, without
    /// the bytes that are missing.
    pub fn report(&self, now: TimeNs) -> Vec<FlightReport> {
        let ago = |at: TimeNs| now.since(at).as_secs_f64();
        let report = |(sequence, flight): (&Sequence, &RecordedFlight)| {
            let post = |(rank, at): (&RankId, &TimeNs)| FlightPostReport {
                rank: rank.0,
                seconds_ago: ago(*at),
            };
            let end = flight.end.map(|(at, code)| FlightEndReport {
                code: code.map(|code| code as u8),
                seconds_ago: ago(at),
            });
            FlightReport {
                sequence: sequence.0,
                op: flight.op.to_owned(),
                bytes: flight.bytes,
                posts: flight.posts.iter().map(post).collect(),
                end,
                missing: Vec::new(),
            }
        };
        self.last.iter().map(report).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hier_collectives::descriptor::Pattern;

    /// Returns the time of a second.
    fn second(number: u64) -> TimeNs {
        TimeNs::from_ns(number * 1_000_000_000)
    }

    #[test]
    fn the_last_collectives_are_recorded() {
        let mut recorder = FlightRecorder::default();
        let descriptor = Descriptor::of_bytes(Pattern::AllReduce, 4096);
        for number in 0..70 {
            for rank in 0..2 {
                let at = second(number + u64::from(rank));
                recorder.record_post(Sequence(number), RankId(rank), &descriptor, at);
            }
            recorder.record_end(Sequence(number), None, second(number + 3));
        }
        recorder.record_end(Sequence(200), None, second(80));
        let report = recorder.report(second(100));
        assert_eq!(report.len(), RECORDED_MAX);
        assert_eq!((report[0].sequence, report[63].sequence), (6, 69));
        let posts: Vec<_> =
            report[63].posts.iter().map(|post| (post.rank, post.seconds_ago)).collect();
        assert_eq!(posts, [(0, 31.0), (1, 30.0)]);
        let end = report[63].end.as_ref().expect("ended");
        assert_eq!((end.code, end.seconds_ago), (None, 28.0));
    }

    #[test]
    fn a_number_that_is_posted_again_is_a_new_record() {
        let mut recorder = FlightRecorder::default();
        let descriptor = Descriptor::of_bytes(Pattern::AllReduce, 4096);
        let mut post = |rank, at| {
            recorder.record_post(Sequence(3), RankId(rank), &descriptor, second(at));
        };
        post(0, 1);
        post(1, 2);
        post(1, 9);
        recorder.record_end(Sequence(3), Some(FailureCode::RankLost), second(10));
        let report = recorder.report(second(10));
        assert_eq!(report[0].posts, [FlightPostReport { rank: 1, seconds_ago: 1.0 }]);
        assert_eq!(report[0].end, Some(FlightEndReport { code: Some(4), seconds_ago: 0.0 }));
    }
}
