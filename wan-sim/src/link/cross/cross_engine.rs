//! All flows of a link's cross traffic, and their events in order of time.

use super::super::packet::packet_fate::{CrossName, Fate};
use super::super::packet::{Packet, PacketFlow};
use super::bbr::Bbr;
use super::cross_controller::CrossController;
use super::cross_report::{CrossReport, SEGMENT_BYTES};
use super::cross_traffic::{CrossKind, CrossTraffic};
use super::cubic::Cubic;
use super::new_reno::NewReno;
use super::on_off::OnOffFlow;
use super::window_flow::WindowFlow;
use crate::random_stream::RandomStream;
use std::collections::BTreeMap;
use units::{Span, TimeNs};

/// The flows of cross traffic. Process every event at its time, and tell the fate of every packet.
#[derive(Debug)]
pub(in crate::link) struct CrossEngine {
    flows: Vec<CrossEngineFlow>,
    events: BTreeMap<(TimeNs, u64), Event>,
    /// Events made so far: those of one time happen in the order in which they were made.
    made: u64,
}

/// A packet of cross traffic that enters the link.
#[derive(Debug, Clone, Copy)]
pub(in crate::link) struct CrossPacket {
    pub(in crate::link) name: CrossName,
    pub(in crate::link) packet: Packet,
}

/// The outcome of an event.
#[derive(Debug)]
pub(in crate::link) enum CrossStep {
    /// These packets left their sender.
    Left(Vec<CrossPacket>),
    /// This packet enters the link.
    Enters(CrossPacket),
}

/// An event of one flow.
#[derive(Debug, Clone, Copy)]
enum Event {
    Timer { flow: usize },
    Entry(CrossPacket),
    Ack { name: CrossName, arrived: TimeNs },
}

/// A flow and its figures.
#[derive(Debug)]
struct CrossEngineFlow {
    traffic: CrossTraffic,
    key: PacketFlow,
    sender: Sender,
    /// The time of the timer that counts; earlier ones have no effect.
    armed: Option<TimeNs>,
    /// The event of each acknowledgement to come, and the time that it takes back.
    acks: BTreeMap<u64, ((TimeNs, u64), Span)>,
    sent: u64,
    last_entry: TimeNs,
    delivered_bytes: Vec<u64>,
}

/// The sender of a flow.
#[derive(Debug)]
enum Sender {
    Window(Box<WindowFlow>),
    OnOff(OnOffFlow),
}

impl CrossEngine {
    /// Makes the flows that `traffic` describes; `seed` decides their random draws.
    pub(in crate::link) fn new(traffic: &[CrossTraffic], seed: u64) -> Self {
        let mut engine = Self { flows: Vec::new(), events: BTreeMap::new(), made: 0 };
        for (index, traffic) in traffic.iter().enumerate() {
            engine.flows.push(CrossEngineFlow::new(*traffic, index, seed));
            engine.arm(index, TimeNs::default());
        }
        engine
    }

    /// Returns when the next event happens; `None` without any.
    pub(in crate::link) fn next_event(&self) -> Option<TimeNs> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    /// Processes the next event, and returns its effect. The caller schedules the entry of each
    /// packet that left by it.
    pub(in crate::link) fn process_event(&mut self) -> CrossStep {
        let Some(((now, _), event)) = self.events.pop_first() else {
            return CrossStep::Left(Vec::new());
        };
        let index = match event {
            Event::Entry(packet) => return CrossStep::Enters(packet),
            Event::Timer { flow } => {
                let known = &mut self.flows[flow];
                if known.armed != Some(now) {
                    return CrossStep::Left(Vec::new());
                }
                known.armed = None;
                if let Sender::Window(window) = &mut known.sender {
                    window.on_timer(now);
                }
                flow
            }
            Event::Ack { name, arrived } => {
                let known = &mut self.flows[name.flow];
                known.acks.remove(&name.number);
                known.count_arrival(arrived);
                if let Sender::Window(window) = &mut known.sender {
                    window.on_ack(now, name.number);
                }
                name.flow
            }
        };
        let numbers = self.flows[index].take_sends(now);
        self.arm(index, now);
        let packet = Packet::new(SEGMENT_BYTES).with_flow(self.flows[index].key);
        let named = |number| CrossPacket { name: CrossName { flow: index, number }, packet };
        CrossStep::Left(numbers.into_iter().map(named).collect())
    }

    /// Lets a packet enter the link at `at`, but not before the packets ahead of it in its flow.
    pub(in crate::link) fn schedule_entry(&mut self, packet: CrossPacket, at: TimeNs) {
        let known = &mut self.flows[packet.name.flow];
        known.last_entry = known.last_entry.max(at);
        let at = known.last_entry;
        self.schedule(at, Event::Entry(packet));
    }

    /// Schedules the acknowledgement of a delivered packet, `way_back` and at least 1 us after its
    /// arrival. A dropped or queued packet gets none.
    pub(in crate::link) fn take_fate(&mut self, name: CrossName, fate: Fate, way_back: Span) {
        if let Some(delivery) = fate.delivery() {
            self.schedule_ack(name, delivery.at, way_back.max(WAY_BACK_MIN));
        }
    }

