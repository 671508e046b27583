//! Internet checksums, and the 16-bit words of packets.

use super::header::{Header, IPV4_BYTES, IPV6_BYTES, NEEDS_CHECKSUM};

/// Puts the whole checksum in, so that a flipped bit shows.
pub(super) fn complete_checksum(packet: &mut [u8], mut header: Header) -> Header {
    let start = usize::from(header.checksum_start);
    let place = start + usize::from(header.checksum_offset);
    if header.flags & NEEDS_CHECKSUM != 0 && place + 2 <= packet.len() {
        let sum = !fold(sum(&packet[start..]));
        put(packet, place, if sum == 0 { 0xffff } else { sum });
        header.flags &= !NEEDS_CHECKSUM;
    }
    header
}

pub(super) fn renew_ipv4_checksum(packet: &mut [u8]) {
    let end = (usize::from(packet[0] & 15) * 4).clamp(IPV4_BYTES, packet.len());
    put(packet, 10, 0);
    let sum = !fold(sum(&packet[..end]));
    put(packet, 10, sum);
}

pub(super) fn pseudo_header(packet: &[u8], protocol: u8, transport_bytes: usize) -> u64 {
    let addresses =
        if packet[0] >> 4 == 4 { &packet[12..IPV4_BYTES] } else { &packet[8..IPV6_BYTES] };
    sum(addresses) + u64::from(protocol) + transport_bytes as u64
}

pub(super) fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<2>();
    let words: u64 = words.iter().map(|word| u64::from(u16::from_be_bytes(*word))).sum();
    words + rest.first().map_or(0, |last| u64::from(*last) << 8)
}

pub(super) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

pub(super) fn get(packet: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([packet[at], packet[at + 1]])
}

pub(super) fn put(packet: &mut [u8], at: usize, word: u16) {
    packet[at..at + 2].copy_from_slice(&word.to_be_bytes());
}
