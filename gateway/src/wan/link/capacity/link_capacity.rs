//! [`LinkCapacity`] estimates what a link delivers. The module above has the drawing of its states.

use crate::wan::congestion::delivery_rate::CONGESTION_LOSS_FRACTION;
use crate::wan::link::controller_policy::LINK_RATE_MIN_BITS_PER_S;
use crate::wan::link::link_traffic::LinkTraffic;
use hier_collectives::plan::PairShare;
use hier_collectives::topology::Link;
use std::collections::VecDeque;
use units::{BitRate, Fraction, Span, TimeNs};

// A span lasts max(SPAN_MIN, SPAN_ROUNDS x RTT) and has SPAN_PACKETS_MIN packets. One that has fewer
// by max(SPAN_MAX, SPAN_ROUNDS x RTT) ends without a sample. A link too slow for SPAN_PACKETS_MIN
// packets within SPAN_MIN is not measured.

/// 2 round trips, or [`SPAN_MIN`] (100 ms) if longer: the time that one sample of a link (a span)
/// covers at least. Two round trips hold packets that were both sent and acknowledged within the
/// span.
const SPAN_ROUNDS: u64 = 2;
/// 100 ms, the interval at which the engine reads the counters: no sample of a link (a span) covers
/// less time. At [`SPAN_ROUNDS`] (2) round trips or 100 ms, the later of both, a span with enough
/// packets ends.
const SPAN_MIN: Span = Span::from_ms(100);
/// 64 packets sent: a sample of a link (a span) goes on until it has so many, for at most 2 s or 2
/// round trips. Fewer packets are a burst, which shows no rate.
/// Tested by `bursts_among_little_traffic_show_nothing`.
const SPAN_PACKETS_MIN: u64 = 64;
/// 2 s, or 2 round trips if longer: a sample of a link (a span) that has fewer than
/// [`SPAN_PACKETS_MIN`] (64) packets by then is discarded, and the next begins.
const SPAN_MAX: Span = Span::from_secs(2);
/// 12,000 bits: a packet of 1,500 bytes. A link too slow to send [`SPAN_PACKETS_MIN`] (64) packets
/// of this length in 100 ms, below 7.68 Mbit/s, is not measured.
const ASSUMED_PACKET_BITS: u64 = 8 * 1500;

// queued    = the fastest packet took > QUEUE_RTT_FACTOR x min RTT + QUEUE_RTT_MARGIN
// congested = queued, and loss > configured loss + CONGESTION_LOSS_FRACTION
// found     = the second highest delivery rate of the last QUEUED_EVIDENCE_SPANS queued spans after a
//             congested one, if they lost >= configured loss + QUEUE_LOSS_MIN together;
//             at least CAPACITY_MIN_FRACTION x configured rate
// It counts if found < REDUCED_CAPACITY_FRACTION x limit.

/// 1.2 times the link's min RTT, plus [`QUEUE_RTT_MARGIN`] (1 ms): if the fastest packet of a
/// sample took longer, packets queue before the link. The factor is chosen.
const QUEUE_RTT_FACTOR: f64 = 1.2;
/// 1 ms: added to [`QUEUE_RTT_FACTOR`] (1.2) times the link's min RTT, above which an RTT shows a
/// queue. So scheduling delay on short links does not look like a queue.
const QUEUE_RTT_MARGIN: Span = Span::from_ms(1);
/// 4 samples of a link with a queue, after a first congested one, show its capacity: the second
/// highest of their rates. A sample is 2 RTT, at least 100 ms. The first is not counted, since it
/// began before the queue.
/// Tested by `a_halved_rate_is_found_and_probed_in_vain`.
const QUEUED_EVIDENCE_SPANS: usize = 4;
/// 10 samples in a row of a link (2 RTT, at least 100 ms, each) without congestion: congested samples before
/// them no longer show a lower capacity, and are forgotten. The number is chosen.
const CONGESTION_FREE_SPANS: u32 = 10;
/// 0.98 of a link's rate limit: a measured capacity of as much or more is noise, and the link keeps
/// its capacity. A lower one becomes the link's capacity. The fraction is chosen.
const REDUCED_CAPACITY_FRACTION: f64 = 0.98;
/// 1/16 of a link's configured rate: congestion that shows a lower capacity sets the capacity to
/// 1/16. At lower rates too few packets pass in one sample.
const CAPACITY_MIN_FRACTION: f64 = 1.0 / 16.0;
/// 5 samples of a link (2 RTT, at least 100 ms, each): so many are ignored after the link's
/// capacity was lowered or a queue ended a probe. They still show packets sent before.
const CAPACITY_SETTLING_SPANS: u32 = 5;

