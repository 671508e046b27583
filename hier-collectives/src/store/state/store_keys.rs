//! The keys of a store, with their values and queues: commands change them, queries read them.

use crate::store::limits::{
    ITEM_OVERHEAD_BYTES, KEYS_MAX, REQUEST_BYTES_MAX, REQUEST_KEYS_MAX, STORE_BYTES_MAX,
    VALUE_BYTES_MAX,
};
use crate::store::request::{StoreCommand, StoreKey, StoreOutcome, StoreQuery, StoreRefusal};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

/// The keys of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreKeys {
    slots: BTreeMap<StoreKey, StoreKeySlot>,
    /// The bytes of keys, values and items, with [`ITEM_OVERHEAD_BYTES`] for each key and item.
    bytes: u64,
}

/// The value and the queue of a key, of which there is at least one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct StoreKeySlot {
    pub value: Option<Vec<u8>>,
    pub queue: VecDeque<Vec<u8>>,
}

/// Returns the bytes that a key or an item of a queue counts.
fn counted_store_key_bytes(bytes: &[u8]) -> u64 {
    bytes.len() as u64 + ITEM_OVERHEAD_BYTES
}

impl StoreKeySlot {
    /// Returns the bytes that the value and the items count.
    fn bytes(&self) -> u64 {
        let value = self.value.as_ref().map_or(0, |value| value.len() as u64);
        value + self.queue.iter().map(|item| counted_store_key_bytes(item)).sum::<u64>()
    }

    /// Whether the key has neither a value nor a queue.
    pub fn is_vacant(&self) -> bool {
        self.value.is_none() && self.queue.is_empty()
    }
}

impl StoreKeys {
    /// Returns the bytes of all keys, values and items, as the limit counts them.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Iterates over the keys in order, with their values and queues.
    pub(super) fn slots(&self) -> impl ExactSizeIterator<Item = (&StoreKey, &StoreKeySlot)> {
        self.slots.iter()
    }

    /// Adds a key with its value and its queue.
    pub(super) fn insert_slot(&mut self, key: StoreKey, slot: StoreKeySlot) {
        self.bytes += counted_store_key_bytes(&key) + slot.bytes();
        self.slots.insert(key, slot);
    }

    /// Carries out a command. `others` are bytes that count towards the store's limit beside those
    /// of keys and values.
    pub fn execute(&mut self, command: &StoreCommand, others: u64) -> StoreOutcome {
        self.change(command, others).unwrap_or_else(StoreOutcome::Refused)
    }

    /// Carries out a command, or refuses it and changes nothing; `others` is that of
    /// [`Self::execute`].
    fn change(
        &mut self,
        command: &StoreCommand,
        others: u64,
    ) -> Result<StoreOutcome, StoreRefusal> {
        match command {
            StoreCommand::Set(pairs) => {
                let mut after = self.clone_keys_of(pairs);
                pairs.iter().for_each(|(key, value)| after.put(key, value.clone()));
                let before = self.clone_keys_of(pairs);
                let keys = self.slots.len() + after.slots.len() - before.slots.len();
                Self::check_room(keys, self.bytes + after.bytes - before.bytes + others)?;
                pairs.iter().for_each(|(key, value)| self.put(key, value.clone()));
                Ok(StoreOutcome::Done)
            }
            StoreCommand::Add { key, amount } => {
                let number = match self.value(key) {
                    None => 0,
                    Some(value) => parse_store_key_number(value).ok_or(StoreRefusal::NotANumber)?,
                };
                let sum = number.checked_add(*amount).ok_or(StoreRefusal::NotANumber)?;
                self.put_checked(key, sum.to_string().into_bytes(), others)?;
                Ok(StoreOutcome::Number(sum))
            }
            StoreCommand::CompareSet { key, expected, desired } => {
                let current = self.value(key);
                if current.map_or(expected.is_empty(), |value| value == expected) {
                    let counted = others + counted_store_key_bytes(desired);
                    self.put_checked(key, desired.clone(), counted)?;
                    return Ok(StoreOutcome::Values(vec![desired.clone()]));
                }
                // As PyTorch's stores answer: a missing key counts as the value that was expected.
                let found = current.unwrap_or(expected).clone();
                Self::check_room(0, self.bytes + counted_store_key_bytes(&found) + others)?;
                Ok(StoreOutcome::Values(vec![found]))
            }
            StoreCommand::Delete(key) => {
                let removed = self.slots.remove(key);
                let bytes =
                    removed.as_ref().map_or(0, |slot| counted_store_key_bytes(key) + slot.bytes());
                self.bytes -= bytes;
                Ok(StoreOutcome::Flag(removed.is_some()))
            }
            StoreCommand::Append { key, bytes } => {
                let mut value = self.value(key).cloned().unwrap_or_default();
                value.extend(bytes);
                self.put_checked(key, value, others)?;
                Ok(StoreOutcome::Done)
            }
            StoreCommand::Push { key, item } => self.push(key, item, others),
            StoreCommand::Pop(key) => Ok(self.pop(key)),
        }
    }

