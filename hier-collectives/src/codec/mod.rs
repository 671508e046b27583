//! The fields that every message is made of: big-endian numbers, and texts behind their length.
//!
//! Messages between gateways ([`crate::wire`]) and messages between trainers and their gateway are
//! built of these fields. Types of the domain have their own encoding beside their definition.

mod hash;
mod reader;
mod writer;

pub use hash::fnv1a_hash;
pub use reader::{DecodeError, FieldReader};
pub use writer::{write_text, write_u16, write_u32, write_u64};
