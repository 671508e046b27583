//! A history of requests, and whether some order of them explains all answers.

use hier_collectives::store::{StoreCommand, StoreKey, StoreOutcome, StoreQuery, StoreRequest};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A request of a client.
#[derive(Debug, Clone)]
pub struct Operation {
    pub request: StoreRequest,
    /// The step at which the client called.
    pub called: u64,
    /// The step at which it had the answer, and the answer. Without one, the request may have been
    /// carried out at any time after the call, or never.
    pub answered: Option<(u64, StoreOutcome)>,
}

/// The store as one thread would keep it.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Model {
    values: BTreeMap<StoreKey, Vec<u8>>,
    queues: BTreeMap<StoreKey, VecDeque<Vec<u8>>>,
}

impl Model {
    fn has(&self, key: &StoreKey) -> bool {
        self.values.contains_key(key) || self.queues.contains_key(key)
    }

    /// Carries out a request; `None` if it has no answer in this state.
    fn execute(&mut self, request: &StoreRequest) -> Option<StoreOutcome> {
        let command = match request {
            StoreRequest::Query(query) => return self.answer(query),
            StoreRequest::Command(command) => command,
        };
        Some(match command {
            StoreCommand::Set(pairs) => {
                self.values.extend(pairs.iter().cloned());
                StoreOutcome::Done
            }
            StoreCommand::Add { key, amount } => {
                let value = self.values.get(key).map_or("0", |v| std::str::from_utf8(v).unwrap());
                let sum = value.parse::<i64>().expect("counters have keys of their own") + amount;
                self.values.insert(key.clone(), sum.to_string().into_bytes());
                StoreOutcome::Number(sum)
            }
            StoreCommand::CompareSet { key, expected, desired } => {
                let value = self.values.get(key).cloned();
                let found = match value {
                    Some(value) if value != *expected => value,
                    None if !expected.is_empty() => expected.clone(),
                    _ => {
                        self.values.insert(key.clone(), desired.clone());
                        desired.clone()
                    }
                };
                StoreOutcome::Values(vec![found])
            }
            StoreCommand::Delete(key) => {
                let had = self.has(key);
                self.values.remove(key);
                self.queues.remove(key);
                StoreOutcome::Flag(had)
            }
            StoreCommand::Append { key, bytes } => {
                self.values.entry(key.clone()).or_default().extend(bytes);
                StoreOutcome::Done
            }
            StoreCommand::Push { key, item } => {
                let queue = self.queues.entry(key.clone()).or_default();
                queue.push_back(item.clone());
                StoreOutcome::Number(queue.len() as i64)
            }
            StoreCommand::Pop(key) => {
                let item = self.queues.get_mut(key).and_then(VecDeque::pop_front);
                self.queues.retain(|_, queue| !queue.is_empty());
                StoreOutcome::Values(item.into_iter().collect())
            }
        })
    }

    fn answer(&self, query: &StoreQuery) -> Option<StoreOutcome> {
        match query {
            StoreQuery::Get(keys) => {
                let values = keys.iter().map(|key| self.values.get(key).cloned());
                values.collect::<Option<Vec<_>>>().map(StoreOutcome::Values)
            }
            StoreQuery::Wait(keys) => {
                keys.iter().all(|key| self.has(key)).then_some(StoreOutcome::Done)
            }
            StoreQuery::Check(keys) => {
                Some(StoreOutcome::Flag(keys.iter().all(|key| self.has(key))))
            }
            StoreQuery::Count => {
                let keys: BTreeSet<_> = self.values.keys().chain(self.queues.keys()).collect();
                Some(StoreOutcome::Number(keys.len() as i64))
            }
            StoreQuery::QueueLength { key, least } => {
                let length = self.queues.get(key).map_or(0, VecDeque::len);
                (length >= *least as usize).then_some(StoreOutcome::Number(length as i64))
            }
            StoreQuery::List { .. } => unreachable!("not in these histories"),
        }
    }
}

/// Whether some order of the operations explains all answers: each takes effect at one moment
/// between call and answer.
pub fn is_linearizable(operations: &[Operation]) -> bool {
    assert!(operations.len() <= 64, "one bit for each");
    let mut tried = BTreeSet::new();
    let mut open = vec![(0_u64, Model::default())];
    while let Some((done, model)) = open.pop() {
        let rest = || (0..operations.len()).filter(move |index| done & (1 << index) == 0);
        let ends = rest().filter_map(|index| operations[index].answered.as_ref());
        let Some(first_end) = ends.map(|(step, _)| *step).min() else { return true };
        for index in rest() {
            let operation = &operations[index];
            // An operation that was called after another was answered comes after it.
            if operation.called > first_end {
                continue;
            }
            let mut after = model.clone();
            let Some(outcome) = after.execute(&operation.request) else { continue };
            let explains = operation.answered.as_ref().is_none_or(|(_, seen)| *seen == outcome);
            let next = (done | (1 << index), after);
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

    fn set(value: &[u8], called: u64, answered: Option<u64>) -> Operation {
        let command = StoreCommand::Set(vec![(b"k".to_vec(), value.to_vec())]);
        let answered = answered.map(|step| (step, StoreOutcome::Done));
        Operation { request: StoreRequest::Command(command), called, answered }
    }

    fn get(value: &[u8], called: u64, answered: u64) -> Operation {
        let request = StoreRequest::Query(StoreQuery::Get(vec![b"k".to_vec()]));
        let outcome = StoreOutcome::Values(vec![value.to_vec()]);
        Operation { request, called, answered: Some((answered, outcome)) }
    }

    #[test]
    fn a_read_of_an_old_value_is_found() {
        let [one, two] = [set(b"1", 0, Some(1)), set(b"2", 2, Some(3))];
        assert!(is_linearizable(&[one.clone(), two.clone(), get(b"2", 4, 5)]));
        assert!(!is_linearizable(&[one.clone(), two, get(b"1", 4, 5)]));
        let during = set(b"2", 2, Some(9));
        let reads = [get(b"2", 3, 4), get(b"1", 5, 6)];
        assert!(is_linearizable(&[one.clone(), during.clone(), reads[0].clone()]));
        assert!(is_linearizable(&[one.clone(), during.clone(), reads[1].clone()]));
        assert!(!is_linearizable(&[&[one, during], &reads[..]].concat()), "new, then old");
    }

    #[test]
    fn an_unknown_change_may_come_late_or_never() {
        let [one, lost] = [set(b"1", 0, Some(1)), set(b"2", 2, None)];
        assert!(is_linearizable(&[one.clone(), lost.clone(), get(b"1", 3, 4), get(b"2", 5, 6)]));
        assert!(is_linearizable(&[one.clone(), lost.clone(), get(b"1", 3, 4)]));
        assert!(!is_linearizable(&[one, lost, get(b"2", 3, 4), get(b"1", 5, 6)]), "twice");
    }
}
