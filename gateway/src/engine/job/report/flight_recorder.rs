//! The last collectives of a job and of its groups: when each local rank posted, and how each collective
//! ended.
//!
//! `report` and the handler of posts record them on the engine's task. A dump shows them, so that
//! `landbridge explain` can tell a rank that has not posted from a post that did not arrive.

use crate::observe::status::{
    FlightBufferReport, FlightEndReport, FlightPostReport, FlightReport, GroupFlightsReport,
};
use hier_collectives::descriptor::Descriptor;
use hier_collectives::ids::{Epoch, GroupId, RankId, Sequence};
use hier_collectives::post::{FailureCode, Post};
use std::collections::{BTreeMap, VecDeque};
use units::TimeNs;

/// 64 collectives: the most that a job's flight recorder keeps, with the posts of local ranks. At
/// one more the one of lowest number is dropped. The number is chosen: some steps of some buckets.
/// Tested by `the_last_collectives_are_recorded`.
const RECORDED_MAX: usize = 64;

/// 256 collectives: the most that a job's flight recorder of all its groups and sends keeps together. At one
/// more the one that was posted first is dropped. The number is chosen: a few of each of some groups.
/// Tested by `the_last_collectives_of_all_groups_are_recorded`.
const RECORDED_OF_GROUPS_MAX: usize = 256;

/// The last collectives of one job, by their numbers.
#[derive(Debug, Default)]
pub(in crate::engine) struct FlightRecorder {
    last: BTreeMap<Sequence, RecordedFlight>,
}

/// The last collectives of all groups of one job, two ranks that send to each other included.
#[derive(Debug, Default)]
pub(in crate::engine) struct GroupFlightRecorder {
    /// The recorder of each group of which something is kept, with its ranks by their numbers in the job.
    groups: BTreeMap<GroupId, (Vec<RankId>, FlightRecorder)>,
    /// The collectives that are kept, in the order of their first posts.
    order: VecDeque<(GroupId, Sequence)>,
}

/// Lengths of a rank's slots in bytes.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct FlightSlots {
    /// Of the contribution.
    pub contribution: u64,
    /// Of the result.
    pub result: u64,
}

/// One recorded collective.
#[derive(Debug)]
struct RecordedFlight {
    epoch: Epoch,
    /// The descriptor of the first local post.
    descriptor: Descriptor,
    posts: BTreeMap<RankId, FlightPost>,
    /// The time of its end here, and the code if it failed.
    end: Option<(TimeNs, Option<FailureCode>)>,
}

/// The post of a local rank.
#[derive(Debug)]
struct FlightPost {
    at: TimeNs,
    slots: FlightSlots,
    /// Its descriptor, where that differs from the first.
    other: Option<Box<Descriptor>>,
}

impl FlightRecorder {
    /// Records that a local rank posted a collective at `now`. A number that comes again, of the same
    /// rank or in another epoch, begins a new record.
    pub fn record_post(&mut self, rank: RankId, post: &Post, slots: FlightSlots, now: TimeNs) {
        let Post { sequence, epoch, descriptor, .. } = post;
        let is_another =
            |known: &RecordedFlight| known.epoch != *epoch || known.posts.contains_key(&rank);
        if self.last.get(sequence).is_some_and(is_another) {
            self.last.remove(sequence);
        }
        let flight = self.last.entry(*sequence).or_insert_with(|| RecordedFlight {
            epoch: *epoch,
            descriptor: *descriptor,
            posts: BTreeMap::new(),
            end: None,
        });
        let other = (flight.descriptor != *descriptor).then(|| Box::new(*descriptor));
        flight.posts.insert(rank, FlightPost { at: now, slots, other });
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
            let post = |(rank, post): (&RankId, &FlightPost)| FlightPostReport {
                rank: rank.0,
                seconds_ago: ago(post.at),
                contribution_bytes: post.slots.contribution,
                result_bytes: post.slots.result,
                differing: post.other.as_deref().map(flight_buffer_report),
            };
            let end = flight.end.map(|(at, code)| FlightEndReport {
                code: code.map(|code| code as u8),
                seconds_ago: ago(at),
            });
            FlightReport {
                sequence: sequence.0,
                epoch: flight.epoch.0,
                op: flight.descriptor.name().to_owned(),
                bytes: flight.descriptor.bytes(),
                buffer: Some(flight_buffer_report(&flight.descriptor)),
                posts: flight.posts.iter().map(post).collect(),
                end,
                missing: Vec::new(),
            }
        };
        self.last.iter().map(report).collect()
    }
}

