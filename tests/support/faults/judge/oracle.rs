//! The promises that hold under every fault, checked against the outcome of each collective.

use crate::faults::judge::collective::{CollectiveId, CollectiveShape, Collectives};
use crate::faults::judge::crossing::{CrossingBytes, SentBytes};
use crate::faults::judge::harm::{Harm, Wait, WaitScope, Waiter};
use crate::faults::judge::outcomes::RunSummary;
use crate::faults::judge::side_load::SIDE_TIMEOUT;
use crate::faults::judge::store_history::{KEY_REQUESTS_MAX, StoreHistory};
use crate::faults::spec::fault::{Fault, FaultKind};
use crate::faults::spec::layout::Layout;
use crate::faults::spec::place::{FaultPlace, GatewayPlace, GatewaySet};
use crate::faults::spec::scenario::Scenario;
use crate::faults::timeline::Timeline;
use hier_collectives::ids::Epoch;
use hier_collectives::plan::Plan;
use hier_collectives::post::{Failure, FailureCode};
use hier_collectives::store::{StoreOutcome, StoreRequest};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use units::{Span, TimeNs};

/// The identity of a commit.
#[derive(Debug, Clone, Copy)]
pub struct Commit {
    /// The job, by number.
    pub job: usize,
    /// The attempt that is committed as a step.
    pub attempt: u64,
    /// The rank that commits.
    pub rank: u32,
}

/// The judge of one run.
#[derive(Debug)]
pub struct Oracle {
    collectives: Collectives,
    in_flight: u32,
    timeout: Span,
    layout: Layout,
    faults: Vec<Fault>,
    unharmed: bool,
    timeline: Timeline,
    state: Mutex<OracleState>,
}

#[derive(Debug)]
struct OracleState {
    harm: Harm,
    collectives: BTreeMap<CollectiveId, Collective>,
    /// Posted collectives without an outcome yet, each with its rank.
    under_way: BTreeSet<(CollectiveId, u32)>,
    /// Attempts that some rank knows to be complete in every region.
    committed: BTreeSet<(usize, u64)>,
    /// The last step of each job that some rank knows to be complete everywhere.
    confirmed: BTreeMap<usize, u64>,
    /// The latest epoch of each job, and the last complete step that its members know of.
    known: BTreeMap<usize, (Epoch, Option<u64>)>,
    /// The bytes of all operations that must cross links.
    must_cross: CrossingBytes,
    /// The requests to the store of each job.
    stores: Vec<StoreHistory>,
    told: RunSummary,
}

#[derive(Debug, Default)]
struct Collective {
    /// The result that every rank must get.
    known: Option<Arc<Vec<u8>>>,
    posts: BTreeMap<u32, TimeNs>,
    /// The outcome of each rank: a failure, or `None` for a result.
    heard: BTreeMap<u32, Option<FailureCode>>,
    /// A failure that some rank got from its gateway.
    failed: Option<Failure>,
}

impl Oracle {
    /// Returns the oracle of one run.
    pub fn new(scenario: &Scenario, plan: &Plan, timeline: Timeline) -> Self {
        let state = OracleState {
            harm: Harm::new(scenario),
            collectives: BTreeMap::new(),
            under_way: BTreeSet::new(),
            committed: BTreeSet::new(),
            confirmed: BTreeMap::new(),
            known: BTreeMap::new(),
            must_cross: CrossingBytes::default(),
            stores: scenario.shape.jobs.iter().map(|_| StoreHistory::default()).collect(),
            told: RunSummary::default(),
        };
        Self {
            collectives: Collectives::of(scenario, plan),
            in_flight: scenario.load.in_flight,
            timeout: scenario.load.timeout,
            layout: scenario.layout.clone(),
            faults: scenario.faults.clone(),
            unharmed: scenario.unharmed || scenario.faults.is_empty(),
            timeline,
            state: Mutex::new(state),
        }
    }

