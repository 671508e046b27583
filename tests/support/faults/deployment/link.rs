//! The links between regions, and each under the faults that are active.

use crate::faults::spec::layout::Layout;
use crate::faults::spec::place::{Direction, GatewayPlace, RegionPair};
use crate::{Shape, simulated_address, simulated_lan_address};
use std::net::IpAddr;
use std::num::NonZeroU32;
use units::{BitRate, ByteCount, Fraction, Span};
use wan_sim::{LinkSpec, QueueSize, Reorder, VirtualNet};

/// Returns the network of a layout, whose links are those of a shape.
pub(super) fn network(layout: &Layout, shape: &Shape, seed: u64) -> VirtualNet {
    let net = VirtualNet::new();
    for (index, link) in (0u64..).zip(&layout.links) {
        for (number, (one, other)) in (0u64..).zip(pairs(layout, link.regions)) {
            let seed = seed ^ (index << 40) ^ (number << 48);
            net.connect(
                ip(layout, one),
                ip(layout, other),
                link.spec(shape),
                link.spec(shape),
                seed,
            );
        }
    }
    let lan = LinkSpec::new(LAN_RATE, LAN_DELAY).expect("a valid link");
    for one in layout.gateways() {
        let near = |other: &GatewayPlace| one.region == other.region && one < *other;
        for other in layout.gateways().filter(near) {
            let [one, other] =
                [one, other].map(|place| simulated_lan_address(layout.id(place)).ip());
            net.connect(one, other, lan, lan, seed);
        }
    }
    net
}

/// The chosen directions of the link between two regions: sender, receiver and name of each, for each
/// pair of gateways.
pub(super) fn ways(
    layout: &Layout,
    regions: RegionPair,
    direction: Direction,
) -> Vec<(IpAddr, IpAddr, Direction)> {
    let both = |(one, other)| {
        let [one, other] = [one, other].map(|place| ip(layout, place));
        [(one, other, Direction::There), (other, one, Direction::Back)]
    };
    let mut ways: Vec<_> = pairs(layout, regions).into_iter().flat_map(both).collect();
    ways.retain(|(_, _, way)| direction == Direction::Both || direction == *way);
    ways
}

/// Returns the pairs of gateways of two regions that have a connection.
fn pairs(layout: &Layout, RegionPair(one, other): RegionPair) -> Vec<(GatewayPlace, GatewayPlace)> {
    let of = |region: u8| layout.gateways().filter(move |place| place.region == region);
    let pairs = of(one).flat_map(|here| of(other).map(move |there| (here, there)));
    pairs.filter(|(here, there)| layout.connects(*here, *there)).collect()
}

fn ip(layout: &Layout, place: GatewayPlace) -> IpAddr {
    simulated_address(layout.id(place)).ip()
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

/// 25 Gbit/s and 50 us: rate and delay of the network between gateways of a region.
const LAN_RATE: BitRate = BitRate::from_bits_per_second(25_000_000_000);
const LAN_DELAY: Span = Span::from_ns(50_000);

/// 208 KiB: the socket buffer of a stopped relay, which is Linux's default.
const STOPPED_BUFFER: ByteCount = ByteCount::new(208 << 10);

/// 1 bit/s: the rate of a link through a stopped relay, so that nothing leaves.
const STOPPED_RATE: BitRate = BitRate::from_bits_per_second(1);
