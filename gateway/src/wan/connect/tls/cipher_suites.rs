//! The cipher suites of TLS, in the order that suits the CPU.

use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{self, cipher_suite};
use std::sync::Arc;

/// Returns rustls's provider with two cipher suites, the preferred one first: AES-128-GCM if
/// `has_aes`, else ChaCha20. Both are offered, so that unlike hosts still connect.
/// Tested by `chacha20_is_used_only_without_aes_instructions`.
pub(super) fn tls_cipher_provider(has_aes: bool) -> Arc<CryptoProvider> {
    let (aes, chacha) =
        (cipher_suite::TLS13_AES_128_GCM_SHA256, cipher_suite::TLS13_CHACHA20_POLY1305_SHA256);
    let cipher_suites = if has_aes { vec![aes, chacha] } else { vec![chacha, aes] };
    Arc::new(CryptoProvider { cipher_suites, ..ring::default_provider() })
}

/// Returns whether the CPU has instructions for AES-GCM.
#[cfg(target_arch = "x86_64")]
pub(super) fn cpu_has_aes() -> bool {
    std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq")
}

/// Returns whether the CPU has instructions for AES-GCM.
#[cfg(target_arch = "aarch64")]
pub(super) fn cpu_has_aes() -> bool {
    std::arch::is_aarch64_feature_detected!("aes")
}

/// Returns whether the CPU has instructions for AES-GCM; false on architectures that are not
/// checked.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) fn cpu_has_aes() -> bool {
    false
}
