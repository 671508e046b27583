//! The hello, the first message of a lane.

use super::limits::WIRE_VERSION;
use crate::codec::{DecodeError, FieldReader, write_text, write_u16, write_u64};
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
    /// 1 KiB: a longer hello, the first message of a lane, is refused with its lane; the length
    /// prefix does not count. 1 KiB is nine times the longest hello of this version. Later versions
    /// may send longer ones, which are then refused by their version.
    pub const BYTES_MAX: usize = 1024;

    /// Returns the wire form of the hello, without a length prefix: version, fabric, boot id, lane,
    /// gateway.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        write_u16(&mut out, self.version);
        out.extend(self.fabric);
        write_u64(&mut out, self.boot.0);
        write_u16(&mut out, self.lane);
        write_text(&mut out, &self.gateway);
        out
    }

    /// Decodes the wire form of a hello, without a length prefix.
    ///
    /// The version is first, and the caller checks it. So another version can be reported although
    /// the rest of its hello has another layout.
    ///
    /// # Errors
    /// [`DecodeError`] when the bytes are a malformed hello of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader(bytes);
        let version = reader.read_u16()?;
        if version != WIRE_VERSION {
            let fabric = [0; 32];
            return Ok(Self { version, fabric, gateway: String::new(), boot: BootId(0), lane: 0 });
        }
        let mut fabric = [0; 32];
        fabric.copy_from_slice(reader.read_bytes(32)?);
        let (boot, lane) = (BootId(reader.read_u64()?), reader.read_u16()?);
        let gateway = reader.read_text()?;
        reader.check_end(Self { version, fabric, gateway, boot, lane })
    }
}
