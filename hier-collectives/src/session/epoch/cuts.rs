//! Connections that are cut: whether the epoch can go on without them, and the plan that goes round
//! them.

use super::epoch_membership::{FIRST_GATEWAY, RouteChange};
use super::epoch_state::EpochState;
use super::link_reports;
use crate::ids::{GatewayId, Sequence};
use crate::mesh::GatewayPair;
use crate::plan::{Plan, Tree};
use crate::post::{Failure, FailureCode};
use crate::session::action::Action;
use crate::session::action_queue::ActionQueue;
use crate::topology::Fabric;
use std::collections::BTreeSet;
use std::sync::Arc;
use units::Span;

/// 4 names: the text of a failure names at most 4 gateways that cannot be reached and 4 connections
/// that are down. The others are left out, so that the text stays short.
const NAMED_GATEWAYS_MAX: usize = 4;

impl EpochState {
    /// Whether the next plan uses the links that are up and no others; if not, asks for such a
    /// plan. Connections that are awaited are waited for, and so are links without which data
    /// cannot go everywhere.
    pub(super) fn has_plan_without_cut_links(&mut self, actions: &mut ActionQueue) -> bool {
        let (graph, fabric) = (self.members.graph(), self.local.fabric());
        if !graph.is_settled() {
            return false;
        }
        let Some(in_use) = graph.fabric_in_use(fabric) else { return false };
        if !self.links.is_planned_for(&in_use) {
            let is_whole = in_use.links().len() == fabric.links().len();
            if !is_whole || self.links.differ_from(fabric) {
                if let Some(reported) = self.links.begin_planning(&in_use) {
                    actions.push(Action::Plan(Arc::new(reported)));
                }
                return false;
            }
            self.links.replace_planned_links(fabric.links());
            self.next_plan = self.own_plan.clone();
        }
        let mut edges = self.next_plan.trees.iter().flat_map(Tree::edges);
        edges.all(|(one, other)| graph.is_up(one, other))
    }

    /// Makes the answer to [`Action::Plan`] the plan of the next epoch, with the segment size of
    /// the plan before.
    pub fn keep_plan_after_cut(&mut self, reported: &Fabric, plan: Option<Plan>) {
        self.links.end_planning();
        if self.links.is_planned_for(reported) {
            // It was asked for in the epoch that has ended, since links had other values.
            return;
        }
        let before = self.links.replace_planned_links(reported.links());
        let Some(plan) = plan else { return };
        let fabric = self.local.fabric();
        let segment = self.next_plan.segment;
        let mut plan = Plan { segment, ..plan }.with_express_limit(fabric);
        plan.reason += &link_reports::link_report_changes_text(&before, reported, fabric);
        self.next_plan = plan;
    }

    /// Returns the failure with which the epoch ends if a gateway cannot be reached, or if data
    /// need a connection that is not up; none while the epoch can go on. `change` is the change of
    /// connections that is the occasion, `oldest` the oldest live collective, `why` the reason for
    /// which connections are not up.
    ///
    /// The first gateway began the epoch when everything was up. News of that may reach others
    /// later than the epoch does. So they end it only for what they saw up, or know to be down.
    pub fn cut_failure(
        &self,
        change: &RouteChange,
        oldest: Option<Sequence>,
        why: &str,
    ) -> Option<Failure> {
        let active = self.active.as_ref()?;
        let graph = self.members.graph();
        let began_it = self.me() == FIRST_GATEWAY;
        let missing: Vec<GatewayId> =
            if began_it { self.members.missing_peers().collect() } else { change.lost.clone() };
        let cut: BTreeSet<GatewayPair> = if missing.is_empty() {
            let edges = active.plans.edges_in_use(oldest);
            let pairs = edges.map(|(one, other)| (one.min(other), one.max(other)));
            let is_cut = |(one, other): &GatewayPair| {
                graph.is_down(*one, *other)
                    || change.cut.contains(&(*one, *other))
                    || began_it && !graph.is_up(*one, *other)
            };
            pairs.filter(is_cut).collect()
        } else {
            self.cut_connections_to(&missing)
        };
        if missing.is_empty() && cut.is_empty() {
            return None;
        }
        let text = format!(
            "{}; contributions intact, {}",
            self.cut_text(&missing, &cut, why),
            self.outlook_after_cut(&missing, &cut)
        );
        Some(Failure::new(FailureCode::RegionLost, text))
    }

    /// Returns the failure of a group that loses the gateways `lost` before its first epoch; `None`
    /// if none is lost, or once the group has had an epoch.
    pub fn failure_before_first_epoch(&self, lost: &[GatewayId], why: &str) -> Option<Failure> {
        if lost.is_empty() || self.is_active() || self.last_end().is_some() {
            return None;
        }
        let cut = self.cut_text(lost, &self.cut_connections_to(lost), why);
        let text = format!("{cut}; the group was not made, make it again in the next epoch");
        Some(Failure::new(FailureCode::RegionLost, text))
    }

    /// Returns the connections that are not up between a gateway of `missing` and one that is not
    /// among these.
    fn cut_connections_to(&self, missing: &[GatewayId]) -> BTreeSet<GatewayPair> {
        let graph = self.members.graph();
        let of_one = |one: &GatewayId| {
            let (one, others) = (*one, graph.missing_neighbours(*one).into_iter());
            let reached = others.filter(move |other| !missing.contains(other));
            reached.map(move |other| (one.min(other), one.max(other)))
        };
        missing.iter().flat_map(of_one).collect()
    }

    /// Names the gateways that cannot be reached and the connections that are not up.
    fn cut_text(&self, missing: &[GatewayId], cut: &BTreeSet<GatewayPair>, why: &str) -> String {
        let local = &self.local;
        let connections: BTreeSet<String> =
            cut.iter().map(|(one, other)| local.connection_name(*one, *other)).collect();
        let connections: Vec<String> = connections.into_iter().take(NAMED_GATEWAYS_MAX).collect();
        let verb = if connections.len() == 1 { "is" } else { "are" };
        let down = format!("{} {verb} down ({why})", connections.join(" and "));
        let names: Vec<&str> =
            missing.iter().take(NAMED_GATEWAYS_MAX).map(|id| local.gateway_name(*id)).collect();
        match names[..] {
            [] => down,
            [name] => format!("gateway {name} cannot be reached: {down}"),
            _ => format!("gateways {} cannot be reached: {down}", names.join(", ")),
        }
    }

    /// Returns the end of a failure's text: how the job goes on after connections were cut.
    fn outlook_after_cut(&self, missing: &[GatewayId], cut: &BTreeSet<GatewayPair>) -> String {
        let (graph, local) = (self.members.graph(), &self.local);
        if !missing.is_empty() || graph.fabric_in_use(local.fabric()).is_none() {
            return "the gateways go on trying and the next epoch begins when it is back"
                .to_owned();
        }
        // A link that was just closed may come up again.
        let when = if graph.is_settled() {
            "the next epoch goes round it".to_owned()
        } else {
            let awaited = local.fabric().patience().awaited_for(Span::ZERO);
            format!("the next epoch begins when it is back, or after {awaited} goes round it")
        };
        let relay = cut.first().and_then(|(one, other)| graph.relay_between(*one, *other));
        let by_way = relay.map(|id| {
            format!(" by way of gateway {}, if that can be reached", local.gateway_name(id))
        });
        format!("{when}{}", by_way.unwrap_or_default())
    }
}
