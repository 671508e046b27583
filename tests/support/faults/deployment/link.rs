//! The link between the regions under the faults that are active.

use crate::faults::spec::fault::Direction;
use crate::simulated_address;
use hier_collectives::ids::GatewayId;
use std::net::IpAddr;
use std::num::NonZeroU32;
use units::{BitRate, ByteCount, Fraction, Span};
use wan_sim::{LinkSpec, QueueSize, Reorder};

pub(super) fn ips() -> [IpAddr; 2] {
    [0, 1].map(|id| simulated_address(GatewayId(id)).ip())
}

/// The chosen directions: sender, receiver and name of each.
pub(super) fn ways(
    direction: Direction,
    [east, west]: [IpAddr; 2],
) -> Vec<(IpAddr, IpAddr, Direction)> {
    let mut ways = vec![(east, west, Direction::EastWest), (west, east, Direction::WestEast)];
    ways.retain(|(_, _, way)| direction == Direction::Both || direction == *way);
    ways
}

pub(super) fn delayed(spec: LinkSpec, by: Span) -> LinkSpec {
    let rate = spec.rate().expect("a rate");
    let slow = LinkSpec::new(rate, spec.delay() + by).expect("a delay below an hour");
    let slow = slow.with_queue(spec.queue()).with_loss_model(spec.loss());
    slow.with_jitter(spec.jitter()).expect("jitter below the delay")
}

/// The link through a stopped relay, which fills its buffer and passes nothing on.
pub(super) fn stopped(spec: &LinkSpec) -> LinkSpec {
    let stopped = LinkSpec::new(STOPPED_RATE, spec.delay()).expect("a delay below an hour");
    stopped.with_queue(QueueSize::Bytes(STOPPED_BUFFER))
}

pub(super) fn disordered(spec: LinkSpec) -> LinkSpec {
    let probability = Fraction::from_ppb(DISORDER_PPM * 1000).expect("at most one");
    let reorder = Reorder { probability, gap: NonZeroU32::new(2).expect("not zero") };
    spec.with_duplicate(probability).with_reorder(reorder)
}

/// 20,000 parts per million (2 %): the probability that a packet is duplicated, and that it is
/// reordered, during the fault disorder.
const DISORDER_PPM: u32 = 20_000;

/// 208 KiB: the socket buffer of a stopped relay, which is Linux's default.
const STOPPED_BUFFER: ByteCount = ByteCount::new(208 << 10);

/// 1 bit/s: the rate of a link through a stopped relay, so that nothing leaves.
const STOPPED_RATE: BitRate = BitRate::from_bits_per_second(1);
