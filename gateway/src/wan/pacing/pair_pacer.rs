//! The pacer of one pair of gateways, set to the pair's share of the link's rate limit.
//!
//! The engine task changes the limit and the share; sender and tuner tasks of the lanes read them.

use super::pacer::Pacer;
use crate::host::Host;
use crate::lock::lock_ignoring_poison;
use hier_collectives::plan::{self, PairShare};
use hier_collectives::topology::{Link, LinkState};
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex};
use units::{BitRate, Span};

/// 2 ms at the link's rate, or a round trip if longer: the queue that the pacer assumes before a
/// link, by which it bounds its bursts. A link with a shorter queue may drop packets of a burst.
/// The value is chosen.
const LINK_QUEUE_MIN: Span = Span::from_ms(2);

/// The pacer of the payload to one peer. Its rate is the pair's share of a link whose limit, in IP
/// bytes, may change.
pub struct PairPacer {
    mtu: u16,
    setting: Mutex<PacerSetting>,
    pacer: Pacer,
}

/// The inputs of the pacer's rate.
#[derive(Debug, Clone, Copy, PartialEq)]
struct PacerSetting {
    /// The pair's share of the link.
    share: PairShare,
    /// The limit of the link, all its pairs together.
    limit: BitRate,
    /// The lanes that share the link.
    lanes: NonZeroU16,
    /// Rate, round trip and loss of the link by the fabric.
    link: LinkState,
}

impl PairPacer {
    /// Creates the pacer of one pair of gateways with `lanes` lanes, for its share of the whole rate
    /// of `link`. `mtu` is in IP bytes.
    pub fn new(
        host: Arc<dyn Host>,
        share: PairShare,
        link: &Link,
        mtu: u16,
        lanes: NonZeroU16,
    ) -> Self {
        let link = LinkState::from_fabric(link);
        let setting = PacerSetting { share, limit: link.rate, lanes, link };
        let rate = pair_pacer_payload_rate(&setting, mtu);
        let pacer = Pacer::new(host, rate, pair_pacer_queue_span(link.rtt), lanes);
        Self { mtu, setting: Mutex::new(setting), pacer }
    }

    /// Returns the rate limit of the link, for all its pairs of gateways together.
    pub fn link_limit(&self) -> BitRate {
        lock_ignoring_poison(&self.setting).limit
    }

    /// Returns the pair's share of the link's rate limit.
    pub fn share(&self) -> PairShare {
        lock_ignoring_poison(&self.setting).share
    }

    /// Limits the link to `limit`, and never to more than its own rate, and sets the pacer to the
    /// pair's share.
    pub fn set_link_limit(&self, limit: BitRate) {
        self.change_setting(|setting| setting.limit = limit.min(setting.link.rate));
    }

    /// Gives the pair another share of the link's limit, and sets the pacer to it.
    pub fn set_share(&self, share: PairShare) {
        self.change_setting(|setting| setting.share = share);
    }

    /// Takes over rate, round trip and loss of the link from another fabric. The limit is the link's rate
    /// until another is set.
    pub fn set_link(&self, link: &Link) {
        self.change_setting(|setting| {
            setting.link = LinkState::from_fabric(link);
            setting.limit = link.rate;
        });
    }

    /// Sets how many lanes share the link, and so its bursts.
    pub fn set_lanes(&self, lanes: NonZeroU16) {
        self.change_setting(|setting| setting.lanes = lanes);
    }

    /// Changes the inputs of the pacer's rate, and its rate if they are new.
    fn change_setting(&self, change: impl FnOnce(&mut PacerSetting)) {
        let mut setting = lock_ignoring_poison(&self.setting);
        let before = *setting;
        change(&mut setting);
        if *setting != before {
            let rate = pair_pacer_payload_rate(&setting, self.mtu);
            self.pacer.set_rate(rate, pair_pacer_queue_span(setting.link.rtt), setting.lanes);
        }
    }

    /// Returns the pacer from which senders of payload to the peer take tokens.
    pub fn pacer(&self) -> &Pacer {
        &self.pacer
    }
}

/// Returns the queue that the pacer assumes a link has, in time at the link's rate: a round trip,
/// and at least [`LINK_QUEUE_MIN`].
fn pair_pacer_queue_span(rtt: Span) -> Span {
    rtt.max(LINK_QUEUE_MIN)
}

