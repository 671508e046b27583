//! The number of lanes to one peer: few where one suffices, more while they pay.
//!
//! Every lane costs processor time, so a link begins with the least number. The engine gives each
//! peer a `LaneNumber`, a sample each 100 ms (each second while nothing passes), and the peer's
//! wishes. It opens and takes away lanes as the number in use changes. No I/O, no clock, no thread.
//!
//! ```text
//! wanted = least + extra lanes                   told to the peer by `LinkMessage::Lanes`
//! in use = max(wanted, the peer's wanted), at most what both can have
//!
//!               a full core or an unfilled link, in demand          a trial that delivers more
//!   LEAST/KEPT ------------------------------------------> TRIAL -----------------------------> KEPT
//!     ^  ^  ^                                                |                                   |
//!     |  |  +--- no gain in TRIAL_VERDICTS verdicts, or not up: waits, each time twice as long --+
//!     |  +------ earns nothing for LANE_SPARE_TIME: no more passes than without the lane --------+
//!     |
//!     |          all lanes silent for the dead-path time, or none up for LANE_ABSENCE
//!     +- SUBSTITUTE <------------------------------------------------------------- any state
//!          ends once as many lanes below it as are wanted otherwise are heard: at once if it is not
//!          up itself, else after LANE_SOUND_TIME
//! ```
//!
//! Extra lanes are a stack, of which only the last is judged. A lane earns its place while more
//! passes than passed without it:
//!
//! ```text
//! typical = median of JUDGED_SPANS spans, each the bytes per second carried both ways
//! before  = typical of the spans in demand, when the lane was added
//! a span counts for a verdict if it carries at least half of `before`: idle time says nothing
//! kept    = typical >= TRIAL_GAIN x before in the trial, >= KEPT_GAIN x before later
//! ```
//!
//! The peer's side of a link can be the one whose core is full, so both ends judge by themselves.
//! A full core is a reason only while the machine has another core free, which the lane could fill.

use super::link_message::LinkLaneWishMessage;
use std::collections::VecDeque;
use units::{Span, TimeNs};

