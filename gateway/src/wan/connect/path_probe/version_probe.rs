//! Datagrams that every QUIC server answers without a connection: probes of UDP ports and of the
//! MTU.
//!
//! A probe is a long QUIC header of a version that no server has, padded to the length to be tried.
//! A server answers it with a Version Negotiation packet of some 40 bytes (RFC 9000, section 6.1).
//! So the answer shows that a datagram of that length arrived at that port, and that short ones
//! come back. It needs no certificate, no state of the peer, and no packet of full length on the
//! way back. [`super::path_check`] calls it on the caller's executor.

use crate::host::{Host, PortShare};
use crate::warnings::Warnings;
use quinn::AsyncUdpSocket;
use quinn::udp::{RecvMeta, Transmit};
use std::future::poll_fn;
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use units::{Span, TimeNs};

/// 3 times: a probe without an answer is sent so often, and then its port counts as shut or its
/// length as too long. So random loss closes no port.
/// Tested by `random_loss_hides_no_port`.
const PROBE_TRIES: u8 = 3;
/// 500 ms, and [`ANSWER_ROUNDS`] (3 round trips) more: how long each try of a probe waits for an
/// answer before the next try. So a busy peer has time to answer.
const ANSWER_TIMEOUT_MIN: Span = Span::from_ms(500);
/// 3 round trips of the link, added to [`ANSWER_TIMEOUT_MIN`] (500 ms): how long each try of a
/// probe waits for an answer before the next try. Full queues delay an answer.
const ANSWER_ROUNDS: u64 = 3;
/// 64 KiB: the buffer that the UDP socket of probes requests for each direction; answers beyond it
/// are lost. The kernel grants this size without a setting.
const SOCKET_BUFFER_BYTES: usize = 64 << 10;
/// 4 KiB: the buffer into which answers to probes are received. The kernel joins at most 64
/// answers, of 47 bytes each, for one read.
const ANSWER_BUFFER_BYTES: usize = 4 << 10;
/// 0xc0: the first byte of each probe, which marks a QUIC packet with a long header and QUIC's
/// fixed bit (RFC 9000). It precedes the version.
const LONG_HEADER: u8 = 0xc0;
/// 0x1a2a3a4a: the QUIC version in each probe, of the pattern `0x?a?a?a?a`, which no server may
/// have (RFC 9000, section 15). So each server answers with the versions that it has.
const PROBE_VERSION: u32 = 0x1a2a_3a4a;
/// 8 bytes: the length of the connection ids in a probe, by which its answer is found. QUIC allows
/// no less in a client's first packet. Datagrams with ids of another length are ignored.
const CONNECTION_ID_BYTES: usize = 8;

/// One datagram to try.
#[derive(Debug, Clone, Copy)]
pub(super) struct VersionProbe {
    /// The UDP address of the server.
    pub to: SocketAddr,
    /// Bytes of UDP payload; servers answer 1,200 and more.
    pub payload_bytes: u16,
}

/// A socket that sends probes and receives their answers.
pub(super) struct VersionProber<'h> {
    host: &'h dyn Host,
    socket: Arc<dyn AsyncUdpSocket>,
    timeout: Span,
}

impl<'h> VersionProber<'h> {
    /// Binds a free port of the address `from`. `rtt` is the round trip of the link.
    ///
    /// # Errors
    /// The address is not one of this host.
    pub fn bind(host: &'h dyn Host, from: IpAddr, rtt: Span) -> io::Result<Self> {
        let (free, warnings) = (SocketAddr::new(from, 0), Warnings::default());
        let socket = host.bind_udp(free, PortShare::ALONE, SOCKET_BUFFER_BYTES, &warnings)?;
        let rounds = Span::from_ns(rtt.ns().saturating_mul(ANSWER_ROUNDS));
        Ok(Self { host, socket, timeout: rounds + ANSWER_TIMEOUT_MIN })
    }

    /// Sends all probes at once, and those without an answer again. Returns the time until the
    /// answer to each; `None` without an answer.
    ///
    /// # Errors
    /// The system receives nothing on the socket.
    pub async fn send_probes(&self, probes: &[VersionProbe]) -> io::Result<Vec<Option<Span>>> {
        let mut round = VersionProbeRound {
            nonce: self.host.random_bytes(),
            sent: Vec::new(),
            answers: vec![None; probes.len()],
        };
        for attempt in 0..PROBE_TRIES {
            let now = self.host.now();
            round.sent.push(now);
            for (index, probe) in (0_u16..).zip(probes) {
                if round.answers[usize::from(index)].is_none() {
                    self.send_probe(*probe, round.id(attempt, index)).await?;
                }
            }
            self.receive_answers(&mut round, now + self.timeout).await?;
            if round.answers.iter().all(Option::is_some) {
                break;
            }
        }
        Ok(round.answers)
    }

