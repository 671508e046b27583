//! The requests of the trainers of one gateway, until they are answered or their time is over.

use super::limits::{
    COMMAND_WINDOW, COMMAND_WINDOW_BYTES, WAITING_BYTES_MAX, WAITING_REQUESTS_MAX,
};
use super::replication::{StoreBallotVersion, StoreReplica};
use super::request::{
    StoreAnswer, StoreCommand, StoreFailure, StoreFailureCode, StoreOutcome, StoreQuery,
    StoreRequest,
};
use super::state::StoreEntry;
use crate::ids::{BootId, GatewayId};
use std::collections::{BTreeMap, BTreeSet};
use units::{ByteCount, Span, TimeNs};

/// A trainer's request, by its connection and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoreCaller {
    /// The number of the connection.
    pub attachment: u64,
    /// The number of the request.
    pub number: u64,
}

/// The requests that wait.
#[derive(Debug)]
pub(super) struct PendingStoreRequests {
    me: GatewayId,
    boot: BootId,
    commands: BTreeMap<u64, WaitingCommand>,
    next_command: u64,
    queries: BTreeMap<u64, WaitingQuery>,
    next_query: u64,
    deadlines: BTreeSet<(TimeNs, WaitingNumber)>,
    /// The bytes of keys and values in the requests.
    bytes: usize,
    /// The state that the requests have seen, and what of it all gateways held.
    seen: Option<(StoreBallotVersion, StoreBallotVersion)>,
    /// Whether requests came since.
    has_new: bool,
}

/// A command or a query that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum WaitingNumber {
    Command(u64),
    Query(u64),
}

/// A command without an answer.
#[derive(Debug)]
struct WaitingCommand {
    caller: StoreCaller,
    command: StoreCommand,
    timeout: Span,
    deadline: TimeNs,
    /// Whether the leader may know it.
    is_sent: bool,
    /// Whether it has to be given to the leader.
    is_due: bool,
    /// The first state that is known to have its outcome.
    carried_out: Option<StoreBallotVersion>,
}

/// A query without an answer.
#[derive(Debug)]
struct WaitingQuery {
    caller: StoreCaller,
    query: StoreQuery,
    timeout: Span,
    deadline: TimeNs,
    /// The place of a key in the query that was not there at the last look.
    missing: Option<usize>,
    /// The answer, and the state that it was taken from.
    found: Option<(StoreBallotVersion, StoreOutcome)>,
}

/// The answer to a request.
pub(super) type AnsweredRequest = (StoreCaller, StoreAnswer);

