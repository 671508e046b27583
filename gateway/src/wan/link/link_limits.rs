//! The rate limits of this gateway's links, and which of a link's changes are worth a report.
//!
//! `limit = min(lowest operator override, else scheduled rate, else configured rate; configured rate)`
//!
//! An operator at either end may override the limit; the gateways of both regions share the overrides,
//! since they share the link. The engine task owns this state: it applies the limits to the pacers
//! and sends significant changes of a link to the first gateway (`engine/engine_links.rs`).

use crate::events::{RateChange, RateError};
use crate::wan::link::controller_policy::{
    ControllerPolicy, LINK_RATE_MIN_BITS_PER_S, LinkPolicies,
};
use crate::wan::link::link_message::LinkRateOverrideMessage;
use crate::wan::link::rate_schedule::RateSchedule;
use hier_collectives::ids::{GatewayId, RegionId};
use hier_collectives::topology::{Fabric, Link, LinkState};
use std::collections::BTreeMap;
use std::sync::Arc;
use units::{BitRate, Span};

/// 0.05 of the greater of a link's reported and present rate: if the rates differ by more, the
/// change is reported to the first gateway. Plans hardly depend on a smaller one.
const REPORTED_RATE_CHANGE_FRACTION: f64 = 0.05;
/// 0.2 of the greater of a link's reported and present RTT: the change is reported to the first
/// gateway only if the RTTs differ by more, and by more than 2 ms. Less is jitter.
const REPORTED_RTT_CHANGE_FRACTION: f64 = 0.2;
/// 2 ms: a change of a link's RTT is reported to the first gateway only if it is greater, and
/// greater than 0.2 of the longer RTT. Less is jitter even on short links.
const REPORTED_RTT_CHANGE_MIN: Span = Span::from_ms(2);
/// 0.01 of all packets: a change of a link's loss is reported to the first gateway only if it is
/// greater. The value is chosen.
const REPORTED_LOSS_CHANGE_MIN: f64 = 0.01;

/// The regions at a link's ends, in number order.
type LinkEnds = (RegionId, RegionId);

/// The limit of a link, with its reasons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EffectiveLimit {
    /// The scheduled rate of now.
    pub scheduled: Option<BitRate>,
    /// The lowest override, and the gateway whose operator set it.
    pub operator: Option<(BitRate, GatewayId)>,
    /// The limit.
    pub effective: BitRate,
}

/// The limits of this gateway's links.
pub(crate) struct LinkLimits {
    fabric: Arc<Fabric>,
    me: GatewayId,
    links: BTreeMap<LinkEnds, LimitedLink>,
}

/// One link of this gateway, with the limits of operators and schedule.
struct LimitedLink {
    schedule: Option<RateSchedule>,
    /// Whether its rate is not promised: its lanes find it.
    is_shared: bool,
    /// The overrides, by the gateway whose operator set them.
    overrides: BTreeMap<GatewayId, LinkRateOverrideMessage>,
    /// The state that was last reported.
    reported: LinkState,
    /// The link's RTT while it is inflated.
    inflated_rtt: Option<Span>,
}

impl LinkLimits {
    /// Creates the rate limits of the links of gateway `me`, from the fabric and the schedules in
    /// `policies`.
    pub fn new(fabric: Arc<Fabric>, me: GatewayId, policies: &LinkPolicies) -> Self {
        let region = fabric.gateway(me).region;
        let ours = fabric.links().iter().filter(|link| link.a == region || link.b == region);
        let limited = |link: &Link| {
            let ends = (link.a, link.b);
            let policy = policies.get(&ends);
            let schedule = policy.and_then(|policy| policy.schedule.clone());
            let is_shared = policy.is_some_and(|of| of.controller == ControllerPolicy::Shared);
            let reported = LinkState::from_fabric(link);
            let overrides = BTreeMap::new();
            (ends, LimitedLink { schedule, is_shared, overrides, reported, inflated_rtt: None })
        };
        let links = ours.map(limited).collect();
        Self { fabric, me, links }
    }

    /// Takes over the links and schedules of another fabric. Limits of operators stay, up to the new rates.
    pub fn replace_fabric(&mut self, fabric: Arc<Fabric>, policies: &LinkPolicies) {
        for (ends, limited) in &mut self.links {
            limited.schedule = policies.get(ends).and_then(|policy| policy.schedule.clone());
            limited.inflated_rtt = None;
            if let Some(link) = fabric.link(ends.0, ends.1) {
                limited.reported = LinkState::from_fabric(link);
            }
        }
        self.fabric = fabric;
    }

