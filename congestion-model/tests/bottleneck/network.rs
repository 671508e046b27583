//! Lanes of the model over an emulated link, event by event, in simulated time.

use congestion_model::{FoundPath, LaneModel, LaneTerms, LossCounts, LossKind, Phase, Rivals};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use units::{BitRate, Fraction, Span, TimeNs};
use wan_sim::{
    Change, Conditions, CrossReport, CrossTraffic, DropReason, EmulatedLink, Fate, LinkSpec,
    Packet, QueueSize, Script,
};

/// A link, and who is on it.
#[derive(Debug, Clone)]
pub struct Scene {
    pub rate: BitRate,
    pub rtt: Span,
    pub loss: Fraction,
    /// The queue in thousandths of a BDP.
    pub queue_thousandths: u32,
    /// The rate from a time on.
    pub rate_from: Option<(Span, BitRate)>,
    /// The most that each lane may send, as a fabric says.
    pub rate_max: Option<BitRate>,
    /// The step of the lanes' timers, in which acknowledgements come.
    pub timer_step: Span,
    /// When each lane begins, and how much longer its RTT is.
    pub lanes: Vec<(Span, Span)>,
    /// A time in which no lane has data.
    pub idle: Option<(Span, Span)>,
    /// Whether lanes of odd number go the other way, so that each meets the acknowledgements of the
    /// others.
    pub two_way: bool,
    pub cross: Vec<CrossTraffic>,
    /// The findings that the lanes begin with.
    pub found: Option<FoundPath>,
    pub seed: u64,
}

/// A run of a scene.
pub struct Run {
    scene: Scene,
    link: EmulatedLink,
    /// The way back, if it has data too.
    back: Option<EmulatedLink>,
    lanes: Vec<Lane>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    numbered: u64,
    now: u64,
    /// Queueing delays of the packets sent, with the time.
    pub delays: Vec<(u64, u64)>,
    pub cross: Vec<CrossReport>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Send(usize),
    Ack(usize, u64),
    /// A packet has arrived at the other end of a link in use both ways.
    Arrive(usize, u64),
    Look(usize),
}

/// One lane.
pub struct Lane {
    pub model: LaneModel,
    packet: u64,
    extra_ns: u64,
    begin_ns: u64,
    sent: VecDeque<SentPacket>,
    next_number: u64,
    in_flight: u64,
    paced_until: u64,
    /// When the lane looks next whether it may send.
    planned: u64,
    last_ack_ns: u64,
    /// Bytes acknowledged so far, by time.
    acked: Vec<(u64, u64)>,
    /// Lost packets by kind as judged, and by whether a queue dropped them.
    pub judged: Vec<(LossKind, bool)>,
    pub phases: Vec<(u64, Phase)>,
}

struct SentPacket {
    number: u64,
    at: u64,
    dropped: Option<DropReason>,
    acked: bool,
}

impl Scene {
    pub fn new(mbit: u64, rtt_ms: u64) -> Self {
        Self {
            rate: BitRate::from_bits_per_second(mbit * 1_000_000),
            rtt: Span::from_ms(rtt_ms),
            loss: Fraction::default(),
            queue_thousandths: 1000,
            rate_from: None,
            rate_max: None,
            timer_step: Span::ZERO,
            lanes: vec![(Span::ZERO, Span::ZERO)],
            idle: None,
            two_way: false,
            cross: Vec::new(),
            found: None,
            seed: 1,
        }
    }

    fn spec(&self, rate: BitRate) -> LinkSpec {
        let queue = QueueSize::ThousandthsOfBdp(self.queue_thousandths);
        let full = LinkSpec::new(self.rate, Span::from_ns(self.rtt.ns() / 2)).expect("a link");
        let bytes = full.with_queue(queue).queue();
        let spec = LinkSpec::new(rate, Span::from_ns(self.rtt.ns() / 2)).expect("a link");
        spec.with_loss(self.loss).with_queue(bytes)
    }

    /// Bytes that the link holds in a round trip.
    pub fn bdp(&self) -> f64 {
        self.rate.bytes_per_second() * self.rtt.as_secs_f64()
    }

    /// Runs the scene for so many round trips.
    pub fn run_rounds(&self, rounds: u64) -> Run {
        self.run(Span::from_ns(self.rtt.ns() * rounds))
    }