    /// Returns the kind and size of a collective.
    pub fn shape(&self, tag: CollectiveId) -> CollectiveShape {
        self.collectives.shape(tag)
    }

    /// Returns all collectives of the run.
    pub fn collectives(&self) -> &Collectives {
        &self.collectives
    }

    /// Returns the weight of a rank in an average.
    pub fn weight(&self, tag: CollectiveId, rank: u32) -> f64 {
        self.collectives.weight(tag, rank)
    }

    /// Returns the contribution of a rank.
    pub fn contribution(&self, tag: CollectiveId, rank: u32) -> Vec<u8> {
        self.collectives.contribution(tag, rank)
    }

    /// Records that a fault strikes.
    pub fn struck(&self, fault: &Fault, now: TimeNs) {
        let mut state = self.lock();
        state.harm.begins(*fault, now);
        let hit = state.under_way.iter().any(|(tag, _)| match fault.place {
            FaultPlace::Rank(job, _) => tag.job == job,
            _ => true,
        });
        state.told.struck(fault, hit);
    }

    /// Records that the lane that a fault struck was the only one.
    pub fn cut_off(&self, fault: &Fault, now: TimeNs) {
        self.lock().harm.cuts_off(fault, now);
    }

    /// Records that a rank posts.
    pub fn posted(&self, tag: CollectiveId, rank: u32, now: TimeNs) {
        let mut state = self.lock();
        let posts = &mut state.collectives.entry(tag).or_default().posts;
        let is_first = posts.is_empty();
        posts.insert(rank, now);
        if is_first {
            let more = self.collectives.crossing(tag);
            state.must_cross.add(more);
        }
        state.under_way.insert((tag, rank));
    }

    /// Records that the process of a rank is gone, with all that the rank waited for.
    pub fn died(&self, job: usize, rank: u32) {
        self.lock().under_way.retain(|(tag, who)| (tag.job, *who) != (job, rank));
    }

    /// Checks the outcome of a collective at a rank.
    pub fn completed(
        &self,
        tag: CollectiveId,
        rank: u32,
        outcome: Result<Vec<u8>, &Failure>,
        now: TimeNs,
    ) {
        let mut state = self.lock();
        state.under_way.remove(&(tag, rank));
        let code = outcome.as_ref().err().map(|failure| failure.code);
        if let Some(wait) = self.wait(&state, tag, rank, false) {
            let what = format!("{tag}: rank {rank} got an outcome");
            self.keeps(&mut state, &what, &wait, code, now);
        }
        state.collectives.entry(tag).or_default().heard.insert(rank, code);
        match outcome {
            Ok(result) => self.got(&mut state, tag, rank, &result),
            Err(failure) => {
                state.told.count(&format!("{:?}", failure.code));
                let since = state.since(tag, rank).unwrap_or(now);
                let who = self.waiter(tag, rank);
                self.must_be_possible(&mut state, &who, failure, since, now);
                // A rank whose gateway died cannot know what stood in its slots by then.
                if failure.code != FailureCode::GatewayLost {
                    let committed = state.committed.contains(&(tag.job, tag.attempt));
                    if committed && self.collectives.is_of_job(tag) {
                        let text = format!("{tag}: rank {rank} got {failure} after a commit");
                        self.blame(&mut state, text);
                    }
                    state.collectives.entry(tag).or_default().failed = Some(failure.clone());
                }
            }
        }
    }

    fn got(&self, state: &mut OracleState, tag: CollectiveId, rank: u32, result: &[u8]) {
        let collective = state.collectives.entry(tag).or_default();
        let posts = &collective.posts;
        let missing: Vec<u32> = self
            .collectives
            .needs(tag, rank)
            .into_iter()
            .filter(|needed| !posts.contains_key(needed))
            .collect();
        let wrong = if !missing.is_empty() {
            Some(format!("is done though ranks {missing:?} have not posted"))
        } else if self.collectives.gets(tag, rank) {
            self.collectives.judge(tag, rank, &mut collective.known, result).err()
        } else {
            None
        };
        if let Some(wrong) = wrong {
            self.blame(state, format!("{tag}: rank {rank} {wrong}"));
        }
        state.told.count("completed");
        if let Some(way) = self.collectives.relayed(tag) {
            state.told.count(way);
        }
        let kind = self.collectives.shape(tag).kind();
        *state.told.completed.entry(kind).or_default() += 1;
    }

