//! The windows of segments: unsolicited and granted ones, and the receipts that open them again.

pub(super) mod grants;
pub(super) mod receipts;
pub(in crate::session) mod unsolicited;
