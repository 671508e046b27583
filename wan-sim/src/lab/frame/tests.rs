use super::ip_checksum::{
    complete_ip_checksum, fold_ip_checksum, ip_checksum_sum, pseudo_header_ip_checksum,
    read_ip_checksum_word, renew_ipv4_checksum, write_ip_checksum_word,
};
use super::virtio_header::{
    GSO_ECN, GSO_TCP4, GSO_TCP6, GSO_UDP, IPPROTO_TCP, IPPROTO_UDP, NEEDS_CHECKSUM, TCP_CWR,
    TCP_FIN, TCP_PSH, VirtioHeader,
};
use super::*;
use proptest::prelude::*;

/// A TCP or UDP super-packet as the kernel hands it over.
fn buffer(v6: bool, udp: bool, payload: &[u8], segment_bytes: u16) -> Vec<u8> {
    let transport = if udp { 8 } else { 32 };
    let start = if v6 { 40 } else { 20 };
    let len = start + transport + payload.len();
    let mut packet = vec![0; len];
    if v6 {
        packet[0] = 0x60;
        packet[1] = 0x20; // ECT(0)
        write_ip_checksum_word(&mut packet, 4, (len - 40) as u16);
        packet[8..40].iter_mut().zip(1..).for_each(|(byte, i)| *byte = i);
    } else {
        packet[0] = 0x45;
        packet[1] = 2; // ECT(0)
        write_ip_checksum_word(&mut packet, 2, len as u16);
        write_ip_checksum_word(&mut packet, 4, 0xfffe);
        packet[12..20].copy_from_slice(&[10, 77, 0, 1, 10, 77, 0, 2]);
        renew_ipv4_checksum(&mut packet);
    }
    if udp {
        write_ip_checksum_word(&mut packet, start + 4, (len - start) as u16);
    } else {
        packet[start + 4..start + 8].copy_from_slice(&0xffff_fff0u32.to_be_bytes());
        packet[start + 12] = 8 << 4;
        packet[start + 13] = 0x10 | TCP_FIN | TCP_PSH | TCP_CWR;
    }
    packet[start + transport..].copy_from_slice(payload);
    let sum = fold_ip_checksum(pseudo_header_ip_checksum(
        &packet,
        if udp { IPPROTO_UDP } else { IPPROTO_TCP },
        len - start,
    ));
    let checksum_offset = if udp { 6 } else { 16 };
    write_ip_checksum_word(&mut packet, start + checksum_offset, sum);
    let gso_type = match (udp, v6) {
        (true, _) => GSO_UDP,
        (false, false) => GSO_TCP4 | GSO_ECN,
        (false, true) => GSO_TCP6 | GSO_ECN,
    };
    let header = VirtioHeader {
        flags: NEEDS_CHECKSUM,
        gso_type,
        headers_bytes: (start + transport) as u16,
        segment_bytes,
        checksum_start: start as u16,
        checksum_offset: checksum_offset as u16,
    };
    [&header.to_bytes()[..], &packet].concat()
}

/// Checks what a receiver's kernel checks, with the checksum completed.
fn check(buffer: &[u8]) -> Vec<u8> {
    let header = VirtioHeader::from_bytes(buffer[..VIRTIO_HEADER_BYTES].try_into().unwrap());
    let mut packet = buffer[VIRTIO_HEADER_BYTES..].to_vec();
    let v6 = packet[0] >> 4 == 6;
    let start = if v6 { 40 } else { 20 };
    if v6 {
        assert_eq!(usize::from(read_ip_checksum_word(&packet, 4)), packet.len() - 40);
    } else {
        assert_eq!(usize::from(read_ip_checksum_word(&packet, 2)), packet.len());
        assert_eq!(
            fold_ip_checksum(ip_checksum_sum(&packet[..20])),
            0xffff,
            "IPv4 header checksum"
        );
    }
    complete_ip_checksum(&mut packet, header);
    let udp = header.checksum_offset == 6;
    let whole = pseudo_header_ip_checksum(
        &packet,
        if udp { IPPROTO_UDP } else { IPPROTO_TCP },
        packet.len() - start,
    ) + ip_checksum_sum(&packet[start..]);
    assert_eq!(fold_ip_checksum(whole), 0xffff, "transport checksum");
    packet
}

