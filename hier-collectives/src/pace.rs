//! Who holds the others up: a rank, a region whose ranks post late, or a link that carries less
//! than it should.
//!
//! Tell it of every rank's post with `handle_post` and `handle_far_post`, of every result with
//! `handle_result`, and with `handle_slowed` what a link added to it; read [`Pace::straggler`].
//! Of ranks it looks at the order in time only: nothing is measured that a trainer would have to
//! declare.

use crate::ids::{RankId, RegionId, Sequence};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use units::{Span, TimeNs};

/// Who may hold the others up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    /// A rank of this region.
    Rank(RankId),
    /// The slowest rank of another region.
    Region(RegionId),
    /// The link to another region.
    Link(RegionId),
}

/// Who held the others up in the last collectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Straggler {
    /// Who.
    pub party: Party,
    /// By how much, the last time: a post after the last that was not late; for a link, what it
    /// added to the collective.
    pub behind: Span,
    /// In how many collectives one after the other.
    pub collectives: u32,
}

/// Watches the collectives of one group on one gateway.
#[derive(Debug, Clone)]
pub struct Pace {
    /// By rank of the fabric, who is named when it posts late.
    parties: Vec<Party>,
    /// When each rank posted what is not over.
    open: BTreeMap<Sequence, BTreeMap<RankId, TimeNs>>,
    /// The highest that is over: facts about it may be repeated.
    over: Option<Sequence>,
    /// When everybody had posted the collective before.
    last: Option<TimeNs>,
    posts: Runs,
    links: Runs,
    speeds: BTreeMap<RankId, Speed>,
}

/// Who held the others up, each by itself: two that are equally slow do not hide each other.
#[derive(Debug, Clone, Default)]
struct Runs {
    /// Those that did in the last collective.
    runs: BTreeMap<Party, Run>,
    named: Option<Party>,
}

/// The same party, time after time.
#[derive(Debug, Clone, Copy)]
struct Run {
    straggler: Straggler,
    /// In how many collectives one after the other it held up for much longer than who is named.
    longer: u32,
}

/// How fast a rank computes.
#[derive(Debug, Clone, Copy, Default)]
struct Speed {
    /// Since when it computes.
    since: Option<TimeNs>,
    samples_per_second: Option<f64>,
}

impl Pace {
    /// Nothing seen yet. `parties` are, by rank of the fabric, who is named when it posts late.
    pub fn new(parties: Vec<Party>) -> Self {
        Self {
            parties,
            open: BTreeMap::new(),
            over: None,
            last: None,
            posts: Runs::default(),
            links: Runs::default(),
            speeds: BTreeMap::new(),
        }
    }

    /// Another epoch, whose first collective has this number: forgets all but speeds. What is still
    /// heard of those before is of the old one.
    pub fn handle_epoch(&mut self, next: Sequence) {
        (self.over, self.last) = (next.0.checked_sub(1).map(Sequence), None);
        (self.posts, self.links) = (Runs::default(), Runs::default());
        self.open.clear();
        self.speeds.values_mut().for_each(|speed| speed.since = None);
    }

    /// A local rank posted, with the weight of its samples.
    pub fn handle_post(&mut self, rank: RankId, sequence: Sequence, weight: f64, now: TimeNs) {
        let speed = self.speeds.entry(rank).or_default();
        // The first post after a result ends a step's computation; those behind it are buckets.
        if let Some(since) = speed.since.take() {
            let seconds = now.since(since).as_secs_f64();
            if seconds > 0.0 && weight > 0.0 {
                let new = weight / seconds;
                let old = speed.samples_per_second.unwrap_or(new);
                speed.samples_per_second = Some(old + SPEED_GAIN * (new - old));
            }
        }
        self.handle_far_post(rank, sequence, now);
    }

    /// A rank of another gateway posted, at `at` by this gateway's clock.
    pub fn handle_far_post(&mut self, rank: RankId, sequence: Sequence, at: TimeNs) {
        if Some(sequence) <= self.over && !self.open.contains_key(&sequence) {
            return;
        }
        let posts = self.open.entry(sequence).or_default();
        // What is said again is no news.
        if let Entry::Vacant(place) = posts.entry(rank) {
            place.insert(at);
            if posts.len() == self.parties.len() {
                self.judge(sequence);
            }
        }
        if self.open.len() > OPEN_MAX {
            self.open.pop_first();
        }
    }

