//! The header that a TUN device puts before every packet, and the fields and flags of all headers.

/// `struct virtio_net_hdr`, which precedes every packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct VirtioHeader {
    pub(super) flags: u8,
    pub(super) gso_type: u8,
    pub(super) headers_bytes: u16,
    pub(super) segment_bytes: u16,
    pub(super) checksum_start: u16,
    pub(super) checksum_offset: u16,
}

impl VirtioHeader {
    /// Reads the header from its 10 bytes, in the byte order of this machine.
    pub(super) fn from_bytes(bytes: &[u8; VIRTIO_HEADER_BYTES]) -> Self {
        let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        Self {
            flags: bytes[0],
            gso_type: bytes[1],
            headers_bytes: word(2),
            segment_bytes: word(4),
            checksum_start: word(6),
            checksum_offset: word(8),
        }
    }

    /// Returns the 10 bytes of the header, in the byte order of this machine.
    pub(super) fn to_bytes(self) -> [u8; VIRTIO_HEADER_BYTES] {
        let mut bytes = [self.flags, self.gso_type, 0, 0, 0, 0, 0, 0, 0, 0];
        let words =
            [self.headers_bytes, self.segment_bytes, self.checksum_start, self.checksum_offset];
        for (place, word) in bytes[2..].chunks_exact_mut(2).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

/// 10 bytes: the length of the header `struct virtio_net_hdr`, which the kernel puts before each
/// packet of a TUN device.
pub(in crate::lab) const VIRTIO_HEADER_BYTES: usize = 10;

/// 20 bytes: the length of an IPv4 header without options, the shortest.
pub(super) const IPV4_HEADER_BYTES: usize = 20;

/// 40 bytes: the length of an IPv6 header without extension headers.
pub(super) const IPV6_HEADER_BYTES: usize = 40;

/// 8 bytes: the length of a UDP header.
pub(super) const UDP_HEADER_BYTES: usize = 8;

/// 20 bytes: the length of a TCP header without options, the shortest.
pub(super) const TCP_HEADER_BYTES: usize = 20;

/// 6: the number that names TCP in the protocol field of IP headers.
pub(super) const IPPROTO_TCP: u8 = 6;

/// 17: the number that names UDP in the protocol field of IP headers.
pub(super) const IPPROTO_UDP: u8 = 17;

/// 1: the FIN bit in the flags byte of a TCP header.
pub(super) const TCP_FIN: u8 = 1;

/// 8: the PSH bit in the flags byte of a TCP header.
pub(super) const TCP_PSH: u8 = 8;

/// 0x80: the CWR bit in the flags byte of a TCP header.
pub(super) const TCP_CWR: u8 = 0x80;

/// 1: the flag `VIRTIO_NET_HDR_F_NEEDS_CSUM` of a virtio header. The checksum of the packet is not
/// complete yet.
pub(super) const NEEDS_CHECKSUM: u8 = 1;

/// 0: the GSO type `VIRTIO_NET_HDR_GSO_NONE` of a virtio header. The buffer is one packet.
pub(super) const GSO_NONE: u8 = 0;

/// 1: the GSO type `VIRTIO_NET_HDR_GSO_TCPV4` of a virtio header. The buffer is several TCP
/// segments over IPv4.
pub(super) const GSO_TCP4: u8 = 1;

/// 4: the GSO type `VIRTIO_NET_HDR_GSO_TCPV6` of a virtio header. The buffer is several TCP
/// segments over IPv6.
pub(super) const GSO_TCP6: u8 = 4;

/// 5: the GSO type `VIRTIO_NET_HDR_GSO_UDP_L4` of a virtio header. The buffer is UDP datagrams of
/// equal length.
pub(super) const GSO_UDP: u8 = 5;

/// 0x80: the bit `VIRTIO_NET_HDR_GSO_ECN` in the GSO type of a virtio header. The first TCP segment
/// of the buffer has the CWR flag.
pub(super) const GSO_ECN: u8 = 0x80;
