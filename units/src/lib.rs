//! Quantities with units.
//!
//! Files and flags spell every quantity as a number and a unit ("500 Mbit/s", "80 ms",
//! "64 MiB", "0.1 %"; the space is optional). Each type parses that spelling exactly, in
//! integers, and prints it again. Nothing is clamped or rounded: what cannot be
//! represented is an error that says what would be accepted.

mod decimal;
mod quantity;
mod time;

pub use quantity::{BitRate, ByteCount, Fraction, QuantityError};
pub use time::{Span, TimeNs};
