//! Payload rates of long-haul paths.

use units::BitRate;

/// Bytes of a full IPv4 packet that are no payload: IP 20, UDP 8, QUIC short header 11 (flags,
/// connection id of 8, packet number of 2), STREAM frame header 12 (type, stream id of 4,
/// offset of 4, length of 2, and one for longer numbers), AEAD tag 16.
pub const PACKET_OVERHEAD_BYTES: u16 = 67;

/// First-sent payload bytes per second that a rate in IP bytes carries in full packets.
pub fn payload_rate(rate: BitRate, mtu: u16) -> f64 {
    rate.bytes_per_second() * payload_share(mtu)
}

/// The part of a full packet that is payload.
pub fn payload_share(mtu: u16) -> f64 {
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