    /// Sets or withdraws the rate limit of an operator at this gateway; returns the ends of the
    /// link.
    ///
    /// # Errors
    /// [`RateError`]: nothing has changed.
    pub fn set_override(&mut self, change: &RateChange) -> Result<LinkEnds, RateError> {
        let named = |link: &&Link| {
            let (a, b) = (&self.fabric.region(link.a).name, &self.fabric.region(link.b).name);
            change.link == format!("{a}-{b}") || change.link == format!("{b}-{a}")
        };
        let ours = || self.fabric.links().iter().filter(|l| self.links.contains_key(&(l.a, l.b)));
        let link = ours().find(named).ok_or_else(|| RateError::NoLink {
            link: change.link.clone(),
            known: ours().map(|link| self.link_name(link)).collect::<Vec<_>>().join(", "),
        })?;
        if let Some(wanted) = change.rate {
            if wanted > link.rate {
                let link_name = self.link_name(link);
                return Err(RateError::TooFast { link: link_name, whole: link.rate, wanted });
            }
            if wanted.bits_per_second() < LINK_RATE_MIN_BITS_PER_S {
                return Err(RateError::TooSlow(wanted));
            }
        }
        let ends = (link.a, link.b);
        let overrides = &mut self.links.get_mut(&ends).expect("found above").overrides;
        let number = overrides.get(&self.me).map_or(0, |before| before.number) + 1;
        overrides.insert(self.me, LinkRateOverrideMessage { ends, number, rate: change.rate });
        Ok(ends)
    }

    /// Applies the rate limit of an operator at a peer, if the link is both ours and the peer's.
    /// One with a lower number than the last has no effect. Returns the link's name if the limit
    /// has changed.
    pub fn receive_override(
        &mut self,
        from: GatewayId,
        change: LinkRateOverrideMessage,
    ) -> Option<String> {
        let region = self.fabric.gateway(from).region;
        let link = self.links.get_mut(&change.ends)?;
        if ![change.ends.0, change.ends.1].contains(&region) {
            return None;
        }
        let before = link.overrides.get(&from).copied();
        if before.is_some_and(|before| before.number > change.number) {
            return None;
        }
        link.overrides.insert(from, change);
        let changed = before.and_then(|before| before.rate) != change.rate;
        let link = self.fabric.link(change.ends.0, change.ends.1);
        link.filter(|_| changed).map(|link| self.link_name(link))
    }

    /// Forgets the rate limits of a peer's operators. The peer may have restarted; its numbers
    /// begin anew.
    pub fn forget_peer(&mut self, peer: GatewayId) {
        for link in self.links.values_mut() {
            link.overrides.remove(&peer);
        }
    }

    /// Returns the rate limits of operators at this gateway, withdrawn ones too, on the links that
    /// the region of `peer` has as well.
    pub fn overrides_for(&self, peer: GatewayId) -> impl Iterator<Item = LinkRateOverrideMessage> {
        let region = self.fabric.gateway(peer).region;
        let shared = self.links.iter().filter(move |((a, b), _)| *a == region || *b == region);
        shared.filter_map(|(_, link)| link.overrides.get(&self.me).copied())
    }

    /// Returns the rate limit of the link between two regions, at a time in seconds since 1970.
    /// `None` if the link is not ours.
    pub fn effective_limit(&self, ends: LinkEnds, unix_seconds: u64) -> Option<EffectiveLimit> {
        let (limited, link) = (self.links.get(&ends)?, self.fabric.link(ends.0, ends.1)?);
        let scheduled = limited.schedule.as_ref().map(|schedule| schedule.rate_at(unix_seconds));
        let overrides = limited.overrides.iter();
        let operator = overrides.filter_map(|(from, change)| Some((change.rate?, *from))).min();
        let effective = operator.map(|(rate, _)| rate).or(scheduled).unwrap_or(link.rate);
        Some(EffectiveLimit { scheduled, operator, effective: effective.min(link.rate) })
    }

    /// Returns whether the rate of a link is not promised, so that its lanes find it.
    pub fn is_shared(&self, ends: LinkEnds) -> bool {
        self.links.get(&ends).is_some_and(|link| link.is_shared)
    }

