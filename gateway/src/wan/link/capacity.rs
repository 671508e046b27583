//! What a link carries, as the lanes of one pair of gateways over it find.
//!
//! As long as no more is lost than expected, a link carries at least what is sent; how much more,
//! nobody knows. When more is lost and a queue stands before it, what is acknowledged is what it
//! carries. That holds the pair, and what the link is found to carry is planned for. After a
//! while more is tried, until a queue shows: what a link could carry shows only when asked for.

use crate::wan::congestion::delivery_rate::CONGESTION_LOSS;
use hier_collectives::plan::PairShare;
use hier_collectives::topology::Link;
use std::collections::VecDeque;
use units::{BitRate, Fraction, Span, TimeNs};

/// What passed is looked at in spans of so many round trips,
const SPAN_ROUNDS: u64 = 2;
/// of at least this time,
const SPAN_MIN: Span = Span::from_ms(100);
/// and of so many packets: fewer are a burst, which says nothing of the rate. A link too thin for
/// as many in the least time is what the fabric says.
const PACKETS_MIN: u64 = 64;
/// Bits of a packet.
const PACKET_BITS: u64 = 8 * 1500;
/// What has not seen as many by then says nothing.
const SPAN_MAX: Span = Span::from_secs(2);
/// More loss than a link's own is congestion when even the fastest packet of a span took this many
/// times the link's own round trip
const QUEUED: f64 = 1.2;
/// and this.
const QUEUED_ABOVE: Span = Span::from_ms(1);
/// Congested spans that make a finding, after a first one that began before it.
const EVIDENCE: usize = 4;
/// Spans without congestion after which what came before is no evidence any more.
const CALM: u32 = 10;
/// A finding is one when it is below this part of what the link was held to,
const NEWS: f64 = 0.98;
/// and no less than this part of what the fabric says: below it, spans would not fill.
const LEAST: f64 = 1.0 / 16.0;
/// Spans after a finding that still show what was under way before it.
const SETTLE: u32 = 5;
/// A finding is put right after so many spans, one after the other, with a queue
const CLOSE: usize = 4;
/// and this much loss beyond the fabric's expectation,
const CLOSE_LOSS: f64 = 0.005;
/// where it fills this part of what was found, and never to less than that: what others on the link
/// take would be taken off again and again.
const CLOSE_TO: f64 = 0.9;
/// The part of its rate from which on a link is in full use,
const FULL: f64 = 0.8;
/// and from which on it carries more than before when more is tried.
const CONFIRMED: f64 = 0.95;
/// More is tried by this part, and by twice as much each time that it succeeded: what a cut or a
/// storm made seem slow is fast again soon,
const GROWTH: f64 = 0.1;
/// up to twice what it was;
const GROWTH_MAX: f64 = 1.0;
/// first after so many spans of full use, twice as many each time that it failed,
const WAIT: u32 = 10;
/// up to so many,
const WAIT_MAX: u32 = 1600;
/// and has succeeded after so many; then still more is tried after so many.
const TRIAL: u32 = 10;
/// A link within this part of its whole rate has it.
const WHOLE: f64 = 0.97;
/// What was found of a link that is not in use any more is forgotten after this time.
const FORGET_AFTER: Span = Span::from_secs(600);
/// Spans whose least round trip is the link's own, and over which random loss is counted.
const MEMORY: usize = 50;
/// A path is stretched that took, in so many spans one after the other,
const STRETCHED: usize = 3;
/// this many times the fabric's round trip
const FAR: f64 = 1.5;
/// and so much more: so long is no queue of our own, nor a moment in which we were not scheduled.
const FAR_ABOVE: Span = Span::from_ms(10);
/// Packets below which the loss is what the fabric says.
const LOSS_PACKETS_MIN: u64 = 4096;

/// What has passed over all lanes to a peer since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Passed {
    /// Packets sent.
    pub sent: u64,
    /// Packets given up as lost.
    pub lost: u64,
    /// Bytes of packets acknowledged, IP headers included.
    pub delivered_bytes: u64,
}

