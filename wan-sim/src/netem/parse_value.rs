//! Values as `tc` spells them.

use crate::Order;
use std::num::NonZeroU32;
use std::str::FromStr;
use units::{BitRate, ByteCount, Span};

/// The most packets that a link holds.
#[derive(Debug, Clone, Copy)]
pub(super) enum Limit {
    Packets(NonZeroU32),
    None,
}

/// Parses a value that is one word, in the spelling of its type without a space.
pub(super) fn parse_netem_word_value<T: FromStr>(word: &str) -> Option<T> {
    word.parse().ok()
}

/// Parses the order of packets under jitter: `kept` or `free`.
pub(super) fn parse_netem_order_value(word: &str) -> Option<Order> {
    match word {
        "kept" => Some(Order::Kept),
        "free" => Some(Order::Free),
        _ => None,
    }
}

/// Parses a limit on packets: a number above zero, or `none`.
pub(super) fn parse_netem_limit_value(word: &str) -> Option<Limit> {
    match word {
        "none" => Some(Limit::None),
        _ => word.parse().ok().map(Limit::Packets),
    }
}

/// Parses a time such as `40ms` or `40msec`. Refuses a number without unit, which `tc` takes as
/// microseconds.
pub(crate) fn parse_netem_span_value(word: &str) -> Option<Span> {
    let (number, unit) = split_netem_value(word);
    let unit = match unit.strip_suffix("ecs").or(unit.strip_suffix("ec")).unwrap_or(&unit) {
        unit @ ("s" | "ms" | "us" | "ns") => unit,
        _ => return None,
    };
    format!("{number} {unit}").parse().ok()
}

/// Parses a rate above zero: `1gbit`, or `125mbps` in bytes a second.
pub(crate) fn parse_netem_rate_value(word: &str) -> Option<BitRate> {
    let (number, unit) = split_netem_value(word);
    let bits = |unit| format!("{number} {unit}").parse().ok();
    let bytes = |unit| {
        let bytes: ByteCount = format!("{number} {unit}").parse().ok()?;
        bytes.get().checked_mul(8).map(BitRate::from_bits_per_second)
    };
    let rate = match unit.as_str() {
        "bit" => bits("bit/s"),
        "kbit" => bits("kbit/s"),
        "mbit" => bits("Mbit/s"),
        "gbit" => bits("Gbit/s"),
        "tbit" => bits("Tbit/s"),
        "bps" => bytes("B"),
        "kbps" => bytes("kB"),
        "mbps" => bytes("MB"),
        "gbps" => bytes("GB"),
        _ => None,
    };
    rate.filter(|rate| rate.bits_per_second() > 0)
}

/// Splits a word such as `40MS` into number and unit, the unit in lower case.
fn split_netem_value(word: &str) -> (&str, String) {
    let end = word.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(word.len());
    let (number, unit) = word.split_at(end);
    (number, unit.to_ascii_lowercase())
}
