//! The requests to the store of one job, and whether some order of them explains all answers.
//!
//! Every request is about one key, and a store is as one thread would keep it if each key is. So the
//! requests about each key are checked alone.

use hier_collectives::store::{StoreCommand, StoreKey, StoreOutcome, StoreQuery, StoreRequest};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use units::TimeNs;

/// 32 requests about one key, at most, since the search for an order grows with them.
pub const KEY_REQUESTS_MAX: usize = 32;

/// All requests to one store, in the order of their calls.
#[derive(Debug, Default)]
pub struct StoreHistory {
    requests: Vec<KeyRequest>,
}

/// A request about one key.
#[derive(Debug, Clone)]
struct KeyRequest {
    request: StoreRequest,
    called: TimeNs,
    answer: KeyAnswer,
}

/// The answer to a request.
#[derive(Debug, Clone)]
enum KeyAnswer {
    /// None: it may have been carried out at any time after the call, or never.
    Unknown,
    /// It was not carried out.
    Never,
    /// The outcome, and the time when the rank had it.
    Outcome(TimeNs, StoreOutcome),
}

/// A key as one thread would keep it: its value and its queue.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct KeyModel {
    value: Option<Vec<u8>>,
    queue: VecDeque<Vec<u8>>,
}

impl StoreHistory {
    /// Records a call; returns its number.
    pub fn call(&mut self, request: StoreRequest, now: TimeNs) -> usize {
        self.requests.push(KeyRequest { request, called: now, answer: KeyAnswer::Unknown });
        self.requests.len() - 1
    }

    /// Records the answer to a call.
    pub fn answer(&mut self, number: usize, outcome: StoreOutcome, now: TimeNs) {
        self.requests[number].answer = KeyAnswer::Outcome(now, outcome);
    }

    /// Records that a call has changed nothing and will not.
    pub fn withdraw(&mut self, number: usize) {
        self.requests[number].answer = KeyAnswer::Never;
    }

    /// Returns the number of requests so far.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Returns the requests about a key whose answers no order explains; `None` if there is none.
    pub fn contradiction(&self) -> Option<String> {
        let mut by_key: BTreeMap<StoreKey, Vec<&KeyRequest>> = BTreeMap::new();
        let counted = |request: &&KeyRequest| !matches!(request.answer, KeyAnswer::Never);
        for request in self.requests.iter().filter(counted) {
            by_key.entry(request.key()).or_default().push(request);
        }
        let wrong = by_key.into_iter().find(|(_, requests)| !has_order(requests));
        wrong.map(|(key, requests)| {
            let key = String::from_utf8_lossy(&key).into_owned();
            let requests = requests.into_iter().map(KeyRequest::text).collect::<Vec<_>>();
            format!("no order of requests explains the store's key {key}: {}", requests.join("; "))
        })
    }
}

impl KeyRequest {
    /// Returns the one key of the request.
    fn key(&self) -> StoreKey {
        match &self.request {
            StoreRequest::Command(command) => match command {
                StoreCommand::Set(pairs) => pairs[0].0.clone(),
                StoreCommand::Delete(key) | StoreCommand::Pop(key) => key.clone(),
                StoreCommand::Add { key, .. }
                | StoreCommand::CompareSet { key, .. }
                | StoreCommand::Append { key, .. }
                | StoreCommand::Push { key, .. } => key.clone(),
            },
            StoreRequest::Query(query) => match query {
                StoreQuery::Get(keys) | StoreQuery::Wait(keys) | StoreQuery::Check(keys) => {
                    keys[0].clone()
                }
                StoreQuery::QueueLength { key, .. } => key.clone(),
                StoreQuery::Count | StoreQuery::List { .. } => vec![],
            },
        }
    }

    /// Returns call and answer in words.
    fn text(&self) -> String {
        let Self { request, called, answer } = self;
        format!("{request:?} called at {called:?}, {answer:?}")
    }

    /// Returns the time of the answer, if there was one.
    fn end(&self) -> Option<TimeNs> {
        match &self.answer {
            KeyAnswer::Outcome(at, _) => Some(*at),
            KeyAnswer::Unknown | KeyAnswer::Never => None,
        }
    }
}

