//! The description of a relay: listening addresses, their targets, and the two links.

use crate::{Conditions, LinkSpec};
use std::net::SocketAddr;
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
        "`{0}` is not an IP address with a port, such as 127.0.0.1:7001 or [::1]:7001: give the \
         address of a host instead of its name"
    )]
    Address(String),
    /// A target to which packets can be sent, but whose answers come from another address.
    #[error(
        "target {0} is no address of a host: its answers would come from another address and be \
         dropped; give the target's own address, such as 127.0.0.1:{port}", port = .0.port()
    )]
    Target(SocketAddr),
    /// Forwards whose packets come back to where they were sent to.
    #[error("{0} forwards to itself: a packet would go round for ever; give another target")]
    Loop(SocketAddr),
}

/// Checks that no forward leads back to its own listening address, by itself or through others.
///
/// # Errors
/// [`ForwardError::Loop`] with the first address of such a circle.
pub fn check_no_loop(forwards: &[Forward]) -> Result<(), ForwardError> {
    let next = |target: SocketAddr| forwards.iter().find(|forward| forward.takes(target));
    for start in forwards {
        let mut at = start;
        for _ in 0..forwards.len() {
            if start.takes(at.target) {
                return Err(ForwardError::Loop(start.listen));
            }
            let Some(onward) = next(at.target) else { break };
            at = onward;
        }
    }
    Ok(())
}

impl Forward {
    /// Whether packets to `address` arrive at the listening address, as far as addresses alone
    /// show: an unspecified one also takes those to loopback.
    fn takes(&self, address: SocketAddr) -> bool {
        let any = self.listen.ip().is_unspecified() && address.ip().is_loopback();
        let same_host = self.listen.ip() == address.ip() || any;
        same_host && self.listen.port() == address.port() && address.port() != 0
    }
}

impl FromStr for Forward {
    type Err = ForwardError;
    /// Parses two IP addresses with ports, such as `127.0.0.1:7001=127.0.0.1:7002`. Host names are
    /// errors, and so are targets that no host can have, such as `0.0.0.0`.
    fn from_str(text: &str) -> Result<Self, ForwardError> {
        let (listen, target) =
            text.split_once('=').ok_or_else(|| ForwardError::Spelling(text.to_owned()))?;
        let address = |text: &str| -> Result<SocketAddr, ForwardError> {
            let text = text.trim();
            text.parse().map_err(|_| ForwardError::Address(text.to_owned()))
        };
        let forward = Self { listen: address(listen)?, target: address(target)? };
        if forward.target.ip().is_unspecified() {
            return Err(ForwardError::Target(forward.target));
        }
        Ok(forward)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forwards(texts: &[&str]) -> Vec<Forward> {
        texts.iter().map(|text| text.parse().expect("a forward")).collect()
    }

    #[test]
    fn forwards_that_cannot_work_say_why() {
        for (text, why) in [
            ("7001", "is not LISTEN=TARGET"),
            ("127.0.0.1:1=west.example:2", "`west.example:2` is not an IP address"),
            ("127.0.0.1:1=0.0.0.0:7002", "such as 127.0.0.1:7002"),
            ("[::1]:1=[::]:2", "its answers would come from another address"),
        ] {
            let error = text.parse::<Forward>().expect_err("no forward").to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn circles_of_forwards_are_refused() {
        for good in [
            &["127.0.0.1:1=127.0.0.1:2"][..],
            &["127.0.0.1:1=127.0.0.1:2", "127.0.0.1:2=127.0.0.1:3"],
            &["127.0.0.1:0=127.0.0.1:0"],
            &["0.0.0.0:1=192.0.2.1:1"],
        ] {
            assert_eq!(check_no_loop(&forwards(good)), Ok(()), "{good:?}");
        }
        for bad in [
            &["127.0.0.1:1=127.0.0.1:1"][..],
            &["0.0.0.0:1=127.0.0.1:1"],
            &["127.0.0.1:1=127.0.0.1:2", "127.0.0.1:2=127.0.0.1:1"],
        ] {
            let loops = check_no_loop(&forwards(bad));
            assert!(matches!(loops, Err(ForwardError::Loop(_))), "{bad:?}: {loops:?}");
        }
    }
}
