//! The windows between two gateways, which follow from their link and the segment size of a plan.
//!
//! Every gateway computes them from the fabric and the plan, so that all agree without a message.

use super::plan_data::Plan;
use super::tree::Tree;
use crate::ids::GatewayId;
use crate::topology::{Fabric, Link};
use units::ByteCount;

/// 4 segments: the smallest unsolicited window, which is the bytes that a gateway may send a peer
/// without a grant. The window is one BDP where that is longer. Pipelining then works also on paths
/// whose BDP is less than a segment.
const WINDOW_SEGMENTS_MIN: u64 = 4;

/// 2 unsolicited windows, about 2 BDP: a gateway grants a peer partials up to so many bytes beyond
/// its results. Later segments wait at the peer. One window waits for other peers' partials, and
/// one window is in flight.
const RESULT_UNSOLICITED_WINDOWS: u64 = 2;

/// 3 unsolicited windows, about 3 BDP: a gateway that passes on what it has no rank for grants so
/// many bytes beyond those that the next gateway holds. One window is in flight on the way in, and
/// one on the way out; the last is for whole segments, which leave once they have arrived.
/// Tested by `a_send_over_unequal_links_fills_the_narrowest`.
const RELAYED_UNSOLICITED_WINDOWS: u64 = 3;

/// Returns the unsolicited window between two gateways: bytes that one may send beyond the other's
/// grants.
///
/// It is one BDP of the link, so that distance costs nothing when ranks do not post at once, and at
/// least `WINDOW_SEGMENTS_MIN` segments. The receiver keeps that much memory free.
pub fn unsolicited_window_size(
    fabric: &Fabric,
    one: GatewayId,
    other: GatewayId,
    plan: &Plan,
) -> ByteCount {
    let (from, to) = (fabric.gateway(one).region, fabric.gateway(other).region);
    unsolicited_window_size_of_link(fabric.link(from, to), plan)
}

/// Returns the bytes that one side may send over `link` without a grant: one BDP, at least
/// `WINDOW_SEGMENTS_MIN` segments.
///
/// Without a link, between two gateways of a region, it is just those segments.
pub fn unsolicited_window_size_of_link(link: Option<&Link>, plan: &Plan) -> ByteCount {
    let window = link.map_or(0, |link| link.bdp().get());
    ByteCount::new(window.max(WINDOW_SEGMENTS_MIN * plan.segment.get()))
}

/// Returns the result window between two gateways: bytes that one grants the other ahead of its
/// results.
///
/// It applies where partials of several peers come together.
pub fn result_window_size(
    fabric: &Fabric,
    one: GatewayId,
    other: GatewayId,
    plan: &Plan,
) -> ByteCount {
    ByteCount::new(
        RESULT_UNSOLICITED_WINDOWS * unsolicited_window_size(fabric, one, other, plan).get(),
    )
}

/// Returns the window for blocks that `one` passes on: bytes that it grants a gateway ahead of those that
/// the next one holds, where some of its own ranks take part in other blocks.
///
/// On the way out of a region the link is behind this gateway. The gateways of a region that send it
/// blocks share a relayed window then.
pub fn passed_on_window_size(
    fabric: &Fabric,
    one: GatewayId,
    other: GatewayId,
    plan: &Plan,
) -> ByteCount {
    let window = result_window_size(fabric, one, other, plan);
    let region = fabric.gateway(one).region;
    if fabric.gateway(other).region != region {
        return window;
    }
    let others = fabric.region(region).gateways.len() as u64 - 1;
    let shared = relayed_window_size(fabric, one, plan).get() / others.max(1);
    window.max(ByteCount::new(shared))
}

/// Returns the relayed window of gateway `one`: bytes that it grants a gateway ahead of those that the
/// next one holds, where it passes on what is for no rank of its own.
///
/// The longest of its ways decides: what it has granted is free once the next gateway has it.
pub fn relayed_window_size(fabric: &Fabric, one: GatewayId, plan: &Plan) -> ByteCount {
    let near = |(a, b): (GatewayId, GatewayId)| {
        if a == one { Some(b) } else { (b == one).then_some(a) }
    };
    let near = plan.trees.iter().flat_map(Tree::edges).filter_map(near);
    let widest = near.map(|other| unsolicited_window_size(fabric, one, other, plan).get()).max();
    ByteCount::new(RELAYED_UNSOLICITED_WINDOWS * widest.unwrap_or(0))
}