// corrected = max(mean of CORRECTION_SPANS consecutive queued spans, CORRECTION_FRACTION x found),
//             where loss >= configured loss + QUEUE_LOSS_MIN
//             and each span delivers > CORRECTION_FRACTION x capacity

/// 4 consecutive samples of a link (2 RTT, at least 100 ms, each) with a queue at full rate: the
/// capacity is lowered to the mean of their rates. They are as many as [`QUEUED_EVIDENCE_SPANS`].
/// Tested by `a_capacity_that_is_a_little_too_high_is_corrected`.
const CORRECTION_SPANS: usize = 4;
/// 0.005 of all packets, added to the configured loss: samples with a queue that together lose less
/// do not lower the assumed capacity of a link. With less loss, a longer RTT may come from a longer
/// path.
const QUEUE_LOSS_MIN: f64 = 0.005;
/// 0.9 of a link's capacity as first found: corrections by samples with a queue lower the capacity
/// no further. Only samples that deliver more than 0.9 of the present capacity correct it. The
/// fraction is chosen.
/// Tested by `a_capacity_is_not_corrected_again_and_again`.
const CORRECTION_FRACTION: f64 = 0.9;

// Probing: after `probe_wait` spans with delivery >= FULL_USE_FRACTION x capacity,
//   probed = min(capacity x (1 + gain), configured rate)
// success = CAPACITY_PROBE_SPANS spans at >= CAPACITY_PROBE_FULL_FRACTION x probed:
//           gain doubles up to CAPACITY_PROBE_GAIN_MAX
// failure = a queue: probe_wait doubles up to CAPACITY_PROBE_WAIT_SPANS_MAX,
//           gain halves down to CAPACITY_PROBE_GAIN_MIN

/// 0.8 of a link's capacity: a sample of the link that delivers as much or more shows full use, and
/// brings the next capacity probe nearer. The fraction is chosen.
const FULL_USE_FRACTION: f64 = 0.8;
/// 0.95 of the rate that a capacity probe tries: a sample of the link counts for the probe only if
/// it delivers as much or more. The fraction is chosen.
const CAPACITY_PROBE_FULL_FRACTION: f64 = 0.95;
/// 0.1 of a link's capacity: the first capacity probe tries the capacity and this part more, a
/// chosen one. Each success doubles the part up to 1.0; each failure halves it down to 0.025.
const CAPACITY_PROBE_GAIN: f64 = 0.1;
/// 0.025 of a link's capacity: failures halve the part by which a capacity probe exceeds the
/// capacity, but not below this. A first finding may be 10 % too low, and a probe of 10 % more is
/// then too high.
const CAPACITY_PROBE_GAIN_MIN: f64 = 0.025;
/// 1.0 of a link's capacity: successes double the part by which a capacity probe exceeds the
/// capacity, up to this. A probe then tries twice the capacity.
/// Tested by `a_link_that_seemed_slow_recovers_within_half_a_minute`.
const CAPACITY_PROBE_GAIN_MAX: f64 = 1.0;
/// 0.3 of a link's capacity: the part by which a capacity probe exceeds the capacity when a new
/// lane may use another network path. The lane is kept only if a tenth more passes.
const PATH_PROBE_GAIN: f64 = 0.3;
/// 10 samples of a link (2 RTT, at least 100 ms, each) in full use: after so many, the first
/// capacity probe begins; the number is chosen. Each failed probe doubles the wait.
const CAPACITY_PROBE_WAIT_SPANS: u32 = 10;
/// 1,600 samples of a link (2 RTT, at least 100 ms, each) in full use: the longest wait between two
/// capacity probes, up to which failures double it. The number is chosen.
const CAPACITY_PROBE_WAIT_SPANS_MAX: u32 = 1600;
/// 10 samples of a link (2 RTT, at least 100 ms, each) at the probed rate without a queue: the
/// capacity probe has succeeded, and its rate becomes the capacity. The number is chosen.
const CAPACITY_PROBE_SPANS: u32 = 10;
/// 0.97 of a link's configured rate: after a successful capacity probe of as much or more, the link
/// has its configured rate again. A lower probed rate becomes its capacity. The fraction is chosen.
/// Tested by `the_configured_rate_is_reached_again`.
const NOMINAL_RATE_FRACTION: f64 = 0.97;
/// 10 min, a chosen time: after a longer time without full use, a reduced capacity of a link is
/// forgotten, and its configured rate holds again. A link that plans avoid could never show that it
/// recovered.
/// Tested by `a_capacity_that_is_not_used_is_forgotten`.
const UNUSED_CAPACITY_LIFETIME: Span = Span::from_secs(600);
/// 50 samples of a link (2 RTT, at least 100 ms, each): the link's min RTT and random loss are
/// computed from the last 50; older ones are dropped. The number is chosen.
const LINK_HISTORY_SPANS: usize = 50;

