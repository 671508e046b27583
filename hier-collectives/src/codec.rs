//! Fields of messages, one by one: big-endian numbers, texts with their length in front.
//!
//! What gateways say to each other and what trainers say to their gateway is made of these.

use crate::descriptor::{Descriptor, Dtype, Pattern, ReduceOp};
use crate::ids::RankId;
use crate::post::{Failure, FailureCode};

/// Bytes that are no message. The peer's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end too soon.
    #[error("truncated")]
    Truncated,
    /// Bytes are left over.
    #[error("bytes left over")]
    TrailingBytes,
    /// A code that stands for nothing.
    #[error("unknown {0}")]
    Unknown(&'static str),
    /// A value out of its range.
    #[error("invalid {0}")]
    Invalid(&'static str),
}

/// 64-bit FNV-1a: names by what they stand for, not proof against forgers.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Appends a 16-bit number.
pub fn put_u16(out: &mut Vec<u8>, value: u16) {
    out.extend(value.to_be_bytes());
}

/// Appends a 32-bit number.
pub fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend(value.to_be_bytes());
}

/// Appends a 64-bit number.
pub fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend(value.to_be_bytes());
}

/// Appends a text of at most 65,535 bytes behind its 16-bit length.
pub fn put_text(out: &mut Vec<u8>, text: &str) {
    let bytes = &text.as_bytes()[..text.len().min(usize::from(u16::MAX))];
    put_u16(out, u16::try_from(bytes.len()).unwrap_or(u16::MAX));
    out.extend(bytes);
}

/// Appends a descriptor: op, dtype, elements, layout hash.
pub fn put_descriptor(out: &mut Vec<u8>, descriptor: &Descriptor) {
    out.extend([descriptor.op as u8, descriptor.dtype as u8]);
    put_u64(out, descriptor.elements);
    put_u64(out, descriptor.layout_hash);
    let (code, RankId(root)) = descriptor.pattern.code();
    out.push(code);
    put_u32(out, root);
}

/// Appends a failure: code, text.
pub fn put_failure(out: &mut Vec<u8>, failure: &Failure) {
    out.push(failure.code as u8);
    put_text(out, &failure.text);
}

/// Takes fields off the front. Every length is checked against what is there before
/// anything is allocated for it.
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
    /// A byte.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.array::<1>()?[0])
    }
    /// A 16-bit number.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_be_bytes)
    }
    /// A 32-bit number.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }
    /// A 64-bit number.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_be_bytes)
    }
    /// A weight: finite, not negative.
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
    /// A text.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn text(&mut self) -> Result<String, DecodeError> {
        let length = usize::from(self.u16()?);
        let text = std::str::from_utf8(self.take(length)?);
        text.map(str::to_owned).map_err(|_| DecodeError::Invalid("text"))
    }
    /// A failure.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn failure(&mut self) -> Result<Failure, DecodeError> {
        let code = FailureCode::from_code(self.u8()?).ok_or(DecodeError::Unknown("failure"))?;
        let text = self.text()?;
        if text.len() > Failure::MAX_TEXT_BYTES {
            return Err(DecodeError::Invalid("text"));
        }
        Ok(Failure { code, text })
    }
    /// A descriptor.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn descriptor(&mut self) -> Result<Descriptor, DecodeError> {
        let op = ReduceOp::from_code(self.u8()?).ok_or(DecodeError::Unknown("op"))?;
        let dtype = Dtype::from_code(self.u8()?).ok_or(DecodeError::Unknown("dtype"))?;
        let (elements, layout_hash) = (self.u64()?, self.u64()?);
        let pattern = Pattern::from_code(self.u8()?, RankId(self.u32()?));
        let pattern = pattern.ok_or(DecodeError::Unknown("operation"))?;
        Ok(Descriptor { op, dtype, elements, layout_hash, pattern })
    }
    /// `value`, if nothing is left.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn end<T>(&self, value: T) -> Result<T, DecodeError> {
        if self.0.is_empty() { Ok(value) } else { Err(DecodeError::TrailingBytes) }
    }
}