    /// Returns the regions at the other ends of the links of this gateway's region.
    pub fn far_regions(&self) -> Vec<RegionId> {
        let here = self.fabric.gateway(self.me).region;
        self.links.keys().map(|(a, b)| if *a == here { *b } else { *a }).collect()
    }

    /// Compares the measured state of the link to region `to` with the reported one. After a
    /// significant change it becomes the reported one, and is returned with the link's name. A rate
    /// that is back at the link's own is always significant.
    pub fn report_change(
        &mut self,
        to: RegionId,
        measured: LinkState,
    ) -> Option<(LinkState, String)> {
        let here = self.fabric.gateway(self.me).region;
        let ends = (here.min(to), here.max(to));
        let link = self.fabric.link(ends.0, ends.1)?;
        let name = self.link_name(link);
        let reported = &mut self.links.get_mut(&ends)?.reported;
        let loss_change = (measured.loss.as_f64() - reported.loss.as_f64()).abs();
        let recovered = measured.rate == link.rate && reported.rate != link.rate;
        let (rate, before) = (measured.rate.bits_per_second(), reported.rate.bits_per_second());
        let significant = recovered
            || link_limit_values_differ(rate, before, REPORTED_RATE_CHANGE_FRACTION)
            || link_limit_rtts_differ(measured.rtt, reported.rtt)
            || loss_change > REPORTED_LOSS_CHANGE_MIN;
        if !significant || !measured.is_valid() {
            return None;
        }
        *reported = measured;
        Some((measured, name))
    }

    /// Returns the RTT of a link: the reported one, or the inflated one of now if longer. Jitter of
    /// the inflated RTT changes nothing.
    pub fn current_rtt(&mut self, ends: LinkEnds, inflated: Option<Span>) -> Option<Span> {
        let link = self.links.get_mut(&ends)?;
        let before = link.inflated_rtt;
        let is_jitter =
            |before: &Span| inflated.is_some_and(|now| !link_limit_rtts_differ(*before, now));
        link.inflated_rtt = before.filter(is_jitter).or(inflated);
        link.inflated_rtt.max(Some(link.reported.rtt))
    }

    /// Returns the regions at the ends of the link to a peer; `None` if this gateway's region has
    /// no link there.
    pub fn ends_to(&self, peer: GatewayId) -> Option<LinkEnds> {
        let (one, other) = (self.fabric.gateway(self.me).region, self.fabric.gateway(peer).region);
        let ends = (one.min(other), one.max(other));
        self.links.contains_key(&ends).then_some(ends)
    }

    /// Returns the name of a link: its regions' names with a hyphen between them.
    fn link_name(&self, link: &Link) -> String {
        format!("{}-{}", self.fabric.region(link.a).name, self.fabric.region(link.b).name)
    }
}

/// Returns whether two values differ by more than `fraction` of the larger.
fn link_limit_values_differ(one: u64, other: u64, fraction: f64) -> bool {
    one.abs_diff(other) as f64 > fraction * one.max(other) as f64
}