// inflated = RTT_INFLATION_SPANS consecutive spans whose fastest packet took
//            > RTT_INFLATION_FACTOR x configured RTT, and > configured RTT + RTT_INFLATION_MARGIN

/// 3 consecutive samples of a link (2 RTT, at least 100 ms, each): its RTT is inflated if the least
/// RTT of each exceeds 1.5 times the configured RTT, and exceeds it by 10 ms. One shorter RTT ends
/// the inflation. The number is chosen.
/// Tested by `rtt_inflation_begins_after_three_spans_and_ends_after_one`.
const RTT_INFLATION_SPANS: usize = 3;
/// 1.5 times the configured RTT: only a longer RTT, also above [`RTT_INFLATION_MARGIN`], counts as
/// inflated, since a queue of our own adds less. The search for stragglers uses an inflated RTT.
const RTT_INFLATION_FACTOR: f64 = 1.5;
/// 10 ms above the configured RTT: only a longer RTT, also above [`RTT_INFLATION_FACTOR`] (1.5)
/// times the configured one, counts as inflated. Scheduling delay may add up to 10 ms.
const RTT_INFLATION_MARGIN: Span = Span::from_ms(10);
/// 4,096 packets sent in the last samples of a link without congestion: with fewer, the configured
/// loss stands for the link's random loss. With as many, one lost packet is less than 0.03 %.
const RANDOM_LOSS_PACKETS_MIN: u64 = 4096;

/// The capacity estimate of one direction of a link, by one pair of gateways.
#[derive(Debug)]
pub struct LinkCapacity {
    link: Link,
    /// Whether the lanes of the link find its rate and limit themselves, on a shared link.
    is_found_by_lanes: bool,
    /// The begin of the current span, and the counters then.
    span_begin: Option<(TimeNs, LinkTraffic, PairShare)>,
    /// The least RTT of the current span.
    span_min_rtt: Option<Span>,
    /// The least RTTs of the last spans.
    rtts: VecDeque<Span>,
    /// The least RTTs of the last consecutive spans with an inflated RTT.
    inflated_rtts: VecDeque<Span>,
    /// Packets sent and lost in the last spans without congestion.
    losses: VecDeque<(u64, u64)>,
    /// The last queued spans after a first congested one; `None` without suspicion.
    evidence: Option<Vec<SpanSample>>,
    /// Consecutive spans with a queue although the limit was the capacity.
    queued_spans: Vec<SpanSample>,
    /// Spans since the last congested one, queued or not.
    calm_spans: u32,
    /// Spans still to ignore after a change.
    settling_spans: u32,
    /// The capacity in bits per second, while it is below the configured rate.
    reduced: Option<f64>,
    /// The capacity before corrections, in bits per second.
    found: f64,
    /// The rate of the running probe, in bits per second.
    pub(super) probed: Option<f64>,
    /// Spans in full use since the last finding or probe.
    full_spans: u32,
    /// Spans in full use before the next probe.
    probe_wait: u32,
    /// The fraction by which the next probe exceeds the capacity.
    probe_gain: f64,
    /// When the link was last in full use.
    used_at: TimeNs,
}

