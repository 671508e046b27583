//! Samples what passes over the lanes to each peer, and limits the rates to them.

use super::{Peer, Peers};
use crate::observe::readiness::LOSS_REMEDY;
use crate::observe::status::SharedLanesReport;
use crate::wan::link::capacity::{LinkCapacity, LinkObservation};
use crate::wan::link::loss_alarm::{AlarmChange, LossSample};
use crate::wan::link_trace::TraceLink;
use crate::wan::{LaneHandle, PeerLink};
use crate::warn_if_due;
use crate::warnings::{WarningCause, Warnings};
use congestion_model::{FoundPath, Rivals};
use hier_collectives::ids::{GatewayId, RegionId};
use tracing::info;
use units::{BitRate, Span, TimeNs, rounded_decimal_percent};

/// 1,200 bytes, a packet: a lane with no more bytes in flight, and no more delivered or received
/// since the last sample, is idle. While all lanes are idle, links are sampled each second in place
/// of each 100 ms. Keep-alives and acknowledgements of a second stay below the limit.
const IDLE_BYTES_MAX: u64 = 1200;

impl Peers {
    /// Limits the rate of the link to a peer, of which the pacer of the peer uses the pair's part.
    /// The limit is the lesser of `promised`, the rate of fabric, schedule and operators, and of
    /// the measured `capacity`.
    pub fn set_traffic_limit(&mut self, peer: GatewayId, promised: BitRate, capacity: BitRate) {
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.promised = promised;
            peer.link.pair_pacer.set_link_limit(promised.min(capacity));
        }
    }

    /// Samples the counters of all lanes, and hands them to the capacity estimates and the lane
    /// numbers, with the time for which the machine's cores have been idle so far. Returns whether more than keep-alives passes to or from any peer or waits, or a
    /// lane is silent.
    pub fn sample_all_traffic(&mut self, now: TimeNs, idle_time: Option<Span>) -> bool {
        let mut is_busy = false;
        for peer in self.peers.values_mut() {
            is_busy |= peer.sample_peer_traffic(now);
            peer.judge_lanes(now, idle_time);
        }
        is_busy
    }

    /// Returns the capacity estimates of this gateway's pairs over the link to a region.
    pub fn traffic_link_capacities(&self, to: RegionId) -> impl Iterator<Item = &LinkCapacity> {
        let there = move |id: &GatewayId| self.fabric.gateway(*id).region == to;
        let peers = self.peers.iter().filter(move |(id, _)| there(id));
        peers.filter_map(|(_, peer)| peer.estimates.capacity.as_ref())
    }

    /// Returns the rate that the measured capacity allows on the link to a peer; `None` without a
    /// limit.
    pub fn traffic_capacity_limit(&self, peer: GatewayId) -> Option<BitRate> {
        self.peers.get(&peer)?.estimates.capacity.as_ref()?.rate_limit()
    }

    /// Updates the gauges of all peers, and logs loss alarms that begin or end.
    pub fn update_traffic_gauges(&mut self, warnings: &Warnings, now: TimeNs) {
        for (id, peer) in &mut self.peers {
            let change = peer.update_traffic_gauges();
            if let Some(change) = change {
                let gateway = self.fabric.gateway(*id);
                let region = &self.fabric.region(gateway.region).name;
                let is_warning = change == AlarmChange::Begun
                    && warnings.is_due(WarningCause::Loss, &gateway.name, now);
                log_traffic_loss_alarm((&gateway.name, region), peer, change, is_warning);
            }
        }
    }
}

impl Peer {
    /// Adds the traffic of all lanes since the last sample, and hands it to the capacity estimate.
    /// Returns whether more than keep-alives passes or waits, or a lane is silent.
    fn sample_peer_traffic(&mut self, now: TimeNs) -> bool {
        let (mut least_rtt, mut is_busy) = (None, self.link.send_queue.has_waiting());
        let mut found_bits = 0.0;
        for handle in self.lanes.values().chain(self.finished.values()) {
            let measured = handle.measure_lane();
            let traffic = measured.traffic;
            let tally = self.tallies.entry(handle.id).or_default();
            let (total, before) = (&mut self.total, tally.traffic);
            let delivered = traffic.delivered_bytes.saturating_sub(before.delivered_bytes);
            let received = measured.received_bytes.saturating_sub(tally.received_bytes);
            total.sent_packets += traffic.sent_packets.saturating_sub(before.sent_packets);
            total.lost_packets += traffic.lost_packets.saturating_sub(before.lost_packets);
            total.delivered_bytes += delivered;
            self.received_total += received;
            let passing = measured.in_flight_bytes.max(delivered).max(received);
            is_busy |= passing > IDLE_BYTES_MAX || measured.silence > Span::ZERO;
            let found = measured.shared.and_then(|shared| shared.found);
            found_bits += found.map_or(0.0, |found| 8.0 * found.rate * handle.ip_bytes_factor());
            let [lost, before] = [measured.shared, tally.shared]
                .map(|shared| shared.map(|shared| shared.losses).unwrap_or_default());
            self.losses.add_all(lost.since(before));
            tally.note(&measured, now);
            least_rtt = least_rtt.into_iter().chain(measured.min_rtt).min();
        }
        let (lanes, finished) = (&self.lanes, &self.finished);
        self.tallies.retain(|id, _| {
            finished.contains_key(id) || lanes.values().any(|handle| handle.id == *id)
        });
        let pair_pacer = &self.link.pair_pacer;
        if let Some(capacity) = &mut self.estimates.capacity {
            capacity.observe(&LinkObservation {
                now,
                traffic: self.total,
                min_rtt: least_rtt,
                share: pair_pacer.share(),
                limit: pair_pacer.link_limit(),
            });
            if found_bits > 0.0 {
                capacity.set_found(found_bits, pair_pacer.share());
            }
        }
        if let Some(alarm) = &mut self.estimates.rtt_alarm {
            alarm.add_sample(least_rtt, now);
        }
        if is_busy {
            self.trace_traffic(now, least_rtt);
        }
        is_busy
    }

