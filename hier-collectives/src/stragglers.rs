//! Stragglers: a rank or region whose posts delay the others, or a link below its rate.
//!
//! The engine owns one [`Stragglers`] for each group and calls it on its task: `handle_post` and
//! `handle_far_post` for every rank's post, `handle_result` for every result, and `handle_slowed`
//! for the time that links added. [`Stragglers::straggler`] names the one that delays the others.
//! Posts are compared by their times only, so trainers declare nothing.

use crate::ids::{RankId, RegionId, Sequence};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use units::{Span, TimeNs};

/// 10 ms: a post that is at most 10 ms behind the usual time does not count as late. Timers and
/// schedulers take as much.
///
/// A post is late after: usual time + max(10 ms, interval / 20). The usual time is the lower median
/// of the other ranks or regions. The interval is the time between two collectives.
/// Tested by `slow_ranks_and_regions_are_named_within_three_steps`.
const LATE_DELAY_MIN: Span = Span::from_ms(10);
/// 20: a post that is behind the lower median of the others by at most a 20th of the time between
/// two collectives is not late. The part is chosen, so that small differences name nobody.
const LATE_INTERVAL_DIVISOR: u64 = 20;
/// 3 consecutive collectives: a rank, region or link that is late in so many is named as the
/// straggler. A party with over 1.5 times its delay in so many replaces it. The number is chosen,
/// so that one delay names nobody.
/// Tested by `of_two_slow_parties_one_stays_named`.
const NAMED_AFTER_COLLECTIVES: u32 = 3;
/// 256 unfinished collectives: the straggler detection remembers the posts of at most so many, a
/// chosen limit of memory. With one more, the oldest collective is forgotten.
const OPEN_COLLECTIVES_MAX: usize = 256;
/// 0.25: the weight of the newest measurement in a rank's compute speed, an exponential moving
/// average over steps. The weight is chosen: about the last four steps count.
const SPEED_SMOOTHING_WEIGHT: f64 = 0.25;

/// A party that may delay the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StragglerParty {
    /// A rank of this region.
    Rank(RankId),
    /// The slowest rank of another region.
    Region(RegionId),
    /// The link to another region.
    Link(RegionId),
}

/// The party that delayed the others in the last collectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Straggler {
    /// The party.
    pub party: StragglerParty,
    /// The delay in the last collective. A post is measured from the last one that was not late; a
    /// link by the time that it added.
    pub behind: Span,
    /// The number of consecutive collectives in which the party was late.
    pub collectives: u32,
}

/// The delays in the collectives of one group, as one gateway sees them.
#[derive(Debug, Clone)]
pub struct Stragglers {
    /// The party that is named when a rank posts late, by rank of the fabric.
    parties: Vec<StragglerParty>,
    /// The time of each rank's post, for collectives that are not over.
    open: BTreeMap<Sequence, BTreeMap<RankId, TimeNs>>,
    /// The highest collective that is over: messages about it may be repeated.
    over: Option<Sequence>,
    /// The time of the last post of the collective before.
    last: Option<TimeNs>,
    posts: StragglerRuns,
    links: StragglerRuns,
    speeds: BTreeMap<RankId, RankSpeed>,
}

/// The delays of each party by itself, so that two that are equally slow do not hide each other.
#[derive(Debug, Clone, Default)]
struct StragglerRuns {
    /// The parties that were late in the last collective.
    runs: BTreeMap<StragglerParty, LateRun>,
    named: Option<StragglerParty>,
}

/// Consecutive collectives in which one party was late.
#[derive(Debug, Clone, Copy)]
struct LateRun {
    straggler: Straggler,
    /// Consecutive collectives in which it was late for much longer than the named party.
    longer: u32,
}

/// The speed at which a rank computes.
#[derive(Debug, Clone, Copy, Default)]
struct RankSpeed {
    /// The time since which it computes.
    since: Option<TimeNs>,
    samples_per_second: Option<f64>,
}

impl Stragglers {
    /// Makes the record of a job without collectives. `parties` has, by rank of the fabric, the
    /// party that its late posts name.
    pub fn new(parties: Vec<StragglerParty>) -> Self {
        Self {
            parties,
            open: BTreeMap::new(),
            over: None,
            last: None,
            posts: StragglerRuns::default(),
            links: StragglerRuns::default(),
            speeds: BTreeMap::new(),
        }
    }