/// 100 ms, or a round trip if longer: the least time over which one sample of lanes' rates (a span)
/// is taken. The engine samples links in use every 100 ms.
const LANE_SPAN_MIN: Span = Span::from_ms(100);
/// 10 spans (100 ms or a round trip each) with traffic are one verdict on a lane, by their median.
/// A burst of acknowledgements or the edge of a collective does not move the median.
const JUDGED_SPANS: usize = 10;
/// 3 verdicts without a gain (10 spans each) end the trial of a lane, which is then taken away. The
/// first verdict may still show the lane's beginning.
const TRIAL_VERDICTS: u32 = 3;
/// 1.1 times the rate that passed before the lane was added, both ways: a lane in trial with which
/// as much or more passes is kept. The factor is chosen.
/// Tested by `a_lane_that_makes_more_pass_is_kept`.
const TRIAL_GAIN: f64 = 1.1;
/// 1.05 times the rate that passed before the lane was added, both ways: a lane that was kept stays
/// while as much passes; with less for 30 s it is taken away. It is below [`TRIAL_GAIN`] (1.1), so
/// that the number of lanes does not flap.
const KEPT_GAIN: f64 = 1.05;
/// 0.9 of the time: a lane's thread that is busy for as long or longer fills its core. After 10
/// spans in demand with a full core, a lane more is tried. The fraction is chosen.
const CORE_FULL_FRACTION: f64 = 0.9;
/// Half a core: if less of the machine was idle during a span, a lane more would take its processor
/// time from others, and a full core is no reason to try one. The value is chosen.
/// Tested by `a_full_machine_has_no_lane_tried`.
const IDLE_CORES_MIN: f64 = 0.5;
/// 10 MB/s of the lanes to a peer, both ways: if less passes and no segment waits, a full core
/// shows no demand for a lane more, since something else fills the core. The value is chosen.
const CORE_DEMAND_BYTES_PER_SECOND_MIN: f64 = 10e6;
/// 0.8 of the rate that the pair of gateways may send, less the configured loss: a link that
/// delivers as much or more is filled, and another path could add little. A link that delivers less
/// while segments wait is unfilled.
const FILLED_FRACTION: f64 = 0.8;
/// 50 consecutive spans in demand (100 ms or a round trip each) that leave the link unfilled: after
/// so many, a lane on another path is tried. Congestion and outages are over sooner.
const UNFILLED_SPANS: u32 = 50;
/// 30 s: a lane with which no more has passed than without it for longer than this is taken away.
/// The time outlasts the pauses of training steps.
/// Tested by `a_lane_that_is_not_needed_is_taken_away`.
const LANE_SPARE_TIME: Span = Span::from_secs(30);
/// 10 s, or [`LANE_UP_ROUNDS`] (10 round trips) if longer: a lane in trial that is not up after
/// this time is taken away. The time is chosen.
const LANE_UP_TIME_MIN: Span = Span::from_secs(10);
/// 10 round trips of the link, or 10 s if longer: the time that a lane has to come up before it is
/// taken away or another is tried. A lane connects within ten round trips even if packets are lost.
const LANE_UP_ROUNDS: u64 = 10;
/// 10 s: the pause between the end of a trial without a gain and the next trial of a lane, a chosen
/// value. Each further failure doubles the pause; a gain resets it.
const TRIAL_PAUSE_MIN: Span = Span::from_secs(10);
/// 20 min: the longest pause between trials of a lane, up to which failures double the pause; a
/// chosen value.
/// Tested by `trials_in_vain_become_rare`.
const TRIAL_PAUSE_MAX: Span = Span::from_secs(1200);
/// 10 s, as [`LANE_UP_TIME_MIN`]: while the peer wants more lanes than this end, this end begins no
/// trial of its own until the number has stood for this time.
/// Tested by `a_trial_of_the_peer_is_awaited`.
const PEER_TRIAL_TIME: Span = LANE_UP_TIME_MIN;
/// 10 s, or [`LANE_UP_ROUNDS`] (10 round trips) if longer: while no lane to a peer is up, one more
/// is dialled after each such time. The path of the first may be dead.
const LANE_ABSENCE: Span = Span::from_secs(10);
/// 5 s: once the lanes that were silent have been heard again for this time, the lane that was
/// added in their place is taken away. The value is chosen.
const LANE_SOUND_TIME: Span = Span::from_secs(5);

/// The bounds of the lanes to one peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneNumberTerms {
    /// The fewest, at least 1.
    pub least: u16,
    /// The reason for the fewest.
    pub least_reason: LaneNumberReason,
    /// The most, for which ports and memory are reserved; at least `least`.
    pub most: u16,
    /// Whether this gateway dials the lanes.
    pub dials: bool,
    /// The round trip of the link by the fabric.
    pub rtt: Span,
}

/// The reason for a number of lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneNumberReason {
    /// The fewest that the fabric allows.
    Pinned,
    /// One for each configured address.
    Addresses,
    /// One lane fewer filled a core.
    CoreFull,
    /// One lane fewer left the link unfilled, and another path may carry the rest.
    MorePaths,
    /// Other lanes are silent or not up.
    SilentLane,
    /// One lane more earned nothing.
    EarnsNothing,
    /// The peer wants as many.
    Peer,
}

/// The state of the lanes to a peer at one time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaneSample {
    /// The time.
    pub now: TimeNs,
    /// Whether segments wait for a lane.
    pub waiting: bool,
    /// Bytes that all lanes have carried so far, both ways.
    pub carried_bytes: u64,
    /// Bytes that the peer has acknowledged so far.
    pub delivered_bytes: u64,
    /// The rate in bytes per second that the peer could acknowledge if the link were filled; `None`
    /// within a region, where no rate is promised.
    pub promised_rate: Option<f64>,
    /// The busy part of the busiest lane's thread, from 0 to 1.
    pub busiest: f64,
    /// The time for which the machine's cores have been idle so far, all added; `None` where the
    /// system does not tell.
    pub idle_time: Option<Span>,
    /// Whether any lane is up, in use or not.
    pub is_connected: bool,
    /// Lanes in use that are up.
    pub up: u16,
    /// Lanes in use but the last that are up and heard.
    pub lower_heard: u16,
    /// Whether the last lane in use is up.
    pub last_up: bool,
    /// The time for which not one lane was heard although bytes were in flight.
    pub silence: Span,
    /// The time of silence after which a path counts as dead.
    pub dead_path_time: Span,
}