impl GroupFlightRecorder {
    /// Records that a local rank posted a collective of a group at `now`. `ranks` returns the ranks of a
    /// group that is new here.
    pub fn record_post(
        &mut self,
        group: (GroupId, impl FnOnce() -> Vec<RankId>),
        rank: RankId,
        post: &Post,
        slots: FlightSlots,
        now: TimeNs,
    ) {
        let (id, ranks) = group;
        let (_, recorder) =
            self.groups.entry(id).or_insert_with(|| (ranks(), FlightRecorder::default()));
        let is_new = !recorder.last.contains_key(&post.sequence);
        recorder.record_post(rank, post, slots, now);
        if is_new {
            self.order.push_back((id, post.sequence));
        }
        if self.order.len() > RECORDED_OF_GROUPS_MAX {
            self.drop_first();
        }
    }

    /// Records that a collective of a group ended, as [`FlightRecorder::record_end`] does.
    pub fn record_end(
        &mut self,
        id: GroupId,
        sequence: Sequence,
        code: Option<FailureCode>,
        now: TimeNs,
    ) {
        if let Some((_, recorder)) = self.groups.get_mut(&id) {
            recorder.record_end(sequence, code, now);
        }
    }

    /// Drops the collective that was posted first, and with its last collective the group.
    fn drop_first(&mut self) {
        let Some((id, sequence)) = self.order.pop_front() else { return };
        let Some((_, recorder)) = self.groups.get_mut(&id) else { return };
        recorder.last.remove(&sequence);
        if recorder.last.is_empty() {
            self.groups.remove(&id);
        }
    }

    /// Returns the recorded collectives of each group in the form of a dump, by the group's id.
    pub fn report(&self, now: TimeNs) -> Vec<(GroupId, GroupFlightsReport)> {
        let report = |(id, (ranks, recorder)): (&GroupId, &(Vec<RankId>, FlightRecorder))| {
            let ranks = ranks.iter().map(|rank| rank.0).collect();
            let group = format!("{:016x}", id.0);
            (*id, GroupFlightsReport { group, ranks, collectives: recorder.report(now) })
        };
        self.groups.iter().map(report).collect()
    }
}

