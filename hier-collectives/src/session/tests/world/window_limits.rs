//! The memory that a session may use for segments of its peers. The world asserts it after each
//! event, so the bounds of a plan are computed once for each gateway.

use super::Memory;
use crate::ids::*;
use crate::plan::*;
use crate::session::*;
use std::collections::BTreeMap;
use units::ByteCount;

/// The bounds of each plan that one gateway has followed.
#[derive(Default)]
pub(super) struct WindowLimits {
    plans: Vec<(Plan, PlanLimits)>,
}

/// The bounds of one plan, at one gateway.
struct PlanLimits {
    /// The window of results with each other gateway, or of what is passed on, in bytes.
    result_windows: BTreeMap<GatewayId, u64>,
    memory: MemoryBound,
}

impl WindowLimits {
    /// Asserts that granted segments which wait for other peers' stay within one window for each
    /// peer, and partials that wait for results within one window of ours. All collectives share
    /// both windows. Each tree may round up to a segment, and so may each part of a collective of
    /// blocks. All memory together stays within the plan's bound. When collectives fail, each end
    /// gives windows back by itself, so for a moment they may be used twice.
    pub(super) fn assert_within_windows(
        &mut self,
        session: &Session,
        memory: &Memory,
        partials: ByteCount,
    ) {
        let Some(plans) = session.epoch.plans() else { return };
        let (me, plan) = (session.epoch.me(), plans.plan());
        let limits = self.of_plan(session, plan, partials);
        for peer in session.epoch.members().peer_ids() {
            let exists = |buffer: &Buffer| memory.contains_key(buffer);
            let bytes = session.transfer.inspect_scratch_bytes_from(peer, exists);
            let window = limits.result_windows[&peer];
            let rounded_up = plan.trees.len().max(session.transfer.inspect_most_parts()) as u64;
            let most = window + rounded_up * plan.segment.get();
            assert!(bytes <= most, "{me} holds {bytes} bytes of {peer}, above {most}");
        }
        // Collectives under an earlier plan go on in its windows.
        let (mut most_relayed, mut most_held) = (0, 0);
        let earlier = plans.earlier_plans().iter().map(|earlier| &earlier.followed.plan);
        for plan in earlier.chain([plan]) {
            let due = self.of_plan(session, plan, partials).memory;
            most_relayed = most_relayed.max(due.relayed.get());
            most_held = most_held.max(due.total().get() + due.unsolicited.get());
        }
        let relayed = session.transfer.inspect_relayed_bytes();
        assert!(
            relayed <= most_relayed,
            "{me} holds {relayed} bytes of subtrees, above {most_relayed}"
        );
        let scratch = memory.iter().filter(|(buffer, _)| matches!(buffer, Buffer::Scratch(_)));
        let held: u64 = scratch.map(|(_, data)| 8 * data.len() as u64).sum();
        assert!(held <= most_held, "{me} holds {held} bytes, above {most_held}");
    }

    /// Returns the bounds of `plan`, computed at its first use.
    fn of_plan(&mut self, session: &Session, plan: &Plan, partials: ByteCount) -> &PlanLimits {
        let known = self.plans.iter().position(|(known, _)| known == plan);
        let index = known.unwrap_or_else(|| {
            let (me, fabric) = (session.epoch.me(), session.epoch.local().fabric());
            let peers = fabric.gateway_ids().filter(|peer| *peer != me);
            let is_relay = fabric.gateway(me).ranks.is_empty();
            let window = |peer| match is_relay {
                true => (peer, relayed_window_size(fabric, me, plan).get()),
                false => (peer, passed_on_window_size(fabric, me, peer, plan).get()),
            };
            let limits = PlanLimits {
                result_windows: peers.map(window).collect(),
                memory: plan.memory_bound(fabric, &plan.owner_trees(fabric), me, partials),
            };
            self.plans.push((plan.clone(), limits));
            self.plans.len() - 1
        });
        &self.plans[index].1
    }
}