/// The estimate of one direction of a link, by one pair of gateways.
#[derive(Debug)]
pub struct Estimate {
    link: Link,
    /// When the span under way began, and what had passed by then.
    begun: Option<(TimeNs, Passed)>,
    /// Least round trip of the span under way, and of the last ones.
    least: Option<Span>,
    rounds: VecDeque<Span>,
    /// Those of the last spans that took far longer than the fabric says, one after the other.
    long: VecDeque<Span>,
    /// Packets sent and lost in the last spans without congestion.
    losses: VecDeque<(u64, u64)>,
    /// What the link carried in congested spans, in bits per second.
    evidence: Option<Vec<f64>>,
    /// Spans in which a queue stood although the link was held to what it was found to carry.
    queued: Vec<Tick>,
    calm: u32,
    settling: u32,
    /// What it carries, when that is less than the fabric says.
    known: Option<f64>,
    /// The same before it was put right.
    found: f64,
    /// What is being tried instead.
    trial: Option<f64>,
    /// Spans in full use since the last finding or trial, and how many it takes for a trial.
    full: u32,
    wait: u32,
    /// The part by which more is tried next.
    growth: f64,
    used: TimeNs,
}

#[derive(Debug, Clone, Copy)]
struct Tick {
    sent: u64,
    lost: u64,
    /// In bits per second of the link, of which the pair has its part.
    carried: f64,
    rtt: Span,
}

impl Estimate {
    /// At first what the fabric says.
    pub fn new(link: Link) -> Self {
        Self {
            link,
            begun: None,
            least: None,
            rounds: VecDeque::new(),
            long: VecDeque::new(),
            losses: VecDeque::new(),
            evidence: None,
            queued: Vec::with_capacity(CLOSE),
            calm: 0,
            settling: 0,
            known: None,
            found: 0.0,
            trial: None,
            full: 0,
            wait: WAIT,
            growth: GROWTH,
            used: TimeNs::default(),
        }
    }

    /// What the link is to be held to, when that is less than the fabric says.
    pub fn holds(&self) -> Option<BitRate> {
        self.trial.or(self.known).map(rate)
    }

    /// What the link carries, when that is less than the fabric says.
    pub fn carries(&self) -> Option<BitRate> {
        self.known.map(rate)
    }

    /// The link's own round trip, once one was measured.
    pub fn rtt(&self) -> Option<Span> {
        self.rounds.iter().min().copied()
    }

    /// The round trip of now, when it is far longer than the fabric says. A queue may be part of
    /// it: that holds others up as distance does, but is nothing to plan for.
    pub fn stretched(&self) -> Option<Span> {
        let shortest = self.long.iter().min().copied();
        shortest.filter(|_| self.long.len() == STRETCHED)
    }

    /// Random loss, once enough has passed to tell.
    pub fn loss(&self) -> Option<Fraction> {
        let (sent, lost) = self.losses.iter().fold((0, 0), |sum, s| (sum.0 + s.0, sum.1 + s.1));
        let enough = sent >= LOSS_PACKETS_MIN;
        let ppb = (u128::from(lost.min(sent)) * 1_000_000_000).checked_div(u128::from(sent))?;
        Fraction::from_ppb(u32::try_from(ppb).ok()?).filter(|_| enough)
    }

    /// Looks at all that has passed, with the least round trip since the last look, while the
    /// pair's link was held to `held`.
    pub fn look(
        &mut self,
        now: TimeNs,
        (passed, least): (Passed, Option<Span>),
        (pair, held): (PairShare, BitRate),
    ) {
        if self.is_thin() {
            return;
        }
        self.least = self.least.into_iter().chain(least).min();
        let (begun, before) = *self.begun.get_or_insert((now, passed));
        let span = now.since(begun);
        let rounds = Span::from_ns(SPAN_ROUNDS * self.rtt().unwrap_or(self.link.rtt).ns());
        let sent = passed.sent - before.sent;
        if span < SPAN_MIN.max(rounds) || sent < PACKETS_MIN && span < SPAN_MAX.max(rounds) {
            return;
        }
        self.begun = Some((now, passed));
        let least = self.least.take();
        self.note_long(least, sent >= PACKETS_MIN);
        if self.known.is_none() {
            self.used = now;
        } else if now.since(self.used) > FORGET_AFTER {
            (self.known, self.trial, self.used) = (None, None, now);
        }
        let bits = 8.0 * (passed.delivered_bytes - before.delivered_bytes) as f64;
        let Some(rtt) = least.filter(|_| sent >= PACKETS_MIN && bits > 0.0) else { return };
        if let Some(carried) = pair.link_rate_for(bits / span.as_secs_f64()) {
            let tick = Tick { sent, lost: passed.lost - before.lost, carried, rtt };
            self.take(&tick, held.bits_per_second() as f64, now);
        }
        keep(&mut self.rounds, rtt);
    }

