//! The wire form of requests to the store, and of their answers.

use super::limits::{KEY_BYTES_MAX, REQUEST_BYTES_MAX, REQUEST_KEYS_MAX, VALUE_BYTES_MAX};
use super::request::{
    StoreAnswer, StoreCommand, StoreFailure, StoreFailureCode, StoreKey, StoreOutcome, StoreQuery,
    StoreRefusal, StoreRequest,
};
use crate::codec::{DecodeError, FieldReader, write_text, write_u16, write_u32, write_u64};

/// 1,024 bytes: the longest text of a failure of the store, as long as texts of other failures. An
/// answer with a longer text is refused as malformed.
const FAILURE_TEXT_BYTES_MAX: usize = 1024;

/// Appends a key to the message `out`: a 16-bit length, then the bytes.
pub(super) fn write_request_key(key: &[u8], out: &mut Vec<u8>) {
    write_u16(out, u16::try_from(key.len()).unwrap_or(u16::MAX));
    out.extend(key);
}

/// Reads a key, which may be empty where a query has none.
fn read_bounded_request_key(reader: &mut FieldReader<'_>) -> Result<StoreKey, DecodeError> {
    let length = usize::from(reader.read_u16()?);
    if length > KEY_BYTES_MAX {
        return Err(DecodeError::Invalid("key"));
    }
    Ok(reader.read_bytes(length)?.to_vec())
}

/// Reads a key: a 16-bit length, then the bytes.
pub(super) fn read_request_key(reader: &mut FieldReader<'_>) -> Result<StoreKey, DecodeError> {
    let key = read_bounded_request_key(reader)?;
    if key.is_empty() { Err(DecodeError::Invalid("key")) } else { Ok(key) }
}

/// Appends a value to the message `out`: a 32-bit length, then the bytes.
pub(super) fn write_request_value(value: &[u8], out: &mut Vec<u8>) {
    write_u32(out, u32::try_from(value.len()).unwrap_or(u32::MAX));
    out.extend(value);
}

/// Reads a value: a 32-bit length, then the bytes.
pub(super) fn read_request_value(reader: &mut FieldReader<'_>) -> Result<Vec<u8>, DecodeError> {
    let length = reader.read_u32()? as usize;
    if length > VALUE_BYTES_MAX {
        return Err(DecodeError::Invalid("value"));
    }
    Ok(reader.read_bytes(length)?.to_vec())
}

/// Appends a list to the message `out`: a 16-bit count, then each element by `write`.
fn write_request_list<T>(list: &[T], out: &mut Vec<u8>, write: impl Fn(&T, &mut Vec<u8>)) {
    write_u16(out, u16::try_from(list.len()).unwrap_or(u16::MAX));
    list.iter().for_each(|element| write(element, out));
}