    /// Writes the sampled traffic of the link to the trace. `rtt` is the least since the last
    /// sample.
    fn trace_traffic(&self, now: TimeNs, rtt: Option<Span>) {
        self.link.trace.record_sample(now, |at_seconds, peer| TraceLink {
            at_seconds,
            peer,
            lanes: self.lanes_up(),
            limit_bits_per_second: self.link.pair_pacer.link_limit().bits_per_second(),
            capacity_bits_per_second: self
                .estimates
                .capacity
                .as_ref()
                .and_then(LinkCapacity::reduced_rate)
                .map(BitRate::bits_per_second),
            rtt_seconds: rtt.map(Span::as_secs_f64),
            sent_packets: self.total.sent_packets,
            lost_packets: self.total.lost_packets,
            delivered_bytes: self.total.delivered_bytes,
            is_waiting: self.link.send_queue.has_waiting(),
        });
    }

    /// Returns the state of the lanes on a shared link; `None` on others, and while no lane is up.
    pub(super) fn shared_traffic_report(&self) -> Option<SharedLanesReport> {
        let lanes = || {
            self.lanes.values().filter_map(|handle| {
                let shared = self.tallies.get(&handle.id)?.shared?;
                Some((handle, shared))
            })
        };
        let found = || lanes().filter_map(|(handle, view)| Some((handle, view.found?)));
        let bits =
            |(handle, found): (&LaneHandle, FoundPath)| 8.0 * found.rate * handle.ip_bytes_factor();
        let found_bits: f64 = found().map(bits).sum();
        let min_rtt = found().map(|(_, found)| found.min_rtt).min();
        Some(SharedLanesReport {
            phase: lanes().next()?.1.phase.name().to_owned(),
            rivals: lanes().any(|(_, view)| view.rivals == Rivals::Present),
            found_bits_per_second: min_rtt.map(|_| found_bits as u64),
            min_rtt_seconds: min_rtt.map(Span::as_secs_f64),
            random_lost_bytes: self.losses.random_bytes,
            queue_lost_bytes: self.losses.queue_bytes,
            outage_lost_bytes: self.losses.outage_bytes,
        })
    }

    /// Updates the gauges of this peer; returns whether the loss alarm began or ended.
    fn update_traffic_gauges(&mut self) -> Option<AlarmChange> {
        let before = std::mem::replace(&mut self.total_in_gauges, self.total);
        let packets = LossSample {
            sent: self.total.sent_packets - before.sent_packets,
            lost: self.total.lost_packets - before.lost_packets,
        };
        let change = self.estimates.loss_alarm.add_sample(packets);
        let metrics = &self.link.metrics;
        metrics.sent_packets.inc_by(packets.sent);
        metrics.lost_packets.inc_by(packets.lost);
        metrics.loss_ratio.set(self.estimates.loss_alarm.loss_ratio());
        metrics.count_losses(self.losses);
        let up = self.lanes_up();
        metrics.lanes_up.set(up.into());
        metrics.lanes_missing.set((self.number.in_use() - up).into());
        if let Some(rtt) = self.lanes.values().map(LaneHandle::smoothed_rtt).min() {
            metrics.rtt_seconds.set(rtt.as_secs_f64());
        }
        change
    }
}

/// Logs the start or end of a peer's loss alarm, as a warning if `is_warning`, and updates the
/// alarm's metrics.
fn log_traffic_loss_alarm(
    (name, region): (&str, &str),
    peer: &Peer,
    change: AlarmChange,
    is_warning: bool,
) {
    let link: &PeerLink = &peer.link;
    let (LossSample { sent, lost }, expected) =
        (peer.estimates.loss_alarm.recent_packets(), link.link().loss);
    let loss = rounded_decimal_percent(peer.estimates.loss_alarm.loss_ratio());
    link.metrics.loss_alarm.set(i64::from(change == AlarmChange::Begun));
    match change {
        AlarmChange::Begun => {
            link.metrics.loss_alarms.inc();
            warn_if_due!(
                is_warning,
                peer = %name,
                region = %region,
                lost,
                sent,
                "the way to gateway {name} loses {loss} ({lost} of {sent} packets), the \
                 fabric expects {expected}; {LOSS_REMEDY}"
            );
        }
        AlarmChange::Ended => info!(
            peer = %name,
            region = %region,
            lost,
            sent,
            "the way to gateway {name} loses no more than the fabric expects again: \
             {loss} ({lost} of {sent} packets)"
        ),
    }
}