/// Returns whether two RTTs of a link differ by more than jitter: by more than 20 % of the longer
/// and more than 2 ms.
fn link_limit_rtts_differ(one: Span, other: Span) -> bool {
    let (one, other) = (one.ns(), other.ns());
    link_limit_values_differ(one, other, REPORTED_RTT_CHANGE_FRACTION)
        && one.abs_diff(other) > REPORTED_RTT_CHANGE_MIN.ns()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wan::link::controller_policy::LinkPolicy;
    use hier_collectives::topology::{
        FabricGatewaySpec, FabricLinkSpec, FabricRegionSpec, WanPort,
    };
    use units::Fraction;

    const EAST: GatewayId = GatewayId(0);
    const EAST_TOO: GatewayId = GatewayId(1);
    const WEST: GatewayId = GatewayId(2);
    const ENDS: LinkEnds = (RegionId(0), RegionId(1));

    fn mbit(rate: u64) -> BitRate {
        BitRate::from_bits_per_second(rate * 1_000_000)
    }

    fn limits() -> LinkLimits {
        let wan = Some(WanPort { egress: mbit(1000), ingress: mbit(1000) });
        let region = |name: &str| FabricRegionSpec {
            name: name.to_owned(),
            speeds: vec![1.0; 2],
            gateways: (0..2)
                .map(|index| FabricGatewaySpec::new(format!("{name}-{index}"), 1, wan))
                .collect(),
        };
        let between = ("east".to_owned(), "west".to_owned());
        let (rate, rtt, loss) = (mbit(1000), Span::from_ms(80), Fraction::default());
        let link = FabricLinkSpec { between, rate, rtt, loss };
        let regions = vec![region("east"), region("west")];
        let fabric = Fabric::new("two", 1500, regions, vec![link]).expect("valid");
        let schedule = RateSchedule::new(vec![(100, mbit(400)), (200, mbit(900))]);
        let policy = LinkPolicy { schedule, ..LinkPolicy::default() };
        LinkLimits::new(Arc::new(fabric), EAST, &LinkPolicies::from([(ENDS, policy)]))
    }

    fn effective(limits: &LinkLimits, at: u64) -> BitRate {
        limits.effective_limit(ENDS, at).expect("a link").effective
    }

    fn set(limits: &mut LinkLimits, link: &str, rate: Option<BitRate>) -> Result<(), RateError> {
        limits.set_override(&RateChange { link: link.to_owned(), rate }).map(drop)
    }

    fn change(number: u64, rate: Option<BitRate>) -> LinkRateOverrideMessage {
        LinkRateOverrideMessage { ends: ENDS, number, rate }
    }

    #[test]
    fn the_lowest_override_precedes_the_schedule() {
        let mut limits = limits();
        assert_eq!([effective(&limits, 150), effective(&limits, 250)], [mbit(400), mbit(900)]);
        set(&mut limits, "west-east", Some(mbit(600))).expect("a link, in either order");
        assert_eq!([effective(&limits, 150), effective(&limits, 250)], [mbit(600), mbit(600)]);
        let name = limits.receive_override(WEST, change(3, Some(mbit(300))));
        assert_eq!(name.as_deref(), Some("east-west"));
        assert_eq!(
            limits.effective_limit(ENDS, 150).expect("a link").operator,
            Some((mbit(300), WEST))
        );
        assert_eq!(limits.receive_override(WEST, change(2, None)), None);
        assert_eq!(effective(&limits, 150), mbit(300), "an old override that arrived late");
        limits.receive_override(WEST, change(4, None));
        assert_eq!(effective(&limits, 150), mbit(600));
        set(&mut limits, "east-west", None).expect("a link");
        assert_eq!(effective(&limits, 150), mbit(400));
        assert_eq!(limits.overrides_for(WEST).collect::<Vec<_>>(), [change(2, None)]);
    }

    #[test]
    fn gateways_of_one_region_share_their_overrides() {
        let mut limits = limits();
        assert_eq!(limits.overrides_for(EAST_TOO).next(), None, "no override yet");
        limits.receive_override(EAST_TOO, change(1, Some(mbit(500))));
        assert_eq!(effective(&limits, 0), mbit(500));
        set(&mut limits, "east-west", Some(mbit(200))).expect("a link");
        let shared: Vec<_> = limits.overrides_for(EAST_TOO).collect();
        assert_eq!(shared, [change(1, Some(mbit(200)))]);
        let unknown = LinkRateOverrideMessage {
            ends: (RegionId(0), RegionId(7)),
            ..change(9, Some(mbit(1)))
        };
        let received = limits.receive_override(WEST, unknown);
        assert_eq!((received, effective(&limits, 0)), (None, mbit(200)));
        limits.forget_peer(EAST_TOO);
        set(&mut limits, "east-west", None).expect("a link");
        assert_eq!(effective(&limits, 0), mbit(900), "only the schedule is left");
    }

    #[test]
    fn an_override_that_a_link_cannot_have_is_refused() {
        let mut limits = limits();
        let too_fast = set(&mut limits, "east-west", Some(mbit(1001)));
        assert!(matches!(too_fast, Err(RateError::TooFast { .. })), "{too_fast:?}");
        let slow = BitRate::from_bits_per_second(7_999);
        assert_eq!(set(&mut limits, "east-west", Some(slow)), Err(RateError::TooSlow(slow)));
        let unknown = set(&mut limits, "east-south", None).expect_err("no such link");
        assert!(unknown.to_string().contains("it has: east-west"), "{unknown}");
        limits.receive_override(WEST, change(1, Some(mbit(5000))));
        assert_eq!(effective(&limits, 0), mbit(1000), "a peer cannot raise it");
    }
}