    /// Moves the arrival of a packet after a change of the rate.
    pub(in crate::link) fn move_arrival(&mut self, name: CrossName, at: TimeNs) {
        let ack = self.flows[name.flow].acks.remove(&name.number);
        if let Some((event, way_back)) = ack {
            self.events.remove(&event);
            self.schedule_ack(name, at, way_back);
        }
    }

    /// Returns the figures of every flow.
    pub(in crate::link) fn reports(&self) -> Vec<CrossReport> {
        let report = |flow: &CrossEngineFlow| CrossReport {
            traffic: flow.traffic,
            flow: flow.key,
            sent_packets: flow.sent,
            in_flight_packets: match &flow.sender {
                Sender::Window(window) => window.in_flight(),
                Sender::OnOff(_) => 0,
            },
            delivered_bytes: flow.delivered_bytes.clone(),
        };
        self.flows.iter().map(report).collect()
    }

    /// Schedules the acknowledgement of a packet that arrives at `arrived`.
    fn schedule_ack(&mut self, name: CrossName, arrived: TimeNs, way_back: Span) {
        let event = self.schedule(arrived + way_back, Event::Ack { name, arrived });
        self.flows[name.flow].acks.insert(name.number, (event, way_back));
    }

    /// Schedules the next timer of a flow after `now`, unless one is scheduled that is not later.
    fn arm(&mut self, flow: usize, now: TimeNs) {
        let known = &mut self.flows[flow];
        let Some(at) = known.next_wake(now) else { return };
        if known.armed.is_none_or(|armed| at < armed) {
            known.armed = Some(at);
            self.schedule(at, Event::Timer { flow });
        }
    }

    /// Schedules an event; returns its key.
    fn schedule(&mut self, at: TimeNs, event: Event) -> (TimeNs, u64) {
        self.made += 1;
        self.events.insert((at, self.made), event);
        (at, self.made)
    }
}

impl CrossEngineFlow {
    /// Makes the flow numbered `index`.
    fn new(traffic: CrossTraffic, index: usize, seed: u64) -> Self {
        let mut stream = RandomStream::new(seed, &format!("cross {index}"));
        let key = PacketFlow::new(stream.next_u64());
        let start = TimeNs::from_ns(traffic.start.ns());
        let controller = match traffic.kind {
            CrossKind::Cubic => CrossController::Cubic(Cubic::new()),
            CrossKind::NewReno => CrossController::NewReno(NewReno::new()),
            CrossKind::Bbr => CrossController::Bbr(Bbr::new(stream)),
            CrossKind::OnOff { rate, on, off } => {
                let sender = Sender::OnOff(OnOffFlow::new((rate, on, off), start, stream));
                return Self::with_sender(traffic, key, sender);
            }
        };
        let sender = Sender::Window(Box::new(WindowFlow::new(controller, start)));
        Self::with_sender(traffic, key, sender)
    }

    /// Makes a flow that has sent nothing.
    fn with_sender(traffic: CrossTraffic, key: PacketFlow, sender: Sender) -> Self {
        let (armed, acks, delivered_bytes) = (None, BTreeMap::new(), Vec::new());
        let last_entry = TimeNs::default();
        Self { traffic, key, sender, armed, acks, sent: 0, last_entry, delivered_bytes }
    }

    /// Sends the packets that are due at `now`, and returns their numbers; none once the flow has
    /// stopped.
    fn take_sends(&mut self, now: TimeNs) -> Vec<u64> {
        if self.traffic.stop.is_some_and(|stop| now.ns() >= stop.ns()) {
            return Vec::new();
        }
        let sends = match &mut self.sender {
            Sender::Window(window) => window.take_sends(now),
            Sender::OnOff(bursts) => bursts.take_sends(now),
        };
        self.sent += sends.len() as u64;
        sends
    }

    /// Returns when the flow wants to be woken, at `now` or later; `None` once that is after its
    /// stop.
    fn next_wake(&self, now: TimeNs) -> Option<TimeNs> {
        let wake = match &self.sender {
            Sender::Window(window) => window.next_wake(),
            Sender::OnOff(bursts) => Some(bursts.next_wake()),
        };
        let wake = wake.map(|at| at.max(now));
        wake.filter(|at| self.traffic.stop.is_none_or(|stop| at.ns() < stop.ns()))
    }

    /// Counts a packet that arrived.
    fn count_arrival(&mut self, arrived: TimeNs) {
        let place = CrossReport::interval_of(arrived) as usize;
        if place >= self.delivered_bytes.len() {
            self.delivered_bytes.resize(place + 1, 0);
        }
        self.delivered_bytes[place] += u64::from(SEGMENT_BYTES);
    }
}

/// 1 us: the least time that an acknowledgement of cross traffic travels. With less, a flow over a
/// link without delay would go on for ever at one instant.
const WAY_BACK_MIN: Span = Span::from_ns(1000);