proptest! {
    #[test]
    fn runs_carry_the_segments_they_hold(
        (v6, udp) in any::<(bool, bool)>(),
        payload in prop::collection::vec(any::<u8>(), 2..3000),
        segment_bytes in 1u16..500,
        (from, to) in (0usize..3000, 0usize..3000),
    ) {
        let buffer = buffer(v6, udp, &payload, segment_bytes);
        let frame = FrameBuffer::parse(&buffer).unwrap();
        let n = payload.len().div_ceil(usize::from(segment_bytes));
        prop_assert_eq!(frame.segment_count(), n);
        let headers = if udp { 8 } else { 32 } + if v6 { 40 } else { 20 };
        let total: u32 = (0..n).map(|i| frame.segment_ip_bytes(i)).sum();
        prop_assert_eq!(total as usize, payload.len() + n * headers);

        let (from, to) = (from % n, to % n);
        let run = from.min(to)..from.max(to) + 1;
        let out = frame.emit_run(run.clone(), FrameDamage::default());
        let packet = check(&out);
        let segment = usize::from(segment_bytes);
        let expected = &payload[run.start * segment..payload.len().min(run.end * segment)];
        prop_assert_eq!(&packet[headers..], expected);
        let again = FrameBuffer::parse(&out).unwrap();
        prop_assert_eq!(again.segment_count(), run.len());
        prop_assert_eq!(again.destination(), frame.destination());
        let start = if v6 { 40 } else { 20 };
        if !v6 && run != (0..n) {
            let expected = 0xfffeu16.wrapping_add(run.start as u16);
            prop_assert_eq!(read_ip_checksum_word(&packet, 4), expected);
        }
        if !udp {
            let sequence: [u8; 4] = packet[start + 4..start + 8].try_into().unwrap();
            let offset = (run.start * segment) as u32;
            prop_assert_eq!(u32::from_be_bytes(sequence), 0xffff_fff0u32.wrapping_add(offset));
            let flags = packet[start + 13];
            prop_assert_eq!(flags & (TCP_FIN | TCP_PSH) != 0, run.end == n);
            prop_assert_eq!(flags & TCP_CWR != 0, run.start == 0);
        }
    }

    #[test]
    fn marks_keep_checksums_and_flipped_bits_break_them(
        (v6, udp) in any::<(bool, bool)>(),
        payload in prop::collection::vec(any::<u8>(), 100..200),
        bit: u32,
    ) {
        let buffer = buffer(v6, udp, &payload, 40);
        let frame = FrameBuffer::parse(&buffer).unwrap();
        prop_assert!(frame.is_ecn_capable());
        let marked = frame.emit_run(1..2, FrameDamage { marked: true, corrupt_bit: None });
        let packet = check(&marked);
        prop_assert_eq!(if v6 { packet[1] >> 4 & 3 } else { packet[1] & 3 }, 3);

        let good = frame.emit_run(1..2, FrameDamage::default());
        let bad = frame.emit_run(1..2, FrameDamage { marked: false, corrupt_bit: Some(bit) });
        let mut good_packet = good[VIRTIO_HEADER_BYTES..].to_vec();
        let header = VirtioHeader::from_bytes(good[..VIRTIO_HEADER_BYTES].try_into().unwrap());
        complete_ip_checksum(&mut good_packet, header);
        let flipped: u32 = good_packet
            .iter()
            .zip(&bad[VIRTIO_HEADER_BYTES..])
            .map(|(a, b)| (a ^ b).count_ones())
            .sum();
        prop_assert_eq!(flipped, 1);
        prop_assert_eq!(bad[0] & NEEDS_CHECKSUM, 0);
    }

    #[test]
    fn no_bytes_panic(
        header in prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(4), any::<u8>()], 10),
        mut packet in prop::collection::vec(any::<u8>(), 0..200),
        version in prop_oneof![Just(0x45u8), Just(0x60), any::<u8>()],
        (marked, bit) in any::<(bool, u32)>(),
    ) {
        if let Some(first) = packet.first_mut() {
            *first = version;
        }
        let buffer = [header, packet].concat();
        if let Some(frame) = FrameBuffer::parse(&buffer) {
            let n = frame.segment_count();
            let damage = FrameDamage { marked, corrupt_bit: Some(bit) };
            frame.emit_run(0..n, damage);
            frame.emit_run(n - 1..n, damage);
            let _ = (frame.segment_ip_bytes(n - 1), frame.is_ecn_capable(), frame.destination());
        }
    }
}

/// The TCP flags of this packet would lie beyond the headers of a segment.
#[test]
fn a_tcp_header_shorter_than_the_least_is_refused() {
    for words in 0..16u8 {
        let mut buffer = buffer(false, false, &[0; 100], 1);
        buffer[VIRTIO_HEADER_BYTES + 20 + 12] = words << 4;
        assert_eq!(FrameBuffer::parse(&buffer).is_some(), words >= 5, "{words} words");
    }
}