impl KeyModel {
    /// Carries a request out; `None` if it has no answer in this state.
    fn execute(&mut self, request: &StoreRequest) -> Option<StoreOutcome> {
        let command = match request {
            StoreRequest::Query(StoreQuery::Get(_)) => {
                return self.value.clone().map(|value| StoreOutcome::Values(vec![value]));
            }
            StoreRequest::Query(StoreQuery::Check(_)) => {
                return Some(StoreOutcome::Flag(self.exists()));
            }
            StoreRequest::Query(_) => return Some(self.length()),
            StoreRequest::Command(command) => command,
        };
        Some(match command {
            StoreCommand::Set(pairs) => {
                self.value = Some(pairs[0].1.clone());
                StoreOutcome::Done
            }
            StoreCommand::Add { amount, .. } => {
                let text =
                    self.value.as_ref().map(|value| String::from_utf8_lossy(value).into_owned());
                let sum = text.map_or(0, |text| text.parse().unwrap_or(0)) + amount;
                self.value = Some(sum.to_string().into_bytes());
                StoreOutcome::Number(sum)
            }
            StoreCommand::CompareSet { expected, desired, .. } => {
                let found = self.value.clone().unwrap_or_default();
                if found == *expected {
                    self.value = Some(desired.clone());
                }
                // A key without a value answers with what was expected.
                let now = self.value.clone().unwrap_or_else(|| expected.clone());
                StoreOutcome::Values(vec![now])
            }
            StoreCommand::Append { bytes, .. } => {
                self.value.get_or_insert_default().extend(bytes);
                StoreOutcome::Done
            }
            StoreCommand::Delete(_) => {
                let existed = self.exists();
                *self = Self::default();
                StoreOutcome::Flag(existed)
            }
            StoreCommand::Push { item, .. } => {
                self.queue.push_back(item.clone());
                self.length()
            }
            StoreCommand::Pop(_) => {
                StoreOutcome::Values(self.queue.pop_front().into_iter().collect())
            }
        })
    }

    fn exists(&self) -> bool {
        self.value.is_some() || !self.queue.is_empty()
    }

    fn length(&self) -> StoreOutcome {
        StoreOutcome::Number(self.queue.len() as i64)
    }
}

/// Whether some order of the requests explains all answers: each takes effect at one moment between
/// call and answer.
fn has_order(requests: &[&KeyRequest]) -> bool {
    assert!(requests.len() <= 64, "one bit for each");
    let mut tried = BTreeSet::new();
    let mut open = vec![(0_u64, KeyModel::default())];
    while let Some((done, model)) = open.pop() {
        let rest = || (0..requests.len()).filter(move |index| done >> index & 1 == 0);
        let Some(first_end) = rest().filter_map(|index| requests[index].end()).min() else {
            return true;
        };
        // A request that was called after another was answered comes after it.
        for index in rest().filter(|index| requests[*index].called <= first_end) {
            let mut after = model.clone();
            let Some(outcome) = after.execute(&requests[index].request) else { continue };
            let explains = match &requests[index].answer {
                KeyAnswer::Outcome(_, seen) => *seen == outcome,
                KeyAnswer::Unknown | KeyAnswer::Never => true,
            };
            let next = (done | 1 << index, after);
            if explains && tried.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> TimeNs {
        TimeNs::from_ns(ms * 1_000_000)
    }

    fn set(value: &[u8]) -> StoreRequest {
        StoreRequest::Command(StoreCommand::Set(vec![(b"k".to_vec(), value.to_vec())]))
    }

    fn get() -> StoreRequest {
        StoreRequest::Query(StoreQuery::Get(vec![b"k".to_vec()]))
    }

    #[test]
    fn a_read_of_an_old_value_is_a_contradiction() {
        let mut history = StoreHistory::default();
        for (value, called) in [(b"1", 0), (b"2", 2)] {
            let number = history.call(set(value), at(called));
            history.answer(number, StoreOutcome::Done, at(called + 1));
        }
        let number = history.call(get(), at(4));
        history.answer(number, StoreOutcome::Values(vec![b"2".to_vec()]), at(5));
        assert_eq!(history.contradiction(), None);
        history.answer(number, StoreOutcome::Values(vec![b"1".to_vec()]), at(5));
        assert!(history.contradiction().is_some_and(|why| why.contains("key k")));
    }

    #[test]
    fn a_change_without_an_answer_may_be_made_or_not() {
        let mut history = StoreHistory::default();
        let number = history.call(set(b"1"), at(0));
        history.answer(number, StoreOutcome::Done, at(1));
        history.call(set(b"2"), at(2));
        for (value, called) in [(b"1", 3), (b"2", 5)] {
            let number = history.call(get(), at(called));
            history.answer(number, StoreOutcome::Values(vec![value.to_vec()]), at(called + 1));
            assert_eq!(history.contradiction(), None);
        }
        let number = history.call(get(), at(7));
        history.answer(number, StoreOutcome::Values(vec![b"1".to_vec()]), at(8));
        assert!(history.contradiction().is_some(), "2, then 1 again");
    }
}
