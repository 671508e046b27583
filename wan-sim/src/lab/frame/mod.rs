//! IP packets as a TUN device hands them over: perhaps many segments in one buffer.
//!
//! Each segment of a buffer meets the link by itself. Those that survive go on in runs, as
//! smaller buffers with corrected headers. Nothing here trusts the bytes.

mod frame_buffer;
mod ip_checksum;
mod ip_packet;
mod virtio_header;

pub(super) use frame_buffer::{FrameBuffer, FrameDamage, FrameDestination};
pub(super) use virtio_header::VIRTIO_HEADER_BYTES;

#[cfg(test)]
mod tests;
