//! The engine's control of links: applies rate limits, exchanges operators' limits with peers, and
//! reports measured links to the sessions.
//!
//! The event loop calls it on an operator's request, on a peer's message and by timer. The limits
//! themselves are in [`LinkLimits`](crate::wan::link::link_limits::LinkLimits), the measurements in
//! `peers`.

use super::engine_task::Engine;
use super::straggler_monitor::{MonitoredLink, StragglerLink};
use crate::events::{ConnectionId, RateChange, RateError};
use crate::observe::status::LinkReport;
use crate::wan::link::capacity::LinkCapacity;
use crate::wan::link::link_message::{LinkMessage, LinkRateOverrideMessage};
use hier_collectives::ids::{GatewayId, RegionId};
use hier_collectives::topology::LinkState;
use tracing::info;
use units::{BitRate, TimeNs};

/// The rates of a link of this gateway.
struct LinkRates {
    /// The limit of the operators, the schedule and the fabric.
    limit: BitRate,
    /// The measured capacity, if it is below the fabric's rate.
    capacity: Option<BitRate>,
}

impl Engine {
    /// Sets or removes an operator's rate limit of a link here; returns the link's state after
    /// that.
    ///
    /// # Errors
    /// The gateway has no such link, or the rate is out of range.
    pub(super) fn change_link_rate(
        &mut self,
        change: &RateChange,
    ) -> Result<LinkReport, RateError> {
        let ends = self.links.set_override(change)?;
        match change.rate {
            Some(rate) => info!(
                link = %change.link,
                "link {}: limited to {rate} by an operator here",
                change.link
            ),
            None => info!(
                link = %change.link,
                "link {}: no longer limited by an operator here",
                change.link
            ),
        }
        self.shared.peers.peer_ids().for_each(|peer| self.send_link_rate_overrides(peer));
        self.apply_link_rate_limits();
        Ok(self.link_status_report(self.fabric.link(ends.0, ends.1).expect("changed just now")))
    }

    /// Sends a peer the limits that an operator of this gateway has set or removed on links that
    /// the peer's region has too.
    pub(super) fn send_link_rate_overrides(&self, peer: GatewayId) {
        let overrides = self.links.overrides_for(peer);
        overrides.for_each(|message| self.shared.peers.send_rate_override(peer, message));
    }

    /// Handles a message about a link or its lanes, over the connection `id` of a peer.
    pub(super) fn handle_link_message(
        &mut self,
        (from, id): (GatewayId, ConnectionId),
        message: LinkMessage,
        now: TimeNs,
    ) {
        match message {
            LinkMessage::Rate(change) => self.handle_link_rate_override(from, change),
            LinkMessage::ControlGeneration(number) => {
                self.shared.peers.handle_generation(from, id, number);
            }
            LinkMessage::Connections(report) => {
                self.handle_connection_report((from, id), report, now);
            }
            LinkMessage::Lanes(wish) => self.shared.peers.handle_lane_wish(from, wish),
            LinkMessage::PortRate(told) => self.shared.peers.handle_port_rate(from, told),
        }
    }

    /// Stores a rate limit that an operator of a peer has set or removed, and applies it. A limit
    /// of a link that not both gateways have, and one older than the last, changes nothing.
    fn handle_link_rate_override(&mut self, from: GatewayId, message: LinkRateOverrideMessage) {
        if let Some(link) = self.links.receive_override(from, message) {
            let name = &self.fabric.gateway(from).name;
            match message.rate {
                Some(rate) => info!(
                    link = %link,
                    peer = %name,
                    "link {link}: limited to {rate} by an operator at {name}"
                ),
                None => info!(
                    link = %link,
                    peer = %name,
                    "link {link}: no longer limited by an operator at {name}"
                ),
            }
        }
        self.apply_link_rate_limits();
    }

    /// Sets the rate limit of the pacer of every peer: the operators', the schedule's or the
    /// fabric's rate, but at most the measured capacity.
    pub(super) fn apply_link_rate_limits(&mut self) {
        let now = self.shared.host.unix_seconds();
        let peers: Vec<GatewayId> = self.shared.peers.peer_ids().collect();
        for peer in peers {
            let limits =
                self.links.ends_to(peer).and_then(|ends| self.links.effective_limit(ends, now));
            if let Some(limits) = limits {
                let capacity =
                    self.shared.peers.traffic_capacity_limit(peer).unwrap_or(limits.effective);
                self.shared.peers.set_traffic_limit(peer, limits.effective, capacity);
            }
        }
    }

