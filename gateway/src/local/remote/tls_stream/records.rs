//! The records of one TLS connection, in memory.
//!
//! rustls decrypts and encrypts; this keeps the bytes that wait: those that were read and are not
//! decrypted yet, those that are decrypted and not taken, and those that are to be sent.

use rustls::CommonState;
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use std::error::Error;
use std::io;
use std::ops::Deref;
use tokio::io::ReadBuf;

/// 4 KiB: the buffer for bytes that come, at its first read. A silent connection takes little
/// memory.
pub(super) const INCOMING_BYTES_MIN: usize = 1 << 12;
/// 256 KiB, as a piece: the longest buffer for bytes that come. It holds the longest record.
const INCOMING_BYTES_MAX: usize = 1 << 18;
/// 64 KiB, four records: the most bytes that one call encrypts. A reader of the same connection waits no
/// longer than that for its turn.
const WRITE_BYTES_MAX: usize = 1 << 16;

/// One side of a TLS connection, of rustls' kinds.
pub(crate) trait TlsConnection: Unpin {
    /// The state that rustls keeps for this side.
    type Data;

    /// Goes on with the records in `incoming`.
    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data>;

    /// Returns what is known of the connection.
    fn common(&self) -> &CommonState;
}

impl TlsConnection for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn common(&self) -> &CommonState {
        self.deref()
    }
}

impl TlsConnection for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn common(&self) -> &CommonState {
        self.deref()
    }
}

/// A buffer whose bytes come at its end and go at its front.
#[derive(Debug, Default)]
struct Waiting {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Waiting {
    fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    fn take(&mut self, bytes: usize) {
        self.start += bytes;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    fn move_to_front(&mut self) {
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
    }

    /// Adds bytes behind those that wait.
    fn extend(&mut self, more: &[u8]) {
        self.bytes.truncate(self.end);
        self.bytes.extend_from_slice(more);
        self.end = self.bytes.len();
    }

    /// Has `put` write bytes behind those that wait, and say how many. If there is too little room,
    /// those that wait move to the front, and the buffer grows to the room that `put` wants.
    fn append<E: Error + Send + Sync + 'static>(
        &mut self,
        mut put: impl FnMut(&mut [u8]) -> Result<usize, E>,
        wanted: impl Fn(&E) -> Option<usize>,
    ) -> io::Result<()> {
        loop {
            let error = match put(&mut self.bytes[self.end..]) {
                Ok(bytes) => {
                    self.end += bytes;
                    return Ok(());
                }
                Err(error) => error,
            };
            match wanted(&error) {
                Some(bytes) => {
                    self.move_to_front();
                    let length = self.bytes.len().max(self.end + bytes);
                    self.bytes.resize(length, 0);
                }
                None => return Err(io::Error::other(error)),
            }
        }
    }
}

/// A call of the application: the step that it wants from the connection.
enum Wish<'a, 'b> {
    /// To go on with the handshake.
    Handshake,
    /// To decrypt bytes into memory.
    Read(&'a mut ReadBuf<'b>),
    /// To encrypt bytes.
    Write(&'a [u8]),
    /// To say that no more bytes follow.
    End,
}

/// The records of one TLS connection.
pub(super) struct TlsRecords<C> {
    connection: C,
    incoming: Waiting,
    application: Application,
    /// Why the connection cannot go on. rustls is not asked any more then.
    failure: Option<rustls::Error>,
}

/// The application's side of a connection: bytes that wait between it and TLS, and their ends.
#[derive(Debug, Default)]
struct Application {
    /// Bytes that were decrypted before anybody had room for them.
    decrypted: Waiting,
    outgoing: Waiting,
    /// Whether the other end said that no more bytes follow.
    has_ended: bool,
    /// Whether this end said so.
    said_end: bool,
}

impl<C: TlsConnection> TlsRecords<C> {
    /// Makes the records of a connection before its handshake.
    pub(super) fn new(connection: C) -> Self {
        let (incoming, application) = (Waiting::default(), Application::default());
        Self { connection, incoming, application, failure: None }
    }

    /// Returns whether the handshake is still under way.
    pub(super) fn is_shaking_hands(&self) -> bool {
        self.connection.common().is_handshaking()
    }

    /// Returns the protocol that both ends agreed on (ALPN).
    pub(super) fn alpn_protocol(&self) -> Option<&[u8]> {
        self.connection.common().alpn_protocol()
    }

    /// Returns whether the other end said that no more bytes follow.
    pub(super) fn has_ended(&self) -> bool {
        self.application.has_ended
    }

    /// Returns room for bytes that come, behind those that wait. The buffer grows when the read
    /// before has filled it.
    pub(super) fn room(&mut self) -> &mut [u8] {
        let Waiting { bytes, end, .. } = &mut self.incoming;
        if *end == bytes.len() {
            let length = 2 * bytes.len();
            bytes.resize(length.clamp(INCOMING_BYTES_MIN, INCOMING_BYTES_MAX), 0);
            self.incoming.move_to_front();
        }
        &mut self.incoming.bytes[self.incoming.end..]
    }

    /// Notes that so many bytes have come into the room.
    pub(super) fn note_read(&mut self, bytes: usize) {
        self.incoming.end += bytes;
    }

    /// Returns the bytes that are to be sent.
    pub(super) fn outgoing(&self) -> &[u8] {
        self.application.outgoing.filled()
    }

    /// Returns the length of the buffer for bytes that are to be sent.
    #[cfg(test)]
    pub(super) fn outgoing_capacity(&self) -> usize {
        self.application.outgoing.bytes.len()
    }

    /// Notes that the first of the bytes that are to be sent have been.
    pub(super) fn note_sent(&mut self, bytes: usize) {
        self.application.outgoing.take(bytes);
    }

