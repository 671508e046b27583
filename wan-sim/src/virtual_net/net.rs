//! The handle to the network: it connects and changes links, and binds sockets.

use super::error::{BindError, NoLink, Undelivered};
use super::medium::Medium;
use super::net_clock::NetClock;
use super::net_state::{HostPort, Inbox, NetState, SocketChoice};
use super::virtual_socket::VirtualSocket;
use crate::{
    CrossReport, EmulatedLink, FateCounters, LinkEvent, LinkSpec, TraceRecord, VirtualExecutor,
};
use quinn::AsyncUdpSocket;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::Waker;
use units::{ByteCount, TimeNs};

/// A handle to the network; clones are the same network.
///
/// Packets between two IP addresses go through the [`EmulatedLink`] of that direction, whatever
/// their ports, and through the shared port of each address that has one. Where no link
/// leads they vanish and are counted, as on a real network.
#[derive(Debug, Clone)]
pub struct VirtualNet {
    pub(super) medium: Medium,
}

impl VirtualNet {
    /// Makes an empty network whose time starts now, by tokio's clock.
    #[expect(clippy::new_without_default, reason = "it reads the clock")]
    pub fn new() -> Self {
        Self { medium: Medium::new(NetClock::tokio()) }
    }

    /// Makes an empty network in the time of `time`, to the nanosecond.
    pub fn under(time: &VirtualExecutor) -> Self {
        Self { medium: Medium::new(NetClock::Own(time.clone())) }
    }

    /// Binds a socket to `address`; port 0 takes a free port. Dropping the socket frees the
    /// address.
    ///
    /// # Errors
    /// [`BindError`]; nothing is bound then.
    pub fn bind(&self, address: SocketAddr) -> Result<Arc<dyn AsyncUdpSocket>, BindError> {
        if address.ip().is_unspecified() {
            return Err(BindError::Unspecified(address));
        }
        let is_bound = |state: &NetState, address: SocketAddr| {
            state.inboxes.range((address, 0)..=(address, u16::MAX)).next().is_some()
        };
        let mut state = self.medium.lock_state();
        let address = match address.port() {
            0 => (EPHEMERAL_PORT_FIRST..=u16::MAX)
                .map(|port| SocketAddr::new(address.ip(), port))
                .find(|candidate| !is_bound(&state, *candidate))
                .ok_or(BindError::InUse(address))?,
            _ => address,
        };
        if is_bound(&state, address) {
            return Err(BindError::InUse(address));
        }
        state.inboxes.insert((address, 0), Inbox::default());
        drop(state);
        Ok(Arc::new(VirtualSocket::new(self.medium.clone(), (address, 0))))
    }

    /// Binds the socket number `place`, beginning with 0, of as many `sockets` as share `address`. Each
    /// datagram goes to the one that `choose` names, and is undelivered while that is not bound.
    ///
    /// # Errors
    /// [`BindError`]; nothing is bound then.
    pub fn bind_shared(
        &self,
        address: SocketAddr,
        (place, sockets): (u16, u16),
        choose: SocketChoice,
    ) -> Result<Arc<dyn AsyncUdpSocket>, BindError> {
        if place == 0 {
            let socket = self.bind(address)?;
            let address = socket.local_addr().unwrap_or(address);
            self.medium.lock_state().shared.insert(address, (sockets, choose));
            return Ok(socket);
        }
        let mut state = self.medium.lock_state();
        if !state.shared.contains_key(&address) || state.inboxes.contains_key(&(address, place)) {
            return Err(BindError::InUse(address));
        }
        state.inboxes.insert((address, place), Inbox::default());
        drop(state);
        Ok(Arc::new(VirtualSocket::new(self.medium.clone(), (address, place))))
    }

    /// Links the addresses `a` and `b`, which may be equal. `seed` decides the random draws.
    /// Replaces an earlier link and its counters. Packets in flight arrive; those that wait in a
    /// CoDel queue are dropped.
    pub fn connect(&self, a: IpAddr, b: IpAddr, a_to_b: LinkSpec, b_to_a: LinkSpec, seed: u64) {
        let mut state = self.medium.lock_state();
        state.set_link(b, a, EmulatedLink::new(b_to_a, seed ^ EmulatedLink::BACKWARD_SEED_MASK));
        state.set_link(a, b, EmulatedLink::new(a_to_b, seed));
    }

    /// Makes `link` the link from `from` to `to`, which may have a script, a recorded capacity,
    /// parallel paths and cross traffic. Their times count from the start of the network. Replaces
    /// an earlier link and its counters.
    pub fn set_link(&self, from: IpAddr, to: IpAddr, link: EmulatedLink) {
        self.medium.lock_state().set_link(from, to, link);
    }

    /// Gives the host at `ip` a port: the rate of its network card, shared by all its links.
    /// Packets pass `egress` before their link, or `ingress` after it. A port has no delay, so its
    /// queue is given in bytes or time.
    pub fn set_port(&self, ip: IpAddr, egress: LinkSpec, ingress: LinkSpec, seed: u64) {
        let (egress, ingress) = (
            EmulatedLink::new(egress, seed),
            EmulatedLink::new(ingress, seed ^ EmulatedLink::BACKWARD_SEED_MASK),
        );
        let port = HostPort { egress: Some(egress), ingress: Some(ingress) };
        self.medium.lock_state().ports.insert(ip, port);
    }

    /// Returns the counters of the port of `ip`: sent, then received. `None` without a port; zeros
    /// for a direction without a limit.
    pub fn port_counters(&self, ip: IpAddr) -> Option<(FateCounters, FateCounters)> {
        let state = self.medium.lock_state();
        let port = state.ports.get(&ip)?;
        let seen = |link: &Option<EmulatedLink>| {
            link.as_ref().map(EmulatedLink::counters).unwrap_or_default()
        };
        Some((seen(&port.egress), seen(&port.ingress)))
    }

