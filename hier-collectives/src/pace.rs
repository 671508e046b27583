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
    /// By how much, the last time: a post after the middle one of the others; for a link, what
    /// it added to the collective.
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
    posts: Run,
    links: Run,
    speeds: BTreeMap<RankId, Speed>,
}

/// The same party, time after time.
#[derive(Debug, Clone, Copy, Default)]
struct Run(Option<Straggler>);

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
            posts: Run(None),
            links: Run(None),
            speeds: BTreeMap::new(),
        }
    }

    /// Another epoch, whose first collective has this number: forgets all but speeds. What is still
    /// heard of those before is of the old one.
    pub fn handle_epoch(&mut self, next: Sequence) {
        (self.over, self.last) = (next.0.checked_sub(1).map(Sequence), None);
        (self.posts, self.links) = (Run(None), Run(None));
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

    /// A collective large enough for it to show is over: the link to which region made it longer
    /// than it should, if one did, and by how much.
    pub fn handle_slowed(&mut self, slowed: Option<(RegionId, Span)>) {
        self.links.note(slowed.map(|(to, by)| (Party::Link(to), by)));
    }

    /// The collective failed.
    pub fn handle_failure(&mut self, sequence: Sequence) {
        self.end(sequence);
    }

    /// Who has held the others up in the last collectives, if somebody has: of a party and a link
    /// the one that did for longer. News that has to pass a slow link is late as well, so the
    /// region beyond it is not named.
    pub fn straggler(&self) -> Option<Straggler> {
        let named = |run: &Run| run.0.filter(|straggler| straggler.collectives >= NAMED_AFTER);
        let link = named(&self.links);
        let party = named(&self.posts).filter(|party| {
            link.is_none_or(|link| party.behind > link.behind && !link.is_way_to(party.party))
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
        let mut times: Vec<(TimeNs, Party)> = lasts.into_iter().map(|(p, at)| (at, p)).collect();
        times.sort_unstable();
        let [others @ .., (at, party)] = &times[..] else { return };
        let interval = self.last.replace(*at).map_or(Span::ZERO, |last| at.since(last));
        let Some((middle, _)) = others.get(others.len() / 2) else { return };
        let behind = at.since(*middle);
        let late = behind > LATE_MIN.max(Span::from_ns(interval.ns() / LATE_DIVISOR));
        self.posts.note(late.then_some((*party, behind)));
    }
}

impl Straggler {
    fn is_way_to(&self, party: Party) -> bool {
        matches!((self.party, party), (Party::Link(to), Party::Region(there)) if to == there)
    }
}

impl Run {
    fn note(&mut self, late: Option<(Party, Span)>) {
        self.0 = late.map(|(party, behind)| {
            let before = self.0.filter(|straggler| straggler.party == party);
            let collectives = before.map_or(0, |straggler| straggler.collectives) + 1;
            Straggler { party, behind, collectives }
        });
    }
}

/// Less is not worth a word: timers and schedulers take as much.
const LATE_MIN: Span = Span::from_ms(10);
/// Nor is less than this part of the time between two collectives.
const LATE_DIVISOR: u64 = 20;
/// Collectives one after the other in which the same party was late, until it is named.
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
    fn a_link_is_named_unless_somebody_holds_up_for_longer() {
        let mut pace = pace();
        let slowed = |by| Some((OTHER, Span::from_ms(by)));
        for by in [70, 80, 90] {
            assert_eq!(pace.straggler(), None, "{by} ms");
            pace.handle_slowed(slowed(by));
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
        pace.handle_slowed(None);
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
