//! Pacing: payload leaves no faster than the rate limit of the link.

pub mod pacer;
