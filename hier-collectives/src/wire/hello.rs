//! The hello, the first message of a lane.

use super::limits::WIRE_VERSION;
use crate::codec::{DecodeError, Reader, put_text, put_u16, put_u64};
use crate::ids::BootId;

/// The first message of a lane, by which the gateways identify each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// [`WIRE_VERSION`] of the sender.
    pub version: u16,
    /// Digest of the fabric's names, ranks and links.
    pub fabric: [u8; 32],
    /// Name of the sending gateway.
    pub gateway: String,
    /// Boot id of the sending gateway.
    pub boot: BootId,
    /// Index of the lane.
    pub lane: u16,
}

impl Hello {
    /// 1 KiB, the longest hello without its length prefix: nine times the longest of this version.
    pub const MAX_BYTES: usize = 1024;

    /// The wire form, without a length prefix.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_u16(&mut out, self.version);
        out.extend(self.fabric);
        put_u64(&mut out, self.boot.0);
        put_u16(&mut out, self.lane);
        put_text(&mut out, &self.gateway);
        out
    }

    /// Reads the wire form.
    ///
    /// The version is first, and the caller checks it. So another version can be reported although the
    /// rest of its hello has another layout.
    ///
    /// # Errors
    /// [`DecodeError`] when the bytes are a malformed hello of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader(bytes);
        let version = reader.u16()?;
        if version != WIRE_VERSION {
            let fabric = [0; 32];
            return Ok(Self { version, fabric, gateway: String::new(), boot: BootId(0), lane: 0 });
        }
        let mut fabric = [0; 32];
        fabric.copy_from_slice(reader.take(32)?);
        let (boot, lane) = (BootId(reader.u64()?), reader.u16()?);
        let gateway = reader.text()?;
        reader.end(Self { version, fabric, gateway, boot, lane })
    }
}
