//! IP packets as a TUN device hands them over: perhaps many segments in one buffer.
//!
//! Each segment of a buffer meets the link by itself. Those that survive go on in runs, as
//! smaller buffers with corrected headers. Nothing here trusts the bytes.

mod buffer;
mod checksum;
mod header;
mod ip_packet;

pub(super) use buffer::{FrameBuffer, FrameDamage, FrameDestination};
pub(super) use header::VIRTIO_HEADER_BYTES;

#[cfg(test)]
mod tests;
