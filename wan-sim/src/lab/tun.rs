//! A TUN device inside a network namespace, with segmentation offload.

#![expect(unsafe_code, reason = "two ioctls that no safe interface offers")]

use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{IntegerSetter, Opcode, Setter, ioctl};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// The TUN device of a site, which carries all its links. It vanishes when it is closed.
#[derive(Debug)]
pub(super) struct Tun {
    fd: OwnedFd,
    /// The kernel's counters of all devices in its namespace, as text.
    counts: File,
}

impl Tun {
    /// Makes the device in the calling thread's network namespace.
    pub(super) fn create(name: &str) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::open("/dev/net/tun", flags, Mode::empty())?;
        let mut request =
            Request { name: [0; 16], flags: TUN | NO_PACKET_INFO | VNET_HEADER, rest: [0; 22] };
        // The last byte stays zero.
        request.name[..15].iter_mut().zip(name.bytes()).for_each(|(place, byte)| *place = byte);
        // SAFETY: TUNSETIFF reads a `struct ifreq`, whose size and layout Request has.
        unsafe { ioctl(&fd, Setter::<TUNSETIFF, Request>::new(request))? };
        let tun = Self { fd, counts: File::open("/proc/thread-self/net/dev")? };
        // UDP segmentation came later to the kernel than TCP's.
        tun.offload(CHECKSUM | TCP4 | TCP6 | TCP_ECN | UDP4 | UDP6)
            .or_else(|_| tun.offload(CHECKSUM | TCP4 | TCP6 | TCP_ECN))?;
        Ok(tun)
    }

    fn offload(&self, features: usize) -> io::Result<()> {
        // SAFETY: TUNSETOFFLOAD takes its argument by value and touches no memory of ours.
        unsafe { ioctl(&self.fd, IntegerSetter::<TUNSETOFFLOAD>::new_usize(features))? };
        Ok(())
    }

    /// Reads one buffer; `None` when no buffer is ready.
    pub(super) fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::io::read(&self.fd, buffer) {
            Ok(len) => Ok(Some(len)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Buffers that the site sent and that were lost before they could be read.
    pub(super) fn overflowed(&self, name: &str) -> u64 {
        let mut text = [0; 8192];
        let taken = self.counts.read_at(&mut text, 0).unwrap_or(0);
        overflowed(&String::from_utf8_lossy(&text[..taken]), name).unwrap_or(0)
    }

    /// Hands one buffer to the site.
    pub(super) fn write(&self, buffer: &[u8]) -> io::Result<()> {
        rustix::io::write(&self.fd, buffer)?;
        Ok(())
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The dropped of the transmitted, from the line of the device called `name`.
fn overflowed(counts: &str, name: &str) -> Option<u64> {
    let line = counts.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().nth(11)?.parse().ok()
}

/// `struct ifreq` with its flags.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

/// The ioctl that creates the device.
const TUNSETIFF: Opcode = 0x4004_54ca;
/// The ioctl that enables offloads.
const TUNSETOFFLOAD: Opcode = 0x4004_54d0;
/// `IFF_TUN`: packets without Ethernet headers.
const TUN: u16 = 0x0001;
/// `IFF_NO_PI`: no packet information before packets.
const NO_PACKET_INFO: u16 = 0x1000;
/// `IFF_VNET_HDR`: a virtio header before packets.
const VNET_HEADER: u16 = 0x4000;
/// `TUN_F_CSUM`: incomplete checksums are accepted.
const CHECKSUM: usize = 0x01;
/// `TUN_F_TSO4`: segments of TCP over IPv4 are accepted.
const TCP4: usize = 0x02;
/// `TUN_F_TSO6`: segments of TCP over IPv6 are accepted.
const TCP6: usize = 0x04;
/// `TUN_F_TSO_ECN`: TCP segments with ECN are accepted.
const TCP_ECN: usize = 0x08;
/// `TUN_F_USO4`: UDP segments over IPv4 are accepted.
const UDP4: usize = 0x20;
/// `TUN_F_USO6`: UDP segments over IPv6 are accepted.
const UDP6: usize = 0x40;

#[cfg(test)]
mod tests {
    use super::overflowed;

    #[test]
    fn the_drops_of_a_device_are_found() {
        let counts = "Inter-|   Receive                                                |  Transmit\n \
                      face |bytes    packets errs drop fifo frame compressed multicast|bytes ...\n    \
                      lo:       1       2    3    4    5     6          7         8        9      10   11   12    13    14    15 16\n  \
                      wan0: 1 2 3 4 5 6 7 8 9 10 11 77 13 14 15 16\n";
        assert_eq!((overflowed(counts, "wan0"), overflowed(counts, "wan")), (Some(77), None));
    }
}
