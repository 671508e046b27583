//! Requests of trainers to the store of their job, and the answers.
//!
//! A command changes the store, and is carried out in one order on all gateways. A query reads it.

use super::limits::{KEY_BYTES_MAX, REQUEST_BYTES_MAX, REQUEST_KEYS_MAX, VALUE_BYTES_MAX};

/// 64 characters of a key: the most that an error names, so that its text stays readable. A longer key
/// is cut there.
const NAMED_KEY_LETTERS_MAX: usize = 64;

/// A key of the store: 1 to [`KEY_BYTES_MAX`] bytes.
pub type StoreKey = Vec<u8>;

/// A request that changes the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreCommand {
    /// Gives keys these values, all at once.
    Set(Vec<(StoreKey, Vec<u8>)>),
    /// Adds to the decimal number that is the value of a key, which is 0 if there is none.
    Add {
        /// The key.
        key: StoreKey,
        /// The number to add.
        amount: i64,
    },
    /// Gives a key another value, if its value is the expected one. A missing key is expected as
    /// an empty value.
    CompareSet {
        /// The key.
        key: StoreKey,
        /// The value that the key must have.
        expected: Vec<u8>,
        /// The new value.
        desired: Vec<u8>,
    },
    /// Removes a key with its value and its queue.
    Delete(StoreKey),
    /// Appends bytes to the value of a key, which is empty if there is none.
    Append {
        /// The key.
        key: StoreKey,
        /// The bytes to append.
        bytes: Vec<u8>,
    },
    /// Adds an item at the end of the queue of a key.
    Push {
        /// The key.
        key: StoreKey,
        /// The item.
        item: Vec<u8>,
    },
    /// Removes the first item of the queue of a key, if there is one.
    Pop(StoreKey),
}

/// A request that reads the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreQuery {
    /// Asks for the values of keys, once all of them have one.
    Get(Vec<StoreKey>),
    /// Asks to hear when all these keys exist, with a value or a queue.
    Wait(Vec<StoreKey>),
    /// Asks whether all these keys exist, with a value or a queue.
    Check(Vec<StoreKey>),
    /// Asks for the number of keys.
    Count,
    /// Asks for the keys with a prefix, in order.
    List {
        /// The beginning of the keys.
        prefix: Vec<u8>,
        /// The last key of the answer before; empty at first.
        after: Vec<u8>,
    },
    /// Asks for the length of a queue, once it has at least so many items.
    QueueLength {
        /// The key.
        key: StoreKey,
        /// The least length.
        least: u32,
    },
}

/// A request to the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreRequest {
    /// A change.
    Command(StoreCommand),
    /// A question.
    Query(StoreQuery),
}

/// The outcome of a request that was carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreOutcome {
    /// The change is made, or the awaited condition holds.
    Done,
    /// Whether all keys exist, or whether the deleted key existed.
    Flag(bool),
    /// The sum, the number of keys or the length of a queue.
    Number(i64),
    /// Values: of the keys asked for, after a comparison, or the item taken from a queue, if any.
    Values(Vec<Vec<u8>>),
    /// Keys with a prefix.
    Keys {
        /// The keys, in order.
        keys: Vec<StoreKey>,
        /// Whether no key with the prefix follows.
        is_last: bool,
    },
    /// The change was refused, and nothing has changed.
    Refused(StoreRefusal),
}

/// Why the store refused a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum StoreRefusal {
    /// The store has as many keys or bytes as it may.
    #[error(
        "the store is full: it holds at most 65,536 keys and 16 MiB; delete keys that nobody needs"
    )]
    Full = 1,
    /// The value of the key is no decimal number of 64 bits, or the sum would be none.
    #[error(
        "the key's value, or the sum, is no number of 64 bits; give counters keys of their own"
    )]
    NotANumber = 2,
    /// The value or the answer would be longer than a value may be.
    #[error("a value has at most 48 KiB, and an answer 56 KiB; ask for fewer keys at once")]
    TooLong = 3,
}

impl StoreRefusal {
    /// All reasons for which a store refuses a change.
    pub const ALL: [Self; 3] = [Self::Full, Self::NotANumber, Self::TooLong];
}

/// Why a request has no outcome.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct StoreFailure {
    /// The kind of failure.
    pub code: StoreFailureCode,
    /// The cause and the remedy.
    pub text: String,
}

/// The kinds of failure of a request to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum StoreFailureCode {
    /// The time was over. The request has changed nothing, and will not.
    TimedOut = 1,
    /// The time was over before the outcome of a command was known: it may have been carried out,
    /// or may still be.
    Unconfirmed = 2,
    /// Too many requests wait at this gateway. The request has changed nothing.
    Busy = 3,
    /// The store refused the change, which has changed nothing.
    Refused = 4,
}

impl StoreFailureCode {
    /// All kinds of failure of a request to a store.
    pub const ALL: [Self; 4] = [Self::TimedOut, Self::Unconfirmed, Self::Busy, Self::Refused];
}

/// The answer to a request.
pub type StoreAnswer = Result<StoreOutcome, StoreFailure>;

