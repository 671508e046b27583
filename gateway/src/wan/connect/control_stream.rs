//! The control stream of a connection: length-prefixed frames, the first unidirectional stream each way.
//!
//! The reader sends an engine event for each message, and waits while the engine's queue is full. The
//! writer empties the queue of the lane's handle (`wan/lane_handle.rs` has its bound).
//!
//! A lane is taken away when both ends have ended their streams: each does so once it has nothing on
//! the lane that the other has not confirmed. So nothing is lost with the lane.

use crate::events::{ConnectionId, Event, EventSender};
use crate::wan::error_code::{CONNECTION_CLOSING_CODE, PROTOCOL_VIOLATION_CODE};
use crate::wan::lane_handle::LaneControlOutput;
use crate::wan::link::link_message::{LINK_GROUP, LinkMessage};
use hier_collectives::codec::DecodeError;
use hier_collectives::ids::GatewayId;
use hier_collectives::wire::{Envelope, MESSAGE_BYTES_MAX, Message};
use quinn::{ReadExactError, RecvStream, SendStream};
use std::fmt;
use tokio::sync::mpsc;

/// 2: the QUIC priority of the control stream, so that receipts and grants leave before data that
/// waits. Streams of small segments have priority 1, and streams of bulk 0.
const CONTROL_STREAM_PRIORITY: i32 = 2;

/// 64 control messages: the writer of a control stream takes so many from its queue for one write;
/// more go into the next write. A message that comes alone is written alone. Many that wait cost
/// one write, and few packets.
const WRITTEN_TOGETHER_MAX: usize = 64;

/// Why the control stream of a connection ended early. The connection ends with it.
pub(super) enum ControlStreamError {
    /// The stream broke off, or the engine has dropped the lane's handle.
    BrokenOff(String),
    /// The peer sent a frame that is too long or malformed.
    ProtocolViolation(String),
}

impl ControlStreamError {
    /// Returns the QUIC error code with which the connection is closed.
    pub fn close_code(&self) -> u32 {
        match self {
            Self::BrokenOff(_) => CONNECTION_CLOSING_CODE,
            Self::ProtocolViolation(_) => PROTOCOL_VIOLATION_CODE,
        }
    }

    /// Makes the error of a stream that broke off.
    fn broken_off(error: impl fmt::Display) -> Self {
        Self::BrokenOff(error.to_string())
    }
}

impl fmt::Display for ControlStreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::BrokenOff(why) | Self::ProtocolViolation(why)) = self;
        f.write_str(why)
    }
}

/// Gives a QUIC stream the priority of control messages, above that of segments.
pub(super) fn prioritize_control_stream(stream: &SendStream) {
    let _ = stream.set_priority(CONTROL_STREAM_PRIORITY);
}

/// Encodes a control message as a frame: its length in 4 bytes, then `message`.
pub(super) fn frame_control_stream_message(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes(), message].concat()
}

/// Reads one frame of a control stream and returns its message; `None` once the sender has ended the
/// stream.
///
/// # Errors
/// The message has more than `max_bytes` bytes, or the stream breaks off.
pub(super) async fn read_control_stream_frame(
    stream: &mut RecvStream,
    max_bytes: usize,
) -> Result<Option<Vec<u8>>, ControlStreamError> {
    let mut length = [0; 4];
    match stream.read_exact(&mut length).await {
        Ok(()) => {}
        Err(ReadExactError::FinishedEarly(0)) => return Ok(None),
        Err(error) => return Err(ControlStreamError::broken_off(error)),
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > max_bytes {
        let why = format!("a frame of {length} bytes, where {max_bytes} are allowed");
        return Err(ControlStreamError::ProtocolViolation(why));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await.map_err(ControlStreamError::broken_off)?;
    Ok(Some(bytes))
}

/// Reads the control messages of peer `from` and sends them to the engine. This ends when the peer
/// ends its stream, which the engine is told, or when the engine itself has ended.
///
/// # Errors
/// The reason: the stream broke off, or a message is too long or malformed.
pub(super) async fn read_control_stream_messages(
    events: &EventSender,
    from: GatewayId,
    id: ConnectionId,
    mut stream: RecvStream,
) -> Result<(), ControlStreamError> {
    loop {
        let frame = read_control_stream_frame(&mut stream, MESSAGE_BYTES_MAX).await?;
        let is_last = frame.is_none();
        let event = match frame {
            Some(bytes) => decode_control_stream_event(&bytes, from, id).map_err(|error| {
                let why = format!("malformed control message: {error}");
                ControlStreamError::ProtocolViolation(why)
            })?,
            None => Event::LaneFinished { peer: from, id },
        };
        // The writer closes the connection after the engine's end.
        let has_engine_ended = events.send(event).await.is_err();
        if is_last || has_engine_ended {
            return Ok(());
        }
    }
}

/// Decodes a control message of peer `from` into the engine's event. It is a link message, or an
/// envelope with a message of a job.
fn decode_control_stream_event(
    bytes: &[u8],
    from: GatewayId,
    id: ConnectionId,
) -> Result<Event, DecodeError> {
    if let Some(message) = bytes.strip_prefix(&LINK_GROUP.0.to_be_bytes()) {
        return Ok(Event::LinkMessage { from, id, message: LinkMessage::decode(message)? });
    }
    let (envelope, message) = Envelope::decode(bytes)?;
    Ok(Event::Message { from, id, envelope, message: Message::decode(message)? })
}

/// Writes queued control messages to their stream, and ends the stream when the engine says so. When
/// the engine has ended, this returns once the peer has acknowledged all messages.
///
/// # Errors
/// The stream broke off, or the engine has dropped the lane's handle.
pub(super) async fn write_control_stream_messages(
    mut stream: SendStream,
    mut queue: mpsc::Receiver<LaneControlOutput>,
) -> Result<(), ControlStreamError> {
    let mut outputs = Vec::new();
    while queue.recv_many(&mut outputs, WRITTEN_TOGETHER_MAX).await > 0 {
        let (mut frames, mut is_last) = (Vec::new(), false);
        for output in outputs.drain(..) {
            match output {
                LaneControlOutput::Message(message) => {
                    frames.extend(frame_control_stream_message(&message.bytes))
                }
                LaneControlOutput::Finish => is_last = true,
            }
        }
        stream.write_all(&frames).await.map_err(ControlStreamError::broken_off)?;
        if is_last {
            return stream.finish().map_err(ControlStreamError::broken_off);
        }
    }
    // The engine has ended. A connection that closed now would lose its last messages.
    let _ = stream.finish();
    let _ = stream.stopped().await;
    Err(ControlStreamError::BrokenOff("the gateway has stopped".to_owned()))
}