/// The state of a pair of gateways at one time.
#[derive(Debug, Clone, Copy)]
pub struct LinkObservation {
    /// The time of the observation.
    pub now: TimeNs,
    /// The traffic of all lanes since the start.
    pub traffic: LinkTraffic,
    /// The least RTT since the last observation.
    pub min_rtt: Option<Span>,
    /// The pair's share of the link.
    pub share: PairShare,
    /// The limit of the link since the last observation.
    pub limit: BitRate,
}

/// The measurements of one span.
#[derive(Debug, Clone, Copy)]
struct SpanSample {
    sent_packets: u64,
    lost_packets: u64,
    /// The delivery rate in bits per second of the link, of which the pair has its share.
    delivery_rate: f64,
    min_rtt: Span,
}

impl LinkCapacity {
    /// Creates the estimate of one direction of a link, which begins with the configured rate, RTT
    /// and loss.
    pub fn new(link: Link) -> Self {
        Self {
            link,
            is_found_by_lanes: false,
            span_begin: None,
            span_min_rtt: None,
            rtts: VecDeque::new(),
            inflated_rtts: VecDeque::new(),
            losses: VecDeque::new(),
            evidence: None,
            queued_spans: Vec::with_capacity(CORRECTION_SPANS),
            calm_spans: 0,
            settling_spans: 0,
            reduced: None,
            found: 0.0,
            probed: None,
            full_spans: 0,
            probe_wait: CAPACITY_PROBE_WAIT_SPANS,
            probe_gain: CAPACITY_PROBE_GAIN,
            used_at: TimeNs::default(),
        }
    }

    /// Creates the estimate of one direction of a shared link, whose rate its lanes find.
    pub fn found_by_lanes(link: Link) -> Self {
        Self { is_found_by_lanes: true, ..Self::new(link) }
    }

    /// Sets the capacity by the rate in bits per second that the lanes of a pair of gateways have
    /// found together. The rate is scaled from the pair's `share` to the whole link; at 97 % of the
    /// configured rate or more, the configured one is set.
    pub fn set_found(&mut self, bits_per_second: f64, share: PairShare) {
        if let Some(rate) = share.link_rate_for(bits_per_second) {
            let configured = self.link.rate.bits_per_second() as f64;
            self.reduced = Some(rate).filter(|rate| *rate < NOMINAL_RATE_FRACTION * configured);
        }
    }

    /// Returns the rate limit to apply to the link: the probed rate or the capacity. `None` while
    /// the capacity is the configured rate, and where lanes limit themselves.
    pub fn rate_limit(&self) -> Option<BitRate> {
        let limit = self.probed.or(self.reduced).filter(|_| !self.is_found_by_lanes);
        limit.map(link_capacity_bit_rate)
    }

    /// Returns the measured capacity of the link; `None` while it is the configured rate.
    pub fn reduced_rate(&self) -> Option<BitRate> {
        self.reduced.map(link_capacity_bit_rate)
    }

    /// Returns the link's min RTT of the last spans; `None` before one was measured.
    pub fn min_rtt(&self) -> Option<Span> {
        self.rtts.iter().min().copied()
    }

    /// Returns the least RTT of the last three spans while the RTTs of all three are far above the
    /// configured one, else `None`. A queue may be part of it: that delays others as distance does,
    /// but plans ignore it.
    pub fn inflated_rtt(&self) -> Option<Span> {
        let shortest = self.inflated_rtts.iter().min().copied();
        shortest.filter(|_| self.inflated_rtts.len() == RTT_INFLATION_SPANS)
    }

    /// Returns the fraction of packets lost in the last spans without congestion, on a shared link
    /// in all of the last spans. `None` if they sent fewer than 4,096 packets together.
    pub fn random_loss(&self) -> Option<Fraction> {
        let (sent, lost) = self.losses.iter().fold((0, 0), |sum, s| (sum.0 + s.0, sum.1 + s.1));
        let enough = sent >= RANDOM_LOSS_PACKETS_MIN;
        let ppb = (u128::from(lost.min(sent)) * 1_000_000_000).checked_div(u128::from(sent))?;
        Fraction::from_ppb(u32::try_from(ppb).ok()?).filter(|_| enough)
    }