/// Returns operation, type and shape of a buffer in the form of a dump.
fn flight_buffer_report(descriptor: &Descriptor) -> FlightBufferReport {
    FlightBufferReport {
        operation: descriptor.pattern.name().to_owned(),
        dtype: descriptor.dtype.name().to_owned(),
        shape: descriptor.shape.sizes(descriptor.elements),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hier_collectives::descriptor::{ArrayShape, Counts, Dtype, Pattern};
    use units::Span;

    /// Returns the time of a second.
    fn second(number: u64) -> TimeNs {
        TimeNs::from_ns(number * 1_000_000_000)
    }

    /// The slots of a rank.
    const SLOTS: FlightSlots = FlightSlots { contribution: 4096, result: 2048 };

    /// Returns the post of a collective of this number in an epoch.
    fn post(epoch: u64, number: u64, descriptor: Descriptor) -> Post {
        let (epoch, sequence) = (Epoch(epoch), Sequence(number));
        let (counts, weight, timeout) = (Counts::Even, 1.0, Span::from_secs(1));
        Post { epoch, sequence, descriptor, counts, weight, timeout }
    }

    /// Returns the descriptor of an all-reduce of 4,096 bytes.
    fn all_reduce() -> Descriptor {
        Descriptor::of_bytes(Pattern::AllReduce, 4096)
    }

    #[test]
    fn the_last_collectives_are_recorded() {
        let mut recorder = FlightRecorder::default();
        for number in 0..70 {
            for rank in 0..2 {
                let at = second(number + u64::from(rank));
                let post = post(1, number, all_reduce());
                recorder.record_post(RankId(rank), &post, SLOTS, at);
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
        let mut record = |rank, epoch, at| {
            let post = post(epoch, 3, all_reduce());
            recorder.record_post(RankId(rank), &post, SLOTS, second(at));
        };
        record(0, 1, 1);
        record(1, 1, 2);
        record(1, 1, 9);
        recorder.record_end(Sequence(3), Some(FailureCode::RankLost), second(10));
        let report = recorder.report(second(10));
        let ranks: Vec<_> = report[0].posts.iter().map(|post| post.rank).collect();
        assert_eq!((ranks, report[0].posts[0].seconds_ago), (vec![1], 1.0));
        assert_eq!(report[0].end, Some(FlightEndReport { code: Some(4), seconds_ago: 0.0 }));
        // Another rank is first with the number in the next epoch.
        recorder.record_post(RankId(0), &post(2, 3, all_reduce()), SLOTS, second(11));
        let report = recorder.report(second(11));
        let ranks: Vec<_> = report[0].posts.iter().map(|post| post.rank).collect();
        assert_eq!((report[0].epoch, ranks, &report[0].end), (2, vec![0], &None));
    }

    #[test]
    fn buffers_are_recorded_with_those_that_differ() {
        let mut recorder = FlightRecorder::default();
        let shape = ArrayShape::new(&[2, 3]).expect("few dimensions");
        let floats = Descriptor { dtype: Dtype::F32, elements: 6, shape, ..all_reduce() };
        let others = Descriptor { pattern: Pattern::Barrier, ..all_reduce() };
        for (rank, descriptor) in [(4, floats), (5, floats), (6, others)] {
            recorder.record_post(RankId(rank), &post(1, 3, descriptor), SLOTS, second(1));
        }
        let flight = recorder.report(second(1)).remove(0);
        let buffer = flight.buffer.expect("known");
        assert_eq!((&*buffer.operation, &*buffer.dtype), ("all-reduce", "f32"));
        assert_eq!((buffer.shape, flight.bytes), (vec![2, 3], 24));
        let [first, second, third] = &flight.posts[..] else { panic!("three posts") };
        assert_eq!((first.contribution_bytes, first.result_bytes), (4096, 2048));
        assert_eq!((&first.differing, &second.differing), (&None, &None));
        let differing = third.differing.as_ref().expect("another operation");
        assert_eq!((&*differing.operation, &differing.shape), ("barrier", &vec![4096]));
    }

    #[test]
    fn the_last_collectives_of_all_groups_are_recorded() {
        let mut recorder = GroupFlightRecorder::default();
        let record = |recorder: &mut GroupFlightRecorder, group, number| {
            let ranks = || vec![RankId(3), RankId(5)];
            let post = post(1, number, all_reduce());
            recorder.record_post((GroupId(group), ranks), RankId(3), &post, SLOTS, second(number));
        };
        record(&mut recorder, 1, 0);
        (0..60).for_each(|number| record(&mut recorder, 2, number));
        (0..195).for_each(|group| record(&mut recorder, 10 + group, 7));
        recorder.record_end(GroupId(2), Sequence(59), Some(FailureCode::TimedOut), second(99));
        let counts = |recorder: &GroupFlightRecorder| {
            let report = recorder.report(second(100)).into_iter();
            let of: BTreeMap<_, _> =
                report.map(|(id, group)| (id.0, group.collectives.len())).collect();
            (of.values().sum::<usize>(), of.get(&1).copied(), of.get(&2).copied())
        };
        assert_eq!(counts(&recorder), (256, Some(1), Some(60)));
        // The first posts go first, and a group goes with the last that is kept of it.
        record(&mut recorder, 900, 7);
        record(&mut recorder, 901, 7);
        assert_eq!(counts(&recorder), (256, None, Some(59)));
        let report = recorder.report(second(100));
        let (_, group) = report.iter().find(|(id, _)| *id == GroupId(2)).expect("kept");
        assert_eq!((&*group.group, &group.ranks[..]), ("0000000000000002", &[3, 5][..]));
        let (first, last) = (&group.collectives[0], &group.collectives[58]);
        assert_eq!((first.sequence, last.sequence), (1, 59));
        assert_eq!(last.end, Some(FlightEndReport { code: Some(3), seconds_ago: 1.0 }));
    }
}