    /// The result is in place on all local ranks.
    pub fn handle_result(&mut self, sequence: Sequence, now: TimeNs) {
        // While others are under way a rank may compute already: the last result counts.
        if self.end(sequence) && self.open.is_empty() {
            self.speeds.values_mut().for_each(|speed| speed.since = Some(now));
        }
    }

    /// A collective large enough for it to show is over: the links to which regions made it longer
    /// than it should, and by how much.
    pub fn handle_slowed(&mut self, slowed: &BTreeMap<RegionId, Span>) {
        self.links.note(&slowed.iter().map(|(to, by)| (Party::Link(*to), *by)).collect());
    }

    /// The collective failed.
    pub fn handle_failure(&mut self, sequence: Sequence) {
        self.end(sequence);
    }

    /// Who has held the others up in the last collectives, if somebody has: of a party and a link
    /// the one that did for longer. News that has to pass a slow link is late as well, so the
    /// region beyond it is not named.
    pub fn straggler(&self) -> Option<Straggler> {
        let link = self.links.named();
        let is_beyond_link = |party| match party {
            Party::Region(to) => self.links.has_lasted(Party::Link(to)),
            Party::Rank(_) | Party::Link(_) => false,
        };
        let party = self.posts.named().filter(|party| {
            !is_beyond_link(party.party) && link.is_none_or(|link| party.behind > link.behind)
        });
        party.or(link)
    }

    /// Samples in a second that each local rank computes, from the time between a result and its
    /// next post: without what it waits for others.
    pub fn speeds(&self) -> impl Iterator<Item = (RankId, f64)> {
        let measured = self.speeds.iter();
        measured.filter_map(|(rank, speed)| Some((*rank, speed.samples_per_second?)))
    }

    /// Whether it was open.
    fn end(&mut self, sequence: Sequence) -> bool {
        self.over = self.over.max(Some(sequence));
        self.open.remove(&sequence).is_some()
    }

    /// All have posted.
    fn judge(&mut self, sequence: Sequence) {
        let Some(posts) = self.open.get(&sequence) else { return };
        let mut lasts: BTreeMap<Party, TimeNs> = BTreeMap::new();
        for (party, at) in self.parties.iter().zip(posts.values()) {
            let last = lasts.entry(*party).or_insert(*at);
            *last = (*last).max(*at);
        }
        let mut times: Vec<TimeNs> = lasts.values().copied().collect();
        times.sort_unstable();
        let Some(last) = times.last() else { return };
        let interval = self.last.replace(*last).map_or(Span::ZERO, |before| last.since(before));
        // The lower middle of the others, as whoever is late sees them: of three, two may be slow.
        let Some(usual) = times.len().checked_sub(2).map(|others| times[others / 2]) else {
            return;
        };
        let limit = usual + LATE_MIN.max(Span::from_ns(interval.ns() / LATE_DIVISOR));
        let in_time = times.iter().filter(|at| **at <= limit).max().copied().unwrap_or(usual);
        let late = lasts.into_iter().filter(|(_, at)| *at > limit);
        self.posts.note(&late.map(|(party, at)| (party, at.since(in_time))).collect());
    }
}

impl Runs {
    /// A collective in which these held the others up, by so much, and nobody else.
    fn note(&mut self, late: &BTreeMap<Party, Span>) {
        self.runs.retain(|party, _| late.contains_key(party));
        let named_behind = self.named.and_then(|party| late.get(&party));
        for (party, behind) in late {
            let straggler = Straggler { party: *party, behind: *behind, collectives: 0 };
            let run = self.runs.entry(*party).or_insert(Run { straggler, longer: 0 });
            run.straggler.behind = *behind;
            run.straggler.collectives += 1;
            let longer = named_behind.is_some_and(|named| is_much_longer(*behind, *named));
            run.longer = if longer { run.longer + 1 } else { 0 };
        }
        // Who is named stays so while it is late: of two alike each is the last in turn.
        let named = match named_behind {
            Some(_) => self.first(|run| run.longer >= NAMED_AFTER).or(self.named),
            None => self.first(|run| run.straggler.collectives >= NAMED_AFTER),
        };
        if named != self.named {
            self.named = named;
            self.runs.values_mut().for_each(|run| run.longer = 0);
        }
    }