    /// Checks the outcome of a commit that a rank began at `begun`.
    pub fn committed(
        &self,
        commit: Commit,
        outcome: Result<(), &Failure>,
        begun: TimeNs,
        now: TimeNs,
    ) {
        let mut state = self.lock();
        let Commit { job, attempt, rank } = commit;
        let who = format!("job {job}, attempt {attempt}: rank {rank}");
        let all = (0..self.in_flight).map(|index| CollectiveId { job, attempt, index });
        let of = all.map(|tag| state.collectives.get(&tag)).collect::<Vec<_>>();
        let everybody = of.iter().all(|collective| {
            collective
                .is_some_and(|collective| collective.posts.len() == self.layout.world() as usize)
        });
        let posts = || of.iter().flatten().flat_map(|collective| collective.posts.values());
        let complete = posts().max().copied().filter(|_| everybody);
        let first = posts().min().copied().unwrap_or(begun);
        let failed = of.iter().flatten().find_map(|collective| collective.failed.clone());
        let wait = Wait {
            who: self.who(job, rank),
            since: begun,
            complete,
            last_post: state.last_post(CollectiveId { job, attempt, index: 0 }),
            // The collectives' timeouts, and then its own.
            first_expiry: first + self.timeout,
            expiry: first + self.timeout,
            last_expiry: begun + self.timeout,
            for_slots: false,
        };
        let code = outcome.err().map(|failure| failure.code);
        self.keeps(&mut state, &format!("{who} got an answer to its commit"), &wait, code, now);
        match outcome {
            Ok(()) => {
                state.told.count("commit confirmed");
                if !everybody {
                    self.blame(
                        &mut state,
                        format!("{who} committed though some rank has not posted"),
                    );
                }
                if let Some(failure) = failed {
                    let text = format!("{who} committed, but some rank got {failure}");
                    self.blame(&mut state, text);
                }
                state.committed.insert((job, attempt));
                let confirmed = state.confirmed.entry(job).or_default();
                *confirmed = (*confirmed).max(attempt);
            }
            Err(failure) => {
                state.told.count(&format!("commit {:?}", failure.code));
                let first = CollectiveId { job, attempt, index: 0 };
                let since = state.since(first, rank).unwrap_or(begun);
                self.must_be_possible(&mut state, &self.who(job, rank), failure, since, now);
            }
        }
    }

    /// Records the last complete step that a rank knew of as an epoch began.
    pub fn knows(&self, job: usize, rank: u32, epoch: Epoch, step: Option<u64>) {
        let mut state = self.lock();
        let (of, known) = *state.known.entry(job).or_insert((epoch, step));
        if of != epoch {
            state.known.insert(job, (epoch, step));
        } else if known != step {
            let text = format!(
                "job {job}: rank {rank} begins epoch {epoch} after step {step:?}, another rank \
                 after {known:?}"
            );
            self.blame(&mut state, text);
        }
        let confirmed = state.confirmed.get(&job).copied();
        // A gateway that is started again has forgotten, and it may be the only one that knew.
        if !self.strikes(|fault| {
            matches!(fault.what, FaultKind::Kill | FaultKind::Drain)
                && matches!(fault.place, FaultPlace::Gateway(_))
        }) && step < confirmed
        {
            let text = format!(
                "job {job}: rank {rank} begins epoch {epoch} after step {step:?}, but \
                 {confirmed:?} was confirmed"
            );
            self.blame(&mut state, text);
        }
    }

