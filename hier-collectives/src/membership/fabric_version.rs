//! Versions of fabrics, fabrics that operators sign, and those that a gateway holds.

use crate::codec::{DecodeError, FieldReader, write_u32, write_u64};
use std::fmt;
use std::sync::Arc;
use units::{Span, TimeNs};

/// 2 to the power of 62: numbers of versions lie below it, as numbers of terms do, so that a peer's number
/// always has one after it.
const NUMBERS_BOUND: u64 = 1 << 62;

/// The version of a fabric file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct FabricVersion {
    /// The number in the file; 0 for a file without one, which no signed fabric has.
    pub number: u64,
    /// SHA-256 of the file's text; zeros for a file without a number, which may differ between gateways.
    pub digest: [u8; 32],
}

/// A fabric file with the signature of the deployment's CA, as bytes that this library does not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedFabric {
    /// Its version.
    pub version: FabricVersion,
    /// The file and its signature.
    pub bytes: Arc<[u8]>,
}

/// Why a gateway does not take a signed fabric: it is the newest already, or an older one. Nothing has
/// changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "version {offered} is not above version {newest}, which this gateway has: give the file a \
     higher `version`, and sign it again"
)]
pub struct OldFabricError {
    /// Its number.
    pub offered: u64,
    /// The number of the newest fabric here.
    pub newest: u64,
}

/// The fabrics of a gateway: the one in force, and the newest signed one.
#[derive(Debug)]
pub(super) struct HeldFabrics {
    /// The version in force: that of the last term that this gateway entered, or of its own file.
    pub in_force: FabricVersion,
    /// The newest signed fabric, which is in force or waits.
    pub newest: Option<SignedFabric>,
    /// For how long a boundary is awaited for it.
    pub within: Span,
    /// Until when the first gateway asks those that do not hold it.
    pub asked_until: TimeNs,
    /// The last signed fabric that this gateway cannot put in force.
    pub refused: Option<FabricVersion>,
    /// When gateways that may have another fabric are asked again; `None` while nobody is.
    pub compared_again: Option<TimeNs>,
}

impl HeldFabrics {
    /// Makes the fabrics of a gateway that has just read its own file.
    pub fn of_file(version: FabricVersion) -> Self {
        Self {
            in_force: version,
            newest: None,
            within: Span::ZERO,
            asked_until: TimeNs::from_ns(0),
            refused: None,
            compared_again: None,
        }
    }

    /// Returns the version of the newest fabric.
    pub fn newest_version(&self) -> FabricVersion {
        self.newest.as_ref().map_or(self.in_force, |newest| newest.version)
    }
}

impl SignedFabric {
    /// 48 KiB: a longer signed fabric is refused. One with 400 links fits, and so does its request of an
    /// operator into a message of 64 KiB.
    pub const BYTES_MAX: usize = 48 << 10;

    /// Appends the fabric to the message `out`: its version, a 32-bit length, its bytes.
    pub(super) fn write_to(&self, out: &mut Vec<u8>) {
        self.version.write_to(out);
        write_u32(out, u32::try_from(self.bytes.len()).unwrap_or(u32::MAX));
        out.extend_from_slice(&self.bytes);
    }

    /// Reads a fabric: its version, which is no 0, a 32-bit length, its bytes.
    pub(super) fn read_from(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let version = FabricVersion::read_from(reader)?;
        let length = reader.read_u32()? as usize;
        if version.number == 0 || length > Self::BYTES_MAX {
            return Err(DecodeError::Invalid("signed fabric"));
        }
        Ok(Self { version, bytes: reader.read_bytes(length)?.into() })
    }
}

impl FabricVersion {
    /// Appends the version to the message `out`: its number, then its digest.
    pub(super) fn write_to(self, out: &mut Vec<u8>) {
        write_u64(out, self.number);
        out.extend_from_slice(&self.digest);
    }

    /// Reads a version: its number, then its digest.
    pub(super) fn read_from(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let number = reader.read_u64()?;
        if number >= NUMBERS_BOUND {
            return Err(DecodeError::Invalid("version of a fabric"));
        }
        Ok(Self { number, digest: reader.read_array()? })
    }
}

impl fmt::Debug for FabricVersion {
    /// Prints the number, and the first bytes of the digest.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.digest;
        write!(f, "FabricVersion({}, {a:02x}{b:02x}{c:02x}{d:02x})", self.number)
    }
}
