//! The engine's handle to an established lane, and the identity of the peer at its other end.
//!
//! A connection's task makes the handle and sends it to the engine (`Event::LaneUp`). The engine queues
//! control messages through it; the control writer of the connection sends them.

use super::connect::packet_headers::packet_headers_bytes;
use crate::events::ConnectionId;
use crate::wan::congestion::lane_telemetry::TelemetryThreadTime;
use crate::wan::congestion::{SharedLaneView, lane_controller};
use crate::wan::error_code::{CONNECTION_CLOSING_CODE, PROTOCOL_VIOLATION_CODE};
use crate::wan::link::link_message::{LINK_GROUP, LinkMessage};
use crate::wan::link::link_traffic::LinkTraffic;
use hier_collectives::ids::{BootId, GatewayId};
use hier_collectives::wire::{Envelope, Message, WireVersion};
use quinn::Connection;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc;
use units::Span;

/// 262,144 messages: the most in a lane's queue of control messages. One more means that the peer
/// reads nothing, and the connection is closed. After a lost lane, receipts, grants and posts are
/// repeated, a few for each tree and rank.
const CONTROL_QUEUE_MAX: usize = 1 << 18;

/// 256 MiB of control messages may wait for one lane; a message beyond them closes the connection.
/// On a slow link, the commands and snapshots of several stores stay below.
/// Tested by `queued_control_messages_have_bounded_bytes`.
const CONTROL_QUEUE_BYTES_MAX: u64 = 256 << 20;

/// The peer at the other end of a lane.
#[derive(Debug, Clone, Copy)]
pub struct LanePeerSeen {
    /// The peer.
    pub peer: GatewayId,
    /// The random number of its start.
    pub boot: BootId,
    /// The lane.
    pub lane: u16,
    /// The version of the messages on the lane.
    pub version: WireVersion,
}

/// The reason that a peer gets, for its log, when a lane is closed because its queue of control
/// messages is full.
const CONTROL_UNREAD: &str = "control messages are not read";

/// The engine's handle to a lane.
#[derive(Debug, Clone)]
pub struct LaneHandle {
    /// Its connection.
    pub id: ConnectionId,
    control: mpsc::Sender<LaneControlOutput>,
    /// The bytes of the messages in the queue.
    queued_bytes: Arc<AtomicU64>,
    connection: Connection,
}

/// An entry in the queue of a lane's control writer.
#[derive(Debug)]
pub(crate) enum LaneControlOutput {
    /// An encoded control message.
    Message(LaneHandleMessage),
    /// The end of the control stream: this gateway sends nothing more on the lane.
    Finish,
}

/// An encoded control message, whose bytes count for the limit of the queue until it is dropped.
#[derive(Debug)]
pub(crate) struct LaneHandleMessage {
    pub bytes: Vec<u8>,
    queued_bytes: Arc<AtomicU64>,
}

impl LaneHandleMessage {
    /// Adds a message to the bytes that are queued; `None` if they are then more than 256 MiB.
    fn count(bytes: Vec<u8>, queued_bytes: &Arc<AtomicU64>) -> Option<Self> {
        let length = bytes.len() as u64;
        let before = queued_bytes.fetch_add(length, Ordering::Relaxed);
        let message = Self { bytes, queued_bytes: Arc::clone(queued_bytes) };
        (before + length <= CONTROL_QUEUE_BYTES_MAX).then_some(message)
    }
}

impl Drop for LaneHandleMessage {
    fn drop(&mut self) {
        self.queued_bytes.fetch_sub(self.bytes.len() as u64, Ordering::Relaxed);
    }
}

/// A measurement of a lane.
#[derive(Debug, Clone, Copy)]
pub struct LaneMeasurement {
    /// The traffic over its present path so far.
    pub traffic: LinkTraffic,
    /// The least RTT since the last measurement.
    pub min_rtt: Option<Span>,
    /// Bytes of UDP payload received so far.
    pub received_bytes: u64,
    /// Bytes in flight now.
    pub in_flight_bytes: u64,
    /// How long the lane is silent: bytes in flight have no acknowledgement.
    pub silence: Span,
    /// The processor time of the lane's thread.
    pub thread: TelemetryThreadTime,
    /// The state of the lane's model; `None` where its link is not shared.
    pub shared: Option<SharedLaneView>,
}

impl LaneHandle {
    /// Creates the handle of a lane's connection, and the queue of control messages that it fills.
    /// The connection's control writer empties the queue.
    pub(crate) fn new(
        id: ConnectionId,
        connection: Connection,
    ) -> (Self, mpsc::Receiver<LaneControlOutput>) {
        let (control, queue) = mpsc::channel(CONTROL_QUEUE_MAX);
        (Self { id, control, queued_bytes: Arc::default(), connection }, queue)
    }

    /// Queues a control message of a job; returns its length in bytes. A lane whose queue is full
    /// is closed.
    pub fn send_message(&self, envelope: Envelope, message: &Message) -> u64 {
        let bytes = [&envelope.encode(), &*message.encode()].concat();
        let length = bytes.len() as u64;
        self.queue_message(bytes);
        length
    }