    /// The first of some that none of them holds up for much longer than: gateways that see the
    /// same parties name the same one.
    fn first(&self, which: impl Fn(&Run) -> bool) -> Option<Party> {
        let some = || self.runs.values().filter(|run| which(run)).map(|run| run.straggler);
        let most = some().map(|straggler| straggler.behind).max()?;
        let first = some().find(|straggler| !is_much_longer(most, straggler.behind));
        first.map(|straggler| straggler.party)
    }

    fn named(&self) -> Option<Straggler> {
        self.runs.get(&self.named?).map(|run| run.straggler)
    }

    /// Whether a party, named or not, has held the others up for long enough to be.
    fn has_lasted(&self, party: Party) -> bool {
        self.runs.get(&party).is_some_and(|run| run.straggler.collectives >= NAMED_AFTER)
    }
}

/// By half.
fn is_much_longer(one: Span, other: Span) -> bool {
    2 * one.ns() > 3 * other.ns()
}

/// Less is not worth a word: timers and schedulers take as much.
const LATE_MIN: Span = Span::from_ms(10);
/// Nor is less than this part of the time between two collectives.
const LATE_DIVISOR: u64 = 20;
/// Collectives one after the other in which the same party was late, until it is named, or was
/// late for much longer than who is named, until it is in its place.
const NAMED_AFTER: u32 = 3;
/// Collectives remembered at once.
const OPEN_MAX: usize = 256;
/// What a new measurement counts in a rank's speed.
const SPEED_GAIN: f64 = 0.25;

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: RegionId = RegionId(1);

    /// Of two ranks here and one in another region.
    fn pace() -> Pace {
        let here = [RankId(0), RankId(1)].map(Party::Rank);
        Pace::new([here.as_slice(), &[Party::Region(OTHER)]].concat())
    }

    fn ms(ms: u64) -> TimeNs {
        TimeNs::from_ns((1000 + ms) * 1_000_000)
    }

    /// Two local ranks and a region post at these times of a step of a second.
    fn step(pace: &mut Pace, step: u64, [one, two, other]: [u64; 3]) {
        let (sequence, begin) = (Sequence(step), 1000 * step);
        pace.handle_post(RankId(0), sequence, 8.0, ms(begin + one));
        pace.handle_post(RankId(1), sequence, 8.0, ms(begin + two));
        pace.handle_far_post(RankId(2), sequence, ms(begin + other));
    }

    #[test]
    fn the_same_one_late_three_times_is_named() {
        let cases =
            [([500, 700, 510], Party::Rank(RankId(1))), ([500, 510, 700], Party::Region(OTHER))];
        for (times, party) in cases {
            let mut pace = pace();
            for number in 0..3 {
                assert_eq!(pace.straggler(), None, "after {number}");
                step(&mut pace, number, times);
            }
            let straggler = pace.straggler().expect("named");
            assert_eq!((straggler.party, straggler.collectives), (party, 3));
            assert_eq!(straggler.behind, Span::from_ms(190));
            step(&mut pace, 3, [500, 505, 500]);
            assert_eq!(pace.straggler(), None, "it has caught up");
        }
    }

    /// Whichever gateways its ranks are at.
    #[test]
    fn a_region_is_as_late_as_its_last_rank() {
        for late in [1, 2, 3] {
            let mut pace =
                Pace::new([&[Party::Rank(RankId(0))][..], &[Party::Region(OTHER); 3]].concat());
            for number in 0..3 {
                for rank in 0..4 {
                    let at = ms(1000 * number + if rank == late { 700 } else { 500 });
                    pace.handle_far_post(RankId(rank), Sequence(number), at);
                    // It may be said again.
                    pace.handle_far_post(RankId(rank), Sequence(number), ms(1000 * number + 900));
                }
            }
            let straggler = pace.straggler().expect("named");
            assert_eq!(
                (straggler.party, straggler.behind),
                (Party::Region(OTHER), Span::from_ms(200))
            );
        }
    }

    #[test]
    fn those_who_take_turns_being_late_are_not_named() {
        let mut pace = pace();
        for number in 0..12 {
            let mut times = [500; 3];
            times[number as usize % 3] = 700;
            step(&mut pace, number, times);
            assert_eq!(pace.straggler(), None);
        }
    }

    #[test]
    fn of_two_that_are_slow_one_is_named_and_stays_so() {
        let (one, other) = (Party::Rank(RankId(1)), Party::Region(OTHER));
        let mut pace = pace();
        let mut times = |from: u64, below: u64, of: fn(u64) -> [u64; 3], named: Option<Party>| {
            for number in from..below {
                step(&mut pace, number, of(number));
                assert_eq!(pace.straggler().map(|s| s.party), named, "after {number}");
            }
            pace.straggler().map(|s| (s.behind, s.collectives))
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
        // When it has caught up, the other one is still slow.
        let left = times(50, 51, |_| [500, 700, 500], Some(one));
        assert_eq!(left, Some((Span::from_ms(200), 51)));
        times(51, 52, |_| [500; 3], None);
    }

    #[test]
    fn two_links_that_are_slow_do_not_hide_each_other() {
        let third = RegionId(2);
        let parties = [Party::Rank(RankId(0)), Party::Region(OTHER), Party::Region(third)];
        let mut pace = Pace::new(parties.into());
        for number in 0..6 {
            let by = [80 + 20 * (number % 2), 90].map(Span::from_ms);
            pace.handle_slowed(&BTreeMap::from([(OTHER, by[0]), (third, by[1])]));
            // What is beyond either is heard of late.
            step(&mut pace, number, [500, 700, 800]);
            let named = pace.straggler().map(|s| s.party);
            assert_eq!(named, (number >= 2).then_some(Party::Link(OTHER)));
        }
    }

    #[test]
    fn a_link_is_named_unless_somebody_holds_up_for_longer() {
        let mut pace = pace();
        let slowed = |by| BTreeMap::from([(OTHER, Span::from_ms(by))]);
        for by in [70, 80, 90] {
            assert_eq!(pace.straggler(), None, "{by} ms");
            pace.handle_slowed(&slowed(by));
        }
        let straggler = pace.straggler().expect("named");
        assert_eq!((straggler.party, straggler.collectives), (Party::Link(OTHER), 3));
        assert_eq!(straggler.behind, Span::from_ms(90));
        (0..3).for_each(|number| step(&mut pace, number, [500, 500, 800]));
        assert_eq!(pace.straggler().expect("named").party, Party::Link(OTHER));
        (3..6).for_each(|number| step(&mut pace, number, [500, 700, 500]));
        assert_eq!(pace.straggler().expect("named").party, Party::Rank(RankId(1)));
        step(&mut pace, 6, [500; 3]);
        assert_eq!(pace.straggler().expect("named").party, Party::Link(OTHER));
        pace.handle_slowed(&BTreeMap::new());
        assert_eq!(pace.straggler(), None, "it is as it should be");
    }

    #[test]
    fn what_is_heard_late_of_an_old_epoch_stops_no_measurement() {
        let mut pace = pace();
        pace.handle_epoch(Sequence(7));
        pace.handle_far_post(RankId(2), Sequence(6), ms(0));
        pace.handle_post(RankId(1), Sequence(6), 8.0, ms(1));
        for number in 7..12 {
            step(&mut pace, number, [500, 900, 900]);
            pace.handle_result(Sequence(number), ms(1000 * number + 1000));
        }
        assert_eq!(pace.speeds().count(), 2);
    }

    #[test]
    fn a_speed_is_samples_over_the_time_between_result_and_post() {
        let mut pace = pace();
        for number in 0..20 {
            step(&mut pace, number, [500, 900, 900]);
            pace.handle_result(Sequence(number), ms(1000 * number + 1000));
        }
        let speeds: Vec<(RankId, f64)> = pace.speeds().collect();
        let want = [(RankId(0), 8.0 / 0.5), (RankId(1), 8.0 / 0.9)];
        for ((rank, speed), (of, due)) in speeds.into_iter().zip(want) {
            assert!(rank == of && (speed / due - 1.0).abs() < 1e-9, "{rank}: {speed}, not {due}");
        }
    }
}
