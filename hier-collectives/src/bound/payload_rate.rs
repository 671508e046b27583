//! Payload rates of long-haul paths: rates in IP bytes, less the headers of full packets.

use units::BitRate;

/// 67 bytes: headers and tag of a full packet, which are subtracted from the MTU to get its
/// payload. They are IPv4 20, UDP 8, QUIC 11, STREAM frame 12 and AEAD tag 16 bytes.
/// Tested by `full_packets_carry_the_agreed_share`.
pub const PACKET_OVERHEAD_BYTES: u16 = 67;

/// Returns the payload bytes per second that `rate`, in IP bytes, carries in full packets of `mtu`
/// bytes.
pub fn payload_rate(rate: BitRate, mtu: u16) -> f64 {
    rate.bytes_per_second() * payload_rate_fraction(mtu)
}

/// Returns the fraction of a full packet of `mtu` bytes that is payload.
pub fn payload_rate_fraction(mtu: u16) -> f64 {
    f64::from(mtu - PACKET_OVERHEAD_BYTES) / f64::from(mtu)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_packets_carry_the_agreed_share() {
        let rate = BitRate::from_bits_per_second(8_000_000_000);
        assert!((payload_rate(rate, 1500) / 1e9 - 0.955).abs() < 0.0005);
        assert!((payload_rate(rate, 8928) / 1e9 - 0.993).abs() < 0.0006);
    }
}
