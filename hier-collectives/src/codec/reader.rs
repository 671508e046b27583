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

/// Reads fields from the front of a message. A length is checked against the bytes that are left
/// before memory is allocated for it.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// The next `count` bytes.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (head, tail) = self.0.split_at_checked(count).ok_or(DecodeError::Truncated)?;
        self.0 = tail;
        Ok(head)
    }
    /// The next `N` bytes.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }
    /// The next byte.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.array::<1>()?[0])
    }
    /// The next 16-bit number.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_be_bytes)
    }
    /// The next 32-bit number.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }
    /// The next 64-bit number.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_be_bytes)
    }
    /// The next byte as a flag: 0 or 1.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn flag(&mut self) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Unknown("flag")),
        }
    }
    /// The next number as a weight: finite and not negative.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn weight(&mut self) -> Result<f64, DecodeError> {
        let weight = f64::from_bits(self.u64()?);
        if weight.is_finite() && weight >= 0.0 {
            Ok(weight)
        } else {
            Err(DecodeError::Invalid("weight"))
        }
    }
    /// The next text, behind its 16-bit length.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn text(&mut self) -> Result<String, DecodeError> {
        let length = usize::from(self.u16()?);
        let text = std::str::from_utf8(self.take(length)?);
        text.map(str::to_owned).map_err(|_| DecodeError::Invalid("text"))
    }
    /// `value`, if no bytes are left.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn end<T>(&self, value: T) -> Result<T, DecodeError> {
        if self.0.is_empty() { Ok(value) } else { Err(DecodeError::TrailingBytes) }
    }
}