    /// Runs the scene for `span`.
    pub fn run(&self, span: Span) -> Run {
        let changes = self
            .rate_from
            .map(|(at, rate)| (TimeNs::from_ns(at.ns()), Change::Spec(self.spec(rate))));
        let conditions = Conditions { cross: self.cross.clone(), ..Conditions::default() };
        let script = Script::new(changes, []);
        let link = EmulatedLink::under(self.spec(self.rate), script, &conditions, self.seed);
        // Events stay few at any BDP.
        let packet = if self.cross.is_empty() { (self.bdp() / 1500.0) as u64 } else { 0 };
        let packet = packet.clamp(1500, 64_000);
        let lanes = (0..).zip(&self.lanes).map(|(seed, (begin, extra))| {
            let terms = LaneTerms {
                rtt: self.rtt,
                rate_max: self.rate_max.map_or(f64::INFINITY, BitRate::bytes_per_second),
                packet_bytes: packet,
                seed,
            };
            Lane {
                model: LaneModel::new(terms, self.found, TimeNs::from_ns(begin.ns())),
                packet,
                extra_ns: extra.ns(),
                begin_ns: begin.ns(),
                sent: VecDeque::new(),
                next_number: 0,
                in_flight: 0,
                paced_until: 0,
                planned: 0,
                last_ack_ns: 0,
                acked: Vec::new(),
                judged: Vec::new(),
                phases: Vec::new(),
            }
        });
        let mut run = Run {
            lanes: lanes.collect(),
            back: self.two_way.then(|| EmulatedLink::new(self.spec(self.rate), self.seed + 1)),
            link,
            scene: self.clone(),
            events: BinaryHeap::new(),
            numbered: 0,
            now: 0,
            delays: Vec::new(),
            cross: Vec::new(),
        };
        for index in 0..run.lanes.len() {
            let begin = run.lanes[index].begin_ns;
            run.plan(begin, Event::Send(index));
            run.plan(begin + 2 * self.rtt.ns(), Event::Look(index));
        }
        while let Some(Reverse((at, _, event))) = run.events.pop() {
            if at > span.ns() {
                break;
            }
            run.now = at;
            match event {
                Event::Send(lane) => run.send(lane),
                Event::Ack(lane, number) => {
                    run.ack(lane, number);
                    run.send(lane);
                }
                Event::Arrive(lane, number) => run.arrive(lane, number),
                Event::Look(lane) => run.look(lane),
            }
        }
        run.cross = run.link.cross_reports(TimeNs::from_ns(span.ns()));
        run
    }
}

impl Run {
    fn plan(&mut self, at: u64, event: Event) {
        self.numbered += 1;
        self.events.push(Reverse((at, self.numbered, event)));
    }

    fn idle_until(&self) -> Option<u64> {
        let (from, until) = self.scene.idle?;
        (from.ns()..until.ns()).contains(&self.now).then_some(until.ns())
    }

    fn send(&mut self, index: usize) {
        let now = self.now;
        if let Some(until) = self.idle_until() {
            return self.plan(until, Event::Send(index));
        }
        let step = self.scene.timer_step.ns();
        loop {
            let lane = &mut self.lanes[index];
            if lane.in_flight + lane.packet > lane.model.window() {
                return;
            }
            if lane.paced_until > now {
                let at = lane.paced_until.next_multiple_of(step.max(1));
                if lane.planned <= now {
                    lane.planned = at;
                    self.plan(at, Event::Send(index));
                }
                return;
            }
            let takes = (lane.packet as f64 / lane.model.pacing_rate() * 1e9) as u64;
            lane.paced_until = lane.paced_until.max(now.saturating_sub(step)) + takes;
            let packet = Packet::new(lane.packet as u32);
            let link = match &mut self.back {
                Some(back) if index % 2 == 1 => back,
                _ => &mut self.link,
            };
            let fates = link.offer(TimeNs::from_ns(now), packet);
            let (number, half) = (lane.next_number, self.scene.rtt.ns() / 2);
            lane.next_number += 1;
            lane.in_flight += lane.packet;
            lane.model.note_sent(TimeNs::from_ns(now), lane.packet);
            let (extra, mut dropped) = (lane.extra_ns, None);
            match fates.fate {
                Fate::Deliver(delivery) => {
                    let back = delivery.at.ns() + half + extra;
                    self.delays.push((now, delivery.at.ns() - now - half));
                    if self.back.is_some() {
                        self.plan(delivery.at.ns(), Event::Arrive(index, number));
                    } else {
                        self.plan(back.next_multiple_of(step.max(1)), Event::Ack(index, number));
                    }
                }
                Fate::Drop(reason) => dropped = Some(reason),
                Fate::Queued => unreachable!("drop-tail"),
            }
            let packet = SentPacket { number, at: now, dropped, acked: false };
            self.lanes[index].sent.push_back(packet);
        }
    }

