//! The description of a relay: listening addresses, their targets, and the two links.

use crate::{Conditions, LinkSpec};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// The forwards of a relay and the links that they share.
#[derive(Debug, Clone)]
pub struct RelaySpec {
    /// Listening addresses, each with its target.
    pub forwards: Vec<Forward>,
    /// The link from the clients to the targets.
    pub forward: LinkSpec,
    /// The link from the targets to the clients.
    pub backward: LinkSpec,
    /// The recorded capacity, parallel paths and cross traffic of either link.
    pub conditions: Conditions,
    /// Decides every random draw.
    pub seed: u64,
}

/// One listening address and its target, spelled `LISTEN=TARGET`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forward {
    /// The address that clients send to; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The address that packets are passed on to.
    pub target: SocketAddr,
}

/// A spelling that is no forward, or a forward that cannot work. The caller's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForwardError {
    /// No two addresses joined by `=`.
    #[error("`{0}` is not LISTEN=TARGET, such as 127.0.0.1:7001=127.0.0.1:7002")]
    Spelling(String),
    /// An address that is no IP address with a port.
    #[error(
        "`{0}` is not an IP address with a port of at most 65535, such as 127.0.0.1:7001 or \
         [::1]:7001: give the address of a host instead of its name"
    )]
    Address(String),
    /// A target to which packets can be sent, but whose answers come from another address.
    #[error(
        "target {0} is no address of a host: its answers would come from another address and be \
         dropped; give the target's own address, such as 127.0.0.1:{port}", port = .0.port()
    )]
    Target(SocketAddr),
    /// A target without a port.
    #[error("target {0} has port 0, at which nothing listens: give the port of the target")]
    Port(SocketAddr),
}

impl FromStr for Forward {
    type Err = ForwardError;
    /// Parses two IP addresses with ports, such as `127.0.0.1:7001=127.0.0.1:7002`. Host names are
    /// errors, and so are targets that no host can have, such as `0.0.0.0` or port 0.
    fn from_str(text: &str) -> Result<Self, ForwardError> {
        let (listen, target) =
            text.split_once('=').ok_or_else(|| ForwardError::Spelling(text.to_owned()))?;
        let address = |text: &str| -> Result<SocketAddr, ForwardError> {
            let text = text.trim();
            text.parse().map_err(|_| ForwardError::Address(text.to_owned()))
        };
        let forward = Self { listen: address(listen)?, target: address(target)? };
        let to = forward.target.ip().to_canonical();
        let is_broadcast = to == IpAddr::V4(Ipv4Addr::BROADCAST);
        if to.is_unspecified() || to.is_multicast() || is_broadcast {
            return Err(ForwardError::Target(forward.target));
        }
        if forward.target.port() == 0 {
            return Err(ForwardError::Port(forward.target));
        }
        Ok(forward)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwards_that_cannot_work_say_why() {
        for (text, why) in [
            ("7001", "is not LISTEN=TARGET"),
            ("127.0.0.1:1=west.example:2", "`west.example:2` is not an IP address"),
            ("127.0.0.1:65536=127.0.0.1:1", "a port of at most 65535"),
            ("127.0.0.1:1=0.0.0.0:7002", "such as 127.0.0.1:7002"),
            ("[::1]:1=[::]:2", "its answers would come from another address"),
            ("[::1]:1=[::ffff:0.0.0.0]:2", "its answers would come from another address"),
            ("127.0.0.1:1=224.0.0.1:2", "its answers would come from another address"),
            ("127.0.0.1:1=255.255.255.255:2", "its answers would come from another address"),
            ("127.0.0.1:1=127.0.0.1:0", "give the port of the target"),
        ] {
            let error = text.parse::<Forward>().expect_err("no forward").to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
