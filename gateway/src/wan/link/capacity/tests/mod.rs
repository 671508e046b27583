//! Tests of the capacity estimate over whole traffic stories.

mod path;
mod rate;

use super::{LinkCapacity, LinkObservation};
use crate::wan::link::link_traffic::LinkTraffic;
use hier_collectives::ids::RegionId;
use hier_collectives::plan::PairShare;
use hier_collectives::topology::Link;
use units::{BitRate, Fraction, Span, TimeNs};

const CONFIGURED: BitRate = BitRate::from_bits_per_second(800_000_000);
const PACKET: u64 = 1500;

/// A pair of gateways whose traffic is made up span by span.
struct Pair {
    capacity: LinkCapacity,
    now: TimeNs,
    traffic: LinkTraffic,
    share: PairShare,
}

impl Pair {
    fn new(loss_ppb: u32) -> Self {
        Self::of(CONFIGURED, loss_ppb)
    }

    fn of(rate: BitRate, loss_ppb: u32) -> Self {
        let (a, b, rtt) = (RegionId(0), RegionId(1), Span::from_ms(50));
        let loss = Fraction::from_ppb(loss_ppb).expect("below 1");
        let capacity = LinkCapacity::new(Link { a, b, rate, rtt, loss });
        let share = PairShare::unshared(CONFIGURED);
        Self { capacity, now: TimeNs::default(), traffic: LinkTraffic::default(), share }
    }

    fn observe(&mut self, rtt: Span, limit: BitRate) {
        self.capacity.observe(&LinkObservation {
            now: self.now,
            traffic: self.traffic,
            min_rtt: Some(rtt),
            share: self.share,
            limit,
        });
    }

    /// Spans of 100 ms in which `offered` Mbit/s were sent. The link delivers `capacity` Mbit/s with its
    /// queue full, and loses the fraction `random` at random.
    fn pass(&mut self, spans: u32, offered: f64, capacity: f64, random: f64) {
        for _ in 0..spans {
            self.now = self.now + Span::from_ms(100);
            let sent = offered * 1e5 / (8.0 * PACKET as f64);
            let through = sent.min(capacity / offered * sent) * (1.0 - random);
            self.traffic.sent_packets += sent as u64;
            self.traffic.lost_packets += (sent - through) as u64;
            self.traffic.delivered_bytes += through as u64 * PACKET;
            let rtt = Span::from_ms(if offered > capacity { 90 } else { 51 });
            self.observe(rtt, self.capacity.rate_limit().unwrap_or(CONFIGURED));
        }
    }

    /// Spans of 100 ms in which the fastest of `packets` packets took these round trips.
    fn pass_rtts(&mut self, packets: u64, round_trips_ms: &[u64]) {
        for ms in round_trips_ms {
            self.now = self.now + Span::from_ms(100);
            self.traffic.sent_packets += packets;
            self.traffic.delivered_bytes += packets * PACKET;
            self.observe(Span::from_ms(*ms), CONFIGURED);
        }
    }

    /// Spans of 100 ms in which as much was sent as the limit permits, over a link of `capacity` Mbit/s.
    fn fill(&mut self, spans: u32, capacity: f64) {
        for _ in 0..spans {
            let limit = self.capacity.rate_limit().unwrap_or(CONFIGURED).bits_per_second();
            self.pass(1, 0.98 * limit as f64 * 1e-6, capacity, 0.0);
        }
    }

    /// The reduced capacity in Mbit/s.
    fn reduced(&self) -> Option<f64> {
        self.capacity.reduced_rate().map(|rate| rate.bits_per_second() as f64 * 1e-6)
    }
}