    /// Makes a capacity probe due after the next sample in full use, at 30 % above the capacity. A
    /// lane more may use another network path. A probe under way goes on unchanged.
    pub fn probe_soon(&mut self) {
        // A probe under way ends as it would.
        if self.probed.is_none() {
            (self.full_spans, self.probe_gain) = (self.probe_wait, PATH_PROBE_GAIN);
        }
    }

    /// Adds the counters of a pair of gateways to the current span, and evaluates the span if it is
    /// complete. The engine calls it every 100 ms while the link is in use, and every second
    /// otherwise.
    pub fn observe(&mut self, observation: &LinkObservation) {
        if self.is_too_slow_to_measure() {
            return;
        }
        let LinkObservation { now, traffic, min_rtt, share, limit } = *observation;
        self.span_min_rtt = self.span_min_rtt.into_iter().chain(min_rtt).min();
        let (begin, before, begin_share) = *self.span_begin.get_or_insert((now, traffic, share));
        // What passed under another share tells nothing of the whole link.
        if !share.has_same_flow_fraction(&begin_share) {
            self.span_begin = Some((now, traffic, share));
            return;
        }
        let span = now.since(begin);
        let rounds = Span::from_ns(SPAN_ROUNDS * self.min_rtt().unwrap_or(self.link.rtt).ns());
        let sent_packets = traffic.sent_packets - before.sent_packets;
        let has_packets = sent_packets >= SPAN_PACKETS_MIN;
        if span < SPAN_MIN.max(rounds) || !has_packets && span < SPAN_MAX.max(rounds) {
            return;
        }
        self.span_begin = Some((now, traffic, share));
        let min_rtt = self.span_min_rtt.take();
        self.note_inflation(min_rtt, has_packets);
        if self.reduced.is_none() || self.is_found_by_lanes {
            self.used_at = now;
        } else if now.since(self.used_at) > UNUSED_CAPACITY_LIFETIME {
            (self.reduced, self.probed, self.used_at) = (None, None, now);
        }
        let bits = 8.0 * (traffic.delivered_bytes - before.delivered_bytes) as f64;
        let Some(min_rtt) = min_rtt.filter(|_| has_packets && bits > 0.0) else { return };
        if let Some(delivery_rate) = share.link_rate_for(bits / span.as_secs_f64()) {
            let lost_packets = traffic.lost_packets - before.lost_packets;
            let sample = SpanSample { sent_packets, lost_packets, delivery_rate, min_rtt };
            if self.is_found_by_lanes {
                self.note_loss(&sample);
            } else {
                self.evaluate_span(&sample, limit.bits_per_second() as f64, now);
            }
        }
        remember_link_capacity_span(&mut self.rtts, min_rtt);
    }

    /// Adds a long RTT to the run of inflated spans if the span had 64 packets; any RTT that is not
    /// long ends the run. `None` changes nothing.
    fn note_inflation(&mut self, min_rtt: Option<Span>, has_enough_packets: bool) {
        let Some(min_rtt) = min_rtt else { return };
        let configured = self.link.rtt;
        let inflated = min_rtt.ns() as f64 > RTT_INFLATION_FACTOR * configured.ns() as f64
            && min_rtt > configured + RTT_INFLATION_MARGIN;
        if !inflated {
            self.inflated_rtts.clear();
        } else if has_enough_packets {
            // Few packets may be one burst, which takes long by itself.
            self.inflated_rtts.push_back(min_rtt);
            if self.inflated_rtts.len() > RTT_INFLATION_SPANS {
                self.inflated_rtts.pop_front();
            }
        }
    }

    /// Returns whether the link is too slow to send 64 packets in 100 ms, so that its capacity is
    /// not measured.
    fn is_too_slow_to_measure(&self) -> bool {
        let bits = u128::from(self.link.rate.bits_per_second()) * u128::from(SPAN_MIN.ns());
        bits < u128::from(SPAN_PACKETS_MIN * ASSUMED_PACKET_BITS) * 1_000_000_000
    }