    /// Records that a gateway is gone, and the epoch with it.
    pub fn epoch_over(&self) {
        self.lock().known.clear();
    }

    /// Records that the slots of a collective are free again, and checks the contribution.
    pub fn freed(&self, tag: CollectiveId, rank: u32, intact: bool, now: TimeNs) {
        let mut state = self.lock();
        let heard = state.collectives.get(&tag).and_then(|collective| collective.heard.get(&rank));
        let code = heard.copied().flatten();
        if let Some(wait) = self.wait(&state, tag, rank, true) {
            let what = format!("{tag}: rank {rank} got its slots");
            self.keeps(&mut state, &what, &wait, code, now);
        }
        if !intact {
            self.blame(&mut state, format!("{tag}: the contribution of rank {rank} changed"));
        }
    }

    /// Records the most memory that a gateway mapped for a job, and its limit, in bytes.
    pub fn used(&self, gateway: &str, job: &str, most: u64, limit: u64) {
        let mut state = self.lock();
        state.told.used(most, limit);
        if most > limit {
            let text = format!("{gateway}: {most} bytes for job {job}, {limit} allowed");
            self.blame(&mut state, text);
        }
    }

    /// Records the time after the last fault at which a job works again.
    pub fn recovered(&self, after: Span) {
        let mut state = self.lock();
        state.told.recovery = state.told.recovery.max(after);
    }

    /// Returns true if a gateway, or a thing that it needs, was stopped since then.
    pub fn was_stopped(&self, gateway: GatewayPlace, since: TimeNs) -> bool {
        self.lock().harm.stops(gateway, since)
    }

    /// Checks a failed attempt: a fault that touches the job must have been in force.
    pub fn attempt_failed(&self, job: usize, attempt: u64, begun: TimeNs, now: TimeNs) {
        let mut state = self.lock();
        if self.unharmed || !state.harm.reaches(job, begun, now) {
            let text =
                format!("job {job}: attempt {attempt} failed without a fault that may do that");
            self.blame(&mut state, text);
        }
    }

    /// Records that a rank lost its connection to its gateway.
    pub fn detached(&self, job: usize, rank: u32, why: &str, now: TimeNs) {
        let mut state = self.lock();
        let who = self.who(job, rank);
        let lost = state.harm.causes(&who, FailureCode::GatewayLost, now, now).next().is_some();
        if !lost {
            self.blame(&mut state, format!("job {job}: rank {rank} lost its gateway: {why}"));
        }
    }

    /// Checks the failure of a rank that could not make a group, or not post a collective.
    pub fn refused(&self, tag: CollectiveId, rank: u32, failure: &Failure, now: TimeNs) {
        let mut state = self.lock();
        state.told.count(&format!("refused {:?}", failure.code));
        let since = state.since(CollectiveId { index: 0, ..tag }, rank).unwrap_or(now);
        self.must_be_possible(&mut state, &self.waiter(tag, rank), failure, since, now);
    }

    /// Checks the bytes that gateways of different regions have sent to each other for the first time.
    pub fn judge_bytes(&self, sent: SentBytes) {
        let mut state = self.lock();
        for text in state.must_cross.differences(sent, &self.layout) {
            self.blame(&mut state, text);
        }
    }

    /// Returns a number for keys of the store of a job; no key with it gets more requests than can be
    /// judged.
    pub fn store_generation(&self, job: usize) -> usize {
        self.lock().stores[job].len() / KEY_REQUESTS_MAX
    }

    /// Records that a rank calls the store of its job; returns the number of the request.
    pub fn store_called(&self, job: usize, request: &StoreRequest, now: TimeNs) -> usize {
        self.lock().stores[job].call(request.clone(), now)
    }

    /// Records the answer to a request to a store.
    pub fn store_answered(&self, job: usize, number: usize, outcome: StoreOutcome, now: TimeNs) {
        let mut state = self.lock();
        state.told.count("store answered");
        state.stores[job].answer(number, outcome, now);
    }