/// Returns the rate of the pair's pacer: the payload bytes in the pair's share of the link's limit,
/// without packet headers and expected retransmissions.
fn pair_pacer_payload_rate(setting: &PacerSetting, mtu: u16) -> f64 {
    let rate = setting.share.rate_over(setting.limit);
    plan::pair_share_payload_rate(rate, setting.link.loss.as_f64(), mtu)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::VirtualHost;
    use crate::wan::pacing::token_bucket::TokenBucket;
    use hier_collectives::topology::{
        Fabric, FabricGatewaySpec, FabricLinkSpec, FabricRegionSpec, WanPort,
    };
    use units::Fraction;

    /// A burst and one unused cell fit the least queue that such a link has. A task that waits for a
    /// cell finds all cells that came due meanwhile.
    #[tokio::test(start_paused = true)]
    async fn a_burst_fits_a_short_link_and_a_late_timer() {
        let host: Arc<dyn Host> = Arc::new(VirtualHost::new(wan_sim::VirtualNet::new(), 1));
        let rates = [50, 100, 200, 300, 500, 1000, 2500, 10_000];
        let round_trips = [2000, 2200, 3000, 5000, 8000, 20_000];
        let cases = rates.into_iter().flat_map(|mbit| round_trips.map(|rtt_us| (mbit, rtt_us)));
        for ((mbit, rtt_us), lanes) in cases.flat_map(|case| [1, 4, 16].map(|lanes| (case, lanes)))
        {
            let rate = BitRate::from_bits_per_second(mbit * 1_000_000);
            let rtt = Span::from_ns(rtt_us * 1000);
            let fabric = fabric(rate, rtt);
            let (bytes, queue) =
                (rate.bytes_per_second(), pair_pacer_queue_span(fabric.links()[0].rtt));
            let lanes = NonZeroU16::new(lanes).expect("some");
            let bucket = TokenBucket::new(&host, bytes, queue, lanes);
            let cells = bucket.drain_cells();
            let most = (cells + 1) * bucket.cell_bytes();
            let holds = bytes * rtt.as_secs_f64();
            assert!(most as f64 <= holds, "{mbit} Mbit/s, {rtt}, {lanes}: {most} of {holds}");
            let late = (cells - 1) * bucket.cell_bytes();
            assert!(late as f64 >= 0.00149 * bytes, "{mbit} Mbit/s, {rtt}: {late} bytes late");
        }
    }

    /// For each range that it retransmits, quinn goes through all writes of a stream.
    #[tokio::test(start_paused = true)]
    async fn a_segment_is_written_in_few_cells_on_any_link() {
        let host: Arc<dyn Host> = Arc::new(VirtualHost::new(wan_sim::VirtualNet::new(), 1));
        for mbit in [1, 10, 100, 1000, 10_000, 400_000] {
            for rtt_ms in [1, 20, 200, 1000] {
                let rate = BitRate::from_bits_per_second(mbit * 1_000_000);
                let fabric = fabric(rate, Span::from_ms(rtt_ms));
                let lanes = NonZeroU16::new(plan::plan_lanes_limit(&fabric)).expect("some");
                let share = PairShare::unshared(rate);
                let link = LinkState::from_fabric(&fabric.links()[0]);
                let setting = PacerSetting { share, limit: rate, lanes, link };
                let limit = pair_pacer_payload_rate(&setting, fabric.mtu());
                let queue = pair_pacer_queue_span(link.rtt);
                let cell = Pacer::new(Arc::clone(&host), limit, queue, lanes).cell_bytes();
                let cells = plan::segment_size_of_fabric(&fabric).get().div_ceil(cell);
                assert!(cells <= 128, "{mbit} Mbit/s, {rtt_ms} ms: {cells} cells");
            }
        }
    }

    fn fabric(rate: BitRate, rtt: Span) -> Fabric {
        let wan = Some(WanPort { egress: rate, ingress: rate });
        let region = |name: &str| FabricRegionSpec {
            name: name.to_owned(),
            speeds: vec![1.0],
            gateways: vec![FabricGatewaySpec::new(format!("{name}-0"), 1, wan)],
        };
        let between = ("east".to_owned(), "west".to_owned());
        let link = FabricLinkSpec { between, rate, rtt, loss: Fraction::default() };
        Fabric::new("two", 1500, vec![region("east"), region("west")], vec![link]).expect("valid")
    }
}
