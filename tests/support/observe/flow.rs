//! Traffic of each link by the millisecond, for rates over any span of time.

use crate::carrier_address;
use hier_collectives::ids::GatewayId;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use units::{Span, TimeNs};
use wan_sim::{TraceRecord, VirtualNet};

/// IP bytes on each link of a network, since this was made.
#[derive(Debug, Clone)]
pub struct Flow(Arc<Mutex<Links>>);

type Links = BTreeMap<(IpAddr, IpAddr), Passed>;

/// IP bytes in each millisecond.
#[derive(Debug, Default)]
struct Passed {
    offered: BTreeMap<u64, u64>,
    /// Bytes by the arrival that the link announced when they were offered.
    delivered: BTreeMap<u64, u64>,
}

/// Sender and receiver.
pub type LinkDirection = (GatewayId, GatewayId);

/// 1,000,000 nanoseconds: one millisecond.
const MS_NS: u64 = 1_000_000;

impl Flow {
    /// Counts traffic from now on. A network reports its packets to the last `Flow` made.
    pub fn of(net: &VirtualNet) -> Self {
        let links = Arc::new(Mutex::new(Links::new()));
        let counted = Arc::clone(&links);
        net.trace_to(move |record| count(&mut lock(&counted), record));
        Self(links)
    }

    /// Mbit/s that arrived this way on each of the next `count` spans from `begin`, over the
    /// first carrier.
    pub fn delivered(&self, way: LinkDirection, begin: TimeNs, span: Span, count: u64) -> Vec<f64> {
        self.rates(way, |passed| &passed.delivered, begin, span, count)
    }

    /// Mbit/s that were offered to the link this way, as [`Flow::delivered`].
    pub fn offered(&self, way: LinkDirection, begin: TimeNs, span: Span, count: u64) -> Vec<f64> {
        self.rates(way, |passed| &passed.offered, begin, span, count)
    }

    fn rates(
        &self,
        direction: LinkDirection,
        which: impl Fn(&Passed) -> &BTreeMap<u64, u64>,
        begin: TimeNs,
        span: Span,
        count: u64,
    ) -> Vec<f64> {
        let (from, to) = direction;
        let links = lock(&self.0);
        let link = (carrier_address(from, 0).ip(), carrier_address(to, 0).ip());
        let bytes = |from: u64, to: u64| -> u64 {
            let passed = links.get(&link).map(|passed| which(passed).range(from..to));
            passed.into_iter().flatten().map(|(_, bytes)| bytes).sum()
        };
        let edge = |index: u64| (begin.ns() + index * span.ns()) / MS_NS;
        let mbit = |index| bytes(edge(index), edge(index + 1)) as f64 * 8e-6 / span.as_secs_f64();
        (0..count).map(mbit).collect()
    }
}

fn count(links: &mut Links, record: &TraceRecord) {
    let Some(offered) = record.offered else { return };
    let passed = links.entry((record.source.ip(), record.destination.ip())).or_default();
    let bytes = u64::from(record.ip_bytes);
    *passed.offered.entry(record.now.ns() / MS_NS).or_default() += bytes;
    for (_, delivery) in offered.deliveries() {
        *passed.delivered.entry(delivery.at.ns() / MS_NS).or_default() += bytes;
    }
}

fn lock(links: &Mutex<Links>) -> std::sync::MutexGuard<'_, Links> {
    links.lock().unwrap_or_else(PoisonError::into_inner)
}