    /// Evaluates a complete span: ends a probe at a queue, notes congestion, corrects the capacity,
    /// or counts for a probe. Ignores spans just after a change. `limit` is in bits per second.
    fn evaluate_span(&mut self, sample: &SpanSample, limit: f64, now: TimeNs) {
        if self.settling_spans > 0 {
            self.settling_spans -= 1;
            return;
        }
        if self.probed.is_some() && self.is_queued(sample) {
            self.probed = None;
            (self.full_spans, self.settling_spans) = (0, CAPACITY_SETTLING_SPANS);
            self.probe_wait = (2 * self.probe_wait).min(CAPACITY_PROBE_WAIT_SPANS_MAX);
            self.probe_gain = (self.probe_gain / 2.0).max(CAPACITY_PROBE_GAIN_MIN);
            return;
        }
        let is_congested = self.is_congested(sample);
        self.calm_spans = if is_congested { 0 } else { self.calm_spans + 1 };
        if self.calm_spans >= CONGESTION_FREE_SPANS {
            self.evidence = None;
        }
        if is_congested || self.evidence.is_some() && self.is_queued(sample) {
            return self.note_evidence(sample, limit, now);
        }
        self.note_loss(sample);
        self.correct_capacity(sample, limit, now);
        self.probe_capacity(sample, now);
    }

    /// Adds the loss of a span to the random loss, unless half of its packets or more were lost.
    fn note_loss(&mut self, sample: &SpanSample) {
        if sample.lost_packets < sample.sent_packets / 2 {
            remember_link_capacity_span(
                &mut self.losses,
                (sample.sent_packets, sample.lost_packets),
            );
        }
    }

    /// Lowers a capacity that is a little too high. While a queue stands before the link, the
    /// delivery rate is the capacity, and the mean of several spans is closer than the first
    /// finding. The configured rate may be a little too high as well, with too little loss for a
    /// finding.
    fn correct_capacity(&mut self, sample: &SpanSample, limit: f64, now: TimeNs) {
        let configured = self.link.rate.bits_per_second() as f64;
        let (capacity, found) =
            self.reduced.map_or((configured, configured), |reduced| (reduced, self.found));
        // A lower limit, for example of an operator, shows nothing of the capacity.
        let is_tested = self.probed.is_none() && limit >= REDUCED_CAPACITY_FRACTION * capacity;
        let is_full = sample.delivery_rate > CORRECTION_FRACTION * capacity;
        if !is_tested || !self.is_queued(sample) || !is_full {
            return self.queued_spans.clear();
        }
        self.queued_spans.push(*sample);
        if self.queued_spans.len() < CORRECTION_SPANS {
            return;
        }
        let spans = std::mem::take(&mut self.queued_spans);
        let mean =
            spans.iter().map(|span| span.delivery_rate).sum::<f64>() / CORRECTION_SPANS as f64;
        let corrected = mean.max(CORRECTION_FRACTION * found);
        if !self.has_queue_loss(&spans) {
            return;
        }
        if self.reduced.is_none() && corrected < REDUCED_CAPACITY_FRACTION * configured {
            self.reduce_capacity(corrected, now);
        } else if self.reduced.is_some() && corrected < capacity {
            (self.reduced, self.settling_spans) = (Some(corrected), CAPACITY_SETTLING_SPANS);
        }
    }

    /// Returns whether the fastest packet of a span took longer than 1.2 times the min RTT and 1
    /// ms. A queue must then stand before the link.
    fn is_queued(&self, sample: &SpanSample) -> bool {
        // A packet that overtakes others may seem to have a much shorter path.
        let shortest = Span::from_ns(self.link.rtt.ns() / 2);
        let own = self.min_rtt().unwrap_or(self.link.rtt).max(shortest).as_secs_f64();
        let threshold = QUEUE_RTT_FACTOR * own + QUEUE_RTT_MARGIN.as_secs_f64();
        sample.min_rtt.as_secs_f64() > threshold
    }

    /// Returns whether a span shows a queue, and loss of over 3 % more than configured, which is no
    /// random loss of the link.
    fn is_congested(&self, sample: &SpanSample) -> bool {
        let usual = self.link.loss.as_f64() + CONGESTION_LOSS_FRACTION;
        self.is_queued(sample) && sample.lost_packets as f64 > usual * sample.sent_packets as f64
    }

    /// Returns whether spans with a queue lost 0.5 % more of their packets than configured. A
    /// longer path looks like a queue as well, and may lose a little.
    fn has_queue_loss(&self, spans: &[SpanSample]) -> bool {
        let sent: u64 = spans.iter().map(|span| span.sent_packets).sum();
        let lost: u64 = spans.iter().map(|span| span.lost_packets).sum();
        lost as f64 >= (self.link.loss.as_f64() + QUEUE_LOSS_MIN) * sent as f64
    }