    /// Adds an item to the queue of a key, if the limits allow it. Returns the length of the queue
    /// then.
    fn push(&mut self, key: &[u8], item: &[u8], others: u64) -> Result<StoreOutcome, StoreRefusal> {
        let known = self.slots.contains_key(key);
        let grows =
            counted_store_key_bytes(item) + if known { 0 } else { counted_store_key_bytes(key) };
        Self::check_room(self.slots.len() + usize::from(!known), self.bytes + grows + others)?;
        self.bytes += grows;
        let slot = self.slots.entry(key.to_vec()).or_default();
        slot.queue.push_back(item.to_vec());
        Ok(StoreOutcome::Number(i64::try_from(slot.queue.len()).unwrap_or(i64::MAX)))
    }

    /// Takes the first item of the queue of a key; no values without an item. A key that then has
    /// neither a value nor a queue is removed.
    fn pop(&mut self, key: &[u8]) -> StoreOutcome {
        let Some(slot) = self.slots.get_mut(key) else { return StoreOutcome::Values(vec![]) };
        let item = slot.queue.pop_front();
        let is_vacant = slot.is_vacant();
        self.bytes -= item.as_ref().map_or(0, |item| counted_store_key_bytes(item));
        if is_vacant {
            self.slots.remove(key);
            self.bytes -= counted_store_key_bytes(key);
        }
        StoreOutcome::Values(item.into_iter().collect())
    }

    /// Returns the answer to a query, or `None` if the condition does not hold that it waits for.
    pub fn answer(&self, query: &StoreQuery) -> Option<StoreOutcome> {
        let has_all = |keys: &[StoreKey]| keys.iter().all(|key| self.slots.contains_key(key));
        match query {
            StoreQuery::Get(keys) => {
                let values: Option<Vec<&Vec<u8>>> =
                    keys.iter().map(|key| self.value(key)).collect();
                let values = values?;
                let bytes: usize = values.iter().map(|value| value.len()).sum();
                Some(if bytes > REQUEST_BYTES_MAX {
                    StoreOutcome::Refused(StoreRefusal::TooLong)
                } else {
                    StoreOutcome::Values(values.into_iter().cloned().collect())
                })
            }
            StoreQuery::Wait(keys) => has_all(keys).then_some(StoreOutcome::Done),
            StoreQuery::Check(keys) => Some(StoreOutcome::Flag(has_all(keys))),
            StoreQuery::Count => Some(store_key_number_outcome(self.slots.len())),
            StoreQuery::List { prefix, after } => Some(self.list(prefix, after)),
            StoreQuery::QueueLength { key, least } => {
                let length = self.slots.get(key).map_or(0, |slot| slot.queue.len());
                (length >= *least as usize).then(|| store_key_number_outcome(length))
            }
        }
    }

    /// Whether a query waits for its key number `at`: a value in a Get, a value or a queue in a
    /// Wait. Other queries wait for no key.
    pub fn lacks(&self, query: &StoreQuery, at: usize) -> bool {
        match query {
            StoreQuery::Get(keys) => keys.get(at).is_some_and(|key| self.value(key).is_none()),
            StoreQuery::Wait(keys) => keys.get(at).is_some_and(|key| !self.slots.contains_key(key)),
            _ => false,
        }
    }