    /// Returns the counters of the link from `from` to `to`.
    ///
    /// # Errors
    /// [`NoLink`].
    pub fn counters(&self, from: IpAddr, to: IpAddr) -> Result<FateCounters, NoLink> {
        self.with_link(from, to, |link| link.counters())
    }

    /// Returns the most bytes that ever waited before the link from `from` to `to`.
    ///
    /// # Errors
    /// [`NoLink`].
    pub fn queue_bytes_peak(&self, from: IpAddr, to: IpAddr) -> Result<ByteCount, NoLink> {
        self.with_link(from, to, |link| link.queue_bytes_peak())
    }

    /// Calls `sink` with every packet that the link from `from` to `to` drops or marks from now on,
    /// and the true cause. The sink must not call the network.
    ///
    /// # Errors
    /// [`NoLink`].
    pub fn send_events_to(
        &self,
        from: IpAddr,
        to: IpAddr,
        sink: impl FnMut(&LinkEvent) + Send + 'static,
    ) -> Result<(), NoLink> {
        self.with_link(from, to, |link| link.send_events_to(sink))
    }

    /// Returns the figures of the cross traffic on the link from `from` to `to` until now.
    ///
    /// # Errors
    /// [`NoLink`].
    pub fn cross_reports(&self, from: IpAddr, to: IpAddr) -> Result<Vec<CrossReport>, NoLink> {
        let now = self.now();
        self.with_link(from, to, |link| link.cross_reports(now))
    }

    /// Changes the link from `from` to `to`, as [`EmulatedLink::set_spec`] does.
    ///
    /// # Errors
    /// [`NoLink`].
    pub fn set_spec(&self, from: IpAddr, to: IpAddr, spec: LinkSpec) -> Result<(), NoLink> {
        let now = self.now();
        let changed = self.medium.lock_state().set_spec(now, from, to, spec);
        changed.ok_or(NoLink { from, to })?.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Drops every packet offered from `from` to `to` while `cut` is true.
    ///
    /// # Errors
    /// [`NoLink`].
    pub fn set_blackhole(&self, from: IpAddr, to: IpAddr, cut: bool) -> Result<(), NoLink> {
        self.with_link(from, to, |link| link.set_blackhole(cut))
    }

    /// Drops IP packets of more than `bytes` from `from` to `to`, as [`EmulatedLink::set_mtu`]
    /// does.
    ///
    /// # Errors
    /// [`NoLink`].
    pub fn set_mtu(&self, from: IpAddr, to: IpAddr, bytes: u32) -> Result<(), NoLink> {
        self.with_link(from, to, |link| link.set_mtu(bytes))
    }

    /// Sets the MTU in bytes that [`VirtualNet::interface_mtu`] reports for the host at `ip`. It
    /// drops nothing; links drop packets by [`VirtualNet::set_mtu`].
    pub fn set_interface_mtu(&self, ip: IpAddr, bytes: u16) {
        self.medium.lock_state().interface_mtus.insert(ip, bytes);
    }

    /// Returns the interface MTU of the host at `ip` in bytes; `None` where none was set.
    pub fn interface_mtu(&self, ip: IpAddr) -> Option<u16> {
        self.medium.lock_state().interface_mtus.get(&ip).copied()
    }

    /// Gives the socket at `address` the public address `seen_at`, over whose links its packets go
    /// from now on. Packets to `address` are lost. No port limits `seen_at`.
    pub fn move_socket(&self, address: SocketAddr, seen_at: SocketAddr) {
        self.medium.lock_state().move_socket(address, seen_at);
    }

    /// Drops all packets from and to the socket whose public address is `address` while `muted` is
    /// true. Packets in flight arrive.
    pub fn set_muted(&self, address: SocketAddr, muted: bool) {
        let mut state = self.medium.lock_state();
        if muted {
            state.muted.insert(address);
        } else {
            state.muted.remove(&address);
        }
    }

    /// Drops all packets in flight from `from` to `to`.
    pub fn drop_under_way(&self, from: IpAddr, to: IpAddr) {
        let now = self.now();
        self.medium.lock_state().drop_under_way(now, from, to);
    }

    /// Returns the counts of packets that were lost outside a link's impairments, by cause.
    pub fn undelivered(&self) -> Undelivered {
        self.medium.lock_state().undelivered
    }

    /// Calls `sink` with every packet and its fate from now on, at each port and each link. The
    /// sink must not call the network.
    pub fn trace_to(&self, sink: impl FnMut(&TraceRecord) + Send + 'static) {
        self.medium.lock_state().trace.sink = Some(Box::new(sink));
    }

    /// Returns a hash over every packet so far: time, addresses, size and fate.
    pub fn trace_hash(&self) -> u64 {
        self.medium.lock_state().trace.hash.value()
    }

    /// Calls `act` with the link from `from` to `to`, and returns its result.
    fn with_link<T>(
        &self,
        from: IpAddr,
        to: IpAddr,
        act: impl FnOnce(&mut EmulatedLink) -> T,
    ) -> Result<T, NoLink> {
        let mut state = self.medium.lock_state();
        let link = state.links.get_mut(&(from, to)).ok_or(NoLink { from, to })?;
        Ok(act(link))
    }

    /// Returns the time since the network was made, by which packets are sent and delivered.
    pub fn now(&self) -> TimeNs {
        self.medium.now()
    }
}

/// UDP port 49,152: the lowest port that a virtual socket bound to port 0 gets. From here on IANA
/// assigns no ports.
pub const EPHEMERAL_PORT_FIRST: u16 = 49_152;
