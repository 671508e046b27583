//! The control stream of a connection: length-prefixed frames, the first unidirectional stream each way.
//!
//! Two of the connection's tasks use it. The reader sends an engine event for each message, and waits
//! while the engine's queue is full. The writer empties the queue of the lane's handle
//! (`wan/lane_handle.rs` has its bound).

use crate::events::{ConnectionId, Event, EventSender};
use crate::wan::link::message::{LINK_GROUP, LinkMessage};
use hier_collectives::codec::DecodeError;
use hier_collectives::ids::GatewayId;
use hier_collectives::wire::{Envelope, MAX_MESSAGE_BYTES, Message};
use quinn::{RecvStream, SendStream};
use tokio::sync::mpsc;

/// 2: the QUIC priority of the control stream, so that receipts and grants leave before data.
/// Streams of small segments have priority 1, and streams of bulk 0.
const CONTROL_STREAM_PRIORITY: i32 = 2;

/// 64 control messages: the most that are written at once. A message that comes alone is written
/// alone; many that wait cost one write, and few packets.
const WRITTEN_TOGETHER_MAX: usize = 64;

/// Gives a stream the priority of control messages.
pub(super) fn prioritize_control_stream(stream: &SendStream) {
    let _ = stream.set_priority(CONTROL_STREAM_PRIORITY);
}

/// Encodes a control message as a frame: its length in 4 bytes, then `message`.
pub(super) fn frame_control_message(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes(), message].concat()
}

/// Reads one frame of a control stream and returns its message.
///
/// # Errors
/// The message has more than `max_bytes` bytes, or the stream ends.
pub(super) async fn read_control_frame(
    stream: &mut RecvStream,
    max_bytes: usize,
) -> Result<Vec<u8>, String> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).await.map_err(|error| error.to_string())?;
    let length = u32::from_be_bytes(length) as usize;
    if length > max_bytes {
        return Err(format!("a frame of {length} bytes, where {max_bytes} are allowed"));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await.map_err(|error| error.to_string())?;
    Ok(bytes)
}

/// Reads the control messages of peer `from` and sends them to the engine, until the stream ends;
/// returns the reason.
pub(super) async fn read_control_messages(
    events: &EventSender,
    from: GatewayId,
    id: ConnectionId,
    mut stream: RecvStream,
) -> String {
    loop {
        let bytes = match read_control_frame(&mut stream, MAX_MESSAGE_BYTES).await {
            Ok(bytes) => bytes,
            Err(why) => return why,
        };
        let event = match decode_control_event(&bytes, from, id) {
            Ok(event) => event,
            Err(error) => return format!("malformed control message: {error}"),
        };
        if events.send(event).await.is_err() {
            return "the engine has ended".to_owned();
        }
    }
}

/// Decodes a control message of peer `from` into the engine's event. It is a link message, or an
/// envelope with a message of a job.
fn decode_control_event(
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

/// Writes queued control messages to their stream until the lane's handle is dropped; returns the
/// reason.
pub(super) async fn write_control_messages(
    mut stream: SendStream,
    mut queue: mpsc::Receiver<Vec<u8>>,
) -> String {
    let mut messages = Vec::new();
    while queue.recv_many(&mut messages, WRITTEN_TOGETHER_MAX).await > 0 {
        let frames: Vec<u8> =
            messages.drain(..).flat_map(|message| frame_control_message(&message)).collect();
        if let Err(error) = stream.write_all(&frames).await {
            return error.to_string();
        }
    }
    "retired by the engine".to_owned()
}
