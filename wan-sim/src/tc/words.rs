//! A link in words that the kernel's netem takes, or the reason why it takes none.

use crate::{Discipline, Jitter, LinkSpec, Loss, Order, Shape};
use std::fmt::Write;
use units::{Fraction, Span};

/// Returns the link as arguments of `tc ... netem`. The error says why netem cannot express the link.
/// `mtu` is the longest IP packet in bytes.
pub(super) fn tc_words_of_netem(spec: &LinkSpec, mtu: u16) -> Result<String, &'static str> {
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
    if spec.discipline() != Discipline::DropTail {
        return Err("netem's queue is drop-tail: leave out codel and red");
    }
    if spec.policer().is_some() {
        return Err("netem has no policer: leave it out");
    }
    let mut words =
        format!("limit {} delay {}", tc_words_limit(spec, mtu)?, tc_words_time(spec.delay())?);
    if jitters {
        let shape = if shape == Shape::Normal { "normal" } else { "uniform" };
        // Writing into a String cannot fail.
        let _ = write!(words, " {}", tc_words_time(spread)?);
        if shape == "normal" {
            words.push_str(" distribution normal");
        }
    }
    match spec.loss() {
        Loss::Random(chance) if chance.ppb() > 0 => {
            let _ = write!(words, " loss {}", tc_words_percent(chance));
        }
        Loss::Random(_) => {}
        Loss::GilbertElliott(chain) => {
            let parts = [chain.to_bad, chain.to_good, chain.loss_in_bad, chain.loss_in_good];
            let _ = write!(words, " loss gemodel {}", parts.map(tc_words_percent).join(" "));
        }
    }
    if spec.losses_marked() {
        words.push_str(" ecn");
    }
    for (word, chance) in [("duplicate", spec.duplicate()), ("corrupt", spec.corrupt())] {
        if chance.ppb() > 0 {
            let _ = write!(words, " {word} {}", tc_words_percent(chance));
        }
    }
    if let Some(reorder) = spec.reorder() {
        let _ =
            write!(words, " reorder {} gap {}", tc_words_percent(reorder.probability), reorder.gap);
    }
    if let Some(rate) = spec.rate() {
        // Netem counts the Ethernet header with the packet; a rate here is of IP packets.
        let overhead = i32::from(spec.overhead_bytes()) - ETHERNET_HEADER_BYTES;
        let _ = write!(words, " rate {}bit {overhead}", rate.bits_per_second());
    }
    Ok(words)
}

/// Returns netem's limit, which counts waiting packets and packets in flight: the smaller of the
/// link's own limit, and the packets that its rate puts on the path within its delay with those of
/// its queue. The error says why no limit follows from the link, or that netem holds no such number.
fn tc_words_limit(spec: &LinkSpec, mtu: u16) -> Result<u64, &'static str> {
    let own = spec.limit_packets().map(|limit| u64::from(limit.get()));
    match (own, tc_words_full_link(spec, mtu)) {
        (Some(own), room) => Ok(room.map_or(own, |room| room.min(own))),
        (None, room) => room,
    }
}

/// Returns one more than the packets of `mtu` bytes that fill a link: its rate times its longest
/// delay, and its queue. The error says why there is no such number.
fn tc_words_full_link(spec: &LinkSpec, mtu: u16) -> Result<u64, &'static str> {
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

/// Formats a span in milliseconds or microseconds, as `tc` takes times. A span of no whole
/// microseconds is an error.
fn tc_words_time(span: Span) -> Result<String, &'static str> {
    match span.ns() {
        ns if ns.is_multiple_of(1_000_000) => Ok(format!("{}ms", ns / 1_000_000)),
        ns if ns.is_multiple_of(1000) => Ok(format!("{}us", ns / 1000)),
        _ => Err("tc takes whole microseconds: round delay and jitter"),
    }
}

/// Formats a probability in percent without a space, as `tc` takes probabilities.
fn tc_words_percent(fraction: Fraction) -> String {
    fraction.to_string().replace(' ', "")
}

/// 14 bytes: the length of an Ethernet header, which netem counts as part of a packet. The overhead
/// in netem's words is less by these bytes, since a link's rate is of IP packets.
const ETHERNET_HEADER_BYTES: i32 = 14;
