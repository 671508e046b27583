//! The figures of cross traffic: delivered bytes over time, and how equal shares are.

use super::super::packet::PacketFlow;
use super::cross_traffic::CrossTraffic;
use units::{Span, TimeNs};

/// The figures of one flow of cross traffic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CrossReport {
    /// The flow as it was asked for.
    pub traffic: CrossTraffic,
    /// Its flow key, by which events name it.
    pub flow: PacketFlow,
    /// Packets sent so far.
    pub sent_packets: u64,
    /// Packets in flight as the sender knows it; zero for on-off traffic, which keeps no count.
    pub in_flight_packets: u64,
    /// Bytes of IP packets that arrived in each [`CrossReport::INTERVAL`] since the start of the
    /// link.
    pub delivered_bytes: Vec<u64>,
}

impl CrossReport {
    /// 100 ms: the interval for which the delivered bytes of cross traffic are counted together.
    /// The resolution is chosen.
    pub const INTERVAL: Span = Span::from_ms(100);

    /// Returns the bytes delivered from `from` until before `until`, both rounded down to whole
    /// intervals.
    pub fn delivered_between(&self, from: TimeNs, until: TimeNs) -> u64 {
        let place = |at: TimeNs| {
            usize::try_from(Self::interval_of(at))
                .unwrap_or(usize::MAX)
                .min(self.delivered_bytes.len())
        };
        let (from, until) = (place(from), place(until));
        self.delivered_bytes[from..until.max(from)].iter().sum()
    }

    /// Returns the number of the interval of a report that holds `at`.
    pub(super) fn interval_of(at: TimeNs) -> u64 {
        at.ns() / Self::INTERVAL.ns()
    }
}

/// Returns Jain's index of fairness: 1 where all shares are equal, 1/n where one has all. Returns 1
/// where there are no shares, or all are zero.
pub fn jain_fairness_of_cross_reports(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    if squares > 0.0 { sum * sum / (shares.len() as f64 * squares) } else { 1.0 }
}

/// 1,500 bytes: the length of every IP packet of cross traffic, a full packet on Ethernet.
pub(super) const SEGMENT_BYTES: u32 = 1500;