/// Reads a list: a 16-bit count of at most [`REQUEST_KEYS_MAX`], then each element by `read`, of at
/// least `bytes_min` bytes.
fn read_request_list<T>(
    reader: &mut FieldReader<'_>,
    bytes_min: usize,
    mut read: impl FnMut(&mut FieldReader<'_>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let count = usize::from(reader.read_u16()?);
    if count > REQUEST_KEYS_MAX {
        return Err(DecodeError::Invalid("number of keys"));
    }
    if count * bytes_min > reader.0.len() {
        return Err(DecodeError::Truncated);
    }
    let mut list = Vec::with_capacity(count);
    for _ in 0..count {
        list.push(read(reader)?);
    }
    Ok(list)
}

/// Reads the keys of a query.
fn read_request_keys(reader: &mut FieldReader<'_>) -> Result<Vec<StoreKey>, DecodeError> {
    read_request_list(reader, 3, read_request_key)
}

impl StoreCommand {
    /// Appends the command to the message `out`: its code, then its fields.
    pub fn write_encoding(&self, out: &mut Vec<u8>) {
        match self {
            Self::Set(pairs) => {
                out.push(1);
                write_request_list(pairs, out, |(key, value), out| {
                    write_request_key(key, out);
                    write_request_value(value, out);
                });
            }
            Self::Add { key, amount } => {
                out.push(2);
                write_request_key(key, out);
                write_u64(out, amount.cast_unsigned());
            }
            Self::CompareSet { key, expected, desired } => {
                out.push(3);
                write_request_key(key, out);
                write_request_value(expected, out);
                write_request_value(desired, out);
            }
            Self::Delete(key) => {
                out.push(4);
                write_request_key(key, out);
            }
            Self::Append { key, bytes } => {
                out.push(5);
                write_request_key(key, out);
                write_request_value(bytes, out);
            }
            Self::Push { key, item } => {
                out.push(6);
                write_request_key(key, out);
                write_request_value(item, out);
            }
            Self::Pop(key) => {
                out.push(7);
                write_request_key(key, out);
            }
        }
    }

    /// Reads the fields of a command of code `code`, and checks it against the limits.
    fn read_fields(code: u8, reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let command = match code {
            1 => Self::Set(read_request_list(reader, 7, |reader| {
                Ok((read_request_key(reader)?, read_request_value(reader)?))
            })?),
            2 => {
                let key = read_request_key(reader)?;
                Self::Add { key, amount: reader.read_u64()?.cast_signed() }
            }
            3 => Self::CompareSet {
                key: read_request_key(reader)?,
                expected: read_request_value(reader)?,
                desired: read_request_value(reader)?,
            },
            4 => Self::Delete(read_request_key(reader)?),
            5 => {
                Self::Append { key: read_request_key(reader)?, bytes: read_request_value(reader)? }
            }
            6 => Self::Push { key: read_request_key(reader)?, item: read_request_value(reader)? },
            7 => Self::Pop(read_request_key(reader)?),
            _ => return Err(DecodeError::Unknown("store request")),
        };
        command.check().map_err(|_| DecodeError::Invalid("store request"))?;
        Ok(command)
    }

    /// Reads a command and checks it against the limits.
    ///
    /// # Errors
    /// [`DecodeError`] when the bytes are a malformed command, or one beyond a limit.
    pub fn read_encoding(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let code = reader.read_u8()?;
        Self::read_fields(code, reader)
    }
}

impl StoreRequest {
    /// Appends the request to the message `out`: its code, then its fields.
    pub fn write_encoding(&self, out: &mut Vec<u8>) {
        let query = match self {
            Self::Command(command) => return command.write_encoding(out),
            Self::Query(query) => query,
        };
        let key = |key: &StoreKey, out: &mut Vec<u8>| write_request_key(key, out);
        match query {
            StoreQuery::Get(keys) => {
                out.push(16);
                write_request_list(keys, out, key);
            }
            StoreQuery::Wait(keys) => {
                out.push(17);
                write_request_list(keys, out, key);
            }
            StoreQuery::Check(keys) => {
                out.push(18);
                write_request_list(keys, out, key);
            }
            StoreQuery::Count => out.push(19),
            StoreQuery::List { prefix, after } => {
                out.push(20);
                write_request_key(prefix, out);
                write_request_key(after, out);
            }
            StoreQuery::QueueLength { key, least } => {
                out.push(21);
                write_request_key(key, out);
                write_u32(out, *least);
            }
        }
    }

    /// Reads a request and checks it against the limits.
    ///
    /// # Errors
    /// [`DecodeError`] when the bytes are a malformed request, or one beyond a limit.
    pub fn read_encoding(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let query = match reader.read_u8()? {
            16 => StoreQuery::Get(read_request_keys(reader)?),
            17 => StoreQuery::Wait(read_request_keys(reader)?),
            18 => StoreQuery::Check(read_request_keys(reader)?),
            19 => StoreQuery::Count,
            20 => {
                let (prefix, after) =
                    (read_bounded_request_key(reader)?, read_bounded_request_key(reader)?);
                StoreQuery::List { prefix, after }
            }
            21 => StoreQuery::QueueLength {
                key: read_request_key(reader)?,
                least: reader.read_u32()?,
            },
            code => return StoreCommand::read_fields(code, reader).map(Self::Command),
        };
        query.check().map_err(|_| DecodeError::Invalid("store request"))?;
        Ok(Self::Query(query))
    }
}

impl StoreOutcome {
    /// Appends the outcome to the message `out`: its code, then its fields.
    pub fn write_encoding(&self, out: &mut Vec<u8>) {
        match self {
            Self::Done => out.push(1),
            Self::Flag(flag) => out.extend([2, u8::from(*flag)]),
            Self::Number(number) => {
                out.push(3);
                write_u64(out, number.cast_unsigned());
            }
            Self::Values(values) => {
                out.push(4);
                write_request_list(values, out, |value, out| write_request_value(value, out));
            }
            Self::Keys { keys, is_last } => {
                out.extend([5, u8::from(*is_last)]);
                write_request_list(keys, out, |key, out| write_request_key(key, out));
            }
            Self::Refused(refusal) => out.extend([6, *refusal as u8]),
        }
    }

    /// Reads an outcome and checks it against the limits.
    ///
    /// # Errors
    /// [`DecodeError`] when the bytes are a malformed outcome, or one beyond a limit.
    pub fn read_encoding(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let outcome = match reader.read_u8()? {
            1 => Self::Done,
            2 => Self::Flag(reader.read_flag()?),
            3 => Self::Number(reader.read_u64()?.cast_signed()),
            4 => Self::Values(read_request_list(reader, 4, read_request_value)?),
            5 => {
                let is_last = reader.read_flag()?;
                Self::Keys { keys: read_request_keys(reader)?, is_last }
            }
            6 => {
                let code = reader.read_u8()?;
                let known = StoreRefusal::ALL.into_iter().find(|refusal| *refusal as u8 == code);
                Self::Refused(known.ok_or(DecodeError::Unknown("refusal"))?)
            }
            _ => return Err(DecodeError::Unknown("outcome")),
        };
        if outcome.bytes() > REQUEST_BYTES_MAX {
            return Err(DecodeError::Invalid("outcome"));
        }
        Ok(outcome)
    }

    /// Returns the bytes of keys and values in the outcome.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Values(list) | Self::Keys { keys: list, .. } => list.iter().map(Vec::len).sum(),
            _ => 0,
        }
    }
}

/// Appends the answer to a request to the message `out`: 0 and the outcome, or the code of the
/// failure and its text.
pub fn write_request_answer(answer: &StoreAnswer, out: &mut Vec<u8>) {
    match answer {
        Ok(outcome) => {
            out.push(0);
            outcome.write_encoding(out);
        }
        Err(failure) => {
            out.push(failure.code as u8);
            write_text(out, &failure.text);
        }
    }
}

/// Reads the answer to a request: 0 and the outcome, or the code of the failure and its text.
///
/// # Errors
/// [`DecodeError`] when the bytes are a malformed answer.
pub fn read_request_answer(reader: &mut FieldReader<'_>) -> Result<StoreAnswer, DecodeError> {
    let code = reader.read_u8()?;
    if code == 0 {
        return StoreOutcome::read_encoding(reader).map(Ok);
    }
    let known = StoreFailureCode::ALL.into_iter().find(|known| *known as u8 == code);
    let code = known.ok_or(DecodeError::Unknown("failure"))?;
    let text = reader.read_text()?;
    if text.len() > FAILURE_TEXT_BYTES_MAX {
        return Err(DecodeError::Invalid("text"));
    }
    Ok(Err(StoreFailure { code, text }))
}
