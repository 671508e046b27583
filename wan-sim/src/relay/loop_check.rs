//! Finds forwards whose packets would go round for ever: through one relay, or through several.
//!
//! [`super::RunningRelay`] calls it once its listeners are bound. Each relay announces its forwards by the
//! names of Unix sockets, which end with the process. The kernel lists those of one network
//! namespace, as far as packets over loopback go. So of two relays that start at once at least one
//! sees the other. Other programs that pass packets on are not seen.

use super::forward::Forward;
use super::relay_socket::is_own_relay_socket;
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram};

/// The beginning of the name of a socket by which a relay announces a forward:
/// `wan-sim/LISTEN=TARGET`. Other relays find loops by it.
const NAME_PREFIX: &str = "wan-sim/";

/// Announces forwards to other relays until dropped. A forward whose name is too long for a socket,
/// or taken by another program, is not announced.
pub(super) fn announce_loop_check_forwards(forwards: &[Forward]) -> Vec<UnixDatagram> {
    let announce = |forward: &Forward| {
        let name = format!("{NAME_PREFIX}{}={}", forward.listen, forward.target);
        UnixDatagram::bind_addr(&UnixAddress::from_abstract_name(name).ok()?).ok()
    };
    forwards.iter().filter_map(announce).collect()
}

/// Returns the forwards that relays have announced; none where the kernel lists no sockets.
pub(super) fn loop_check_forwards() -> Vec<Forward> {
    let listed = std::fs::read("/proc/net/unix").unwrap_or_default();
    loop_check_forwards_of_sockets(&String::from_utf8_lossy(&listed))
}

/// Returns the forwards in a list of sockets, each line of which ends with the name of one. An `@`
/// stands before a name that is no path.
fn loop_check_forwards_of_sockets(listed: &str) -> Vec<Forward> {
    let name = |line: &str| line.rsplit_once(" @")?.1.strip_prefix(NAME_PREFIX)?.parse().ok();
    listed.lines().filter_map(name).collect()
}

/// Returns the listening address of the first forward of `own` that leads back to itself, alone or
/// through `others`.
pub(super) fn find_forward_loop(own: &[Forward], others: &[Forward]) -> Option<SocketAddr> {
    let all: Vec<&Forward> = own.iter().chain(others).collect();
    let leads_back = |start: &Forward| {
        let mut at = start;
        for _ in &all {
            if loop_check_forward_takes(start.listen, at.target) {
                return true;
            }
            let Some(onward) =
                all.iter().find(|forward| loop_check_forward_takes(forward.listen, at.target))
            else {
                return false;
            };
            at = onward;
        }
        false
    };
    own.iter().find(|start| leads_back(start)).map(|start| start.listen)
}

/// Returns whether packets to `target` arrive at a socket that listens at `listen`. One at `0.0.0.0`
/// or `[::]` takes those to each address of this host; one at `[::]` those of IPv4, too.
fn loop_check_forward_takes(listen: SocketAddr, target: SocketAddr) -> bool {
    if listen.port() != target.port() || target.port() == 0 {
        return false;
    }
    // `::ffff:127.0.0.1` is 127.0.0.1.
    let (at, to) = (listen.ip().to_canonical(), target.ip().to_canonical());
    let has_family = at.is_ipv6() || to.is_ipv4();
    at == to || (at.is_unspecified() && has_family && is_own_relay_socket(target.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forwards(texts: &[&str]) -> Vec<Forward> {
        texts.iter().map(|text| text.parse().expect("a forward")).collect()
    }

    #[test]
    fn circles_of_forwards_are_found() {
        for good in [
            &["127.0.0.1:1=127.0.0.1:2"][..],
            &["127.0.0.1:1=127.0.0.1:2", "127.0.0.1:2=127.0.0.1:3"],
            &["0.0.0.0:1=192.0.2.1:1"],
            &["0.0.0.0:1=[::1]:1"],
            &["127.0.0.2:1=127.0.0.3:1"],
        ] {
            assert_eq!(find_forward_loop(&forwards(good), &[]), None, "{good:?}");
        }
        for bad in [
            &["127.0.0.1:1=127.0.0.1:1"][..],
            &["0.0.0.0:1=127.0.0.1:1"],
            &["0.0.0.0:1=127.3.2.1:1"],
            &["[::]:1=127.0.0.1:1"],
            &["[::]:1=[::1]:1"],
            &["[::ffff:127.0.0.1]:1=127.0.0.1:1"],
            &["127.0.0.1:1=[::ffff:127.0.0.1]:1"],
            &["[::]:1=[::ffff:127.0.0.9]:1"],
            &["127.0.0.1:1=127.0.0.1:2", "127.0.0.1:2=127.0.0.1:1"],
        ] {
            assert!(find_forward_loop(&forwards(bad), &[]).is_some(), "{bad:?}");
        }
    }

    #[test]
    fn circles_through_other_relays_are_found() {
        let own = forwards(&["127.0.0.1:1=127.0.0.1:2"]);
        let back = forwards(&["127.0.0.1:2=127.0.0.1:3", "0.0.0.0:3=127.0.0.1:1"]);
        assert_eq!(find_forward_loop(&own, &back), Some(own[0].listen));
        assert_eq!(find_forward_loop(&own, &back[..1]), None);
        // Those of others alone are not this relay's.
        assert_eq!(
            find_forward_loop(
                &forwards(&["127.0.0.1:9=127.0.0.1:2"]),
                &forwards(&["127.0.0.1:2=127.0.0.1:2"])
            ),
            None
        );
    }

    #[test]
    fn forwards_are_read_from_the_names_of_sockets() {
        let listed = "Num RefCount Protocol Flags Type St Inode Path\n\
            0000: 00000002 00000000 00010000 0001 01 1 /run/a socket\n\
            0000: 00000002 00000000 00000000 0002 01 2 @wan-sim/127.0.0.1:1=[::1]:2\n\
            0000: 00000002 00000000 00000000 0002 01 3 @wan-sim/nonsense\n\
            0000: 00000002 00000000 00000000 0002 01 4\n";
        assert_eq!(loop_check_forwards_of_sockets(listed), forwards(&["127.0.0.1:1=[::1]:2"]));
    }

    #[test]
    fn a_forward_is_announced_until_its_relay_ends() {
        let own = forwards(&["127.213.1.7:4711=127.213.1.8:4712"]);
        let announced = announce_loop_check_forwards(&own);
        assert_eq!(announced.len(), 1);
        assert!(loop_check_forwards().contains(&own[0]));
        drop(announced);
        assert!(!loop_check_forwards().contains(&own[0]));
    }
}
