//! The keys of a link as files spell them, and the links, scripts and conditions they make.

mod change;
mod condition_keys;
mod raw_link;
mod raw_queue;
mod schedule_keys;
mod spelling;
mod whole_number;

pub(super) use condition_keys::build_condition_keys;
pub(super) use raw_link::{LinkError, RawLink};
pub(super) use schedule_keys::build_script_of_schedule_keys;
pub(super) use spelling::deserialize_optional_spelling;
pub(super) use whole_number::{deserialize_whole_mtu, deserialize_whole_seed};