impl PendingStoreRequests {
    /// Makes the requests of a start of a gateway, of which there are none yet.
    pub fn new(me: GatewayId, boot: BootId) -> Self {
        Self {
            me,
            boot,
            commands: BTreeMap::new(),
            next_command: 0,
            queries: BTreeMap::new(),
            next_query: 0,
            deadlines: BTreeSet::new(),
            bytes: 0,
            seen: None,
            has_new: false,
        }
    }

    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty() && self.queries.is_empty()
    }

    /// Adds a request. Returns a failure in its place if too many requests, or bytes of them, wait;
    /// else `None`.
    pub fn add(
        &mut self,
        caller: StoreCaller,
        request: StoreRequest,
        timeout: Span,
        now: TimeNs,
    ) -> Option<AnsweredRequest> {
        if self.commands.len() + self.queries.len() >= WAITING_REQUESTS_MAX {
            let text = format!("{WAITING_REQUESTS_MAX} requests wait at this gateway already");
            return Some((caller, Err(StoreFailure { code: StoreFailureCode::Busy, text })));
        }
        let bytes = match &request {
            StoreRequest::Command(command) => command.bytes(),
            StoreRequest::Query(query) => query.bytes(),
        };
        if self.bytes + bytes > WAITING_BYTES_MAX {
            let most = ByteCount::new(WAITING_BYTES_MAX as u64);
            let text = format!("requests of {most} wait at this gateway already");
            return Some((caller, Err(StoreFailure { code: StoreFailureCode::Busy, text })));
        }
        self.bytes += bytes;
        let deadline = now + timeout;
        self.has_new = true;
        let number = match request {
            StoreRequest::Command(command) => {
                let (is_sent, is_due, carried_out) = (false, true, None);
                let waiting = WaitingCommand {
                    caller,
                    command,
                    timeout,
                    deadline,
                    is_sent,
                    is_due,
                    carried_out,
                };
                let number = self.next_command;
                self.next_command += 1;
                self.commands.insert(number, waiting);
                WaitingNumber::Command(number)
            }
            StoreRequest::Query(query) => {
                let (missing, found) = (None, None);
                let waiting = WaitingQuery { caller, query, timeout, deadline, missing, found };
                let number = self.next_query;
                self.next_query += 1;
                self.queries.insert(number, waiting);
                WaitingNumber::Query(number)
            }
        };
        self.deadlines.insert((deadline, number));
        None
    }

    /// Forgets the requests of a connection. Commands that were sent may still be carried out.
    pub fn forget(&mut self, attachment: u64) {
        let is_of = |caller: StoreCaller| caller.attachment == attachment;
        let commands = self.commands.iter().filter(|(_, waiting)| is_of(waiting.caller));
        let commands = commands.map(|(id, one)| (one.deadline, WaitingNumber::Command(*id)));
        let queries = self.queries.iter().filter(|(_, waiting)| is_of(waiting.caller));
        let queries = queries.map(|(id, one)| (one.deadline, WaitingNumber::Query(*id)));
        let forgotten: Vec<_> = commands.chain(queries).collect();
        forgotten.into_iter().for_each(|(deadline, number)| self.remove(deadline, number));
    }

    /// Returns the earliest deadline of a request; `None` while no request waits.
    pub fn deadline(&self) -> Option<TimeNs> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Gives all commands to the leader another time: it may have lost them.
    pub fn repeat_commands(&mut self) {
        self.commands.values_mut().for_each(|waiting| waiting.is_due = true);
    }

    /// Returns the commands to give to the leader now, and marks them as sent. They are due, not
    /// known to be carried out, and within [`COMMAND_WINDOW`] and [`COMMAND_WINDOW_BYTES`] of the
    /// oldest that waits.
    pub fn take_due_commands(&mut self) -> Vec<StoreEntry> {
        let Some(below) = self.commands.keys().next().copied() else { return Vec::new() };
        let (origin, boot) = (self.me, self.boot);
        let mut bytes = 0;
        let window = self.commands.range_mut(below..below + COMMAND_WINDOW);
        let window = window.take_while(|(_, waiting)| {
            bytes += waiting.command.bytes();
            bytes <= COMMAND_WINDOW_BYTES
        });
        let due = window.filter(|(_, waiting)| waiting.is_due && waiting.carried_out.is_none());
        let entries = due.map(|(number, waiting)| {
            (waiting.is_due, waiting.is_sent) = (false, true);
            let (number, command) = (*number, waiting.command.clone());
            StoreEntry { origin, boot, number, below, command }
        });
        entries.collect()
    }

    /// Whether requests wait for other gateways, and not only for a condition.
    pub fn is_waiting_for_gateways(&self, replica: &StoreReplica) -> bool {
        let waits = |waiting: &WaitingQuery| waiting.found.is_some() || replica.state().is_none();
        !self.commands.is_empty() || self.queries.values().any(waits)
    }

    /// Runs waiting requests against the replica, and returns the answers that rest on committed
    /// versions.
    pub fn follow(&mut self, replica: &StoreReplica) -> Vec<AnsweredRequest> {
        let (Some(state), Some(version), Some(committed)) =
            (replica.state(), replica.version(), replica.committed())
        else {
            return Vec::new();
        };
        let before = self.seen.replace((version, committed));
        if before == self.seen && !std::mem::take(&mut self.has_new) {
            return Vec::new();
        }
        self.has_new = false;
        let is_new_ballot = before.is_none_or(|(before, _)| before.ballot != version.ballot);
        if is_new_ballot {
            self.forget_states();
        }
        let mut answered = Vec::new();
        for (number, waiting) in self.commands.range_mut(..).take(COMMAND_WINDOW as usize) {
            let outcome = state.outcome(self.me, self.boot, *number);
            if waiting.carried_out.is_none() && outcome.is_some() {
                waiting.carried_out = Some(version);
            }
            if let Some(outcome) = outcome
                && waiting.carried_out.is_some_and(|at| at <= committed)
            {
                let number = WaitingNumber::Command(*number);
                answered.push((number, waiting.deadline, waiting.caller, outcome.clone()));
            }
        }
        for (number, waiting) in &mut self.queries {
            // While the key is missing that was missing before, the others need no look.
            let is_missing = |at: usize| state.lacks(&waiting.query, at);
            if waiting.found.is_none() && !waiting.missing.is_some_and(is_missing) {
                waiting.found = state.answer(&waiting.query).map(|outcome| (version, outcome));
                let count = waiting.query.key_count();
                let missing = || (0..count).find(|at| state.lacks(&waiting.query, *at));
                waiting.missing = if waiting.found.is_none() { missing() } else { None };
            }
            if let Some((at, outcome)) = &waiting.found
                && *at <= committed
            {
                let number = WaitingNumber::Query(*number);
                answered.push((number, waiting.deadline, waiting.caller, outcome.clone()));
            }
        }
        let answers = answered.into_iter().map(|(number, deadline, caller, outcome)| {
            self.remove(deadline, number);
            (caller, answer_of_pending_requests(outcome))
        });
        answers.collect()
    }

    /// Fails the requests whose time is over. With `has_state`, when this gateway holds a state, a
    /// query hears which key was not there. All others hear that the store waited for `awaited`.
    pub fn expire(&mut self, awaited: &str, has_state: bool, now: TimeNs) -> Vec<AnsweredRequest> {
        let mut answers = Vec::new();
        while let Some((deadline, number)) =
            self.deadlines.first().copied().filter(|(deadline, _)| *deadline <= now)
        {
            let expired = match number {
                WaitingNumber::Command(number) => self.commands.get(&number).map(|waiting| {
                    let code = if waiting.is_sent {
                        StoreFailureCode::Unconfirmed
                    } else {
                        StoreFailureCode::TimedOut
                    };
                    let cause = ExpiredRequestCause::Gateways(awaited);
                    (waiting.caller, code, waiting.timeout, cause)
                }),
                WaitingNumber::Query(number) => self.queries.get(&number).map(|waiting| {
                    let is_untrue = has_state && waiting.found.is_none();
                    let missing = || waiting.query.key_text(waiting.missing.unwrap_or_default());
                    let cause = match is_untrue {
                        true => ExpiredRequestCause::Key(missing()),
                        false => ExpiredRequestCause::Gateways(awaited),
                    };
                    (waiting.caller, StoreFailureCode::TimedOut, waiting.timeout, cause)
                }),
            };
            if let Some((caller, code, timeout, cause)) = expired {
                answers
                    .push((caller, Err(expired_pending_requests_failure(code, timeout, &cause))));
            }
            self.remove(deadline, number);
        }
        answers
    }

    /// Forgets in which state outcomes and answers were found, since another state may have
    /// replaced it. All commands are due again.
    fn forget_states(&mut self) {
        for waiting in self.commands.values_mut() {
            (waiting.carried_out, waiting.is_due) = (None, true);
        }
        self.queries.values_mut().for_each(|waiting| waiting.found = None);
    }

    /// Removes a request and its deadline, and no longer counts its bytes.
    fn remove(&mut self, deadline: TimeNs, number: WaitingNumber) {
        self.deadlines.remove(&(deadline, number));
        match number {
            WaitingNumber::Command(number) => {
                let removed = self.commands.remove(&number);
                self.bytes -= removed.map_or(0, |waiting| waiting.command.bytes());
            }
            WaitingNumber::Query(number) => {
                let removed = self.queries.remove(&number);
                self.bytes -= removed.map_or(0, |waiting| waiting.query.bytes());
            }
        }
    }
}

