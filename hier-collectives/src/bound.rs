//! The least time any algorithm needs.

use crate::ids::RegionId;
use crate::topology::Fabric;
use units::{BitRate, ByteCount, Span};

/// Bytes of a full IPv4 packet that are no payload: IP 20, UDP 8, QUIC short header 11 (flags,
/// connection id of 8, packet number of 2), STREAM frame header 12 (type, stream id of 4,
/// offset of 4, length of 2, and one for longer numbers), AEAD tag 16.
pub const PACKET_OVERHEAD_BYTES: u16 = 67;

/// First-sent payload bytes per second that a rate in IP bytes carries in full packets.
pub fn payload_rate(rate: BitRate, mtu: u16) -> f64 {
    let share = f64::from(mtu - PACKET_OVERHEAD_BYTES) / f64::from(mtu);
    rate.bytes_per_second() * share
}

/// T* of an all-reduce of `bytes` over all regions: the greatest of, for each region, the
/// bytes through its port out plus the farthest delay, the bytes through its port in plus the
/// nearest delay, and 2(N-1)S over the sum of all ports out, and in. A region's port is the
/// sum of its gateways', and no more than its links carry. Zero for one region.
pub fn all_reduce(fabric: &Fabric, bytes: ByteCount) -> Span {
    let regions = fabric.regions().len();
    if regions < 2 {
        return Span::ZERO;
    }
    let size = bytes.get() as f64;
    let (mut least, mut out_sum, mut in_sum) = (0.0f64, 0.0, 0.0);
    for region in (0..regions).filter_map(|index| u16::try_from(index).ok()).map(RegionId) {
        let (out, inward) = ports(fabric, region);
        let delays = fabric.links().iter().filter(|link| link.a == region || link.b == region);
        let delays: Vec<f64> = delays.map(|link| link.rtt.as_secs_f64() / 2.0).collect();
        let far = delays.iter().copied().fold(0.0, f64::max);
        let near = delays.iter().copied().fold(f64::INFINITY, f64::min);
        least = least.max(size / out + far).max(size / inward + near);
        (out_sum, in_sum) = (out_sum + out, in_sum + inward);
    }
    let twice = 2.0 * (regions as f64 - 1.0) * size;
    let seconds = least.max(twice / out_sum).max(twice / in_sum);
    Span::from_ns((seconds * 1e9).round() as u64)
}

/// Payload rates out of and into a region.
fn ports(fabric: &Fabric, region: RegionId) -> (f64, f64) {
    let wans = fabric.gateways().iter().filter(|gateway| gateway.region == region);
    let wans: Vec<_> = wans.filter_map(|gateway| gateway.wan).collect();
    let links = fabric.links().iter().filter(|link| link.a == region || link.b == region);
    let linked: u64 = links.map(|link| link.rate.bits_per_second()).sum();
    let port =
        |bits: u64| payload_rate(BitRate::from_bits_per_second(bits.min(linked)), fabric.mtu());
    let out = wans.iter().map(|wan| wan.egress.bits_per_second()).sum();
    let inward = wans.iter().map(|wan| wan.ingress.bits_per_second()).sum();
    (port(out), port(inward))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{LinkSpec, RegionSpec, WanPort};
    use units::Fraction;

    fn fabric(ports: &[u64], rtt_ms: u64) -> Fabric {
        let rate = BitRate::from_bits_per_second;
        let region = |(index, bits): (usize, &u64)| {
            let wan = Some(WanPort { egress: rate(*bits), ingress: rate(*bits) });
            let gateways = vec![(format!("g{index}"), 1, wan)];
            RegionSpec { name: format!("r{index}"), speeds: vec![1.0], gateways }
        };
        let mut links = Vec::new();
        for one in 0..ports.len() {
            for other in one + 1..ports.len() {
                links.push(LinkSpec {
                    between: (format!("r{one}"), format!("r{other}")),
                    rate: rate(ports[one].min(ports[other])),
                    rtt: Span::from_ms(rtt_ms),
                    loss: Fraction::default(),
                });
            }
        }
        let regions = ports.iter().enumerate().map(region).collect();
        Fabric::new("t", 1500, regions, links).expect("valid")
    }

    #[test]
    fn full_packets_carry_the_agreed_share() {
        let rate = BitRate::from_bits_per_second(8_000_000_000);
        assert!((payload_rate(rate, 1500) / 1e9 - 0.955).abs() < 0.0005);
        assert!((payload_rate(rate, 8928) / 1e9 - 0.993).abs() < 0.0006);
    }

    #[test]
    fn two_regions_need_one_crossing() {
        let bound = all_reduce(&fabric(&[500_000_000; 2], 80), ByteCount::new(64 << 20));
        let payload = 62.5e6 * 1433.0 / 1500.0;
        let want = f64::from(64 << 20) / payload + 0.04;
        assert!((bound.as_secs_f64() - want).abs() < 1e-6, "{bound}");
    }

    #[test]
    fn three_regions_are_bound_by_the_least_port_or_by_the_sum() {
        let gigabyte = ByteCount::new(1_000_000_000);
        let share = 1433.0 / 1500.0;
        let uneven = all_reduce(&fabric(&[1_000_000_000, 600_000_000, 300_000_000], 60), gigabyte);
        assert!((uneven.as_secs_f64() - (1e9 / (37.5e6 * share) + 0.03)).abs() < 1e-3);
        let even = all_reduce(&fabric(&[800_000_000; 3], 60), gigabyte);
        assert!((even.as_secs_f64() - 4e9 / (300e6 * share)).abs() < 1e-3);
    }
}
