//! The bytes of IP and UDP headers of a packet.

use std::net::IpAddr;

/// 28 bytes: the headers of IPv4 (20) and UDP (8) before a payload. The length of an IP packet is
/// its UDP payload and these.
pub(crate) const IPV4_UDP_HEADER_BYTES: u16 = 28;

/// 48 bytes: the headers of IPv6 (40) and UDP (8) before a payload. The length of an IP packet is
/// its UDP payload and these.
pub(crate) const IPV6_UDP_HEADER_BYTES: u16 = 48;

/// Returns the bytes of IP and UDP headers in a packet to `address`.
pub fn packet_headers_bytes(address: IpAddr) -> u16 {
    if address.is_ipv4() { IPV4_UDP_HEADER_BYTES } else { IPV6_UDP_HEADER_BYTES }
}
