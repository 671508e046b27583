//! One link between two regions: its measured capacity, its rate limit, its loss alarm and its messages.
//!
//! | file | type | subject |
//! |---|---|---|
//! | `capacity/` | `LinkCapacity` | what the link delivers, its RTT and its random loss, by one pair of gateways |
//! | `lane_number/` | `LaneNumber` | how many lanes pay, by what they carry and what they cost |
//! | `link_limits.rs` | `LinkLimits` | who limits the link: fabric, schedule or operator; which changes are reported |
//! | `loss_alarm.rs` | `LossAlarm` | whether loss is significantly above the configured loss |
//! | `link_message.rs` | `LinkMessage` | messages of gateways about links and lanes |
//! | `controller_policy.rs` | `LinkPolicy` | a link's schedule and congestion controller, as configured |
//! | `rate_schedule.rs` | `RateSchedule` | rates by the time of day |
//! | `rtt_alarm.rs` | `RttAlarm` | whether the path is longer than the fabric says |
//! | `traffic.rs` | `LinkTraffic` | packet and byte counters |
//!
//! All of it is plain state of the engine task: no thread, no lock, no timer of its own.

pub mod capacity;
pub mod controller_policy;
pub mod lane_number;
pub(crate) mod link_limits;
pub mod link_message;
pub mod link_traffic;
pub(crate) mod loss_alarm;
pub mod rate_schedule;
pub mod rtt_alarm;
