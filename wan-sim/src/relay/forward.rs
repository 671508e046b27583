//! The description of a relay: listening addresses, their targets, and the two links.

use crate::LinkSpec;
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

/// A spelling that is no forward. The caller's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not LISTEN=TARGET, such as 127.0.0.1:7001=127.0.0.1:7002")]
pub struct ForwardError(String);

impl FromStr for Forward {
    type Err = ForwardError;
    /// Parses two IP addresses with ports, such as `127.0.0.1:7001=127.0.0.1:7002`; a host name
    /// fails.
    fn from_str(text: &str) -> Result<Self, ForwardError> {
        let parse = || {
            let (listen, target) = text.split_once('=')?;
            Some(Self { listen: listen.trim().parse().ok()?, target: target.trim().parse().ok()? })
        };
        parse().ok_or_else(|| ForwardError(text.to_owned()))
    }
}
