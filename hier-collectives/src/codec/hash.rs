//! The hash of names, plans and descriptors.

/// Returns the 64-bit FNV-1a hash of `bytes`. It identifies equal contents; it does not resist
/// forgery.
pub fn fnv1a_hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
