//! The reader of message fields.

/// Why bytes are a malformed message; always an error of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end before the message does.
    #[error("truncated")]
    Truncated,
    /// Bytes follow the end of the message.
    #[error("bytes left over")]
    TrailingBytes,
    /// A code is unknown.
    #[error("unknown {0}")]
    Unknown(&'static str),
    /// A value is out of its range.
    #[error("invalid {0}")]
    Invalid(&'static str),
}

/// Reads fields from the front of a message; field 0 has the bytes that are left.
///
/// A length is checked against the bytes that are left before memory is allocated for it.
pub struct FieldReader<'a>(pub &'a [u8]);

impl<'a> FieldReader<'a> {
    /// Takes the next `count` bytes off the front of the message.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when fewer bytes are left.
    pub fn read_bytes(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (head, tail) = self.0.split_at_checked(count).ok_or(DecodeError::Truncated)?;
        self.0 = tail;
        Ok(head)
    }
    /// Takes the next `N` bytes off the front of the message, as an array.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when fewer bytes are left.
    pub fn read_array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut array = [0; N];
        array.copy_from_slice(self.read_bytes(N)?);
        Ok(array)
    }
    /// Takes the next byte off the front of the message.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when no byte is left.
    pub fn read_u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.read_array::<1>()?[0])
    }
    /// Takes the next big-endian 16-bit number off the front of the message.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when fewer bytes are left.
    pub fn read_u16(&mut self) -> Result<u16, DecodeError> {
        self.read_array().map(u16::from_be_bytes)
    }
    /// Takes the next big-endian 32-bit number off the front of the message.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when fewer bytes are left.
    pub fn read_u32(&mut self) -> Result<u32, DecodeError> {
        self.read_array().map(u32::from_be_bytes)
    }
    /// Takes the next big-endian 64-bit number off the front of the message.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when fewer bytes are left.
    pub fn read_u64(&mut self) -> Result<u64, DecodeError> {
        self.read_array().map(u64::from_be_bytes)
    }
    /// Takes the next byte off the front of the message as a flag: 0 is false, 1 is true.
    ///
    /// # Errors
    /// [`DecodeError`] when the byte has another value, or none is left.
    pub fn read_flag(&mut self) -> Result<bool, DecodeError> {
        match self.read_u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Unknown("flag")),
        }
    }
    /// Takes the next 8 bytes off the front of the message as the weight of a rank in an average.
    ///
    /// # Errors
    /// [`DecodeError`] when the number is negative or not finite, or fewer bytes are left.
    pub fn read_weight(&mut self) -> Result<f64, DecodeError> {
        let weight = f64::from_bits(self.read_u64()?);
        if weight.is_finite() && weight >= 0.0 {
            Ok(weight)
        } else {
            Err(DecodeError::Invalid("weight"))
        }
    }
    /// Takes the next UTF-8 text off the front of the message: a 16-bit length in bytes, then the
    /// text.
    ///
    /// # Errors
    /// [`DecodeError`] when the text is no UTF-8, or fewer bytes are left.
    pub fn read_text(&mut self) -> Result<String, DecodeError> {
        let length = usize::from(self.read_u16()?);
        let text = std::str::from_utf8(self.read_bytes(length)?);
        text.map(str::to_owned).map_err(|_| DecodeError::Invalid("text"))
    }
    /// Returns `value`, the decoded message, if no bytes follow it.
    ///
    /// # Errors
    /// [`DecodeError::TrailingBytes`] when bytes are left.
    pub fn check_end<T>(&self, value: T) -> Result<T, DecodeError> {
        if self.0.is_empty() { Ok(value) } else { Err(DecodeError::TrailingBytes) }
    }
}