/// Makes the answer of an outcome; a refusal becomes a failure.
fn answer_of_pending_requests(outcome: StoreOutcome) -> StoreAnswer {
    match outcome {
        StoreOutcome::Refused(refusal) => {
            Err(StoreFailure { code: StoreFailureCode::Refused, text: refusal.to_string() })
        }
        outcome => Ok(outcome),
    }
}

/// Why the time of a request was over before its answer.
enum ExpiredRequestCause<'a> {
    /// A key was not there, or its queue had too few items.
    Key(String),
    /// The store waited for these gateways.
    Gateways(&'a str),
}

/// Makes the failure of a request whose time is over.
fn expired_pending_requests_failure(
    code: StoreFailureCode,
    timeout: Span,
    cause: &ExpiredRequestCause<'_>,
) -> StoreFailure {
    let consequence = match code {
        StoreFailureCode::Unconfirmed => "the change may have been made, or may still be",
        _ => "nothing was changed",
    };
    let text = match cause {
        ExpiredRequestCause::Key(key) => {
            format!("key `{key}` was not there within {timeout}; {consequence}")
        }
        ExpiredRequestCause::Gateways(awaited) => format!(
            "the store waited {timeout} for {awaited}, and goes on once all gateways of the job \
             can be reached; {consequence}"
        ),
    };
    StoreFailure { code, text }
}
