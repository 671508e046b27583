//! A link in words again.

use super::netem_link::Netem;
use crate::{Discipline, Loss, Order, Shape};
use std::fmt;
use units::{BitRate, Span};

impl fmt::Display for Netem {
    /// Writes the link in netem's words, which parse as an equal link. Words without effect are
    /// left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let link = &self.link;
        let jitter = link.jitter();
        write!(f, "delay {}", print_netem_span(link.delay()))?;
        if jitter.spread > Span::ZERO {
            let shape = if jitter.shape == Shape::Normal { "normal" } else { "uniform" };
            let order = if jitter.order == Order::Kept { "kept" } else { "free" };
            let spread = print_netem_span(jitter.spread);
            write!(f, " {spread} distribution {shape} order {order}")?;
        }
        match link.loss() {
            Loss::Random(chance) if chance.ppb() == 0 => {}
            Loss::Random(chance) => write!(f, " loss {}", print_netem_quantity(chance))?,
            Loss::GilbertElliott(chain) => {
                let (to_bad, to_good) =
                    (print_netem_quantity(chain.to_bad), print_netem_quantity(chain.to_good));
                let (bad, good) = (
                    print_netem_quantity(chain.loss_in_bad),
                    print_netem_quantity(chain.loss_in_good),
                );
                write!(f, " loss gemodel {to_bad} {to_good} {bad} {good}")?;
            }
        }
        if link.losses_marked() && link.loss().is_lossy() {
            write!(f, " ecn")?;
        }
        for (word, chance) in [("corrupt", link.corrupt()), ("duplicate", link.duplicate())] {
            if chance.ppb() > 0 {
                write!(f, " {word} {}", print_netem_quantity(chance))?;
            }
        }
        if let Some(reorder) = link.reorder() {
            write!(
                f,
                " reorder {} gap {}",
                print_netem_quantity(reorder.probability),
                reorder.gap
            )?;
        }
        if let Some(rate) = link.rate() {
            write!(f, " rate {} {}", print_netem_rate(rate), link.overhead_bytes())?;
            write!(f, " queue {}", print_netem_quantity(link.queue()))?;
        }
        if let (Some(bytes), true) = (link.mark_above(), link.marks_by_queue()) {
            write!(f, " mark-above {}", print_netem_quantity(bytes))?;
        }
        match link.discipline() {
            Discipline::DropTail => {}
            Discipline::Codel(codel) => {
                let (target, interval) =
                    (print_netem_span(codel.target), print_netem_span(codel.interval));
                write!(f, " codel {target} {interval}")?;
            }
            Discipline::Red(red) => {
                let (min, max) = (print_netem_quantity(red.min), print_netem_quantity(red.max));
                let (most, weight) =
                    (print_netem_quantity(red.probability), print_netem_quantity(red.weight));
                write!(f, " red {min} {max} {most} {weight}")?;
            }
        }
        if let Some(policer) = link.policer() {
            let (rate, burst) =
                (print_netem_rate(policer.rate), print_netem_quantity(policer.burst));
            write!(f, " policer {rate} {burst}")?;
        }
        match link.limit_packets() {
            Some(limit) => write!(f, " limit {limit}")?,
            None if link.rate().is_none() => write!(f, " limit none")?,
            None => {}
        }
        self.seed.map_or(Ok(()), |seed| write!(f, " seed {seed}"))
    }
}

/// Spells a quantity exactly and in one word, such as `500kB`.
fn print_netem_quantity(quantity: impl fmt::Display) -> String {
    quantity.to_string().replace(' ', "")
}

/// Spells a time exactly, in the largest unit of `tc` that gives a whole number, such as `40ms`.
pub(crate) fn print_netem_span(span: Span) -> String {
    print_netem_whole(
        span.ns(),
        &[(1_000_000_000, "s"), (1_000_000, "ms"), (1000, "us"), (1, "ns")],
    )
}

/// Spells a rate exactly, in the largest unit of `tc` that gives a whole number, such as `500mbit`.
pub(crate) fn print_netem_rate(rate: BitRate) -> String {
    let units = [(1_000_000_000, "gbit"), (1_000_000, "mbit"), (1000, "kbit"), (1, "bit")];
    print_netem_whole(rate.bits_per_second(), &units)
}

/// Spells a value in the first unit of `units` that divides it without a remainder. Zero is spelled
/// in the last unit.
fn print_netem_whole(value: u64, units: &[(u64, &str)]) -> String {
    let whole = |scale: u64| value >= scale && value.is_multiple_of(scale);
    let (scale, unit) =
        units.iter().find(|(scale, _)| whole(*scale)).unwrap_or(&units[units.len() - 1]);
    format!("{}{unit}", value / scale)
}