    /// Sends the acknowledgement of a packet back. One that is lost is not told from a lost packet.
    fn arrive(&mut self, index: usize, number: u64) {
        let now = TimeNs::from_ns(self.now);
        let back = if index % 2 == 1 { Some(&mut self.link) } else { self.back.as_mut() };
        let fates = back.expect("in use both ways").offer(now, Packet::new(60));
        if let Fate::Deliver(delivery) = fates.fate {
            let step = self.scene.timer_step.ns().max(1);
            self.plan(delivery.at.ns().next_multiple_of(step), Event::Ack(index, number));
        } else {
            let lane = &mut self.lanes[index];
            let front = lane.sent.front().expect("in flight").number;
            lane.sent[(number - front) as usize].dropped = Some(DropReason::Loss);
        }
    }

    fn ack(&mut self, index: usize, number: u64) {
        let (now, is_held) = (TimeNs::from_ns(self.now), self.idle_until().is_none());
        let lane = &mut self.lanes[index];
        let front = lane.sent.front().expect("in flight").number;
        let packet = &mut lane.sent[(number - front) as usize];
        packet.acked = true;
        let sent_at = TimeNs::from_ns(packet.at);
        lane.model.note_acked(now, sent_at, lane.packet);
        lane.in_flight -= lane.packet;
        lane.last_ack_ns = self.now;
        let before = lane.acked.last().map_or(0, |(_, bytes)| *bytes);
        lane.acked.push((self.now, before + lane.packet));
        lane.model.end_acks(now, lane.in_flight, is_held);
        self.find_losses(index, number.saturating_sub(2));
    }

    /// Gives up packets below `number` that no acknowledgement will come for.
    fn find_losses(&mut self, index: usize, number: u64) {
        let lane = &mut self.lanes[index];
        let mut lost = 0;
        let mut reasons = Vec::new();
        while let Some(first) = lane.sent.front() {
            let is_lost = first.dropped.is_some() && first.number < number;
            if !first.acked && !is_lost {
                break;
            }
            if !first.acked {
                lost += lane.packet;
                reasons.extend(first.dropped);
            }
            lane.sent.pop_front();
        }
        if lost > 0 {
            let kind = lane.model.note_lost(lost);
            lane.in_flight -= lost;
            let judged = reasons.iter().map(|reason| (kind, *reason == DropReason::Queue));
            lane.judged.extend(judged);
        }
        if let Some(transition) = lane.model.take_transition() {
            lane.phases.push((self.now, transition.to));
        }
    }

    /// Gives up what is in flight after three round trips without an acknowledgement.
    fn look(&mut self, index: usize) {
        let silence = 3 * self.scene.rtt.ns() + self.lanes[index].extra_ns + 50_000_000;
        if self.now > self.lanes[index].last_ack_ns + silence && self.lanes[index].in_flight > 0 {
            let number = self.lanes[index].next_number;
            self.find_losses(index, number);
            self.send(index);
        }
        self.plan(self.now + self.scene.rtt.ns(), Event::Look(index));
    }

    pub fn lane(&self, index: usize) -> &Lane {
        &self.lanes[index]
    }

    /// Mean part of the link's rate that was delivered to a lane between two times.
    pub fn share(&self, lane: usize, from: Span, until: Span) -> f64 {
        let bytes = self.lanes[lane].acked_bytes(until) - self.lanes[lane].acked_bytes(from);
        let span = Span::from_ns(until.ns() - from.ns());
        bytes as f64 / span.as_secs_f64() / self.scene.rate.bytes_per_second()
    }

    /// The same between two round trips.
    pub fn share_of_rounds(&self, lane: usize, from: u64, until: u64) -> f64 {
        let rtt = self.scene.rtt.ns();
        self.share(lane, Span::from_ns(from * rtt), Span::from_ns(until * rtt))
    }

    /// Median of the queueing delay from a time on, in RTT.
    pub fn median_delay(&self, from: Span) -> f64 {
        let late = self.delays.iter().filter(|(at, _)| *at >= from.ns());
        let mut delays: Vec<u64> = late.map(|(_, delay)| *delay).collect();
        delays.sort_unstable();
        delays[delays.len() / 2] as f64 / self.scene.rtt.ns() as f64
    }

    /// Most bytes that waited, in BDP.
    pub fn queue_peak(&self) -> f64 {
        self.link.queue_bytes_peak().get() as f64 / self.scene.bdp()
    }
}

impl Lane {
    /// Bytes acknowledged by a time.
    pub fn acked_bytes(&self, by: Span) -> u64 {
        let index = self.acked.partition_point(|(at, _)| *at <= by.ns());
        index.checked_sub(1).map_or(0, |index| self.acked[index].1)
    }

    pub fn losses(&self) -> LossCounts {
        self.model.losses()
    }

    pub fn has_rivals(&self) -> bool {
        self.model.rivals() == Rivals::Present
    }
}
