//! A link in words that the kernel's netem takes, or the reason why it takes none.

use crate::{Jitter, LinkSpec, Loss, Order, Shape};
use std::fmt::Write;
use units::{Fraction, Span};

/// The link in words that the kernel's netem takes.
pub(super) fn netem(spec: &LinkSpec, mtu: u16) -> Result<String, &'static str> {
    let Jitter { spread, shape, order } = spec.jitter();
    let jitters = spread > Span::ZERO;
    match (spec.rate(), order) {
        (None, Order::Kept) if jitters => {
            return Err("netem's jitter reorders where there is no rate: give a rate, or let it");
        }
        (Some(_), Order::Free) if jitters => {
            return Err("netem's jitter keeps order where there is a rate: drop one of them");
        }
        _ => {}
    }
    if spec.mark_above().is_some() {
        return Err("netem does not mark by queue length: leave out mark_above");
    }
    let mut words = format!("limit {} delay {}", limit(spec, mtu)?, time(spec.delay())?);
    if jitters {
        let shape = if shape == Shape::Normal { "normal" } else { "uniform" };
        // Writing into a String cannot fail.
        let _ = write!(words, " {}", time(spread)?);
        if shape == "normal" {
            words.push_str(" distribution normal");
        }
    }
    match spec.loss() {
        Loss::Random(chance) if chance.ppb() > 0 => {
            let _ = write!(words, " loss {}", percent(chance));
        }
        Loss::Random(_) => {}
        Loss::GilbertElliott(chain) => {
            let parts = [chain.to_bad, chain.to_good, chain.loss_in_bad, chain.loss_in_good];
            let _ = write!(words, " loss gemodel {}", parts.map(percent).join(" "));
        }
    }
    if spec.losses_marked() {
        words.push_str(" ecn");
    }
    for (word, chance) in [("duplicate", spec.duplicate()), ("corrupt", spec.corrupt())] {
        if chance.ppb() > 0 {
            let _ = write!(words, " {word} {}", percent(chance));
        }
    }
    if let Some(reorder) = spec.reorder() {
        let _ = write!(words, " reorder {} gap {}", percent(reorder.probability), reorder.gap);
    }
    if let Some(rate) = spec.rate() {
        // Netem counts the Ethernet header with the packet; a rate here is of IP packets.
        let overhead = i32::from(spec.overhead_bytes()) - ETHERNET_BYTES;
        let _ = write!(words, " rate {}bit {overhead}", rate.bits_per_second());
    }
    Ok(words)
}

/// Netem's limit, which counts packets in flight as well as waiting ones. It is the smaller of the
/// link's own limit and of its pipe and queue.
fn limit(spec: &LinkSpec, mtu: u16) -> Result<u64, &'static str> {
    let own = spec.limit_packets().map(|limit| u64::from(limit.get()));
    match (own, room(spec, mtu)) {
        (Some(own), room) => Ok(room.map_or(own, |room| room.min(own))),
        (None, room) => room,
    }
}

/// Packets that fill pipe and queue.
fn room(spec: &LinkSpec, mtu: u16) -> Result<u64, &'static str> {
    let rate = spec.rate().ok_or("netem's limit follows from the rate: give a rate, or a limit")?;
    let longest = u128::from(spec.delay().ns() + spec.jitter().reach().ns());
    let pipe_bytes = u128::from(rate.bits_per_second()) * longest / (8 * 1_000_000_000);
    let bytes = pipe_bytes + u128::from(spec.queue().get());
    let packets = bytes.div_ceil(u128::from(mtu)) + 1;
    u64::try_from(packets)
        .ok()
        .filter(|packets| *packets <= u64::from(u32::MAX))
        .ok_or("netem's limit of 2^32 packets is below pipe and queue: give a smaller queue")
}

fn time(span: Span) -> Result<String, &'static str> {
    match span.ns() {
        ns if ns.is_multiple_of(1_000_000) => Ok(format!("{}ms", ns / 1_000_000)),
        ns if ns.is_multiple_of(1000) => Ok(format!("{}us", ns / 1000)),
        _ => Err("tc takes whole microseconds: round delay and jitter"),
    }
}

fn percent(fraction: Fraction) -> String {
    fraction.to_string().replace(' ', "")
}

/// 14 bytes: the Ethernet header before the IP header.
const ETHERNET_BYTES: i32 = 14;