    /// A span is over in which the fastest packet took `least`. Few packets may be of one burst,
    /// which takes long by itself; but one that was fast shows that the path is short.
    fn note_long(&mut self, least: Option<Span>, enough: bool) {
        let Some(least) = least else { return };
        let usual = self.link.rtt;
        let far = least.ns() as f64 > FAR * usual.ns() as f64 && least > usual + FAR_ABOVE;
        if !far {
            self.long.clear();
        } else if enough {
            self.long.push_back(least);
            if self.long.len() > STRETCHED {
                self.long.pop_front();
            }
        }
    }

    fn is_thin(&self) -> bool {
        let bits = u128::from(self.link.rate.bits_per_second()) * u128::from(SPAN_MIN.ns());
        bits < u128::from(PACKETS_MIN * PACKET_BITS) * 1_000_000_000
    }

    fn take(&mut self, tick: &Tick, held: f64, now: TimeNs) {
        if self.settling > 0 {
            self.settling -= 1;
            return;
        }
        if self.trial.is_some() && self.is_queued(tick) {
            self.trial = None;
            (self.full, self.settling) = (0, SETTLE);
            self.wait = (2 * self.wait).min(WAIT_MAX);
            self.growth = GROWTH;
            return;
        }
        if self.is_congested(tick) {
            return self.congested(tick, held, now);
        }
        self.calm += 1;
        if self.calm >= CALM {
            self.evidence = None;
        }
        if tick.lost < tick.sent / 2 {
            keep(&mut self.losses, (tick.sent, tick.lost));
        }
        self.put_right(tick, held, now);
        self.try_more(tick, now);
    }

    /// Before a queue that stands, what is delivered is what the link carries: so a finding that
    /// was a little too high is put right by the mean, which is closer than the first one. What the
    /// fabric says may be a little too high as well: too little is lost then for a finding.
    fn put_right(&mut self, tick: &Tick, held: f64, now: TimeNs) {
        let whole = self.link.rate.bits_per_second() as f64;
        let (known, found) = self.known.map_or((whole, whole), |known| (known, self.found));
        // What is held to less, by an operator say, shows nothing of what was found.
        let tried = self.trial.is_none() && held >= NEWS * known;
        if !tried || !self.is_queued(tick) || tick.carried <= CLOSE_TO * known {
            return self.queued.clear();
        }
        self.queued.push(*tick);
        if self.queued.len() < CLOSE {
            return;
        }
        let spans = std::mem::take(&mut self.queued);
        let sum = |of: fn(&Tick) -> f64| spans.iter().map(of).sum::<f64>();
        let lost = sum(|tick| tick.lost as f64) / sum(|tick| tick.sent as f64);
        let carried = (sum(|tick| tick.carried) / CLOSE as f64).max(CLOSE_TO * found);
        // A path that became longer looks as if a queue stood there, and may lose a little.
        if lost < self.link.loss.as_f64() + CLOSE_LOSS {
            return;
        }
        if self.known.is_none() && carried < NEWS * whole {
            self.find(carried, now);
        } else if self.known.is_some() && carried < known {
            (self.known, self.settling) = (Some(carried), SETTLE);
        }
    }