/// A request that is longer than any may be; always the caller's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StoreRequestError {
    /// A key is empty or too long.
    #[error("a key has 1 to 1,024 bytes, not {0}")]
    Key(usize),
    /// A value is too long.
    #[error("a value has at most 49,152 bytes, not {0}")]
    Value(usize),
    /// The request names no key or too many.
    #[error("a request has 1 to 1,024 keys, not {0}")]
    Keys(usize),
    /// The request is too long as a whole.
    #[error("the keys and values of a request have at most 57,344 bytes together, not {0}")]
    Bytes(usize),
}

impl StoreCommand {
    /// Returns the keys and the values of the command.
    fn parts(&self) -> (Vec<&StoreKey>, Vec<&Vec<u8>>) {
        match self {
            Self::Set(pairs) => pairs.iter().map(|(key, value)| (key, value)).unzip(),
            Self::Add { key, .. } | Self::Delete(key) | Self::Pop(key) => (vec![key], vec![]),
            Self::CompareSet { key, expected, desired } => (vec![key], vec![expected, desired]),
            Self::Append { key, bytes } => (vec![key], vec![bytes]),
            Self::Push { key, item } => (vec![key], vec![item]),
        }
    }

    /// Checks the command against the limits.
    ///
    /// # Errors
    /// [`StoreRequestError`]: the limit that it exceeds.
    pub fn check(&self) -> Result<(), StoreRequestError> {
        let (keys, values) = self.parts();
        check_store_request(&keys, &values)
    }
}

impl StoreQuery {
    /// Checks the query against the limits.
    ///
    /// # Errors
    /// [`StoreRequestError`]: the limit that it exceeds.
    pub fn check(&self) -> Result<(), StoreRequestError> {
        match self {
            Self::Get(keys) | Self::Wait(keys) | Self::Check(keys) => {
                check_store_request(&keys.iter().collect::<Vec<_>>(), &[])
            }
            Self::QueueLength { key, .. } => check_store_request(&[key], &[]),
            Self::Count => Ok(()),
            Self::List { prefix, after } => {
                let longest = prefix.len().max(after.len());
                if longest <= KEY_BYTES_MAX { Ok(()) } else { Err(StoreRequestError::Key(longest)) }
            }
        }
    }
}

impl StoreCommand {
    /// Returns the bytes of the keys and values.
    pub fn bytes(&self) -> usize {
        let (keys, values) = self.parts();
        let keys = keys.into_iter().map(Vec::len);
        keys.chain(values.into_iter().map(Vec::len)).sum()
    }
}

impl StoreQuery {
    /// Returns the number of keys that must be there before there is an answer.
    pub fn key_count(&self) -> usize {
        match self {
            Self::Get(keys) | Self::Wait(keys) => keys.len(),
            _ => 0,
        }
    }

    /// Returns the key at a place of the query, as a text of at most 64 characters.
    pub fn key_text(&self, at: usize) -> String {
        let key = match self {
            Self::Get(keys) | Self::Wait(keys) | Self::Check(keys) => keys.get(at),
            Self::QueueLength { key, .. } => Some(key),
            Self::Count | Self::List { .. } => None,
        };
        let text = String::from_utf8_lossy(key.map_or(&[], Vec::as_slice)).into_owned();
        match text.char_indices().nth(NAMED_KEY_LETTERS_MAX) {
            Some((end, _)) => format!("{}...", text[..end].escape_debug()),
            None => text.escape_debug().to_string(),
        }
    }

    /// Returns the bytes of the keys, or of the prefix and the last key of a list.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Get(keys) | Self::Wait(keys) | Self::Check(keys) => {
                keys.iter().map(Vec::len).sum()
            }
            Self::QueueLength { key, .. } => key.len(),
            Self::Count => 0,
            Self::List { prefix, after } => prefix.len() + after.len(),
        }
    }
}

impl StoreRequest {
    /// Returns whether the answer may wait for a change by another request.
    pub fn may_wait(&self) -> bool {
        match self {
            Self::Query(StoreQuery::Get(_) | StoreQuery::Wait(_)) => true,
            Self::Query(StoreQuery::QueueLength { least, .. }) => *least > 0,
            _ => false,
        }
    }

    /// Checks the request against the limits.
    ///
    /// # Errors
    /// [`StoreRequestError`]: the limit that it exceeds.
    pub fn check(&self) -> Result<(), StoreRequestError> {
        match self {
            Self::Command(command) => command.check(),
            Self::Query(query) => query.check(),
        }
    }
}

/// Checks the keys and values of a request against the limits. There must be a key, and not too
/// many; no key may be empty; and lengths and their sum are limited.
fn check_store_request(keys: &[&StoreKey], values: &[&Vec<u8>]) -> Result<(), StoreRequestError> {
    if !(1..=REQUEST_KEYS_MAX).contains(&keys.len()) {
        return Err(StoreRequestError::Keys(keys.len()));
    }
    if let Some(key) = keys.iter().find(|key| !(1..=KEY_BYTES_MAX).contains(&key.len())) {
        return Err(StoreRequestError::Key(key.len()));
    }
    if let Some(value) = values.iter().find(|value| value.len() > VALUE_BYTES_MAX) {
        return Err(StoreRequestError::Value(value.len()));
    }
    let lengths = keys.iter().map(|key| key.len()).chain(values.iter().map(|value| value.len()));
    let bytes: usize = lengths.sum();
    if bytes > REQUEST_BYTES_MAX { Err(StoreRequestError::Bytes(bytes)) } else { Ok(()) }
}
