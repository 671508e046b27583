//! A buffer of the device: its segments, and the smaller buffers made of those that survive.

use super::ip_checksum::{
    complete_ip_checksum, fold_ip_checksum, pseudo_header_ip_checksum, read_ip_checksum_word,
    renew_ipv4_checksum, write_ip_checksum_word,
};
use super::ip_packet::{flip_ip_packet_payload_bit, mark_ip_packet_ecn_ce};
use super::virtio_header::{
    GSO_ECN, GSO_NONE, GSO_TCP4, GSO_TCP6, GSO_UDP, IPPROTO_TCP, IPPROTO_UDP, IPV4_HEADER_BYTES,
    IPV6_HEADER_BYTES, NEEDS_CHECKSUM, TCP_CWR, TCP_FIN, TCP_HEADER_BYTES, TCP_PSH,
    UDP_HEADER_BYTES, VIRTIO_HEADER_BYTES, VirtioHeader,
};
use crate::PacketFlow;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

/// A buffer read from the device.
#[derive(Debug, Clone, Copy)]
pub(in crate::lab) struct FrameBuffer<'a> {
    header: VirtioHeader,
    packet: &'a [u8],
    segments: Segments,
}

/// The division of a buffer into segments.
#[derive(Debug, Clone, Copy)]
struct Segments {
    /// Headers that each segment repeats; the whole packet where it is one segment.
    headers_bytes: usize,
    /// Payload of each but the last.
    payload_bytes: usize,
    count: usize,
}

/// The damage that the link did to a run of segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::lab) struct FrameDamage {
    pub(in crate::lab) marked: bool,
    pub(in crate::lab) corrupt_bit: Option<u32>,
}

impl<'a> FrameBuffer<'a> {
    /// Parses a buffer of the device; `None` when it is no IP packet, or its headers contradict it.
    pub(in crate::lab) fn parse(buffer: &'a [u8]) -> Option<Self> {
        let (header, packet) = buffer.split_at_checked(VIRTIO_HEADER_BYTES)?;
        let header = VirtioHeader::from_bytes(header.try_into().ok()?);
        match packet.first()? >> 4 {
            4 if packet.len() >= IPV4_HEADER_BYTES => {}
            6 if packet.len() >= IPV6_HEADER_BYTES => {}
            _ => return None,
        }
        let segments = parse_frame_buffer_segments(&header, packet)?;
        Some(Self { header, packet, segments })
    }

    /// Returns the number of segments in the buffer.
    pub(in crate::lab) fn segment_count(&self) -> usize {
        self.segments.count
    }

    /// Returns the bytes of the segment with this index, with its IP and transport headers.
    pub(in crate::lab) fn segment_ip_bytes(&self, segment: usize) -> u32 {
        if self.segments.count == 1 {
            return self.packet.len() as u32;
        }
        let payload = self.run_payload(segment..segment + 1);
        (self.segments.headers_bytes + payload.len()) as u32
    }

    /// Returns whether the IP header allows an ECN mark: ECT or CE.
    pub(in crate::lab) fn is_ecn_capable(&self) -> bool {
        match self.packet[0] >> 4 {
            4 => self.packet[1] & 3 != 0,
            _ => self.packet[1] & 0x30 != 0,
        }
    }

    /// Returns the destination address, which identifies the receiving site.
    pub(in crate::lab) fn destination(&self) -> FrameDestination {
        match self.packet[0] >> 4 {
            4 => FrameDestination::V4(std::array::from_fn(|i| self.packet[16 + i])),
            _ => FrameDestination::V6(std::array::from_fn(|i| self.packet[24 + i])),
        }
    }

    /// Returns the flow of the packet, by its addresses and by the ports of TCP and UDP.
    pub(in crate::lab) fn flow(&self) -> PacketFlow {
        let (source, destination, protocol, ports_at) = match self.packet[0] >> 4 {
            4 => {
                let ip = |at: usize| -> [u8; 4] { std::array::from_fn(|i| self.packet[at + i]) };
                let headers = usize::from(self.packet[0] & 15) * 4;
                (IpAddr::from(ip(12)), IpAddr::from(ip(16)), self.packet[9], headers)
            }
            _ => {
                let ip = |at: usize| -> [u8; 16] { std::array::from_fn(|i| self.packet[at + i]) };
                (IpAddr::from(ip(8)), IpAddr::from(ip(24)), self.packet[6], IPV6_HEADER_BYTES)
            }
        };
        let port = |at: usize| match (protocol, self.packet.get(at..at + 2)) {
            (IPPROTO_TCP | IPPROTO_UDP, Some(bytes)) => u16::from_be_bytes([bytes[0], bytes[1]]),
            _ => 0,
        };
        let (from, to) = (port(ports_at), port(ports_at + 2));
        PacketFlow::between(SocketAddr::new(source, from), SocketAddr::new(destination, to))
    }

