//! The harm that each fault may do to each rank, and until when.

use crate::faults::judge::side_load::SIDE_TIMEOUT;
use crate::faults::spec::fault::{Fault, FaultKind};
use crate::faults::spec::limits::Limits;
use crate::faults::spec::place::{Direction, FaultPlace, GatewayPlace, GatewaySet, RegionPair};
use crate::faults::spec::scenario::Scenario;
use hier_collectives::post::FailureCode;
use units::{Span, TimeNs};

/// A fault that has begun.
#[derive(Debug, Clone, Copy)]
pub struct Strike {
    /// The fault.
    pub fault: Fault,
    /// The time when it began.
    pub begin: TimeNs,
    /// The time when it is over and all delayed packets have arrived.
    pub end: TimeNs,
    /// Whether the lane that it struck was the only one, since the others were not up.
    pub cuts_off: bool,
}

/// A rank that waits.
#[derive(Debug, Clone, Copy)]
pub struct Waiter {
    /// The job, by number.
    pub job: usize,
    /// The rank.
    pub rank: u32,
    /// The gateway of the rank.
    pub gateway: GatewayPlace,
    /// The operation for which it waits.
    pub scope: WaitScope,
}

/// The operation for which a rank waits, as far as faults can reach it.
#[derive(Debug, Clone, Copy)]
pub struct WaitScope {
    /// The ranks whose loss it is told of, one bit for each.
    pub ranks: u32,
    /// The gateways that take part.
    pub gateways: GatewaySet,
    /// The time for which a post waits.
    pub timeout: Span,
}

/// A wait of a rank for a result or for its slots.
#[derive(Debug, Clone, Copy)]
pub struct Wait {
    /// The rank that waits.
    pub who: Waiter,
    /// The time when the wait began.
    pub since: TimeNs,
    /// The time when all posts that it needs were there.
    pub complete: Option<TimeNs>,
    /// The time of the last post that may share the link with it.
    pub last_post: TimeNs,
    /// The expiry of the attempt's first poster. A collective that only some ranks have completed
    /// then ends the epoch, and with it all later posts.
    pub first_expiry: TimeNs,
    /// The expiry of the collective's first poster.
    pub expiry: TimeNs,
    /// The expiry of the last post in order with it. While gateways cannot hear each other, each has
    /// another first poster.
    pub last_expiry: TimeNs,
    /// Whether it has its result and waits for its slots; the end of the epoch frees them too.
    pub for_slots: bool,
}

/// All faults of a run that have begun, in order.
#[derive(Debug)]
pub struct Harm {
    limits: Limits,
    /// The time that all bytes in flight may take on the link.
    link_time: Span,
    gateways: Vec<GatewayPlace>,
    /// The lanes between two gateways.
    lanes: u16,
    strikes: Vec<Strike>,
}

impl Harm {
    /// An empty record of the faults of a run.
    pub fn new(scenario: &Scenario) -> Self {
        Self {
            limits: Limits::of_the_page(),
            link_time: scenario.link_time(),
            gateways: scenario.layout.gateways().collect(),
            lanes: scenario.shape.lanes,
            strikes: vec![],
        }
    }

    /// Records that a fault begins.
    pub fn begins(&mut self, fault: Fault, now: TimeNs) {
        // What is late comes after it.
        let late = if let FaultKind::Delay(by) = fault.what { by } else { Span::ZERO };
        let (begin, end) = (now, now + fault.lasting + late);
        let cuts_off = matches!(fault.place, FaultPlace::Lane(lane, pair) if {
            let is_gone = |other| other == lane || self.has_lost_lane(other, pair, now);
            fault.what == FaultKind::Kill && (0..self.lanes).all(is_gone)
        });
        self.strikes.push(Strike { fault, begin, end, cuts_off });
    }

    /// Whether a lane was killed so lately that one of its ends may not have it again.
    fn has_lost_lane(&self, lane: u16, pair: RegionPair, now: TimeNs) -> bool {
        let place = FaultPlace::Lane(lane, pair);
        self.strikes.iter().any(|strike| {
            let is_here = strike.fault.place == place && strike.fault.what == FaultKind::Kill;
            is_here && strike.begin + LANE_BACK_WITHIN >= now
        })
    }

    /// Records that the lane that a fault has just struck was the only one.
    pub fn cuts_off(&mut self, fault: &Fault, now: TimeNs) {
        let just = self.strikes.iter_mut().rev().find(|strike| strike.fault == *fault);
        just.into_iter().filter(|strike| strike.begin == now).for_each(|s| s.cuts_off = true);
    }

