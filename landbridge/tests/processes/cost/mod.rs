//! The resources that gateways take: memory under load, and wake-ups without any.

mod idle;
mod memory;