    fn is_queued(&self, tick: &Tick) -> bool {
        // A packet that overtakes others may seem to have come from near by.
        let nearest = Span::from_ns(self.link.rtt.ns() / 2);
        let own = self.rtt().unwrap_or(self.link.rtt).max(nearest).as_secs_f64();
        tick.rtt.as_secs_f64() > QUEUED * own + QUEUED_ABOVE.as_secs_f64()
    }

    fn is_congested(&self, tick: &Tick) -> bool {
        let usual = self.link.loss.as_f64() + CONGESTION_LOSS;
        self.is_queued(tick) && tick.lost as f64 > usual * tick.sent as f64
    }

    fn congested(&mut self, tick: &Tick, held: f64, now: TimeNs) {
        self.calm = 0;
        self.full = 0;
        self.queued.clear();
        let Some(evidence) = &mut self.evidence else {
            self.evidence = Some(Vec::with_capacity(EVIDENCE));
            return;
        };
        evidence.push(tick.carried);
        if evidence.len() < EVIDENCE {
            return;
        }
        // The link was not busy all of the time, and acknowledgements may come in bursts.
        evidence.sort_by(f64::total_cmp);
        let found = evidence[EVIDENCE - 2].max(LEAST * self.link.rate.bits_per_second() as f64);
        self.evidence = None;
        if found < NEWS * held {
            self.find(found, now);
        }
    }

    fn find(&mut self, found: f64, now: TimeNs) {
        (self.known, self.found) = (Some(found), found);
        (self.wait, self.growth) = (WAIT, GROWTH);
        (self.settling, self.used) = (SETTLE, now);
    }

    fn try_more(&mut self, tick: &Tick, now: TimeNs) {
        let Some(known) = self.known else { return };
        let part = if self.trial.is_some() { CONFIRMED } else { FULL };
        if tick.carried < part * self.trial.unwrap_or(known) {
            return;
        }
        self.used = now;
        self.full += 1;
        let whole = self.link.rate.bits_per_second() as f64;
        match self.trial {
            Some(trial) if self.full >= TRIAL => {
                self.known = Some(trial).filter(|trial| *trial < WHOLE * whole);
                self.found = trial;
                (self.trial, self.full, self.wait) = (None, 0, TRIAL);
                self.growth = (2.0 * self.growth).min(GROWTH_MAX);
            }
            None if self.full >= self.wait => {
                (self.trial, self.full) = (Some((known + self.growth * known).min(whole)), 0);
            }
            _ => {}
        }
    }
}

fn rate(bits: f64) -> BitRate {
    BitRate::from_bits_per_second((bits as u64).max(crate::wan::RATE_MIN_BITS))
}

