//! The hello, the first message of a lane.

use super::versions::{NoCommonWireVersion, WireVersion, WireVersions};
use crate::codec::{DecodeError, FieldReader, write_text, write_u16, write_u64};
use crate::ids::BootId;

/// The first message of a lane, by which the gateways identify each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The versions that the sender speaks.
    pub versions: WireVersions,
    /// Digest of the fabric's names, ranks and links.
    pub fabric: [u8; 32],
    /// Name of the sending gateway.
    pub gateway: String,
    /// Boot id of the sending gateway.
    pub boot: BootId,
    /// Index of the lane.
    pub lane: u16,
}

/// Why a hello is refused before its sender is known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// Its bytes are none of a hello of its version. The sender's fault.
    #[error(transparent)]
    Malformed(#[from] DecodeError),
    /// Sender and receiver have no version in common.
    #[error(transparent)]
    Versions(#[from] NoCommonWireVersion),
}

impl Hello {
    /// 1 KiB: a longer hello, the first message of a lane, is refused with its lane; the length
    /// prefix does not count. 1 KiB is nine times the longest hello of this version, for the fields
    /// that later versions may add.
    pub const BYTES_MAX: usize = 1024;

    /// Returns the wire form of the hello, without a length prefix: newest version, oldest version,
    /// fabric, boot id, lane, gateway.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        write_u16(&mut out, self.versions.newest().0);
        write_u16(&mut out, self.versions.oldest().0);
        out.extend(self.fabric);
        write_u64(&mut out, self.boot.0);
        write_u16(&mut out, self.lane);
        write_text(&mut out, &self.gateway);
        out
    }

    /// Decodes the wire form of a hello, without a length prefix, for a gateway that speaks the
    /// versions `own`. Returns it with the highest version that both speak.
    ///
    /// The fields of all versions from 12 on begin alike. Versions above the newest of
    /// `own` may add fields, which are not read.
    ///
    /// # Errors
    /// [`HelloError`]. Another version is reported although the rest of its hello has another layout.
    pub fn decode(bytes: &[u8], own: WireVersions) -> Result<(Self, WireVersion), HelloError> {
        let mut reader = FieldReader(bytes);
        let newest = WireVersion(reader.read_u16()?);
        let oldest = match newest < FIRST_WITH_RANGE {
            true => newest,
            false => WireVersion(reader.read_u16()?),
        };
        let versions =
            WireVersions::new(oldest, newest).ok_or(DecodeError::Invalid("range of versions"))?;
        let version = own.highest_common(versions)?;
        let mut fabric = [0; 32];
        fabric.copy_from_slice(reader.read_bytes(32)?);
        let (boot, lane) = (BootId(reader.read_u64()?), reader.read_u16()?);
        let gateway = reader.read_text()?;
        let hello = Self { versions, fabric, gateway, boot, lane };
        match newest > own.newest() {
            true => Ok((hello, version)),
            false => Ok((reader.check_end(hello)?, version)),
        }
    }
}

/// 12: the first version whose hello states the oldest version of its sender too. Senders of an earlier
/// one speak that version alone.
const FIRST_WITH_RANGE: WireVersion = WireVersion(12);
