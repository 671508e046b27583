//! Internet checksums, and the 16-bit words of packets.

use super::virtio_header::{IPV4_HEADER_BYTES, IPV6_HEADER_BYTES, NEEDS_CHECKSUM, VirtioHeader};

/// Completes the transport checksum of `packet`, so that a receiver notices a flipped bit. Returns
/// the header without the flag for an incomplete checksum.
pub(super) fn complete_ip_checksum(packet: &mut [u8], mut header: VirtioHeader) -> VirtioHeader {
    let start = usize::from(header.checksum_start);
    let place = start + usize::from(header.checksum_offset);
    if header.flags & NEEDS_CHECKSUM != 0 && place + 2 <= packet.len() {
        let sum = !fold_ip_checksum(ip_checksum_sum(&packet[start..]));
        write_ip_checksum_word(packet, place, if sum == 0 { 0xffff } else { sum });
        header.flags &= !NEEDS_CHECKSUM;
    }
    header
}

/// Computes the checksum of the IPv4 header of `packet` anew.
pub(super) fn renew_ipv4_checksum(packet: &mut [u8]) {
    let end = (usize::from(packet[0] & 15) * 4).clamp(IPV4_HEADER_BYTES, packet.len());
    write_ip_checksum_word(packet, 10, 0);
    let sum = !fold_ip_checksum(ip_checksum_sum(&packet[..end]));
    write_ip_checksum_word(packet, 10, sum);
}

/// Returns the sum of the pseudo header, which begins the checksum of TCP and UDP. The transport
/// header and payload have `transport_bytes`.
pub(super) fn pseudo_header_ip_checksum(
    packet: &[u8],
    protocol: u8,
    transport_bytes: usize,
) -> u64 {
    let addresses = if packet[0] >> 4 == 4 {
        &packet[12..IPV4_HEADER_BYTES]
    } else {
        &packet[8..IPV6_HEADER_BYTES]
    };
    ip_checksum_sum(addresses) + u64::from(protocol) + transport_bytes as u64
}

/// Returns the sum of the 16-bit words of `bytes` in network order; an odd last byte counts as
/// high.
pub(super) fn ip_checksum_sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<2>();
    let words: u64 = words.iter().map(|word| u64::from(u16::from_be_bytes(*word))).sum();
    words + rest.first().map_or(0, |last| u64::from(*last) << 8)
}

/// Folds a sum of words to 16 bits by adding the carries; the checksum is its complement.
pub(super) fn fold_ip_checksum(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Reads the 16-bit word at byte `at` of `packet`, in network order.
pub(super) fn read_ip_checksum_word(packet: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([packet[at], packet[at + 1]])
}

/// Writes the 16-bit `word` at byte `at` of `packet`, in network order.
pub(super) fn write_ip_checksum_word(packet: &mut [u8], at: usize, word: u16) {
    packet[at..at + 2].copy_from_slice(&word.to_be_bytes());
}