    /// Begins a suspicion at a first congested span, and keeps each congested or queued one after
    /// it. Once the last [`QUEUED_EVIDENCE_SPANS`] of them lost enough together, the second highest of
    /// their rates is the capacity. It is at least [`CAPACITY_MIN_FRACTION`] of the configured
    /// rate. A rate that is not below [`REDUCED_CAPACITY_FRACTION`] of `limit`, the rate limit in
    /// bits per second, changes nothing; either way the suspicion ends.
    fn note_evidence(&mut self, sample: &SpanSample, limit: f64, now: TimeNs) {
        self.full_spans = 0;
        self.queued_spans.clear();
        let Some(mut evidence) = self.evidence.take() else {
            self.evidence = Some(Vec::with_capacity(QUEUED_EVIDENCE_SPANS));
            return;
        };
        if evidence.len() == QUEUED_EVIDENCE_SPANS {
            evidence.remove(0);
        }
        evidence.push(*sample);
        if evidence.len() < QUEUED_EVIDENCE_SPANS || !self.has_queue_loss(&evidence) {
            self.evidence = Some(evidence);
            return;
        }
        // The link was not busy all of the time, and acknowledgements may come in bursts.
        evidence.sort_by(|one, other| one.delivery_rate.total_cmp(&other.delivery_rate));
        let least = CAPACITY_MIN_FRACTION * self.link.rate.bits_per_second() as f64;
        let found = evidence[QUEUED_EVIDENCE_SPANS - 2].delivery_rate.max(least);
        if found < REDUCED_CAPACITY_FRACTION * limit {
            self.reduce_capacity(found, now);
        }
    }

    /// Reduces the capacity to `capacity` bits per second, starts the wait for the first probe, and
    /// lets the next five spans be ignored.
    fn reduce_capacity(&mut self, capacity: f64, now: TimeNs) {
        (self.reduced, self.found) = (Some(capacity), capacity);
        (self.probe_wait, self.probe_gain) = (CAPACITY_PROBE_WAIT_SPANS, CAPACITY_PROBE_GAIN);
        (self.settling_spans, self.used_at) = (CAPACITY_SETTLING_SPANS, now);
    }

    /// Counts a span in full use. Begins a probe of a higher rate after enough of them, or adopts
    /// the probed rate after ten at 95 % of it or more.
    fn probe_capacity(&mut self, sample: &SpanSample, now: TimeNs) {
        let Some(capacity) = self.reduced else { return };
        let full =
            if self.probed.is_some() { CAPACITY_PROBE_FULL_FRACTION } else { FULL_USE_FRACTION };
        if sample.delivery_rate < full * self.probed.unwrap_or(capacity) {
            return;
        }
        self.used_at = now;
        self.full_spans += 1;
        let configured = self.link.rate.bits_per_second() as f64;
        match self.probed {
            Some(probed) if self.full_spans >= CAPACITY_PROBE_SPANS => {
                self.reduced =
                    Some(probed).filter(|probed| *probed < NOMINAL_RATE_FRACTION * configured);
                self.found = probed;
                (self.probed, self.full_spans) = (None, 0);
                self.probe_wait = CAPACITY_PROBE_WAIT_SPANS;
                self.probe_gain = (2.0 * self.probe_gain).min(CAPACITY_PROBE_GAIN_MAX);
            }
            None if self.full_spans >= self.probe_wait => {
                let probed = (capacity + self.probe_gain * capacity).min(configured);
                (self.probed, self.full_spans) = (Some(probed), 0);
            }
            _ => {}
        }
    }
}

/// Converts a capacity from bits per second to a rate, which is at least the least rate of a link.
fn link_capacity_bit_rate(bits_per_second: f64) -> BitRate {
    BitRate::from_bits_per_second((bits_per_second as u64).max(LINK_RATE_MIN_BITS_PER_S))
}

/// Appends the value of a span to its history, which keeps the last 50.
fn remember_link_capacity_span<T>(history: &mut VecDeque<T>, newest: T) {
    history.push_back(newest);
    if history.len() > LINK_HISTORY_SPANS {
        history.pop_front();
    }
}