    /// Queues a message about a link or lane. A lane whose queue is full is closed.
    pub fn send_link_message(&self, message: &LinkMessage) {
        self.queue_message([&LINK_GROUP.0.to_be_bytes(), &*message.encode()].concat());
    }

    /// Queues an encoded control message, and closes the lane if its queue is full.
    fn queue_message(&self, bytes: Vec<u8>) {
        match LaneHandleMessage::count(bytes, &self.queued_bytes) {
            Some(message) => self.queue_output(LaneControlOutput::Message(message)),
            None => self.close_connection(PROTOCOL_VIOLATION_CODE, CONTROL_UNREAD),
        }
    }

    /// Ends this gateway's control stream on the lane after all queued messages; this gateway sends
    /// nothing more on it. Once the peer has ended its control stream too, the dialler closes the
    /// lane.
    pub fn finish_control(&self) {
        self.queue_output(LaneControlOutput::Finish);
    }

    /// Queues a message or the end of the control stream, and closes the lane if its queue is full.
    fn queue_output(&self, output: LaneControlOutput) {
        if self.control.try_send(output).is_err() {
            self.close_connection(PROTOCOL_VIOLATION_CODE, CONTROL_UNREAD);
        }
    }

    /// Closes the lane's connection because the peer has violated the protocol; the peer gets the
    /// reason `why`.
    pub fn close_for_violation(&self, why: &str) {
        self.close_connection(PROTOCOL_VIOLATION_CODE, why);
    }

    /// Closes the lane's connection because another one has replaced it; the peer gets the reason
    /// `why`.
    pub fn close_replaced(&self, why: &str) {
        self.close_connection(CONNECTION_CLOSING_CODE, why);
    }

    /// Returns the smoothed RTT that QUIC measures on the lane.
    pub fn smoothed_rtt(&self) -> Span {
        crate::wan::congestion::lane_telemetry::telemetry_smoothed_rtt(&self.connection)
    }

    /// Returns the factor from bytes of UDP payload in full packets of the lane to bytes on the link.
    pub fn ip_bytes_factor(&self) -> f64 {
        let payload = f64::from(self.connection.stats().path.current_mtu.max(1));
        1.0 + f64::from(packet_headers_bytes(self.connection.remote_address().ip())) / payload
    }

    /// Returns the longest IP packet that the lane sends now, in bytes.
    pub fn mtu(&self) -> u16 {
        let headers = packet_headers_bytes(self.connection.remote_address().ip());
        self.connection.stats().path.current_mtu.saturating_add(headers)
    }

    /// Returns the lane's traffic so far, its least RTT since the last call, its bytes in flight,
    /// silence and thread time.
    pub fn measure_lane(&self) -> LaneMeasurement {
        let telemetry = lane_controller::lane_controller_telemetry(&self.connection);
        let telemetry = telemetry.as_ref();
        let min_rtt = telemetry.and_then(|telemetry| telemetry.take_min_rtt_for_engine());
        LaneMeasurement {
            traffic: self.count_traffic(),
            min_rtt,
            received_bytes: self.connection.stats().udp_rx.bytes,
            in_flight_bytes: telemetry.map_or(0, |telemetry| telemetry.in_flight.bytes()),
            silence: telemetry.map_or(Span::ZERO, |telemetry| telemetry.silence()),
            thread: telemetry.map(|telemetry| telemetry.thread_time()).unwrap_or_default(),
            shared: telemetry.and_then(|telemetry| telemetry.shared_view()),
        }
    }

    /// Returns the lane's traffic so far. Delivered bytes include 28 bytes of IP and UDP headers
    /// for each acknowledged packet, 48 with IPv6.
    pub fn count_traffic(&self) -> LinkTraffic {
        let path = self.connection.stats().path;
        let headers = if self.connection.remote_address().is_ipv4() { 28 } else { 48 };
        let telemetry = lane_controller::lane_controller_telemetry(&self.connection);
        let acked = telemetry.map_or((0, 0), |telemetry| telemetry.acked_packets_and_bytes());
        let (packets, bytes) = acked;
        LinkTraffic {
            sent_packets: path.sent_packets,
            lost_packets: path.lost_packets,
            delivered_bytes: bytes + headers * packets,
        }
    }

    /// Closes the lane's connection with an error code; the peer gets the reason `why`.
    fn close_connection(&self, code: u32, why: &str) {
        self.connection.close(code.into(), why.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queued_control_messages_have_bounded_bytes() {
        let (queued, half) = (Arc::default(), CONTROL_QUEUE_BYTES_MAX as usize / 2);
        let message = || LaneHandleMessage::count(vec![0; half], &queued);
        let messages = [message(), message()];
        assert!(messages.iter().all(Option::is_some) && message().is_none());
        drop(messages);
        assert!(message().is_some());
    }
}