    /// Sends one probe. A datagram that the interface cannot send counts as lost.
    async fn send_probe(
        &self,
        probe: VersionProbe,
        id: [u8; CONNECTION_ID_BYTES],
    ) -> io::Result<()> {
        let contents = encode_version_probe(id, probe.payload_bytes);
        let transmit = Transmit {
            destination: probe.to,
            ecn: None,
            contents: &contents,
            segment_size: None,
            src_ip: None,
        };
        let mut poller = Arc::clone(&self.socket).create_io_poller();
        loop {
            poll_fn(|context| poller.as_mut().poll_writable(context)).await?;
            match self.socket.try_send(&transmit) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                _ => return Ok(()),
            }
        }
    }

    /// Receives answers until `deadline`, or until every probe of the round has one.
    async fn receive_answers(
        &self,
        round: &mut VersionProbeRound,
        deadline: TimeNs,
    ) -> io::Result<()> {
        let mut buffer = vec![0; ANSWER_BUFFER_BYTES];
        let mut timeout = self.host.sleep_until(deadline);
        while round.answers.iter().any(Option::is_none) {
            let received = tokio::select! {
                biased;
                received = self.receive(&mut buffer) => received?,
                () = &mut timeout => return Ok(()),
            };
            let now = self.host.now();
            for datagram in buffer[..received.len].chunks(received.stride.max(1)) {
                if let Some(id) = decode_version_probe_answer(datagram) {
                    round.note_answer(id, now);
                }
            }
        }
        Ok(())
    }

    /// Waits for a datagram, or for several that the kernel has merged (GRO), and receives them
    /// into `buffer`. Each has `stride` bytes; the last may have fewer.
    async fn receive(&self, buffer: &mut [u8]) -> io::Result<RecvMeta> {
        let mut metas = [RecvMeta::default()];
        poll_fn(|context| {
            let mut buffers = [IoSliceMut::new(&mut *buffer)];
            self.socket.poll_recv(context, &mut buffers, &mut metas)
        })
        .await?;
        Ok(metas[0])
    }
}

/// The probes that are under way, and the answers so far.
struct VersionProbeRound {
    /// Random bytes, of which the first are in all ids: only who received a probe can answer it.
    nonce: [u8; 32],
    /// Time of each try.
    sent: Vec<TimeNs>,
    answers: Vec<Option<Span>>,
}

impl VersionProbeRound {
    /// Returns the id of the probe `index` in a try: five random bytes, the try, the index.
    fn id(&self, attempt: u8, index: u16) -> [u8; CONNECTION_ID_BYTES] {
        let [a, b, c, d, e, ..] = self.nonce;
        let [high, low] = index.to_be_bytes();
        [a, b, c, d, e, attempt, high, low]
    }

    /// Stores the first answer to a probe, if `id` is one of this round.
    fn note_answer(&mut self, id: [u8; CONNECTION_ID_BYTES], now: TimeNs) {
        let [.., attempt, high, low] = id;
        let index = u16::from_be_bytes([high, low]);
        if id != self.id(attempt, index) {
            return;
        }
        let (sent, answer) =
            (self.sent.get(usize::from(attempt)), self.answers.get_mut(usize::from(index)));
        if let (Some(sent), Some(answer)) = (sent, answer) {
            answer.get_or_insert(now.since(*sent));
        }
    }
}

/// Returns the datagram of a probe: a long header, padded with zeros to `payload_bytes`.
fn encode_version_probe(id: [u8; CONNECTION_ID_BYTES], payload_bytes: u16) -> Vec<u8> {
    let version = PROBE_VERSION.to_be_bytes();
    let length = [CONNECTION_ID_BYTES as u8];
    let mut datagram = [&[LONG_HEADER][..], &version, &length, &id, &length, &id].concat();
    datagram.resize(usize::from(payload_bytes).max(datagram.len()), 0);
    datagram
}

/// Returns the id in a Version Negotiation packet; `None` for any other datagram.
fn decode_version_probe_answer(datagram: &[u8]) -> Option<[u8; CONNECTION_ID_BYTES]> {
    let (first, rest) = datagram.split_first()?;
    let rest = rest.strip_prefix(&[0_u8; 4])?;
    let (length, rest) = rest.split_first()?;
    let id = rest.first_chunk::<CONNECTION_ID_BYTES>()?;
    (first & 0x80 != 0 && usize::from(*length) == CONNECTION_ID_BYTES).then_some(*id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_probe_has_the_length_to_try() {
        for payload_bytes in [1200, 1472, 8972] {
            let datagram = encode_version_probe([7; CONNECTION_ID_BYTES], payload_bytes);
            assert_eq!(datagram.len(), usize::from(payload_bytes));
            assert_eq!(datagram[..6], [0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 8]);
        }
    }

    #[test]
    fn only_answers_of_the_round_count() {
        let start = TimeNs::from_ns(5);
        let mut round =
            VersionProbeRound { nonce: [9; 32], sent: vec![start], answers: vec![None, None] };
        let (id, later) = (round.id(0, 1), start + Span::from_ms(80));
        let answer = [&[0xff, 0, 0, 0, 0, 8][..], &id, &[8], &id, &[0, 0, 0, 1]].concat();
        assert_eq!(decode_version_probe_answer(&answer), Some(id));
        let mut other = id;
        other[0] ^= 1;
        for strange in [other, round.id(1, 1), round.id(0, 2)] {
            round.note_answer(strange, later);
        }
        assert_eq!(round.answers, [None, None]);
        round.note_answer(id, later);
        round.note_answer(id, later + Span::from_secs(1));
        assert_eq!(round.answers, [None, Some(Span::from_ms(80))]);
    }

    proptest! {
        #[test]
        fn no_datagram_panics(datagram: Vec<u8>) {
            let _ = decode_version_probe_answer(&datagram);
        }
    }
}