    /// Samples the traffic on all links, applies the limits that follow, and reports significant
    /// changes to the sessions. Returns whether more than keep-alives passes or waits on any link,
    /// or its lanes change.
    pub(super) fn sample_links(&mut self, now: TimeNs) -> bool {
        let is_busy = self.shared.peers.sample_all_traffic(now, self.shared.host.idle_time());
        self.apply_link_rate_limits();
        let moved = self.shared.peers.follow_lane_numbers(now);
        for peer in moved {
            self.follow_connections("", now);
            // Messages on the way over the former control channel arrive late, so they have no
            // effect.
            self.repeat_messages_to_peer(peer, now);
        }
        let others = self.links.far_regions();
        let slow = others.iter().filter_map(|to| Some((*to, self.slow_link(*to)?))).collect();
        self.jobs.values_mut().for_each(|job| job.stragglers.set_slow_links(&slow));
        for to in others {
            let Some((state, name)) = self.changed_link_state(to) else { continue };
            let LinkState { rate, rtt, loss } = state;
            info!(
                link = %name,
                "link {name}: measured capacity {}, round trip {}, loss {loss}",
                rate.rounded(),
                rtt.rounded()
            );
            // Groups keep the plans for the links as the fabric has them.
            for job in self.jobs.values_mut() {
                job.world.session.handle_link(to, state);
                job.perform_actions(&self.shared);
            }
        }
        is_busy || self.shared.peers.are_lanes_changing()
    }

    /// Returns the measured state of the link to a region, and the link's name, if the state
    /// differs significantly from the one reported last. It becomes the one reported last. Returns
    /// `None` without a link or a measurement.
    fn changed_link_state(&mut self, to: RegionId) -> Option<(LinkState, String)> {
        let link = self.fabric.link(self.fabric.gateway(self.me).region, to)?;
        let LinkRates { limit, capacity } = self.rates_of_link(to)?;
        let measured = || self.shared.peers.traffic_link_capacities(to);
        let state = LinkState {
            rate: capacity.map_or(limit, |capacity| capacity.min(limit)),
            rtt: measured().filter_map(LinkCapacity::min_rtt).min().unwrap_or(link.rtt),
            loss: measured().filter_map(LinkCapacity::random_loss).max().unwrap_or(link.loss),
        };
        self.links.report_change(to, state)
    }

    /// Returns the state of the link to a region if its capacity is below its limit, or its round
    /// trip is above the fabric's; else `None`.
    fn slow_link(&mut self, to: RegionId) -> Option<StragglerLink> {
        let link = self.fabric.link(self.fabric.gateway(self.me).region, to)?;
        let LinkRates { limit, capacity } = self.rates_of_link(to)?;
        // A link is longer only if all pairs that measure it find so.
        let measuring =
            self.shared.peers.traffic_link_capacities(to).filter(|pair| pair.min_rtt().is_some());
        let inflated = measuring.map(LinkCapacity::inflated_rtt).min().flatten();
        let rtt = self.links.current_rtt((link.a, link.b), inflated);
        let rtt = rtt.map_or(link.rtt, |rtt| rtt.max(link.rtt));
        let rate = capacity.map_or(limit, |capacity| capacity.min(limit));
        let measured = MonitoredLink { rate, rtt };
        let promised = if self.links.is_shared((link.a, link.b)) { rate } else { limit };
        let expected = MonitoredLink { rate: promised, rtt: link.rtt };
        (measured != expected).then_some(StragglerLink { expected, measured })
    }

    /// Returns the rate limit and the measured capacity of the link to a region; `None` if this
    /// region has no link there.
    fn rates_of_link(&self, to: RegionId) -> Option<LinkRates> {
        let here = self.fabric.gateway(self.me).region;
        let ends = (here.min(to), here.max(to));
        let limit = self.links.effective_limit(ends, self.shared.host.unix_seconds())?.effective;
        let capacity = self
            .shared
            .peers
            .traffic_link_capacities(to)
            .filter_map(LinkCapacity::reduced_rate)
            .min();
        Some(LinkRates { limit, capacity })
    }
}
