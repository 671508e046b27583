//! A link in words again.

use super::link_words::Netem;
use crate::{Loss, Order, Shape};
use std::fmt;
use units::{Fraction, Span};

impl fmt::Display for Netem {
    /// Writes the link in netem's words, which parse as an equal link. Words without effect are
    /// left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let link = &self.link;
        let jitter = link.jitter();
        let p = |fraction: Fraction| fraction.to_string().replace(' ', "");
        write!(f, "delay {}ns", link.delay().ns())?;
        if jitter.spread > Span::ZERO {
            let shape = if jitter.shape == Shape::Normal { "normal" } else { "uniform" };
            let order = if jitter.order == Order::Kept { "kept" } else { "free" };
            write!(f, " {}ns distribution {shape} order {order}", jitter.spread.ns())?;
        }
        match link.loss() {
            Loss::Random(chance) if chance.ppb() == 0 => {}
            Loss::Random(chance) => write!(f, " loss {}", p(chance))?,
            Loss::GilbertElliott(chain) => {
                let (to_bad, to_good) = (p(chain.to_bad), p(chain.to_good));
                let (bad, good) = (p(chain.loss_in_bad), p(chain.loss_in_good));
                write!(f, " loss gemodel {to_bad} {to_good} {bad} {good}")?;
            }
        }
        if link.losses_marked() && link.loss().is_lossy() {
            write!(f, " ecn")?;
        }
        for (word, chance) in [("corrupt", link.corrupt()), ("duplicate", link.duplicate())] {
            if chance.ppb() > 0 {
                write!(f, " {word} {}", p(chance))?;
            }
        }
        if let Some(reorder) = link.reorder() {
            write!(f, " reorder {} gap {}", p(reorder.probability), reorder.gap)?;
        }
        if let Some(rate) = link.rate() {
            write!(f, " rate {}bit {}", rate.bits_per_second(), link.overhead_bytes())?;
            write!(f, " queue {}B", link.queue().get())?;
        }
        if let (Some(bytes), true) = (link.mark_above(), link.marks_by_queue()) {
            write!(f, " mark-above {}B", bytes.get())?;
        }
        match link.limit_packets() {
            Some(limit) => write!(f, " limit {limit}")?,
            None if link.rate().is_none() => write!(f, " limit none")?,
            None => {}
        }
        self.seed.map_or(Ok(()), |seed| write!(f, " seed {seed}"))
    }
}