/// The number of lanes to one peer; the module has the drawing of its states.
#[derive(Debug)]
pub(crate) struct LaneNumber {
    terms: LaneNumberTerms,
    /// The lanes above the least number, in the order of their addition.
    extras: Vec<ExtraLane>,
    /// The reason for the wanted number.
    reason: LaneNumberReason,
    /// The last wish of the peer, since the connection came up.
    peer: Option<LinkLaneWishMessage>,
    /// The number of this gateway's changes so far.
    changes: u64,
    /// The number in use that the measurements are of.
    measured: u16,
    /// Since when that number is in use.
    measured_since: TimeNs,
    /// The first sample of the current span, and whether segments waited ever since.
    span: Option<LaneSample>,
    /// Rates of the last spans in demand, in bytes per second both ways.
    demand: VecDeque<f64>,
    /// The end of the last span in demand.
    demand_at: TimeNs,
    /// Consecutive spans in demand with a full core and another one idle.
    full_spans: u32,
    /// Consecutive spans in demand that left the link unfilled.
    unfilled_spans: u32,
    /// Rates of the spans that count for the next verdict on the last extra lane.
    judged: Vec<f64>,
    /// Verdicts without a gain in the present trial.
    vain_verdicts: u32,
    /// The pause after the next trial in vain.
    pause: Span,
    /// When the next trial may begin.
    retry_at: TimeNs,
    /// Since when no lane is up.
    absent_since: Option<TimeNs>,
    /// Since when enough lanes besides the last are heard.
    sound_since: Option<TimeNs>,
}

/// A lane above the least number.
#[derive(Debug, Clone, Copy)]
struct ExtraLane {
    reason: LaneNumberReason,
    /// The rate that passed without it, in bytes per second both ways.
    before: f64,
    is_trial: bool,
    added_at: TimeNs,
    /// When it last earned its place.
    earned_at: TimeNs,
}

/// The rates of one span, in bytes per second.
#[derive(Debug, Clone, Copy)]
struct SpanRates {
    /// Both ways.
    carried: f64,
    /// To the peer.
    delivered: f64,
    /// Whether segments waited all the time.
    waiting: bool,
    /// Cores of the machine that were idle, on average; unlimited where the system does not tell.
    idle_cores: f64,
}

impl LaneNumberReason {
    /// Returns the reason as the log and the status give it.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Pinned => "the fewest that the fabric allows",
            Self::Addresses => "one for each address",
            Self::CoreFull => "one fewer fills a core",
            Self::MorePaths => "one fewer leaves the link unfilled",
            Self::SilentLane => "another lane is silent or not up",
            Self::EarnsNothing => "one more earned nothing",
            Self::Peer => "the other gateway wants as many",
        }
    }
}

impl LaneNumber {
    /// Creates the number of lanes to a peer, none of which is up.
    pub fn new(terms: LaneNumberTerms) -> Self {
        Self {
            terms,
            extras: Vec::new(),
            reason: terms.least_reason,
            peer: None,
            changes: 1,
            measured: terms.least,
            measured_since: TimeNs::default(),
            span: None,
            demand: VecDeque::with_capacity(JUDGED_SPANS),
            demand_at: TimeNs::default(),
            full_spans: 0,
            unfilled_spans: 0,
            judged: Vec::with_capacity(JUDGED_SPANS),
            vain_verdicts: 0,
            pause: TRIAL_PAUSE_MIN,
            retry_at: TimeNs::default(),
            absent_since: None,
            sound_since: None,
        }
    }

    /// Returns the number of lanes in use, which both ends reach once they have each other's
    /// wishes.
    pub fn in_use(&self) -> u16 {
        let theirs = self.peer.map_or(1, |wish| wish.wanted);
        self.wanted().max(theirs).min(self.most())
    }

