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
        let mut request = InterfaceRequest {
            name: [0; 16],
            flags: IFF_TUN | IFF_NO_PI | IFF_VNET_HDR,
            rest: [0; 22],
        };
        // The last byte stays zero.
        request.name[..15].iter_mut().zip(name.bytes()).for_each(|(place, byte)| *place = byte);
        // SAFETY: TUNSETIFF reads a `struct ifreq`, whose size and layout InterfaceRequest has.
        unsafe { ioctl(&fd, Setter::<TUNSETIFF, InterfaceRequest>::new(request))? };
        let tun = Self { fd, counts: File::open("/proc/thread-self/net/dev")? };
        // UDP segmentation came later to the kernel than TCP's.
        tun.set_offload(
            TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN | TUN_F_USO4 | TUN_F_USO6,
        )
        .or_else(|_| tun.set_offload(TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN))?;
        Ok(tun)
    }

    /// Enables offloads of the device; `features` holds bits such as [`TUN_F_CSUM`].
    fn set_offload(&self, features: usize) -> io::Result<()> {
        // SAFETY: TUNSETOFFLOAD takes its argument by value and touches no memory of ours.
        unsafe { ioctl(&self.fd, IntegerSetter::<TUNSETOFFLOAD>::new_usize(features))? };
        Ok(())
    }

    /// Reads one buffer that the site sent; returns its length in bytes, `None` when none is ready.
    pub(super) fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::io::read(&self.fd, buffer) {
            Ok(len) => Ok(Some(len)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the count of buffers that the site sent and that were lost before they were read.
    /// `name` is the name of the device.
    pub(super) fn dropped_buffers(&self, name: &str) -> u64 {
        let mut text = [0; 8192];
        let taken = self.counts.read_at(&mut text, 0).unwrap_or(0);
        parse_tun_transmit_drops(&String::from_utf8_lossy(&text[..taken]), name).unwrap_or(0)
    }

    /// Hands one buffer to the network stack of the site.
    pub(super) fn write(&self, buffer: &[u8]) -> io::Result<()> {
        rustix::io::write(&self.fd, buffer)?;
        Ok(())
    }
}

impl AsFd for Tun {
    /// Returns the descriptor of the device.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Parses the count of dropped transmissions of the device called `name` from the text of
/// /proc/net/dev.
fn parse_tun_transmit_drops(counts: &str, name: &str) -> Option<u64> {
    let line = counts.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().nth(11)?.parse().ok()
}

/// `struct ifreq` with its flags.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

/// 0x400454ca: the number of the ioctl `TUNSETIFF`, which creates a TUN device.
const TUNSETIFF: Opcode = 0x4004_54ca;
/// 0x400454d0: the number of the ioctl `TUNSETOFFLOAD`, which enables offloads of a TUN device.
const TUNSETOFFLOAD: Opcode = 0x4004_54d0;
/// 0x0001: a flag of the ioctl `TUNSETIFF`. Packets of the device have no Ethernet headers.
const IFF_TUN: u16 = 0x0001;
/// 0x1000: a flag of the ioctl `TUNSETIFF`. No packet information (`struct tun_pi`) precedes
/// packets.
const IFF_NO_PI: u16 = 0x1000;
/// 0x4000: a flag of the ioctl `TUNSETIFF`. A virtio header precedes each packet of the device.
const IFF_VNET_HDR: u16 = 0x4000;
/// 0x01: an offload bit of the ioctl `TUNSETOFFLOAD`. The device's reader accepts packets with
/// incomplete checksums.
const TUN_F_CSUM: usize = 0x01;
/// 0x02: an offload bit of the ioctl `TUNSETOFFLOAD`. The device's reader accepts buffers of
/// several TCP segments over IPv4.
const TUN_F_TSO4: usize = 0x02;
/// 0x04: an offload bit of the ioctl `TUNSETOFFLOAD`. The device's reader accepts buffers of
/// several TCP segments over IPv6.
const TUN_F_TSO6: usize = 0x04;
/// 0x08: an offload bit of the ioctl `TUNSETOFFLOAD`. The device's reader accepts buffers of
/// several TCP segments with ECN.
const TUN_F_TSO_ECN: usize = 0x08;
/// 0x20: an offload bit of the ioctl `TUNSETOFFLOAD`. The device's reader accepts buffers of
/// several UDP datagrams over IPv4.
const TUN_F_USO4: usize = 0x20;
/// 0x40: an offload bit of the ioctl `TUNSETOFFLOAD`. The device's reader accepts buffers of
/// several UDP datagrams over IPv6.
const TUN_F_USO6: usize = 0x40;

#[cfg(test)]
mod tests {
    use super::parse_tun_transmit_drops;

    #[test]
    fn the_drops_of_a_device_are_found() {
        let counts = "Inter-|   Receive                                                |  Transmit\n \
                      face |bytes    packets errs drop fifo frame compressed multicast|bytes ...\n    \
                      lo:       1       2    3    4    5     6          7         8        9      10   11   12    13    14    15 16\n  \
                      wan0: 1 2 3 4 5 6 7 8 9 10 11 77 13 14 15 16\n";
        assert_eq!(parse_tun_transmit_drops(counts, "wan0"), Some(77));
        assert_eq!(parse_tun_transmit_drops(counts, "wan"), None);
    }
}
