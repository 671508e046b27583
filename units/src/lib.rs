//! Quantities with units.
//!
//! Files and flags spell every quantity as a number and a unit: "500 Mbit/s", "80 ms", "64 MiB" or
//! "0.1 %". The space is optional. Each type parses that spelling exactly, in integers, and prints
//! it again. Nothing is clamped or rounded: a value that cannot be represented is an error, which
//! names the accepted spelling.
//!
//! There are two ways to print: `Display` is exact and parses back, for files, flags, JSON and the
//! repetition of what somebody has written. `rounded` has three significant digits, for people who
//! read a measurement or a forecast. Both use the units of the parser, but rounded sizes are always
//! binary, so that two of them can be compared. [`rounded_decimal_percent`] and [`rounded_decimal`] do so for
//! measured fractions and ratios, which may exceed 1 or be below 0.

mod bit_rate;
mod byte_count;
mod decimal;
mod fraction;
mod quantity;
mod span;
mod time;

pub use bit_rate::BitRate;
pub use byte_count::ByteCount;
pub use decimal::{rounded_decimal, rounded_decimal_percent};
pub use fraction::Fraction;
pub use quantity::QuantityError;
pub use span::Span;
pub use time::TimeNs;