    /// Returns the wish of this gateway, to be told to the peer.
    pub fn wish(&self) -> LinkLaneWishMessage {
        LinkLaneWishMessage { number: self.changes, wanted: self.wanted(), most: self.terms.most }
    }

    /// Returns the reason for the number of lanes in use.
    pub fn reason(&self) -> LaneNumberReason {
        if self.in_use() > self.wanted() { LaneNumberReason::Peer } else { self.reason }
    }

    /// Returns whether a lane that was added is on trial now.
    pub fn is_trying(&self) -> bool {
        self.extras.last().is_some_and(|lane| lane.is_trial)
    }

    /// Returns whether a lane is being tried because another path may carry more.
    pub fn is_trying_path(&self) -> bool {
        self.is_trying() && self.reason == LaneNumberReason::MorePaths
    }

    /// Stores a newer wish of the peer than the last one; ignores all others.
    pub fn note_wish(&mut self, wish: LinkLaneWishMessage) {
        if self.peer.is_none_or(|last| wish.number > last.number) {
            self.peer = Some(wish);
        }
    }

    /// Forgets the wishes of a peer whose first lane has come up: it may have been started again.
    pub fn forget_wishes(&mut self) {
        self.peer = None;
    }

    /// Evaluates the state of the lanes, and changes the wanted number if that is due.
    pub fn note_sample(&mut self, sample: &LaneSample) {
        let before = self.wanted();
        if self.in_use() != self.measured {
            self.begin_anew(sample.now);
        }
        if !sample.is_connected {
            self.follow_absence(sample.now);
        } else {
            self.absent_since = None;
            if sample.up == 0 && self.terms.dials {
                // The lanes that are up are all beyond those in use, which are not.
                self.add_substitute(sample.now);
            }
            self.follow_silence(sample);
            self.take_unneeded(sample);
            if let Some(rates) = self.end_span(sample) {
                self.judge_last(rates, sample);
                self.note_demand(rates, sample);
            }
        }
        if self.wanted() != before {
            self.changes += 1;
        }
    }

    /// Returns the number of lanes that this gateway wants.
    fn wanted(&self) -> u16 {
        let extras = u16::try_from(self.extras.len()).unwrap_or(u16::MAX);
        self.terms.least.saturating_add(extras).min(self.terms.most)
    }

    /// Returns the most lanes that both ends can have, the peer's bound included once it is known.
    fn most(&self) -> u16 {
        self.peer.map_or(self.terms.most, |wish| wish.most.min(self.terms.most))
    }

    /// Drops all spans and verdicts, because they were measured with another number of lanes in
    /// use.
    fn begin_anew(&mut self, now: TimeNs) {
        (self.measured, self.measured_since) = (self.in_use(), now);
        self.span = None;
        self.demand.clear();
        self.judged.clear();
        (self.full_spans, self.unfilled_spans, self.vain_verdicts) = (0, 0, 0);
        self.sound_since = None;
    }

    /// Wants one more lane because another one is silent, unless the most lanes are wanted already.
    fn add_substitute(&mut self, now: TimeNs) {
        if self.wanted() < self.terms.most {
            let reason = LaneNumberReason::SilentLane;
            self.push_extra(ExtraLane {
                reason,
                before: 0.0,
                is_trial: false,
                added_at: now,
                earned_at: now,
            });
        }
    }

    /// Adds one lane to the number that this gateway wants. `lane` has the reason, and the rate
    /// that passes without it.
    fn push_extra(&mut self, lane: ExtraLane) {
        self.reason = lane.reason;
        self.extras.push(lane);
    }

    /// Removes the last extra lane from the wanted ones, and sets the reason to that of the one
    /// before.
    fn take_last(&mut self) {
        self.extras.pop();
        self.reason = self.extras.last().map_or(LaneNumberReason::EarnsNothing, |lane| lane.reason);
    }

    /// Removes the last extra lane, and allows the next trial after the present pause.
    fn end_unneeded(&mut self, now: TimeNs) {
        self.take_last();
        self.retry_at = now + self.pause;
    }

