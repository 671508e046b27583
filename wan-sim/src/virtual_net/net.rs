//! The handle to the network: it connects and changes links, and binds sockets.

use super::error::{BindError, NoLink, Undelivered};
use super::medium::Medium;
use super::net_clock::NetClock;
use super::socket::Socket;
use super::state::{HostPort, Inbox};
use crate::{Counters, Link, LinkSpec, TraceRecord, VirtualTime};
use quinn::AsyncUdpSocket;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::Waker;
use units::{ByteCount, TimeNs};

/// A handle to the network; clones are the same network.
///
/// Packets between two IP addresses go through the [`Link`] of that direction, whatever
/// their ports, and through the shared port of each address that has one. Where no link
/// leads they vanish and are counted, as on a real network.
#[derive(Debug, Clone)]
pub struct VirtualNet {
    pub(super) medium: Medium,
}

impl VirtualNet {
    /// An empty network whose time starts now, by tokio's clock.
    #[expect(clippy::new_without_default, reason = "it reads the clock")]
    pub fn new() -> Self {
        Self { medium: Medium::new(NetClock::tokio()) }
    }

    /// An empty network in the time of `time`, to the nanosecond.
    pub fn under(time: &VirtualTime) -> Self {
        Self { medium: Medium::new(NetClock::Own(time.clone())) }
    }

    /// A socket at `address`; port 0 takes a free one. Dropping it frees the address.
    ///
    /// # Errors
    /// [`BindError`]; nothing is bound then.
    pub fn bind(&self, address: SocketAddr) -> Result<Arc<dyn AsyncUdpSocket>, BindError> {
        if address.ip().is_unspecified() {
            return Err(BindError::Unspecified(address));
        }
        let mut state = self.medium.lock();
        let address = match address.port() {
            0 => (EPHEMERAL_PORTS_FROM..=u16::MAX)
                .map(|port| SocketAddr::new(address.ip(), port))
                .find(|candidate| !state.inboxes.contains_key(candidate))
                .ok_or(BindError::InUse(address))?,
            _ => address,
        };
        if state.inboxes.contains_key(&address) {
            return Err(BindError::InUse(address));
        }
        state.inboxes.insert(address, Inbox::default());
        drop(state);
        Ok(Arc::new(Socket::new(self.medium.clone(), address)))
    }

    /// Links `a` and `b`, which may be one address. Replaces an earlier link and its counters;
    /// packets in flight arrive.
    pub fn connect(&self, a: IpAddr, b: IpAddr, a_to_b: LinkSpec, b_to_a: LinkSpec, seed: u64) {
        let mut state = self.medium.lock();
        state.set_link(b, a, Link::new(b_to_a, seed ^ BACKWARD));
        state.set_link(a, b, Link::new(a_to_b, seed));
    }

    /// Lets everything that `ip` sends pass `egress` before its link, and everything sent to
    /// it pass `ingress` after, each shared by all its links: a site's own rate. Give a
    /// queue in bytes or time, as there is no distance.
    pub fn set_port(&self, ip: IpAddr, egress: LinkSpec, ingress: LinkSpec, seed: u64) {
        let (egress, ingress) = (Link::new(egress, seed), Link::new(ingress, seed ^ BACKWARD));
        let port = HostPort { egress: Some(egress), ingress: Some(ingress) };
        self.medium.lock().ports.insert(ip, port);
    }

    /// The counters of the port of `ip`: sent, then received. `None` without a port; zeros where it
    /// limits only the other way.
    pub fn port_counters(&self, ip: IpAddr) -> Option<(Counters, Counters)> {
        let state = self.medium.lock();
        let port = state.ports.get(&ip)?;
        let seen = |link: &Option<Link>| link.as_ref().map(Link::counters).unwrap_or_default();
        Some((seen(&port.egress), seen(&port.ingress)))
    }

    /// The counters of the link from `from` to `to`.
    ///
    /// # Errors
    /// [`NoLink`].
    pub fn counters(&self, from: IpAddr, to: IpAddr) -> Result<Counters, NoLink> {
        self.with_link(from, to, |link| link.counters())
    }