    /// Lists keys with a prefix that come after `after`, as many as an answer holds.
    fn list(&self, prefix: &[u8], after: &[u8]) -> StoreOutcome {
        let from = if after < prefix { Bound::Included(prefix) } else { Bound::Excluded(after) };
        let keys = self.slots.range::<[u8], _>((from, Bound::Unbounded)).map(|(key, _)| key);
        let mut listed: Vec<StoreKey> = Vec::new();
        let mut bytes = 0;
        for key in keys.take_while(|key| key.starts_with(prefix)) {
            bytes += key.len();
            if listed.len() == REQUEST_KEYS_MAX || bytes > REQUEST_BYTES_MAX {
                return StoreOutcome::Keys { keys: listed, is_last: false };
            }
            listed.push(key.clone());
        }
        StoreOutcome::Keys { keys: listed, is_last: true }
    }

    /// Returns the value of a key; `None` if the key is missing or has only a queue.
    fn value(&self, key: &[u8]) -> Option<&Vec<u8>> {
        self.slots.get(key)?.value.as_ref()
    }

    /// Gives a key a value, if the limits allow it.
    fn put_checked(&mut self, key: &[u8], value: Vec<u8>, others: u64) -> Result<(), StoreRefusal> {
        if value.len() > VALUE_BYTES_MAX {
            return Err(StoreRefusal::TooLong);
        }
        let known = self.slots.contains_key(key);
        let old = self.value(key).map_or(0, |value| value.len() as u64);
        let new = value.len() as u64 + if known { 0 } else { counted_store_key_bytes(key) };
        Self::check_room(self.slots.len() + usize::from(!known), self.bytes - old + new + others)?;
        self.put(key, value);
        Ok(())
    }

    /// Gives a key a value.
    fn put(&mut self, key: &[u8], value: Vec<u8>) {
        if !self.slots.contains_key(key) {
            self.bytes += counted_store_key_bytes(key);
        }
        self.bytes += value.len() as u64;
        let replaced = self.slots.entry(key.to_vec()).or_default().value.replace(value);
        self.bytes -= replaced.map_or(0, |old| old.len() as u64);
    }

    /// Returns a store with only the keys of `pairs` that exist here, with their values and queues.
    fn clone_keys_of(&self, pairs: &[(StoreKey, Vec<u8>)]) -> Self {
        let mut few = Self::default();
        for (key, _) in pairs {
            if let Some(slot) = self.slots.get(key).filter(|_| !few.slots.contains_key(key)) {
                few.insert_slot(key.clone(), slot.clone());
            }
        }
        few
    }

    /// Checks that a store may have so many keys and bytes.
    fn check_room(keys: usize, bytes: u64) -> Result<(), StoreRefusal> {
        let is_full = keys > KEYS_MAX || bytes > STORE_BYTES_MAX;
        if is_full { Err(StoreRefusal::Full) } else { Ok(()) }
    }
}

/// Makes the outcome that is a number of things.
fn store_key_number_outcome(count: usize) -> StoreOutcome {
    StoreOutcome::Number(i64::try_from(count).unwrap_or(i64::MAX))
}

