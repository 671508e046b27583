//! The snapshot of a store: its whole state as bytes, equal for equal states.

use super::executed_commands::{ExecutedCommands, OriginCommands, executed_command_bytes};
use super::store_keys::{StoreKeySlot, StoreKeys};
use super::store_state::StoreState;
use crate::codec::{DecodeError, FieldReader, write_u16, write_u32, write_u64};
use crate::ids::{BootId, GatewayId};
use crate::store::limits::{
    COMMAND_WINDOW, ITEM_OVERHEAD_BYTES, KEYS_MAX, SNAPSHOT_BYTES_MAX, STORE_BYTES_MAX,
};
use crate::store::request::StoreOutcome;
use crate::store::request_encoding::{
    read_request_key, read_request_value, write_request_key, write_request_value,
};
use std::collections::{BTreeMap, VecDeque};

impl StoreState {
    /// Returns the snapshot of the state: keys with their values and queues, then the outcomes of
    /// executed commands by gateway.
    pub fn encode_snapshot(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let slots = self.keys.slots();
        write_u32(&mut out, count(slots.len()));
        for (key, slot) in slots {
            write_request_key(key, &mut out);
            out.push(u8::from(slot.value.is_some()));
            slot.value.iter().for_each(|value| write_request_value(value, &mut out));
            write_u32(&mut out, count(slot.queue.len()));
            slot.queue.iter().for_each(|item| write_request_value(item, &mut out));
        }
        let origins = &self.executed.origins;
        write_u16(&mut out, u16::try_from(origins.len()).unwrap_or(u16::MAX));
        for (origin, OriginCommands { boot, below, outcomes }) in origins {
            write_u16(&mut out, origin.0);
            write_u64(&mut out, boot.0);
            write_u64(&mut out, *below);
            write_u16(&mut out, u16::try_from(outcomes.len()).unwrap_or(u16::MAX));
            for (number, outcome) in outcomes {
                write_u64(&mut out, *number);
                outcome.write_encoding(&mut out);
            }
        }
        out
    }

    /// Decodes a snapshot.
    ///
    /// # Errors
    /// [`DecodeError`] when the bytes are no snapshot within the limits.
    pub fn decode_snapshot(bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.len() > SNAPSHOT_BYTES_MAX {
            return Err(DecodeError::Invalid("snapshot"));
        }
        let mut reader = FieldReader(bytes);
        let keys = read_snapshot_keys(&mut reader)?;
        let executed = read_snapshot_commands(&mut reader)?;
        reader.check_end(Self { keys, executed })
    }
}

/// Reads the keys of a snapshot, in ascending order, with values and queues. A key without either,
/// and more keys or bytes than a store may have, are errors.
fn read_snapshot_keys(reader: &mut FieldReader<'_>) -> Result<StoreKeys, DecodeError> {
    let mut keys = StoreKeys::default();
    let mut last = Vec::new();
    for count in 0..reader.read_u32()? {
        let key = read_request_key(reader)?;
        if key <= last || count as usize >= KEYS_MAX {
            return Err(DecodeError::Invalid("order of keys"));
        }
        let value = reader.read_flag()?.then(|| read_request_value(reader)).transpose()?;
        let mut queue = VecDeque::new();
        for _ in 0..reader.read_u32()? {
            queue.push_back(read_request_value(reader)?);
            if queue.len() as u64 * ITEM_OVERHEAD_BYTES > STORE_BYTES_MAX {
                return Err(DecodeError::Invalid("queue"));
            }
        }
        let slot = StoreKeySlot { value, queue };
        if slot.is_vacant() {
            return Err(DecodeError::Invalid("key"));
        }
        last.clone_from(&key);
        keys.insert_slot(key, slot);
        if keys.bytes() > STORE_BYTES_MAX {
            return Err(DecodeError::Invalid("bytes of a store"));
        }
    }
    Ok(keys)
}

/// Reads the executed commands of a snapshot. Their key is a gateway and the command's number.
fn read_snapshot_commands(reader: &mut FieldReader<'_>) -> Result<ExecutedCommands, DecodeError> {
    let mut executed = ExecutedCommands::default();
    for _ in 0..reader.read_u16()? {
        let origin = GatewayId(reader.read_u16()?);
        let (boot, below) = (BootId(reader.read_u64()?), reader.read_u64()?);
        let mut outcomes = BTreeMap::new();
        for _ in 0..reader.read_u16()? {
            let number = reader.read_u64()?;
            let is_next = outcomes.last_key_value().is_none_or(|(last, _)| number > *last);
            let is_in_window = number >= below && number - below < COMMAND_WINDOW;
            if !is_next || !is_in_window {
                return Err(DecodeError::Invalid("order of commands"));
            }
            outcomes.insert(number, StoreOutcome::read_encoding(reader)?);
        }
        if executed.origins.last_key_value().is_some_and(|(last, _)| origin <= *last) {
            return Err(DecodeError::Invalid("order of gateways"));
        }
        executed.bytes += outcomes.values().map(executed_command_bytes).sum::<u64>();
        executed.origins.insert(origin, OriginCommands { boot, below, outcomes });
    }
    Ok(executed)
}
