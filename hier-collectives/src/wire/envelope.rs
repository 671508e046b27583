//! The envelope: the addresses in front of a control message.

use crate::codec::{DecodeError, Reader, put_u16, put_u64};
use crate::ids::{GatewayId, GroupId};

/// Job, sender and receiver of a control message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Envelope {
    /// The job of the message.
    pub group: GroupId,
    /// The gateway that sent it.
    pub from: GatewayId,
    /// The final receiver; any other gateway forwards the message.
    pub to: GatewayId,
}

impl Envelope {
    /// Encoded length in bytes.
    pub const BYTES: usize = GroupId::BYTES + 4;

    /// The wire form.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = Vec::with_capacity(Self::BYTES);
        put_u64(&mut out, self.group.0);
        put_u16(&mut out, self.from.0);
        put_u16(&mut out, self.to.0);
        let mut fixed = [0; Self::BYTES];
        fixed.copy_from_slice(&out);
        fixed
    }

    /// Reads the wire form off the front of a frame; the rest is the message.
    ///
    /// # Errors
    /// [`DecodeError`] when the frame is shorter.
    pub fn decode(frame: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        let mut reader = Reader(frame);
        let (group, from) = (GroupId(reader.u64()?), GatewayId(reader.u16()?));
        let to = GatewayId(reader.u16()?);
        Ok((Self { group, from, to }, reader.0))
    }
}
