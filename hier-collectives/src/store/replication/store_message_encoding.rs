//! The wire form of messages about a store.

use super::ballot::{StoreBallot, StoreBallotVersion};
use super::store_message::StoreMessage;
use crate::codec::{DecodeError, FieldReader, write_u16, write_u32, write_u64};
use crate::ids::{BootId, GatewayId};
use crate::store::limits::{COMMAND_WINDOW, PIECE_BYTES, SNAPSHOT_BYTES_MAX, STORE_NUMBERS_BOUND};
use crate::store::request::StoreCommand;
use crate::store::state::StoreEntry;

impl StoreMessage {
    /// Appends the message to `out`: its code, then its fields.
    pub fn write_encoding(&self, out: &mut Vec<u8>) {
        match self {
            Self::Present { boot } => {
                out.push(1);
                write_u64(out, boot.0);
            }
            Self::Command { boot, number, below, command } => {
                out.push(2);
                [boot.0, *number, *below].into_iter().for_each(|field| write_u64(out, field));
                command.write_encoding(out);
            }
            Self::Prepare { ballot, probe } => {
                out.push(3);
                ballot.write_to(out);
                write_u64(out, *probe);
            }
            Self::Promise { asked, probe, boot, promised, held } => {
                out.push(4);
                asked.write_to(out);
                write_u64(out, *probe);
                write_u64(out, boot.0);
                promised.write_to(out);
                write_store_message_version(*held, out);
            }
            Self::Offer { to, version, content } => {
                write_addressed_store_message(5, *to, *version, out);
                write_store_message_version(*content, out);
            }
            Self::Fetch { to, version, offset } => {
                write_addressed_store_message(6, *to, *version, out);
                write_u32(out, *offset);
            }
            Self::Piece { to, version, offset, total, bytes } => {
                write_addressed_store_message(7, *to, *version, out);
                write_u32(out, *offset);
                write_u32(out, *total);
                write_u32(out, u32::try_from(bytes.len()).unwrap_or(u32::MAX));
                out.extend(bytes);
            }
            Self::Append { to, version, commit, entry } => {
                write_addressed_store_message(8, *to, *version, out);
                write_u64(out, *commit);
                write_u16(out, entry.origin.0);
                let fields = [entry.boot.0, entry.number, entry.below];
                fields.into_iter().for_each(|field| write_u64(out, field));
                entry.command.write_encoding(out);
            }
            Self::Held { boot, version } => write_addressed_store_message(9, *boot, *version, out),
            Self::Commit { to, version } => write_addressed_store_message(10, *to, *version, out),
        }
    }

    /// Reads a message about a store.
    ///
    /// # Errors
    /// [`DecodeError`] when the bytes are a malformed message.
    pub fn read_encoding(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let boot = |reader: &mut FieldReader<'_>| reader.read_u64().map(BootId);
        Ok(match reader.read_u8()? {
            1 => Self::Present { boot: boot(reader)? },
            2 => {
                let boot = boot(reader)?;
                let (number, below) = read_store_message_number(reader)?;
                Self::Command { boot, number, below, command: StoreCommand::read_encoding(reader)? }
            }
            3 => {
                Self::Prepare { ballot: StoreBallot::read_from(reader)?, probe: reader.read_u64()? }
            }
            4 => Self::Promise {
                asked: StoreBallot::read_from(reader)?,
                probe: reader.read_u64()?,
                boot: boot(reader)?,
                promised: StoreBallot::read_from(reader)?,
                held: read_store_message_version(reader)?,
            },
            5 => Self::Offer {
                to: boot(reader)?,
                version: StoreBallotVersion::read_from(reader)?,
                content: read_store_message_version(reader)?,
            },
            6 => Self::Fetch {
                to: boot(reader)?,
                version: StoreBallotVersion::read_from(reader)?,
                offset: read_store_message_offset(reader)?,
            },
            7 => {
                let (to, version) = (boot(reader)?, StoreBallotVersion::read_from(reader)?);
                let (offset, total) = (read_store_message_offset(reader)?, reader.read_u32()?);
                let length = reader.read_u32()?;
                let rest = (total as usize).checked_sub(offset as usize);
                let expected = rest.map(|rest| rest.min(PIECE_BYTES));
                if total as usize > SNAPSHOT_BYTES_MAX || expected != Some(length as usize) {
                    return Err(DecodeError::Invalid("piece"));
                }
                let bytes = reader.read_bytes(length as usize)?.to_vec();
                Self::Piece { to, version, offset, total, bytes }
            }
            8 => {
                let (to, version) = (boot(reader)?, StoreBallotVersion::read_from(reader)?);
                let (commit, origin) = (reader.read_u64()?, GatewayId(reader.read_u16()?));
                let boot = boot(reader)?;
                let (number, below) = read_store_message_number(reader)?;
                let command = StoreCommand::read_encoding(reader)?;
                let entry = StoreEntry { origin, boot, number, below, command };
                Self::Append { to, version, commit, entry }
            }
            9 => {
                Self::Held { boot: boot(reader)?, version: StoreBallotVersion::read_from(reader)? }
            }
            10 => {
                Self::Commit { to: boot(reader)?, version: StoreBallotVersion::read_from(reader)? }
            }
            _ => return Err(DecodeError::Unknown("store message")),
        })
    }
}

/// Appends the code, the start of a gateway and a version to the message `out`.
fn write_addressed_store_message(
    code: u8,
    to: BootId,
    version: StoreBallotVersion,
    out: &mut Vec<u8>,
) {
    out.push(code);
    write_u64(out, to.0);
    version.write_to(out);
}

/// Appends an optional version to the message `out`: 1 and the version, or 0.
fn write_store_message_version(version: Option<StoreBallotVersion>, out: &mut Vec<u8>) {
    out.push(u8::from(version.is_some()));
    version.iter().for_each(|version| version.write_to(out));
}

/// Reads an optional version: a flag, then the version if the flag is 1.
fn read_store_message_version(
    reader: &mut FieldReader<'_>,
) -> Result<Option<StoreBallotVersion>, DecodeError> {
    reader.read_flag()?.then(|| StoreBallotVersion::read_from(reader)).transpose()
}

/// Reads the number of a command, and the first for which its gateway waits.
fn read_store_message_number(reader: &mut FieldReader<'_>) -> Result<(u64, u64), DecodeError> {
    let (number, below) = (reader.read_u64()?, reader.read_u64()?);
    match number.checked_sub(below) {
        Some(ahead) if ahead < COMMAND_WINDOW && number < STORE_NUMBERS_BOUND => {
            Ok((number, below))
        }
        _ => Err(DecodeError::Invalid("number of a command")),
    }
}

/// Reads the offset of a piece, a multiple of its length.
fn read_store_message_offset(reader: &mut FieldReader<'_>) -> Result<u32, DecodeError> {
    let offset = reader.read_u32()?;
    if (offset as usize).is_multiple_of(PIECE_BYTES) && offset as usize <= SNAPSHOT_BYTES_MAX {
        Ok(offset)
    } else {
        Err(DecodeError::Invalid("offset"))
    }
}
