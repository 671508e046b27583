//! The damage of a link to one IP packet: a mark, a flipped bit.

use super::ip_checksum::renew_ipv4_checksum;
use super::virtio_header::IPV6_HEADER_BYTES;

/// Sets the ECN CE mark in the IP header.
pub(super) fn mark_ip_packet_ecn_ce(packet: &mut [u8]) {
    if packet[0] >> 4 == 4 {
        packet[1] |= 3;
        renew_ipv4_checksum(packet);
    } else {
        packet[1] |= 0x30;
    }
}

/// Flips one bit after the IP header: `bit`, modulo the bits that follow the header.
pub(super) fn flip_ip_packet_payload_bit(packet: &mut [u8], bit: u32) {
    let headers = match packet[0] >> 4 {
        4 => usize::from(packet[0] & 15) * 4,
        _ => IPV6_HEADER_BYTES,
    };
    if let Some(payload) = packet.get_mut(headers..)
        && !payload.is_empty()
    {
        let bit = bit as usize % (payload.len() * 8);
        payload[bit / 8] ^= 1 << (bit % 8);
    }
}