    /// Begins another epoch, whose first collective is `next`: forgets all lateness, but keeps the
    /// speed of each rank. Messages about collectives before `next` are ignored from now on.
    pub fn handle_epoch(&mut self, next: Sequence) {
        (self.over, self.last) = (next.0.checked_sub(1).map(Sequence), None);
        (self.posts, self.links) = (StragglerRuns::default(), StragglerRuns::default());
        self.open.clear();
        self.speeds.values_mut().for_each(|speed| speed.since = None);
    }

    /// Records the post of a local rank; `weight` is the number of its samples.
    pub fn handle_post(&mut self, rank: RankId, sequence: Sequence, weight: f64, now: TimeNs) {
        let speed = self.speeds.entry(rank).or_default();
        // The first post after a result ends a step's computation; those behind it are buckets.
        if let Some(since) = speed.since.take() {
            let seconds = now.since(since).as_secs_f64();
            if seconds > 0.0 && weight > 0.0 {
                let new = weight / seconds;
                let old = speed.samples_per_second.unwrap_or(new);
                speed.samples_per_second = Some(old + SPEED_SMOOTHING_WEIGHT * (new - old));
            }
        }
        self.handle_far_post(rank, sequence, now);
    }

    /// Records the post of a rank of another gateway, at `at` by this gateway's clock. A repeated
    /// post, and one of a collective that is over, change nothing.
    pub fn handle_far_post(&mut self, rank: RankId, sequence: Sequence, at: TimeNs) {
        if Some(sequence) <= self.over && !self.open.contains_key(&sequence) {
            return;
        }
        let posts = self.open.entry(sequence).or_default();
        // A repeated message changes nothing.
        if let Entry::Vacant(place) = posts.entry(rank) {
            place.insert(at);
            if posts.len() == self.parties.len() {
                self.find_late_parties(sequence);
            }
        }
        if self.open.len() > OPEN_COLLECTIVES_MAX {
            self.open.pop_first();
        }
    }

    /// Records that the result of a collective is in place on all local ranks.
    pub fn handle_result(&mut self, sequence: Sequence, now: TimeNs) {
        // While others are under way a rank may compute already: the last result counts.
        if self.end_collective(sequence) && self.open.is_empty() {
            self.speeds.values_mut().for_each(|speed| speed.since = Some(now));
        }
    }

    /// Records the time that the link to each region added to a collective, which is large enough
    /// to show slow links.
    pub fn handle_slowed(&mut self, slowed: &BTreeMap<RegionId, Span>) {
        self.links.note_late_parties(
            &slowed.iter().map(|(to, by)| (StragglerParty::Link(*to), *by)).collect(),
        );
    }

    /// Forgets the posts of a collective that failed.
    pub fn handle_failure(&mut self, sequence: Sequence) {
        self.end_collective(sequence);
    }

    /// Forgets the speed of a local rank whose trainer has left or been replaced. With the last one
    /// the lateness of all parties is forgotten: no collective goes on.
    pub fn handle_departure(&mut self, rank: RankId) {
        self.speeds.remove(&rank);
        if self.speeds.is_empty() {
            (self.posts, self.links) = (StragglerRuns::default(), StragglerRuns::default());
        }
    }

    /// Returns the party that has delayed the others in the last collectives: of a poster and a
    /// link the one with the longer delay. `None` while no party is named.
    ///
    /// Messages that pass a slow link are late as well, so the region beyond it is not named.
    pub fn straggler(&self) -> Option<Straggler> {
        let link = self.links.named_straggler();
        let is_beyond_link = |party| match party {
            StragglerParty::Region(to) => self.links.has_been_late_long(StragglerParty::Link(to)),
            StragglerParty::Rank(_) | StragglerParty::Link(_) => false,
        };
        let party = self.posts.named_straggler().filter(|party| {
            !is_beyond_link(party.party) && link.is_none_or(|link| party.behind > link.behind)
        });
        party.or(link)
    }

    /// Returns the samples per second that each local rank computes, from the time between a result
    /// and its next post.
    ///
    /// Waits for other ranks are not part of that time.
    pub fn speeds(&self) -> impl Iterator<Item = (RankId, f64)> {
        let measured = self.speeds.iter();
        measured.filter_map(|(rank, speed)| Some((*rank, speed.samples_per_second?)))
    }