/// Reads a signed decimal number of 64 bits; `None` where the bytes are none.
fn parse_store_key_number(value: &[u8]) -> Option<i64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(key: &str, value: &[u8]) -> StoreCommand {
        StoreCommand::Set(vec![(key.into(), value.to_vec())])
    }

    fn counted(keys: &StoreKeys) -> u64 {
        keys.slots().map(|(key, slot)| counted_store_key_bytes(key) + slot.bytes()).sum()
    }

    #[test]
    fn commands_answer_as_the_stores_of_pytorch() {
        let mut keys = StoreKeys::default();
        let values = |values: &[&[u8]]| {
            StoreOutcome::Values(values.iter().map(|value| value.to_vec()).collect())
        };
        let compare = |expected: &[u8], desired: &[u8]| StoreCommand::CompareSet {
            key: b"c".to_vec(),
            expected: expected.to_vec(),
            desired: desired.to_vec(),
        };
        let key = || b"n".to_vec();
        let steps = [
            (StoreCommand::Add { key: key(), amount: 5 }, StoreOutcome::Number(5)),
            (StoreCommand::Add { key: key(), amount: -7 }, StoreOutcome::Number(-2)),
            (compare(b"x", b"y"), values(&[b"x"])),
            (compare(b"", b"one"), values(&[b"one"])),
            (compare(b"two", b"three"), values(&[b"one"])),
            (compare(b"one", b"two"), values(&[b"two"])),
            (set("n", b"no number"), StoreOutcome::Done),
            (
                StoreCommand::Add { key: key(), amount: 1 },
                StoreOutcome::Refused(StoreRefusal::NotANumber),
            ),
            (StoreCommand::Delete(key()), StoreOutcome::Flag(true)),
            (StoreCommand::Delete(key()), StoreOutcome::Flag(false)),
            (StoreCommand::Append { key: key(), bytes: b"ab".to_vec() }, StoreOutcome::Done),
            (StoreCommand::Append { key: key(), bytes: b"cd".to_vec() }, StoreOutcome::Done),
            (
                StoreCommand::Push { key: b"q".to_vec(), item: b"1".to_vec() },
                StoreOutcome::Number(1),
            ),
            (
                StoreCommand::Push { key: b"q".to_vec(), item: b"2".to_vec() },
                StoreOutcome::Number(2),
            ),
            (StoreCommand::Pop(b"q".to_vec()), values(&[b"1"])),
        ];
        for (command, expected) in steps {
            assert_eq!(keys.execute(&command, 0), expected, "{command:?}");
            assert_eq!(keys.bytes(), counted(&keys), "{command:?}");
        }
        assert_eq!(keys.answer(&StoreQuery::Get(vec![key()])), Some(values(&[b"abcd"])));
        assert_eq!(keys.answer(&StoreQuery::Get(vec![b"q".to_vec()])), None, "a queue is no value");
        assert_eq!(keys.answer(&StoreQuery::Wait(vec![b"q".to_vec()])), Some(StoreOutcome::Done));
        assert_eq!(keys.answer(&StoreQuery::Count), Some(StoreOutcome::Number(3)));
        assert_eq!(keys.execute(&StoreCommand::Pop(b"q".to_vec()), 0), values(&[b"2"]));
        assert_eq!(keys.execute(&StoreCommand::Pop(b"q".to_vec()), 0), values(&[]));
        let check = |key: &str| keys.answer(&StoreQuery::Check(vec![key.into()]));
        assert_eq!(
            (check("q"), check("n")),
            (Some(StoreOutcome::Flag(false)), Some(StoreOutcome::Flag(true)))
        );
    }

    #[test]
    fn a_full_store_refuses_and_keeps_what_it_has() {
        let mut keys = StoreKeys::default();
        let value = vec![7; VALUE_BYTES_MAX];
        let mut stored = 0;
        while keys.execute(&set(&format!("k{stored}"), &value), 0) == StoreOutcome::Done {
            stored += 1;
        }
        assert!(keys.bytes() <= STORE_BYTES_MAX && stored > 300, "{stored} values");
        let before = keys.clone();
        let full = StoreOutcome::Refused(StoreRefusal::Full);
        let item = value.clone();
        assert_eq!(keys.execute(&StoreCommand::Push { key: b"q".to_vec(), item }, 0), full);
        let pairs = vec![
            (b"k0".to_vec(), vec![1]),
            (b"new".to_vec(), value.clone()),
            (b"new2".to_vec(), value),
        ];
        assert_eq!(keys.execute(&StoreCommand::Set(pairs), 0), full, "all or nothing");
        assert_eq!(keys, before);
        assert_eq!(keys.execute(&set("k0", b"shorter"), 0), StoreOutcome::Done);
        let append = StoreCommand::Append { key: b"k1".to_vec(), bytes: vec![1] };
        assert_eq!(keys.execute(&append, 0), StoreOutcome::Refused(StoreRefusal::TooLong));
    }

    #[test]
    fn keys_are_listed_by_prefix_and_in_pages() {
        let mut keys = StoreKeys::default();
        for number in 0..REQUEST_KEYS_MAX + 5 {
            keys.execute(&set(&format!("a/{number:05}"), b""), 0);
        }
        keys.execute(&set("b", b""), 0);
        let page = |prefix: &str, after: &[u8]| {
            let query = StoreQuery::List { prefix: prefix.into(), after: after.to_vec() };
            match keys.answer(&query) {
                Some(StoreOutcome::Keys { keys, is_last }) => (keys, is_last),
                other => panic!("{other:?}"),
            }
        };
        let (first, is_last) = page("a/", b"");
        assert_eq!((first.len(), is_last), (REQUEST_KEYS_MAX, false));
        let (second, is_last) = page("a/", first.last().expect("some"));
        assert_eq!((second.len(), is_last), (5, true));
        assert_eq!(page("", &second[4]), (vec![b"b".to_vec()], true));
        assert_eq!(page("c", b""), (vec![], true));
    }
}
