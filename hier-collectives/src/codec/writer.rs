//! The writers of message fields.

/// Appends a big-endian 16-bit number to the message `out`.
pub fn write_u16(out: &mut Vec<u8>, value: u16) {
    out.extend(value.to_be_bytes());
}

/// Appends a big-endian 32-bit number to the message `out`.
pub fn write_u32(out: &mut Vec<u8>, value: u32) {
    out.extend(value.to_be_bytes());
}

/// Appends a big-endian 64-bit number to the message `out`.
pub fn write_u64(out: &mut Vec<u8>, value: u64) {
    out.extend(value.to_be_bytes());
}

/// Appends a text to the message `out`: a 16-bit length in bytes, then its first 65,535 bytes.
pub fn write_text(out: &mut Vec<u8>, text: &str) {
    let bytes = &text.as_bytes()[..text.len().min(usize::from(u16::MAX))];
    write_u16(out, u16::try_from(bytes.len()).unwrap_or(u16::MAX));
    out.extend(bytes);
}