    /// Removes the last extra lane after a trial in vain, and doubles the pause before the trial
    /// after the next.
    fn end_trial_in_vain(&mut self, now: TimeNs) {
        self.end_unneeded(now);
        self.pause = (self.pause + self.pause).min(TRIAL_PAUSE_MAX);
    }

    /// Returns the time of `count` round trips of the link, or `least` if that is longer.
    fn rounds(&self, count: u64, least: Span) -> Span {
        Span::from_ns(self.terms.rtt.ns().saturating_mul(count)).max(least)
    }

    /// While no lane is up: wants one more after each [`LANE_ABSENCE`], if this gateway dials.
    fn follow_absence(&mut self, now: TimeNs) {
        self.peer = None;
        let since = *self.absent_since.get_or_insert(now);
        if self.extras.iter().any(|lane| lane.reason != LaneNumberReason::SilentLane) {
            self.extras.clear();
            self.reason = self.terms.least_reason;
        }
        let patience = self.rounds(LANE_UP_ROUNDS, LANE_ABSENCE).ns();
        let substitutes = now.since(since).ns() / patience;
        if self.terms.dials && substitutes > self.extras.len() as u64 {
            self.add_substitute(now);
        }
    }

    /// Wants one more lane after a dead-path time in which no lane was heard, if this gateway
    /// dials. Does so again each time that the silence has doubled. Takes the lane away when the
    /// others are heard.
    fn follow_silence(&mut self, sample: &LaneSample) {
        let from_last = self.extras.iter().rev();
        let substitutes =
            from_last.take_while(|lane| lane.reason == LaneNumberReason::SilentLane).count();
        let patience = sample.dead_path_time.ns().max(1);
        if self.terms.dials && sample.silence.ns() / patience >= 1 << substitutes {
            self.add_substitute(sample.now);
        }
        let needed = usize::from(self.wanted()).saturating_sub(substitutes);
        let is_silent = sample.silence >= sample.dead_path_time;
        if is_silent || usize::from(sample.lower_heard) < needed {
            self.sound_since = None;
            return;
        }
        let sound_since = *self.sound_since.get_or_insert(sample.now);
        let is_settled = sample.now.since(sound_since) >= LANE_SOUND_TIME;
        if substitutes > 0 && (is_settled || !sample.last_up) {
            self.take_last();
        }
    }

    /// Removes the last extra lane if it did not come up or has earned nothing for long.
    fn take_unneeded(&mut self, sample: &LaneSample) {
        let Some(last) = self.extras.last().copied() else { return };
        if last.reason == LaneNumberReason::SilentLane {
            return;
        }
        let patience = self.rounds(LANE_UP_ROUNDS, LANE_UP_TIME_MIN);
        if last.is_trial && !sample.last_up && sample.now.since(last.added_at) > patience {
            self.end_trial_in_vain(sample.now);
        } else if sample.now.since(last.earned_at) > LANE_SPARE_TIME {
            self.end_unneeded(sample.now);
        }
    }

    /// Returns the rates of the current span if it ends with this sample.
    fn end_span(&mut self, sample: &LaneSample) -> Option<SpanRates> {
        let Some(begin) = &mut self.span else {
            self.span = Some(*sample);
            return None;
        };
        begin.waiting &= sample.waiting;
        let took = sample.now.since(begin.now);
        if took < LANE_SPAN_MIN.max(self.terms.rtt) {
            return None;
        }
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / took.as_secs_f64();
        let idle = sample.idle_time.zip(begin.idle_time);
        let rates = SpanRates {
            carried: rate(sample.carried_bytes, begin.carried_bytes),
            delivered: rate(sample.delivered_bytes, begin.delivered_bytes),
            waiting: begin.waiting,
            idle_cores: idle
                .map_or(f64::INFINITY, |(now, before)| rate(now.ns(), before.ns()) / 1e9),
        };
        self.span = Some(*sample);
        Some(rates)
    }