    /// Goes on with the handshake, as far as the bytes that came allow.
    pub(super) fn shake_hands(&mut self) -> io::Result<()> {
        self.fulfil(Wish::Handshake)
    }

    /// Decrypts bytes into `out`, as many as came and find room.
    pub(super) fn read_into(&mut self, out: &mut ReadBuf<'_>) -> io::Result<()> {
        let waiting = self.application.decrypted.filled();
        let taken = waiting.len().min(out.remaining());
        out.put_slice(&waiting[..taken]);
        self.application.decrypted.take(taken);
        if out.remaining() == 0 { Ok(()) } else { self.fulfil(Wish::Read(out)) }
    }

    /// Encrypts some of the bytes. Returns how many.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(WRITE_BYTES_MAX);
        self.fulfil(Wish::Write(&bytes[..taken]))?;
        Ok(taken)
    }

    /// Says once that no more bytes follow, unless an alert has said more.
    pub(super) fn end(&mut self) -> io::Result<()> {
        if self.application.said_end || self.failure.is_some() {
            return Ok(());
        }
        self.fulfil(Wish::End)
    }

    /// Goes through the states of the connection until the wish is fulfilled, or more bytes must
    /// come for it. After an error, the alert that tells the other end of it is to be sent.
    fn fulfil(&mut self, mut wish: Wish<'_, '_>) -> io::Result<()> {
        if let Some(error) = &self.failure {
            return Err(invalid(error.clone()));
        }
        loop {
            let Waiting { bytes, start, end } = &mut self.incoming;
            let UnbufferedStatus { discard, state } =
                self.connection.process(&mut bytes[*start..*end]);
            let goes_on = match state {
                Ok(state) => self.application.handle_state(state, &mut wish)?,
                Err(error) => {
                    self.incoming.take(discard);
                    self.queue_alert();
                    self.failure = Some(error.clone());
                    return Err(invalid(error));
                }
            };
            self.incoming.take(discard);
            if !goes_on {
                return Ok(());
            }
        }
    }

    /// Queues the alert by which rustls tells the other end of an error. rustls may be asked once
    /// only: the next turn would meet the same bytes again.
    fn queue_alert(&mut self) {
        let Waiting { bytes, start, end } = &mut self.incoming;
        let UnbufferedStatus { state, .. } = self.connection.process(&mut bytes[*start..*end]);
        if let Ok(ConnectionState::EncodeTlsData(mut data)) = state {
            // An error says more than a missing alert.
            let _ = self.application.outgoing.append(|room| data.encode(room), wanted_by_encoder);
        }
    }
}

impl Application {
    /// Does what the connection asks for in this state. Returns whether it has to be asked again.
    ///
    /// # Errors
    /// The wish cannot be fulfilled any more.
    fn handle_state<Data>(
        &mut self,
        state: ConnectionState<'_, '_, Data>,
        wish: &mut Wish<'_, '_>,
    ) -> io::Result<bool> {
        match state {
            ConnectionState::ReadTraffic(mut traffic) => {
                while let Some(record) = traffic.next_record() {
                    self.hand_over(record.map_err(invalid)?.payload, wish);
                }
                // A reader without room leaves the next records encrypted.
                Ok(!matches!(wish, Wish::Read(out) if out.remaining() == 0))
            }
            ConnectionState::EncodeTlsData(mut data) => {
                self.outgoing.append(|room| data.encode(room), wanted_by_encoder)?;
                Ok(true)
            }
            ConnectionState::TransmitTlsData(data) => {
                // They wait in order before all that follows.
                data.done();
                Ok(true)
            }
            ConnectionState::WriteTraffic(mut traffic) => {
                match wish {
                    Wish::Write(bytes) => {
                        let encrypt = |room: &mut [u8]| traffic.encrypt(bytes, room);
                        self.outgoing.append(encrypt, wanted_by_encryption)?;
                    }
                    Wish::End => {
                        let encrypt = |room: &mut [u8]| traffic.queue_close_notify(room);
                        self.outgoing.append(encrypt, wanted_by_encryption)?;
                        self.said_end = true;
                    }
                    Wish::Handshake | Wish::Read(_) => {}
                }
                Ok(false)
            }
            ConnectionState::PeerClosed => {
                self.has_ended = true;
                Ok(true)
            }
            ConnectionState::BlockedHandshake => Ok(false),
            ConnectionState::Closed if matches!(wish, Wish::Write(_)) => {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            ConnectionState::Closed => Ok(false),
            // Data of a client before its handshake, which no settings allow.
            _ => Err(invalid("a record that this end never asks for")),
        }
    }

    /// Hands decrypted bytes to the reader, or keeps those that find no room.
    fn hand_over(&mut self, payload: &[u8], wish: &mut Wish<'_, '_>) {
        let mut kept = payload;
        if let Wish::Read(out) = wish {
            let (direct, rest) = payload.split_at(payload.len().min(out.remaining()));
            out.put_slice(direct);
            kept = rest;
        }
        self.decrypted.extend(kept);
    }
}

/// Returns the room that a handshake message lacks, if that is why it was not written.
fn wanted_by_encoder(error: &EncodeError) -> Option<usize> {
    match error {
        EncodeError::InsufficientSize(size) => Some(size.required_size),
        EncodeError::AlreadyEncoded => None,
    }
}

/// Returns the room that encrypted bytes lack, if that is why they were not written.
fn wanted_by_encryption(error: &EncryptError) -> Option<usize> {
    match error {
        EncryptError::InsufficientSize(size) => Some(size.required_size),
        EncryptError::EncryptExhausted => None,
    }
}

/// Makes the error of bytes that break a rule of TLS.
fn invalid(error: impl Into<Box<dyn Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
