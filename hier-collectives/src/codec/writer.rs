//! The writers of message fields.

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