    /// Judges by the rates of a span whether more passes with the lane that was added last than
    /// without it. Ten spans that count make a verdict, which keeps the lane, or may end its trial.
    fn judge_last(&mut self, rates: SpanRates, sample: &LaneSample) {
        let all_up = sample.up >= self.in_use();
        let Some(last) = self.extras.last_mut() else { return };
        let counts = rates.carried > 0.0 && 2.0 * rates.carried >= last.before;
        if last.reason == LaneNumberReason::SilentLane || !all_up || !counts {
            return;
        }
        self.judged.push(rates.carried);
        if self.judged.len() < JUDGED_SPANS {
            return;
        }
        let typical = lane_number_median_rate(self.judged.drain(..));
        let gain = if last.is_trial { TRIAL_GAIN } else { KEPT_GAIN };
        if typical >= gain * last.before {
            (last.earned_at, last.is_trial) = (sample.now, false);
            self.pause = TRIAL_PAUSE_MIN;
        } else if last.is_trial {
            self.vain_verdicts += 1;
            if self.vain_verdicts == TRIAL_VERDICTS {
                self.end_trial_in_vain(sample.now);
            }
        }
    }

    /// Adds a span in which segments waited, or a core was full with much traffic. Begins the trial
    /// of one more lane after 10 spans with a full core and another one idle, or after 50 that left
    /// the link unfilled.
    fn note_demand(&mut self, rates: SpanRates, sample: &LaneSample) {
        let is_full = sample.busiest >= CORE_FULL_FRACTION;
        let fills_core = is_full && rates.carried >= CORE_DEMAND_BYTES_PER_SECOND_MIN;
        if rates.carried == 0.0 || !(rates.waiting || fills_core) {
            return;
        }
        if sample.now.since(self.demand_at) > LANE_SPARE_TIME {
            self.demand.clear();
            (self.full_spans, self.unfilled_spans) = (0, 0);
        }
        self.demand_at = sample.now;
        if self.demand.len() == JUDGED_SPANS {
            self.demand.pop_front();
        }
        self.demand.push_back(rates.carried);
        let filled = sample.promised_rate.map(|promised| FILLED_FRACTION * promised);
        let is_unfilled = rates.waiting && filled.is_some_and(|filled| rates.delivered < filled);
        let may_fill_another = is_full && rates.idle_cores >= IDLE_CORES_MIN;
        self.full_spans = if may_fill_another { self.full_spans + 1 } else { 0 };
        self.unfilled_spans = if is_unfilled { self.unfilled_spans + 1 } else { 0 };
        let reason = if self.full_spans as usize >= JUDGED_SPANS {
            LaneNumberReason::CoreFull
        } else if self.unfilled_spans >= UNFILLED_SPANS {
            LaneNumberReason::MorePaths
        } else {
            return;
        };
        self.begin_trial(reason, sample);
    }

    /// Begins the trial of one lane more than are in use. Does nothing while a trial is under way,
    /// lanes are missing or silent, or a lane of the peer is on trial. Nor does it while the most
    /// lanes are in use, or before the pause after the last lane is over.
    fn begin_trial(&mut self, reason: LaneNumberReason, sample: &LaneSample) {
        let in_use = self.in_use();
        let busy = self
            .extras
            .last()
            .is_some_and(|lane| lane.is_trial || lane.reason == LaneNumberReason::SilentLane);
        let all_up = sample.up >= in_use;
        let waits_for_peer =
            in_use > self.wanted() && sample.now.since(self.measured_since) < PEER_TRIAL_TIME;
        let at_most = in_use >= self.most();
        if busy || waits_for_peer || !all_up || at_most || sample.now < self.retry_at {
            return;
        }
        let (before, now) = (lane_number_median_rate(self.demand.iter().copied()), sample.now);
        let lane = ExtraLane { reason, before, is_trial: false, added_at: now, earned_at: now };
        // Lanes that only the peer wanted so far have to earn their place here too.
        while self.wanted() < in_use {
            self.push_extra(lane);
        }
        self.push_extra(ExtraLane { is_trial: true, ..lane });
    }
}

/// Returns the median of some rates of lanes, in bytes per second; 0 without any.
fn lane_number_median_rate(rates: impl Iterator<Item = f64>) -> f64 {
    let mut rates: Vec<f64> = rates.collect();
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests;