    /// Records that a request to a store has changed nothing and will not.
    pub fn store_unchanged(&self, job: usize, number: usize) {
        self.lock().stores[job].withdraw(number);
    }

    /// Checks the requests to the stores of all jobs.
    pub fn judge_stores(&self) {
        let ends = |gateway: GatewayPlace| {
            self.strikes(|fault| {
                matches!(fault.what, FaultKind::Kill | FaultKind::Drain)
                    && fault.place == FaultPlace::Gateway(gateway)
            })
        };
        if self.layout.gateways().all(ends) {
            // Nobody may be left who holds the store.
            return;
        }
        let mut state = self.lock();
        let told = |(job, store): (usize, &StoreHistory)| {
            store.contradiction().map(|why| format!("job {job}: {why}"))
        };
        let wrong: Vec<String> = state.stores.iter().enumerate().filter_map(told).collect();
        wrong.into_iter().for_each(|why| self.blame(&mut state, why));
    }

    /// Records any other violated promise.
    pub fn wrong(&self, what: String) {
        self.blame(&mut self.lock(), what);
    }

    /// Returns the summary so far.
    pub fn summary(&self) -> RunSummary {
        self.lock().told.clone()
    }

    /// Forgets the collectives of a job's attempts below `before`.
    pub fn forget(&self, job: usize, before: u64) {
        let mut state = self.lock();
        state.collectives.retain(|tag, _| tag.job != job || tag.attempt >= before);
        state.committed.retain(|(of, attempt)| *of != job || *attempt >= before);
    }

    /// Returns the wait of a rank that has posted, for its result or for its slots.
    fn wait(
        &self,
        state: &OracleState,
        tag: CollectiveId,
        rank: u32,
        for_slots: bool,
    ) -> Option<Wait> {
        let collective = state.collectives.get(&tag)?;
        let since = collective.posts.get(&rank).copied()?;
        let needs = self.collectives.needs(tag, rank);
        let complete: Option<Vec<TimeNs>> =
            needs.iter().map(|rank| collective.posts.get(rank).copied()).collect();
        let first = collective.posts.values().min().copied().unwrap_or(since);
        let timeout = self.scope(tag).timeout;
        // Ranks of a group may post in different epochs of it, where they do not meet.
        let from = if self.collectives.is_of_job(tag) { first } else { since };
        let like = |other: &CollectiveId| self.is_in_order_with(*other, tag);
        Some(Wait {
            who: self.waiter(tag, rank),
            since,
            complete: complete.and_then(|posts| posts.into_iter().max()),
            last_post: state.last_post(tag),
            first_expiry: state.first_post(tag, like) + timeout,
            expiry: from + timeout,
            last_expiry: state.last_post_of(tag, like) + timeout,
            for_slots,
        })
    }

    /// Checks that a wait ended in time.
    fn keeps(
        &self,
        state: &mut OracleState,
        what: &str,
        wait: &Wait,
        code: Option<FailureCode>,
        now: TimeNs,
    ) {
        if code == Some(FailureCode::TimedOut) && now < wait.first_expiry {
            let early = wait.first_expiry.since(now);
            self.blame(state, format!("{what}, code 3, {early} before the timeout"));
        }
        let deadline = state.harm.deadline(wait, code, now);
        let name = code.map_or("good".to_owned(), |code| format!("{code:?}"));
        state.told.waited(&name, wait.since, deadline, now);
        if now > deadline {
            let late = now.since(deadline);
            self.blame(state, format!("{what} ({name}) {late} after the deadline"));
        }
        if let Some(end) = state.harm.must_end(wait, now).filter(|end| now > *end) {
            let late = now.since(end);
            self.blame(state, format!("{what} ({name}) {late} after a gateway's death was due"));
        }
    }