    /// Whether a fault that was in force since then can have made a job's attempt fail.
    pub fn reaches(&self, job: usize, since: TimeNs, now: TimeNs) -> bool {
        // Whoever waits in a group or for a send waits for a shorter time.
        let gateways = GatewaySet::ALL;
        let scope = WaitScope { ranks: u32::MAX, gateways, timeout: SIDE_TIMEOUT };
        FailureCode::ALL.into_iter().any(|code| {
            let waiter =
                |gateway: &GatewayPlace| Waiter { job, rank: u32::MAX, gateway: *gateway, scope };
            let mut whos = self.gateways.iter().map(waiter);
            whos.any(|who| self.causes(&who, code, since, now).next().is_some())
        })
    }

    /// Whether a gateway's process was stopped since then.
    pub fn stops(&self, gateway: GatewayPlace, since: TimeNs) -> bool {
        self.strikes.iter().any(|Strike { fault, end, .. }| {
            let here = fault.place == FaultPlace::Gateway(gateway);
            here && fault.what == FaultKind::Stop && *end >= since
        })
    }

    /// The faults since then that can have caused this failure of a rank.
    pub fn causes<'a>(
        &'a self,
        who: &'a Waiter,
        code: FailureCode,
        since: TimeNs,
        now: TimeNs,
    ) -> impl Iterator<Item = &'a Strike> + 'a {
        let lately = move |strike: &&Strike| {
            strike.begin <= now && strike.end + self.limits.recovery >= since
        };
        self.strikes.iter().filter(lately).filter(move |strike| self.may(strike, who, code))
    }

    /// The latest time at which a rank may get this outcome.
    pub fn deadline(&self, wait: &Wait, heard: Option<FailureCode>, now: TimeNs) -> TimeNs {
        let Wait { who, since, complete, .. } = wait;
        let frozen = self.latest_end(wait, now, |strike| freezes(strike, who));
        let touching = |strike: &Strike| touches(strike, who.job);
        match heard {
            None if wait.for_slots => {
                let wait = Wait { for_slots: false, ..*wait };
                let ends = [FailureCode::RegionLost, FailureCode::EpochEnded].map(Some);
                let ends = ends.into_iter().chain([None]);
                ends.map(|heard| self.deadline(&wait, heard, now)).max().unwrap_or(now)
            }
            None => {
                // What still is in the way may be so until now.
                let cleared = self.latest_end(wait, now, touching);
                complete.unwrap_or(*since).max(*since).max(cleared)
                    + self.limits.result
                    + self.link_time
            }
            Some(code @ FailureCode::TimedOut) => {
                let over = self.latest_over(wait, now, touching);
                let in_force = self.strikes.iter().any(|strike| {
                    touching(strike) && strike.begin <= now && strike.end >= wait.expiry
                });
                let expiry = if in_force { wait.last_expiry } else { wait.expiry };
                let is_silent = |strike: &&Strike| {
                    let is_lane = matches!(strike.fault.place, FaultPlace::Lane(..));
                    let lasts = strike.begin <= wait.last_expiry && strike.end >= wait.expiry;
                    is_lane && strike.fault.what == FaultKind::Cut && lasts
                };
                let silent = self.strikes.iter().find(is_silent);
                let expiry = expiry + silent.map_or(Span::ZERO, |_| self.limits.lane_given_up);
                expiry.max(frozen).max(over) + self.limits.of(code) + self.lateness(wait, now)
            }
            Some(code) => {
                let causes = || self.causes(who, code, *since, now);
                let begun = causes().map(|strike| strike.begin).max().unwrap_or(*since);
                let mut from = begun.max(*since);
                if code == FailureCode::Stalled {
                    // Something may have moved until then.
                    let late = self.strikes.iter().filter_map(|strike| self.moves_until(strike));
                    let late = late.max().unwrap_or(*since).min(now);
                    let moved = self.latest_over(wait, now, touching).max(late);
                    from = from.max(wait.last_post).max(moved) + self.link_time;
                }
                if code == FailureCode::RegionLost {
                    // A gateway that drains dies at the end of it.
                    let dies = |strike: &Strike| strike.fault.what == FaultKind::Drain;
                    // A gateway that was stopped counts silence from when it goes on.
                    let stood = |strike: &Strike| {
                        let own = strike.fault.place == FaultPlace::Gateway(who.gateway);
                        own && strike.fault.what == FaultKind::Stop
                    };
                    let held = |s: &Strike| holds_back(s) || dies(s) || stood(s);
                    from = from.max(self.latest_over(wait, now, held));
                }
                if code == FailureCode::EpochEnded {
                    // What comes back ends it too.
                    let ends = causes().map(|strike| strike.end).filter(|end| *end <= now);
                    from = from.max(ends.max().unwrap_or(*since)).max(wait.expiry.min(now));
                }
                let over = self.latest_over(wait, now, touching).max(frozen);
                // A gateway that drains finishes what all had posted before.
                let is_finished = code == FailureCode::ShuttingDown
                    && complete.is_some_and(|at| at <= begun + self.limits.news);
                let limit = if is_finished { self.limits.drained } else { self.limits.of(code) };
                (from + limit).max(over + self.limits.news) + self.lateness(wait, now)
            }
        }
    }

    /// The latest end of a wait, with any outcome, after a gateway died.
    pub fn must_end(&self, wait: &Wait, now: TimeNs) -> Option<TimeNs> {
        let Wait { who, since, .. } = wait;
        // What the dead have sent may be under way for as long.
        let deceives = |strike: &Strike| freezes(strike, who) || holds_back(strike);
        let frozen = self.latest_end(wait, now, deceives);
        let deaths = self.strikes.iter().filter_map(|strike| match strike.fault {
            Fault { what: FaultKind::Kill, place: FaultPlace::Gateway(id), .. } => {
                let is_during = strike.begin <= now && strike.end > *since;
                let takes_part = who.scope.gateways.contains(id);
                (is_during && takes_part).then_some((id, strike.begin))
            }
            _ => None,
        });
        let ends = deaths.map(|(id, begin)| {
            let own = id == who.gateway;
            let code = if own { FailureCode::GatewayLost } else { FailureCode::RegionLost };
            let news = if own { Span::ZERO } else { self.limits.news };
            begin.max(*since).max(frozen) + self.limits.of(code) + news
        });
        ends.min()
    }

    /// The end of the last of these strikes that was in force during a wait, at most `now`.
    fn latest_end(&self, wait: &Wait, now: TimeNs, which: impl Fn(&Strike) -> bool) -> TimeNs {
        let during = |strike: &&Strike| strike.begin <= now && strike.end >= wait.since;
        let ends = self.strikes.iter().filter(during).filter(|strike| which(strike));
        ends.map(|strike| strike.end.min(now)).max().unwrap_or(wait.since)
    }

    /// The end of the last of these strikes that is over.
    fn latest_over(&self, wait: &Wait, now: TimeNs, which: impl Fn(&Strike) -> bool) -> TimeNs {
        self.latest_end(wait, now, |strike| strike.end <= now && which(strike))
    }

    /// The added delay of a request and its response during a wait.
    fn lateness(&self, wait: &Wait, now: TimeNs) -> Span {
        let during = self.strikes.iter().filter(|s| s.begin <= now && s.end >= wait.since);
        during.map(added_round_trip).max().unwrap_or(Span::ZERO)
    }

    fn may(&self, strike: &Strike, who: &Waiter, code: FailureCode) -> bool {
        use FailureCode::*;
        let broken = matches!(code, RegionLost | EpochEnded | Stalled | TimedOut);
        // A rank that has given an attempt up is awaited for nothing.
        let given_up = matches!(code, EpochEnded | TimedOut);
        let WaitScope { ranks, gateways, timeout } = who.scope;
        match (strike.fault.what, strike.fault.place) {
            // Another job's ranks are nothing to this one.
            (_, FaultPlace::Rank(job, _)) if job != who.job => false,
            (FaultKind::Kill, FaultPlace::Rank(_, rank)) => {
                given_up || code == RankLost && ranks >> rank & 1 == 1
            }
            // One region may have the result by then.
            (_, FaultPlace::Rank(..)) => {
                let long = strike.fault.lasting + self.limits.harmless >= timeout;
                long && given_up
            }
            // Whoever does without it knows nothing of it.
            (_, FaultPlace::Gateway(id)) if !gateways.contains(id) => given_up,
            (_, FaultPlace::Lane(_, pair) | FaultPlace::Link(pair, _)) if !gateways.joins(pair) => {
                given_up
            }
            (FaultKind::Stop, FaultPlace::Gateway(_)) => broken && self.is_long(strike),
            (what, FaultPlace::Gateway(id)) => {
                let drains = what == FaultKind::Drain && code == ShuttingDown;
                broken || drains || code == GatewayLost && id == who.gateway
            }
            // Others carry what it carried, if there are any.
            (_, FaultPlace::Lane(..)) => strike.cuts_off && broken,
            (what, FaultPlace::Link(..)) => {
                let lasting = strike.fault.lasting;
                let outwaits = match what {
                    // What takes several round trips may take longer than callers wait.
                    FaultKind::Delay(_) => lasting + self.limits.harmless >= timeout,
                    // So may what a slow link carries once it is over.
                    FaultKind::Disorder => lasting + self.link_time >= timeout,
                    _ => false,
                };
                let long = broken && is_quiet(strike) && self.is_long(strike);
                long || outwaits && given_up
            }
        }
    }

    /// The time until which packets may arrive although the strike is in force: late ones, and
    /// those of the other direction until that side gives up.
    fn moves_until(&self, strike: &Strike) -> Option<TimeNs> {
        let given_up = strike.begin + self.limits.of(FailureCode::RegionLost);
        match (strike.fault.what, strike.fault.place) {
            (FaultKind::Delay(_), _) => Some(strike.end),
            (FaultKind::Disorder, _) | (_, FaultPlace::Link(_, Direction::Both)) => None,
            (_, FaultPlace::Link(..)) => Some(strike.end.min(given_up)),
            _ => None,
        }
    }

    /// The time when a lane is known to be lost and its segments have come over another lane,
    /// including packet delays.
    fn known_lost(&self, lane: &Strike) -> TimeNs {
        let meanwhile = |s: &&Strike| s.begin <= lane.begin && lane.begin <= s.end;
        let late = self.strikes.iter().filter(meanwhile).map(added_round_trip).max();
        let late = late.unwrap_or(Span::ZERO);
        lane.begin + late + late
    }

    /// Whether it, with others of its kind that came before it had passed, was more than must do
    /// no harm.
    fn is_long(&self, strike: &Strike) -> bool {
        let harmless = self.limits.harmless;
        let mut chain: Option<(TimeNs, TimeNs)> = None;
        let mut holds = false;
        for next in &self.strikes {
            let until = match next.fault.place {
                FaultPlace::Lane(..) => self.known_lost(next),
                _ if is_quiet(next) => silent_until(next),
                _ => continue,
            };
            chain = match chain {
                Some((begin, end)) if next.begin <= end + harmless => Some((begin, end.max(until))),
                _ if holds => break,
                // A lane's loss matters to what is late already.
                _ if !is_quiet(next) => None,
                _ => Some((next.begin, silent_until(next))),
            };
            holds |= next.begin == strike.begin && next.fault == strike.fault;
        }
        chain.is_some_and(|(begin, end)| holds && end.since(begin) > harmless)
    }
}

