//! The envelope: the addresses in front of a control message.

use crate::codec::{DecodeError, FieldReader, write_u16, write_u64};
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
    /// The number of hops that the message may still take. So none goes in circles, whatever
    /// gateways know of the connections.
    pub hops: u16,
}

impl Envelope {
    /// 14 bytes: the encoded length of an envelope: the id of a job or group, the ids of two
    /// gateways and a number of hops.
    pub const BYTES: usize = GroupId::BYTES + 6;

    /// Returns the wire form of the envelope: job, sender, receiver, hops.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = Vec::with_capacity(Self::BYTES);
        write_u64(&mut out, self.group.0);
        write_u16(&mut out, self.from.0);
        write_u16(&mut out, self.to.0);
        write_u16(&mut out, self.hops);
        let mut fixed = [0; Self::BYTES];
        fixed.copy_from_slice(&out);
        fixed
    }

    /// Reads an envelope off the front of a frame; the rest of the frame, which it returns too, is
    /// the message.
    ///
    /// # Errors
    /// [`DecodeError`] when the frame is shorter.
    pub fn decode(frame: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        let mut reader = FieldReader(frame);
        let (group, from) = (GroupId(reader.read_u64()?), GatewayId(reader.read_u16()?));
        let (to, hops) = (GatewayId(reader.read_u16()?), reader.read_u16()?);
        Ok((Self { group, from, to, hops }, reader.0))
    }
}