    /// Checks that a failure names a fault that happened and that can affect the rank.
    fn must_be_possible(
        &self,
        state: &mut OracleState,
        who: &Waiter,
        failure: &Failure,
        since: TimeNs,
        now: TimeNs,
    ) {
        let Waiter { job, rank, .. } = who;
        let possible = state.harm.causes(who, failure.code, since, now).next().is_some();
        if self.unharmed || !possible {
            let text =
                format!("job {job}: rank {rank} got a failure that no fault explains: {failure}");
            self.blame(state, text);
        }
    }

    /// Returns a rank as one that waits for all others of its job, with its gateway.
    fn who(&self, job: usize, rank: u32) -> Waiter {
        self.waiter(CollectiveId { job, attempt: 0, index: 0 }, rank)
    }

    /// Returns a rank as one that waits for a collective, with its gateway.
    fn waiter(&self, tag: CollectiveId, rank: u32) -> Waiter {
        let gateway = self.layout.gateway_of(rank);
        Waiter { job: tag.job, rank, gateway, scope: self.scope(tag) }
    }

    /// Returns what faults can reach of a collective.
    fn scope(&self, tag: CollectiveId) -> WaitScope {
        if self.collectives.is_of_job(tag) {
            let gateways = GatewaySet::ALL;
            return WaitScope { ranks: u32::MAX, gateways, timeout: self.timeout };
        }
        let gateways = self.collectives.gateways(tag);
        let ranks = self.collectives.participants(tag);
        let ranks = ranks.iter().fold(0, |bits, rank| bits | 1 << rank);
        WaitScope { ranks, gateways, timeout: SIDE_TIMEOUT }
    }

    /// Whether two collectives of an attempt are both of the job, of its group, or sends.
    fn is_in_order_with(&self, one: CollectiveId, other: CollectiveId) -> bool {
        let kind = |tag| (self.collectives.is_of_job(tag), self.collectives.is_send(tag));
        kind(one) == kind(other)
    }

    fn strikes(&self, wanted: impl Fn(&Fault) -> bool) -> bool {
        self.faults.iter().any(wanted)
    }

    fn blame(&self, state: &mut OracleState, what: String) {
        self.timeline.say("WRONG", || &what);
        state.told.wrong.push(what);
    }

    fn lock(&self) -> MutexGuard<'_, OracleState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OracleState {
    /// The time of the last post in the attempt of a collective.
    fn last_post(&self, tag: CollectiveId) -> TimeNs {
        let posts = self.of_attempt(tag).flat_map(|(_, collective)| collective.posts.values());
        posts.max().copied().unwrap_or_default()
    }

    /// The time of the last post of some collectives in the attempt of a collective.
    fn last_post_of(&self, tag: CollectiveId, which: impl Fn(&CollectiveId) -> bool) -> TimeNs {
        let some = self.of_attempt(tag).filter(|(tag, _)| which(tag));
        let posts = some.flat_map(|(_, collective)| collective.posts.values());
        posts.max().copied().unwrap_or_default()
    }

    /// The time of the first post of some collectives in the attempt of a collective.
    fn first_post(&self, tag: CollectiveId, which: impl Fn(&CollectiveId) -> bool) -> TimeNs {
        let some = self.of_attempt(tag).filter(|(tag, _)| which(tag));
        let posts = some.flat_map(|(_, collective)| collective.posts.values());
        posts.min().copied().unwrap_or_default()
    }

    /// The time when a rank began the attempt of a collective.
    fn since(&self, tag: CollectiveId, rank: u32) -> Option<TimeNs> {
        let of_it = self.of_attempt(tag);
        of_it.filter_map(|(_, collective)| collective.posts.get(&rank).copied()).min()
    }

    /// All collectives of the attempt of a collective.
    fn of_attempt(&self, of: CollectiveId) -> impl Iterator<Item = (&CollectiveId, &Collective)> {
        let all = self.collectives.range(CollectiveId { index: 0, ..of }..);
        all.take_while(move |(tag, _)| (tag.job, tag.attempt) == (of.job, of.attempt))
    }
}