fn keep<T>(memory: &mut VecDeque<T>, newest: T) {
    memory.push_back(newest);
    if memory.len() > MEMORY {
        memory.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hier_collectives::ids::RegionId;

    const HELD: BitRate = BitRate::from_bits_per_second(800_000_000);
    const PACKET: u64 = 1500;

    struct Bench {
        estimate: Estimate,
        now: TimeNs,
        passed: Passed,
    }

    impl Bench {
        fn new(loss_ppb: u32) -> Self {
            Self::of(HELD, loss_ppb)
        }

        fn of(rate: BitRate, loss_ppb: u32) -> Self {
            let (a, b, rtt) = (RegionId(0), RegionId(1), Span::from_ms(50));
            let loss = Fraction::from_ppb(loss_ppb).expect("below 1");
            let estimate = Estimate::new(Link { a, b, rate, rtt, loss });
            Self { estimate, now: TimeNs::default(), passed: Passed::default() }
        }

        /// Spans of 100 ms in which this was offered in Mbit/s, over a link that carries so
        /// much with its queue full, and loses this part at random.
        fn pass(&mut self, spans: u32, offered: f64, carries: f64, random: f64) {
            for _ in 0..spans {
                self.now = self.now + Span::from_ms(100);
                let sent = offered * 1e5 / (8.0 * PACKET as f64);
                let through = sent.min(carries / offered * sent) * (1.0 - random);
                self.passed.sent += sent as u64;
                self.passed.lost += (sent - through) as u64;
                self.passed.delivered_bytes += through as u64 * PACKET;
                let rtt = Span::from_ms(if offered > carries { 90 } else { 51 });
                let held = self.estimate.holds().unwrap_or(HELD);
                let link = (PairShare::unshared(HELD), held);
                self.estimate.look(self.now, (self.passed, Some(rtt)), link);
            }
        }

        /// Spans of 100 ms in which the fastest of so many packets took this long.
        fn take(&mut self, packets: u64, round_trips_ms: &[u64]) {
            for ms in round_trips_ms {
                self.now = self.now + Span::from_ms(100);
                self.passed.sent += packets;
                self.passed.delivered_bytes += packets * PACKET;
                let link = (PairShare::unshared(HELD), HELD);
                self.estimate.look(self.now, (self.passed, Some(Span::from_ms(*ms))), link);
            }
        }

        /// As above, with as much offered as the estimate lets through.
        fn fill(&mut self, spans: u32, carries: f64) {
            for _ in 0..spans {
                let held = self.estimate.holds().unwrap_or(HELD).bits_per_second() as f64 * 1e-6;
                self.pass(1, 0.98 * held, carries, 0.0);
            }
        }

        fn carries(&self) -> Option<f64> {
            self.estimate.carries().map(|rate| rate.bits_per_second() as f64 * 1e-6)
        }
    }

    #[test]
    fn a_halved_rate_is_found_and_more_is_tried_in_vain() {
        let mut bench = Bench::new(0);
        bench.fill(20, 900.0);
        assert_eq!(bench.carries(), None);
        bench.fill(14, 400.0);
        let near = |bench: &Bench| bench.carries().is_some_and(|c| (390.0..=401.0).contains(&c));
        assert!(near(&bench), "{:?}", bench.carries());
        let mut trials = 0;
        for _ in 0..1000 {
            let before = bench.estimate.trial.is_some();
            bench.fill(1, 400.0);
            trials += u32::from(!before && bench.estimate.trial.is_some());
            assert!(near(&bench), "{:?}", bench.carries());
        }
        assert!((5..=8).contains(&trials), "each later than the one before: {trials}");
    }

    /// As after a storm that made it seem a tenth of what it is.
    #[test]
    fn what_seemed_slow_is_fast_again_within_half_a_minute() {
        let mut bench = Bench::new(0);
        bench.fill(10, 900.0);
        bench.fill(14, 80.0);
        assert!(bench.carries().is_some_and(|carries| carries < 81.0));
        bench.fill(300, 900.0);
        assert_eq!(bench.carries(), None);
    }

    /// A link that delivers in bursts carries, span by span, a little more or less.
    #[test]
    fn a_finding_that_is_a_little_too_high_is_put_right() {
        let mut bench = Bench::new(0);
        bench.fill(10, 900.0);
        for round in 0..20 {
            bench.fill(1, if round % 2 == 0 { 400.0 } else { 420.0 });
        }
        assert!(bench.carries().is_some_and(|carries| carries > 409.0), "{:?}", bench.carries());
        bench.fill(12, 395.0);
        let carries = bench.carries().expect("found");
        assert!((394.0..396.0).contains(&carries), "{carries}");
    }

    /// As of others who fill its queue from time to time.
    #[test]
    fn a_finding_is_not_put_right_again_and_again() {
        let mut bench = Bench::new(0);
        bench.fill(10, 900.0);
        bench.fill(14, 400.0);
        for _ in 0..200 {
            bench.fill(4, 0.98 * 0.98 * bench.carries().expect("found"));
            bench.pass(2, 1.0, 400.0, 0.0);
        }
        let carries = bench.carries().expect("found");
        assert!((355.0..405.0).contains(&carries), "{carries}");
    }

    /// As of a path that became longer, and of loss that is not of a queue.
    #[test]
    fn a_finding_stays_while_no_more_is_lost_than_expected() {
        let mut bench = Bench::new(10_000_000);
        bench.fill(10, 900.0);
        bench.fill(14, 400.0);
        let found = bench.carries().expect("found");
        for _ in 0..20 {
            bench.take(4000, &[90; 5]);
            bench.pass(5, 0.97 * found, found, 0.01);
        }
        assert_eq!(bench.carries(), Some(found));
    }

    #[test]
    fn what_the_fabric_says_is_reached_again() {
        let mut bench = Bench::new(0);
        bench.fill(10, 900.0);
        bench.fill(14, 200.0);
        assert!(bench.carries().is_some_and(|carries| carries < 201.0));
        bench.fill(1000, 900.0);
        assert_eq!(bench.carries(), None);
    }

    #[test]
    fn what_is_not_used_is_forgotten() {
        let mut bench = Bench::new(0);
        bench.fill(10, 900.0);
        bench.fill(14, 200.0);
        bench.pass(5_000, 1.0, 200.0, 0.0);
        assert!(bench.carries().is_some());
        bench.pass(1_100, 1.0, 200.0, 0.0);
        assert_eq!(bench.carries(), None);
    }

    #[test]
    fn random_loss_idleness_and_a_longer_path_say_nothing() {
        let mut bench = Bench::new(10_000_000);
        for _ in 0..20 {
            bench.pass(5, 780.0, 900.0, 0.01);
            bench.pass(5, 100.0, 900.0, 0.2);
            bench.pass(5, 0.1, 0.05, 0.0);
            bench.pass(5, 780.0, 770.0, 0.0);
        }
        assert_eq!(bench.carries(), None);
    }

    /// What was lost in a cut comes again at once, and what comes of it with it.
    #[test]
    fn bursts_among_little_traffic_say_nothing() {
        let mut bench = Bench::new(0);
        bench.fill(5, 900.0);
        for _ in 0..20 {
            bench.pass(9, 1.9, 2.0, 0.0);
            bench.pass(1, 10.0, 2.0, 0.0);
        }
        assert_eq!(bench.carries(), None);
    }

    #[test]
    fn a_link_too_thin_to_look_at_is_what_the_fabric_says() {
        for (mbits, looked_at) in [(2, false), (7, false), (8, true)] {
            let rate = BitRate::from_bits_per_second(mbits * 1_000_000);
            let mut bench = Bench::of(rate, 0);
            bench.pass(5, mbits as f64, mbits as f64 + 1.0, 0.0);
            bench.pass(20, mbits as f64, mbits as f64 / 2.0, 0.0);
            assert_eq!(bench.carries().is_some(), looked_at, "{mbits} Mbit/s");
        }
    }

    #[test]
    fn a_path_is_stretched_after_three_spans_and_short_again_after_one() {
        let mut bench = Bench::new(0);
        bench.take(1000, &[50, 50, 50, 150, 52, 160, 170, 74]);
        assert_eq!(bench.estimate.stretched(), None, "now and then, and by less than half");
        bench.take(1000, &[150, 170, 160]);
        assert_eq!(bench.estimate.stretched(), Some(Span::from_ms(150)));
        assert_eq!(bench.estimate.rtt(), Some(Span::from_ms(50)), "as it is planned for");
        bench.take(1000, &[180]);
        assert_eq!(bench.estimate.stretched(), Some(Span::from_ms(160)));
        bench.take(1000, &[50]);
        assert_eq!(bench.estimate.stretched(), None);
    }

    /// Spans of few packets last until there are enough, or for two seconds.
    #[test]
    fn few_packets_show_that_a_path_is_short_and_not_that_it_is_long() {
        let mut bench = Bench::new(0);
        bench.take(1000, &[50; 2]);
        bench.take(1, &[150; 200]);
        assert_eq!(bench.estimate.stretched(), None);
        bench.take(1000, &[150; 4]);
        assert!(bench.estimate.stretched().is_some());
        bench.take(1, &[50; 21]);
        assert_eq!(bench.estimate.stretched(), None);
    }

    #[test]
    fn random_loss_is_measured() {
        let mut bench = Bench::new(0);
        assert_eq!(bench.estimate.loss(), None);
        bench.pass(50, 400.0, 900.0, 0.02);
        let loss = bench.estimate.loss().expect("enough has passed").as_f64();
        assert!((0.019..0.021).contains(&loss), "{loss}");
        assert_eq!(bench.estimate.rtt(), Some(Span::from_ms(51)));
    }
}
