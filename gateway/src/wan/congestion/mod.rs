//! Congestion control of a lane: delivery rate, min RTT, congestion window, bytes in flight.

pub mod controller;
pub(crate) mod delivery_rate;
pub(crate) mod in_flight;
pub(crate) mod min_rtt;
pub(crate) mod tuner;
