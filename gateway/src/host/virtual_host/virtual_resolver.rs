//! The host names of a simulation, and the addresses that they have.

use crate::lock::lock_ignoring_poison;
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::Mutex;
use units::Span;

/// 20 ms: the virtual time that a question takes, as over a network, so that other tasks run meanwhile.
/// The value is chosen.
pub(super) const VIRTUAL_RESOLUTION_TIME: Span = Span::from_ms(20);

/// The names of a simulation; its processes share them.
#[derive(Debug, Default)]
pub(super) struct VirtualResolver(Mutex<VirtualNames>);

#[derive(Debug, Default)]
struct VirtualNames {
    addresses: BTreeMap<String, Vec<IpAddr>>,
    questions: usize,
    silent: bool,
}

impl VirtualResolver {
    /// Gives a host name these addresses, in place of those that it had.
    pub fn set_name(&self, name: &str, addresses: Vec<IpAddr>) {
        lock_ignoring_poison(&self.0).addresses.insert(name.to_owned(), addresses);
    }

    /// Makes the resolver answer no question, or all again.
    pub fn silence(&self, silent: bool) {
        lock_ignoring_poison(&self.0).silent = silent;
    }

    /// Returns the number of questions so far.
    pub fn questions(&self) -> usize {
        lock_ignoring_poison(&self.0).questions
    }

    /// Answers a question; `None` while it answers none.
    pub fn resolve(&self, name: &str) -> Option<io::Result<Vec<IpAddr>>> {
        let mut names = lock_ignoring_poison(&self.0);
        names.questions += 1;
        let found = names.addresses.get(name).filter(|addresses| !addresses.is_empty()).cloned();
        let unknown = || io::Error::new(io::ErrorKind::NotFound, "unknown name");
        (!names.silent).then(|| found.ok_or_else(unknown))
    }
}