    /// Forgets the posts of a collective that is over; returns true when some were remembered.
    fn end_collective(&mut self, sequence: Sequence) -> bool {
        self.over = self.over.max(Some(sequence));
        self.open.remove(&sequence).is_some()
    }

    /// Finds the parties that posted a collective late, once all ranks have posted. Their delays
    /// are counted from the last post that was not late.
    fn find_late_parties(&mut self, sequence: Sequence) {
        let Some(posts) = self.open.get(&sequence) else { return };
        let mut lasts: BTreeMap<StragglerParty, TimeNs> = BTreeMap::new();
        for (party, at) in self.parties.iter().zip(posts.values()) {
            let last = lasts.entry(*party).or_insert(*at);
            *last = (*last).max(*at);
        }
        let mut times: Vec<TimeNs> = lasts.values().copied().collect();
        times.sort_unstable();
        let Some(last) = times.last() else { return };
        let interval = self.last.replace(*last).map_or(Span::ZERO, |before| last.since(before));
        // The lower median of the other ranks or regions: of three, two may be slow.
        let Some(usual) = times.len().checked_sub(2).map(|others| times[others / 2]) else {
            return;
        };
        let limit =
            usual + LATE_DELAY_MIN.max(Span::from_ns(interval.ns() / LATE_INTERVAL_DIVISOR));
        let in_time = times.iter().filter(|at| **at <= limit).max().copied().unwrap_or(usual);
        let late = lasts.into_iter().filter(|(_, at)| *at > limit);
        self.posts.note_late_parties(&late.map(|(party, at)| (party, at.since(in_time))).collect());
    }
}

impl StragglerRuns {
    /// Records a collective in which the parties of `late`, and no others, were late by these
    /// times. The named party stays named while it is late, unless another has been much later for
    /// `NAMED_AFTER_COLLECTIVES`. Otherwise a party that has been late in so many is named.
    fn note_late_parties(&mut self, late: &BTreeMap<StragglerParty, Span>) {
        self.runs.retain(|party, _| late.contains_key(party));
        let named_behind = self.named.and_then(|party| late.get(&party));
        for (party, behind) in late {
            let straggler = Straggler { party: *party, behind: *behind, collectives: 0 };
            let run = self.runs.entry(*party).or_insert(LateRun { straggler, longer: 0 });
            run.straggler.behind = *behind;
            run.straggler.collectives += 1;
            let longer =
                named_behind.is_some_and(|named| is_much_longer_straggler_delay(*behind, *named));
            run.longer = if longer { run.longer + 1 } else { 0 };
        }
        // The named party stays named while it is late: of two equal ones each is last at times.
        let named = match named_behind {
            Some(_) => {
                self.first_most_delayed(|run| run.longer >= NAMED_AFTER_COLLECTIVES).or(self.named)
            }
            None => {
                self.first_most_delayed(|run| run.straggler.collectives >= NAMED_AFTER_COLLECTIVES)
            }
        };
        if named != self.named {
            self.named = named;
            self.runs.values_mut().for_each(|run| run.longer = 0);
        }
    }

    /// Returns the first of the parties that `which` selects whose delay none of them exceeds by
    /// much.
    ///
    /// So gateways that see equal delays name one and the same party.
    fn first_most_delayed(&self, which: impl Fn(&LateRun) -> bool) -> Option<StragglerParty> {
        let some = || self.runs.values().filter(|run| which(run)).map(|run| run.straggler);
        let most = some().map(|straggler| straggler.behind).max()?;
        let first =
            some().find(|straggler| !is_much_longer_straggler_delay(most, straggler.behind));
        first.map(|straggler| straggler.party)
    }

    /// Returns the named party and its delay, if a party is named.
    fn named_straggler(&self) -> Option<Straggler> {
        self.runs.get(&self.named?).map(|run| run.straggler)
    }

    /// Whether a party has been late in enough consecutive collectives to be named.
    fn has_been_late_long(&self, party: StragglerParty) -> bool {
        self.runs
            .get(&party)
            .is_some_and(|run| run.straggler.collectives >= NAMED_AFTER_COLLECTIVES)
    }
}