    /// The most bytes that ever waited before the link from `from` to `to`.
    ///
    /// # Errors
    /// [`NoLink`].
    pub fn queue_bytes_peak(&self, from: IpAddr, to: IpAddr) -> Result<ByteCount, NoLink> {
        self.with_link(from, to, |link| link.queue_bytes_peak())
    }

    /// Changes the link from `from` to `to`, as [`Link::set_spec`] does.
    ///
    /// # Errors
    /// [`NoLink`].
    pub fn set_spec(&self, from: IpAddr, to: IpAddr, spec: LinkSpec) -> Result<(), NoLink> {
        let now = self.now();
        let changed = self.medium.lock().set_spec(now, from, to, spec);
        changed.ok_or(NoLink { from, to })?.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Cuts the link from `from` to `to`, or joins it again.
    ///
    /// # Errors
    /// [`NoLink`].
    pub fn set_blackhole(&self, from: IpAddr, to: IpAddr, cut: bool) -> Result<(), NoLink> {
        self.with_link(from, to, |link| link.set_blackhole(cut))
    }

    /// Drops IP packets of more than `bytes` from `from` to `to`, as [`Link::set_mtu`] does.
    ///
    /// # Errors
    /// [`NoLink`].
    pub fn set_mtu(&self, from: IpAddr, to: IpAddr, bytes: u32) -> Result<(), NoLink> {
        self.with_link(from, to, |link| link.set_mtu(bytes))
    }

    /// Sets the MTU of the interface of the host at `ip`, in bytes. Links may admit less, which
    /// only probing shows.
    pub fn set_interface_mtu(&self, ip: IpAddr, bytes: u16) {
        self.medium.lock().interface_mtus.insert(ip, bytes);
    }

    /// The longest IP packet that the host at `ip` knows its interface to send.
    pub fn interface_mtu(&self, ip: IpAddr) -> Option<u16> {
        self.medium.lock().interface_mtus.get(&ip).copied()
    }

    /// From now on others see the socket at `address` at `seen_at`, over the links of that, and what
    /// is sent to `address` is lost: as a network does that gives a site another address. `seen_at`
    /// has no port of its own.
    pub fn move_to(&self, address: SocketAddr, seen_at: SocketAddr) {
        self.medium.lock().move_to(address, seen_at);
    }

    /// Loses all packets from and to the socket at `address`, or passes them again. Packets in
    /// flight arrive.
    pub fn set_muted(&self, address: SocketAddr, muted: bool) {
        let mut state = self.medium.lock();
        if muted {
            state.muted.insert(address);
        } else {
            state.muted.remove(&address);
        }
    }

    /// Loses all packets in flight from `from` to `to`.
    pub fn drop_under_way(&self, from: IpAddr, to: IpAddr) {
        let now = self.now();
        self.medium.lock().drop_under_way(now, from, to);
    }

    /// Packets that vanished without meeting a link's impairments, by cause.
    pub fn undelivered(&self) -> Undelivered {
        self.medium.lock().undelivered
    }

    /// Shows every packet from here on to `sink`, as it meets its fate: at each port and
    /// each link. The sink must not call the network.
    pub fn trace_to(&self, sink: impl FnMut(&TraceRecord) + Send + 'static) {
        self.medium.lock().trace.sink = Some(Box::new(sink));
    }

    /// A hash over every packet so far: time, addresses, size and fate.
    pub fn trace_hash(&self) -> u64 {
        self.medium.lock().trace.hash.value()
    }

    fn with_link<T>(
        &self,
        from: IpAddr,
        to: IpAddr,
        act: impl FnOnce(&mut Link) -> T,
    ) -> Result<T, NoLink> {
        let mut state = self.medium.lock();
        let link = state.links.get_mut(&(from, to)).ok_or(NoLink { from, to })?;
        Ok(act(link))
    }

    /// The time, as packets are shown to have it.
    pub fn now(&self) -> TimeNs {
        self.medium.now()
    }
}

/// Makes the two directions of a connection draw differently under one seed.
const BACKWARD: u64 = 0x6261_636b_7761_7264;

/// First port given to a socket that asks for any.
const EPHEMERAL_PORTS_FROM: u16 = 49_152;
