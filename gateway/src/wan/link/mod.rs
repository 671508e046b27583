//! One link between two regions: its measured capacity, its rate limit, its loss alarm and its messages.

pub mod capacity;
pub mod loss_alarm;
pub mod message;
pub mod policy;
pub mod rate_limit;
