//! The keys of a link as files spell them, and the links, scripts and conditions they make.

mod change;
mod conditions;
mod raw;
mod raw_queue;
mod schedule;
mod spelling;
mod whole_number;

pub(super) use conditions::build_conditions_from_keys;
pub(super) use raw::{LinkError, RawLink};
pub(super) use schedule::build_schedule_script;
pub(super) use spelling::deserialize_optional_spelling;
pub(super) use whole_number::{deserialize_mtu, deserialize_seed};