    /// Makes a buffer with the segments of `run` and the damage of the link, to write to a device.
    pub(in crate::lab) fn emit_run(&self, run: Range<usize>, damage: FrameDamage) -> Vec<u8> {
        let mut header = self.header;
        let whole = run == (0..self.segments.count);
        let headers = if whole { 0 } else { self.segments.headers_bytes };
        let payload = if whole { self.packet } else { self.run_payload(run.clone()) };
        let mut buffer = Vec::with_capacity(VIRTIO_HEADER_BYTES + headers + payload.len());
        buffer.extend_from_slice(&[0; VIRTIO_HEADER_BYTES]);
        buffer.extend_from_slice(&self.packet[..headers]);
        buffer.extend_from_slice(payload);
        let packet = &mut buffer[VIRTIO_HEADER_BYTES..];
        if !whole {
            self.correct_headers(packet, &run, &mut header);
        }
        if damage.marked {
            mark_ip_packet_ecn_ce(packet);
        }
        if let Some(bit) = damage.corrupt_bit {
            header = complete_ip_checksum(packet, header);
            flip_ip_packet_payload_bit(packet, bit);
        }
        buffer[..VIRTIO_HEADER_BYTES].copy_from_slice(&header.to_bytes());
        buffer
    }

    /// Returns the payload of the segments of `run`, without their headers.
    fn run_payload(&self, run: Range<usize>) -> &'a [u8] {
        let Segments { headers_bytes, payload_bytes, .. } = self.segments;
        let end = (headers_bytes + run.end * payload_bytes).min(self.packet.len());
        &self.packet[headers_bytes + run.start * payload_bytes..end]
    }

    /// Corrects lengths, numbers, flags and checksum in the headers of `packet`, a copy of the
    /// segments of `run`.
    fn correct_headers(&self, packet: &mut [u8], run: &Range<usize>, header: &mut VirtioHeader) {
        let start = usize::from(self.header.checksum_start);
        let len = packet.len();
        if packet[0] >> 4 == 4 {
            write_ip_checksum_word(packet, 2, len as u16);
            let id = read_ip_checksum_word(packet, 4).wrapping_add(run.start as u16);
            write_ip_checksum_word(packet, 4, id);
            renew_ipv4_checksum(packet);
        } else {
            write_ip_checksum_word(packet, 4, (len - IPV6_HEADER_BYTES) as u16);
        }
        let protocol = match self.header.gso_type & !GSO_ECN {
            GSO_UDP => {
                write_ip_checksum_word(packet, start + 4, (len - start) as u16);
                IPPROTO_UDP
            }
            _ => {
                let offset = (run.start * self.segments.payload_bytes) as u32;
                let sequence: [u8; 4] = std::array::from_fn(|i| packet[start + 4 + i]);
                let sequence = u32::from_be_bytes(sequence).wrapping_add(offset);
                packet[start + 4..start + 8].copy_from_slice(&sequence.to_be_bytes());
                if run.end < self.segments.count {
                    packet[start + 13] &= !(TCP_FIN | TCP_PSH);
                }
                if run.start > 0 {
                    packet[start + 13] &= !TCP_CWR;
                    header.gso_type &= !GSO_ECN;
                }
                IPPROTO_TCP
            }
        };
        // The device's end computes the rest from this, as it would have.
        let sum = fold_ip_checksum(pseudo_header_ip_checksum(packet, protocol, len - start));
        write_ip_checksum_word(packet, start + usize::from(self.header.checksum_offset), sum);
        if run.len() == 1 {
            header.gso_type = GSO_NONE;
            header.segment_bytes = 0;
        }
        header.headers_bytes = self.segments.headers_bytes as u16;
    }
}

/// The destination address of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::lab) enum FrameDestination {
    V4([u8; 4]),
    V6([u8; 16]),
}

/// Divides `packet` into segments as `header` says; `None` when they contradict each other.
fn parse_frame_buffer_segments(header: &VirtioHeader, packet: &[u8]) -> Option<Segments> {
    if header.gso_type == GSO_NONE {
        return Some(Segments { headers_bytes: packet.len(), payload_bytes: 1, count: 1 });
    }
    let start = usize::from(header.checksum_start);
    let least = if packet[0] >> 4 == 4 { IPV4_HEADER_BYTES } else { IPV6_HEADER_BYTES };
    if header.flags & NEEDS_CHECKSUM == 0 || start < least {
        return None;
    }
    let transport = match header.gso_type & !GSO_ECN {
        GSO_UDP => UDP_HEADER_BYTES,
        GSO_TCP4 | GSO_TCP6 => match usize::from(*packet.get(start + 12)? >> 4) * 4 {
            bytes if bytes >= TCP_HEADER_BYTES => bytes,
            _ => return None,
        },
        _ => return None,
    };
    let headers_bytes = start + transport;
    let payload_bytes = usize::from(header.segment_bytes);
    let checksum_end = start + usize::from(header.checksum_offset) + 2;
    let payload = packet.len().checked_sub(headers_bytes)?;
    if payload == 0 || payload_bytes == 0 || checksum_end > headers_bytes {
        return None;
    }
    Some(Segments { headers_bytes, payload_bytes, count: payload.div_ceil(payload_bytes) })
}