/// Whether the delay `one` exceeds the delay `other` by more than 50 %.
fn is_much_longer_straggler_delay(one: Span, other: Span) -> bool {
    2 * one.ns() > 3 * other.ns()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: RegionId = RegionId(1);

    /// Two ranks here and one in another region.
    fn stragglers() -> Stragglers {
        let here = [RankId(0), RankId(1)].map(StragglerParty::Rank);
        Stragglers::new([here.as_slice(), &[StragglerParty::Region(OTHER)]].concat())
    }

    fn ms(ms: u64) -> TimeNs {
        TimeNs::from_ns((1000 + ms) * 1_000_000)
    }

    /// Two local ranks and a region post at these times of a step of a second.
    fn step(stragglers: &mut Stragglers, step: u64, [one, two, other]: [u64; 3]) {
        let (sequence, begin) = (Sequence(step), 1000 * step);
        stragglers.handle_post(RankId(0), sequence, 8.0, ms(begin + one));
        stragglers.handle_post(RankId(1), sequence, 8.0, ms(begin + two));
        stragglers.handle_far_post(RankId(2), sequence, ms(begin + other));
    }

    #[test]
    fn a_party_late_three_times_is_named() {
        let cases = [
            ([500, 700, 510], StragglerParty::Rank(RankId(1))),
            ([500, 510, 700], StragglerParty::Region(OTHER)),
        ];
        for (times, party) in cases {
            let mut stragglers = stragglers();
            for number in 0..3 {
                assert_eq!(stragglers.straggler(), None, "after {number}");
                step(&mut stragglers, number, times);
            }
            let straggler = stragglers.straggler().expect("named");
            assert_eq!((straggler.party, straggler.collectives), (party, 3));
            assert_eq!(straggler.behind, Span::from_ms(190));
            step(&mut stragglers, 3, [500, 505, 500]);
            assert_eq!(stragglers.straggler(), None, "it is in time again");
        }
    }

    #[test]
    fn a_region_is_as_late_as_its_last_rank() {
        for late in [1, 2, 3] {
            let mut stragglers = Stragglers::new(
                [&[StragglerParty::Rank(RankId(0))][..], &[StragglerParty::Region(OTHER); 3]]
                    .concat(),
            );
            for number in 0..3 {
                for rank in 0..4 {
                    let at = ms(1000 * number + if rank == late { 700 } else { 500 });
                    stragglers.handle_far_post(RankId(rank), Sequence(number), at);
                    // The message may be repeated.
                    stragglers.handle_far_post(
                        RankId(rank),
                        Sequence(number),
                        ms(1000 * number + 900),
                    );
                }
            }
            let straggler = stragglers.straggler().expect("named");
            assert_eq!(
                (straggler.party, straggler.behind),
                (StragglerParty::Region(OTHER), Span::from_ms(200))
            );
        }
    }

    #[test]
    fn parties_that_are_late_in_turns_are_not_named() {
        let mut stragglers = stragglers();
        for number in 0..12 {
            let mut times = [500; 3];
            times[number as usize % 3] = 700;
            step(&mut stragglers, number, times);
            assert_eq!(stragglers.straggler(), None);
        }
    }

    #[test]
    fn of_two_slow_parties_one_stays_named() {
        let (one, other) = (StragglerParty::Rank(RankId(1)), StragglerParty::Region(OTHER));
        let mut stragglers = stragglers();
        let mut times =
            |from: u64, below: u64, of: fn(u64) -> [u64; 3], named: Option<StragglerParty>| {
                for number in from..below {
                    step(&mut stragglers, number, of(number));
                    assert_eq!(stragglers.straggler().map(|s| s.party), named, "after {number}");
                }
                stragglers.straggler().map(|s| (s.behind, s.collectives))
            };
        // Each is the last in turn.
        let alike = |number| [500, 700 + 20 * (number % 2), 720 - 20 * (number % 2)];
        times(0, 2, alike, None);
        assert_eq!(times(2, 20, alike, Some(one)), Some((Span::from_ms(220), 20)));
        // One that is much later takes its place, unless it is so in turns.
        let in_turns = |number| if number % 3 == 0 { [500, 900, 700] } else { [500, 700, 900] };
        times(20, 28, in_turns, Some(one));
        times(28, 30, |_| [500, 700, 900], Some(one));
        times(30, 40, |_| [500, 700, 900], Some(other));
        times(40, 50, alike, Some(other));
        // When it is in time again, the other one is still slow.
        let left = times(50, 51, |_| [500, 700, 500], Some(one));
        assert_eq!(left, Some((Span::from_ms(200), 51)));
        times(51, 52, |_| [500; 3], None);
    }

    #[test]
    fn two_slow_links_do_not_hide_each_other() {
        let third = RegionId(2);
        let parties = [
            StragglerParty::Rank(RankId(0)),
            StragglerParty::Region(OTHER),
            StragglerParty::Region(third),
        ];
        let mut stragglers = Stragglers::new(parties.into());
        for number in 0..6 {
            let by = [80 + 20 * (number % 2), 90].map(Span::from_ms);
            stragglers.handle_slowed(&BTreeMap::from([(OTHER, by[0]), (third, by[1])]));
            // Messages from beyond either link are late.
            step(&mut stragglers, number, [500, 700, 800]);
            let named = stragglers.straggler().map(|s| s.party);
            assert_eq!(named, (number >= 2).then_some(StragglerParty::Link(OTHER)));
        }
    }

    #[test]
    fn a_link_is_named_unless_a_rank_is_later() {
        let mut stragglers = stragglers();
        let slowed = |by| BTreeMap::from([(OTHER, Span::from_ms(by))]);
        for by in [70, 80, 90] {
            assert_eq!(stragglers.straggler(), None, "{by} ms");
            stragglers.handle_slowed(&slowed(by));
        }
        let straggler = stragglers.straggler().expect("named");
        assert_eq!((straggler.party, straggler.collectives), (StragglerParty::Link(OTHER), 3));
        assert_eq!(straggler.behind, Span::from_ms(90));
        (0..3).for_each(|number| step(&mut stragglers, number, [500, 500, 800]));
        assert_eq!(stragglers.straggler().expect("named").party, StragglerParty::Link(OTHER));
        (3..6).for_each(|number| step(&mut stragglers, number, [500, 700, 500]));
        assert_eq!(stragglers.straggler().expect("named").party, StragglerParty::Rank(RankId(1)));
        step(&mut stragglers, 6, [500; 3]);
        assert_eq!(stragglers.straggler().expect("named").party, StragglerParty::Link(OTHER));
        stragglers.handle_slowed(&BTreeMap::new());
        assert_eq!(stragglers.straggler(), None, "it is as it should be");
    }

    #[test]
    fn departed_ranks_are_forgotten() {
        let mut stragglers = stragglers();
        for number in 0..5 {
            step(&mut stragglers, number, [500, 900, 500]);
            stragglers.handle_result(Sequence(number), ms(1000 * number + 950));
        }
        assert_eq!((stragglers.speeds().count(), stragglers.straggler().is_some()), (2, true));
        stragglers.handle_departure(RankId(1));
        assert_eq!((stragglers.speeds().count(), stragglers.straggler().is_some()), (1, true));
        stragglers.handle_departure(RankId(0));
        assert_eq!((stragglers.speeds().count(), stragglers.straggler()), (0, None));
    }

    #[test]
    fn late_messages_of_an_old_epoch_stop_no_measurement() {
        let mut stragglers = stragglers();
        stragglers.handle_epoch(Sequence(7));
        stragglers.handle_far_post(RankId(2), Sequence(6), ms(0));
        stragglers.handle_post(RankId(1), Sequence(6), 8.0, ms(1));
        for number in 7..12 {
            step(&mut stragglers, number, [500, 900, 900]);
            stragglers.handle_result(Sequence(number), ms(1000 * number + 1000));
        }
        assert_eq!(stragglers.speeds().count(), 2);
    }

    #[test]
    fn a_speed_is_samples_over_time_from_result_to_post() {
        let mut stragglers = stragglers();
        for number in 0..20 {
            step(&mut stragglers, number, [500, 900, 900]);
            stragglers.handle_result(Sequence(number), ms(1000 * number + 1000));
        }
        let speeds: Vec<(RankId, f64)> = stragglers.speeds().collect();
        let want = [(RankId(0), 8.0 / 0.5), (RankId(1), 8.0 / 0.9)];
        for ((rank, speed), (of, due)) in speeds.into_iter().zip(want) {
            assert!(rank == of && (speed / due - 1.0).abs() < 1e-9, "{rank}: {speed}, not {due}");
        }
    }
}