/// 3 s: a lane that was closed is up again at both ends by then. It is dialled after a second.
const LANE_BACK_WITHIN: Span = Span::from_secs(3);

/// Whether it can hold up a job's collectives.
fn touches(strike: &Strike, job: usize) -> bool {
    !matches!(strike.fault.place, FaultPlace::Rank(other, _) if other != job)
}

/// Whether a rank could receive nothing meanwhile.
fn freezes(strike: &Strike, who: &Waiter) -> bool {
    let here = match strike.fault.place {
        FaultPlace::Rank(job, rank) => (job, rank) == (who.job, who.rank),
        FaultPlace::Gateway(id) => id == who.gateway,
        FaultPlace::Lane(..) | FaultPlace::Link(..) => false,
    };
    here && matches!(strike.fault.what, FaultKind::Stop | FaultKind::Drain)
}

/// The time that a strike adds to round trips.
fn added_round_trip(strike: &Strike) -> Span {
    match (strike.fault.what, strike.fault.place) {
        (FaultKind::Delay(by), FaultPlace::Link(_, Direction::Both)) => by + by,
        (FaultKind::Delay(by), _) => by,
        _ => Span::ZERO,
    }
}

/// Whether packets come from it that were sent long before.
fn holds_back(strike: &Strike) -> bool {
    let on_the_link = matches!(strike.fault.place, FaultPlace::Link(..));
    on_the_link && matches!(strike.fault.what, FaultKind::Delay(_) | FaultKind::Stop)
}

/// Whether a gateway, or the link, may be silent for a while.
fn is_quiet(strike: &Strike) -> bool {
    match (strike.fault.what, strike.fault.place) {
        (FaultKind::Stop, FaultPlace::Gateway(_)) => true,
        (FaultKind::Disorder, _) => false,
        (_, FaultPlace::Link(..)) => true,
        _ => false,
    }
}

/// The end of the silence, since nothing overtakes delayed packets.
fn silent_until(strike: &Strike) -> TimeNs {
    match strike.fault.what {
        FaultKind::Delay(_) => strike.begin + added_round_trip(strike),
        _ => strike.end,
    }
}
