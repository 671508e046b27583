//! Gateways with stores, clients that use them, and a network between them, in virtual time.

use crate::history::{Operation, is_linearizable};
use crate::schedule::Schedule;
use hier_collectives::ids::{BootId, GatewayId};
use hier_collectives::store::{
    JobStore, StoreAction, StoreCaller, StoreCommand, StoreFailureCode, StoreMessage, StoreOutcome,
    StoreQuery, StoreRequest,
};
use hier_collectives::testing::{FabricBuilder, lossless_link, mbit, symmetric_port};
use hier_collectives::topology::Fabric;
use std::collections::BTreeMap;
use std::sync::Arc;
use units::{Span, TimeNs};

/// The time of a run in which faults happen.
const FAULTS_MS: u64 = 30_000;
/// The time after the last fault in which all requests end.
const CALM_MS: u64 = 400_000;

/// An event at its time.
#[derive(Debug)]
enum Event {
    Deliver { from: GatewayId, to: GatewayId, message: StoreMessage },
    Call { client: usize },
    Restart { gateway: usize },
    Cut { side: u64 },
    Heal,
    Connections { gateway: usize },
    Wake { gateway: usize },
}

/// A client: one process that calls one request after the other.
#[derive(Debug)]
struct Client {
    gateway: usize,
    left: u64,
    /// The place of the request under way in the history, and its deadline.
    waits: Option<(usize, TimeNs)>,
}

/// The counts of a run.
#[derive(Debug, Default, Clone, Copy)]
pub struct Conclusion {
    pub answered: u64,
    pub unknown: u64,
    pub restarts: u64,
    pub leader_restarts: u64,
    pub cuts: u64,
}

impl std::ops::AddAssign for Conclusion {
    fn add_assign(&mut self, other: Self) {
        self.answered += other.answered;
        self.unknown += other.unknown;
        self.restarts += other.restarts;
        self.leader_restarts += other.leader_restarts;
        self.cuts += other.cuts;
    }
}

/// A run.
pub struct World {
    schedule: Schedule,
    fabric: Arc<Fabric>,
    stores: Vec<JobStore>,
    boots: u64,
    clients: Vec<Client>,
    /// Which gateways are on the other side of a cut, by bit.
    cut: Option<u64>,
    events: BTreeMap<(TimeNs, u64), Event>,
    now: TimeNs,
    step: u64,
    history: Vec<Operation>,
    conclusion: Conclusion,
    trace: Vec<String>,
    faults: Vec<String>,
}

impl World {
    pub fn new(schedule: Schedule) -> Self {
        let port = Some(symmetric_port(mbit(100)));
        let mut fabric = FabricBuilder::default();
        for region in 0..schedule.gateways {
            fabric = fabric.region(&format!("r{region}"), [(1, port)]);
        }
        let fabric = Arc::new(fabric.all_pairs(lossless_link(mbit(100), 10)).build());
        let mut world = Self {
            fabric,
            stores: Vec::new(),
            boots: 100,
            clients: Vec::new(),
            cut: None,
            events: BTreeMap::new(),
            now: TimeNs::from_ns(0),
            step: 0,
            history: Vec::new(),
            conclusion: Conclusion::default(),
            trace: Vec::new(),
            faults: Vec::new(),
            schedule,
        };
        for gateway in 0..world.schedule.gateways as usize {
            let store = world.start_store(gateway);
            world.stores.push(store);
        }
        world.plan_events();
        world
    }

    /// Makes the store of a new start, whose boot id is above or below that of the last one.
    fn start_store(&mut self, gateway: usize) -> JobStore {
        self.boots += 1;
        let high = if self.schedule.numbers.chance(50) { 1 << 32 } else { 0 };
        let boot = BootId(high + self.boots);
        JobStore::new(Arc::clone(&self.fabric), GatewayId(gateway as u16), boot)
    }

    fn plan_events(&mut self) {
        let Schedule { gateways, clients, requests, restarts, cuts, .. } = self.schedule;
        for client in 0..clients as usize {
            let gateway = self.schedule.numbers.range(0, gateways - 1) as usize;
            self.clients.push(Client { gateway, left: requests, waits: None });
            self.at(0, 2_000, Event::Call { client });
        }
        for _ in 0..restarts {
            let gateway = self.schedule.numbers.range(0, gateways - 1) as usize;
            self.at(0, FAULTS_MS, Event::Restart { gateway });
        }
        for _ in 0..cuts {
            let side = self.schedule.numbers.range(1, (1 << gateways) - 2);
            self.at(0, FAULTS_MS, Event::Cut { side });
            self.at(0, FAULTS_MS, Event::Heal);
        }
        // The last event of a fault ends all of them.
        let end = TimeNs::from_ns(0) + Span::from_ms(FAULTS_MS + 1);
        self.step += 1;
        self.events.insert((end, self.step), Event::Heal);
    }

    /// Plans an event between two times from now.
    fn at(&mut self, least_ms: u64, most_ms: u64, event: Event) {
        let delay = self.schedule.numbers.range(least_ms * 1000, most_ms * 1000);
        self.step += 1;
        self.events.insert((self.now + Span::from_ns(delay * 1000), self.step), event);
    }

    pub fn run(&mut self) {
        let end = TimeNs::from_ns(0) + Span::from_ms(FAULTS_MS + CALM_MS);
        while let Some(((now, step), event)) = self.events.pop_first() {
            if now > end {
                break;
            }
            self.now = now;
            self.trace.push(format!("{:>9} us {step:>6} {event:?}", now.ns() / 1000));
            self.handle(event);
            let late = self.clients.iter().filter_map(|client| client.waits);
            let late = late.filter(|(_, deadline)| *deadline + Span::from_ms(1) < now);
            self.faults.extend(late.map(|(at, _)| format!("request {at} hangs")));
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Deliver { from, to, message } => {
                let to = usize::from(to.0);
                if let Err(violation) = self.stores[to].handle_message(from, message, self.now) {
                    self.faults.push(format!("gateway {from} breaks a rule: {violation}"));
                }
                self.perform(to);
            }
            Event::Call { client } => self.call(client),
            Event::Restart { gateway } => self.restart(gateway),
            Event::Cut { side } => {
                self.conclusion.cuts += 1;
                self.cut = Some(side);
            }
            Event::Heal => {
                let is_last = self.now > TimeNs::from_ns(0) + Span::from_ms(FAULTS_MS);
                if is_last {
                    (self.schedule.lost_percent, self.schedule.twice_percent) = (0, 0);
                }
                if self.cut.take().is_some() || is_last {
                    self.announce_connections();
                }
            }
            Event::Connections { gateway } => {
                self.stores[gateway].handle_connections(self.now);
                self.perform(gateway);
            }
            Event::Wake { gateway } => {
                if self.stores[gateway].poll_timeout().is_some_and(|due| due <= self.now) {
                    self.stores[gateway].handle_timeout(self.now);
                }
                self.perform(gateway);
            }
        }
    }

    fn announce_connections(&mut self) {
        for gateway in 0..self.stores.len() {
            self.at(1, 500, Event::Connections { gateway });
        }
    }

    /// Starts a gateway anew, unless it alone has the state of the store.
    fn restart(&mut self, gateway: usize) {
        let has_state = |index: usize| self.stores[index].replica().state().is_some();
        let others = (0..self.stores.len()).filter(|index| *index != gateway);
        if has_state(gateway) && !others.into_iter().any(has_state) {
            return;
        }
        self.conclusion.restarts += 1;
        self.conclusion.leader_restarts += u64::from(gateway == 0);
        self.stores[gateway] = self.start_store(gateway);
        for client in 0..self.clients.len() {
            if self.clients[client].gateway == gateway && self.clients[client].waits.is_some() {
                self.finish(client, None);
            }
        }
        self.announce_connections();
    }

    /// Begins the next request of a client.
    fn call(&mut self, client: usize) {
        let request = self.random_request();
        self.step += 1;
        let place = self.history.len();
        self.history.push(Operation {
            request: request.clone(),
            called: self.step,
            answered: None,
        });
        let timeout = Span::from_ms(self.schedule.numbers.range(300, 40_000));
        let Client { gateway, .. } = self.clients[client];
        self.clients[client].left -= 1;
        self.clients[client].waits = Some((place, self.now + timeout));
        let caller = StoreCaller { attachment: client as u64, number: place as u64 };
        self.stores[gateway].handle_request(caller, request, timeout, self.now);
        self.perform(gateway);
    }

    fn random_request(&mut self) -> StoreRequest {
        let value = format!("v{}", self.history.len()).into_bytes();
        let numbers = &mut self.schedule.numbers;
        let key = vec![b'a' + numbers.range(0, 1) as u8];
        let both = vec![b"a".to_vec(), b"b".to_vec()];
        let queue = b"q".to_vec();
        let command = match numbers.range(0, 16) {
            0 | 1 => StoreCommand::Set(vec![(key, value)]),
            2 => StoreCommand::Set(both.into_iter().map(|key| (key, value.clone())).collect()),
            3 | 4 => StoreCommand::Add { key: b"n".to_vec(), amount: 1 },
            5 => {
                let expected = numbers.range(0, self.history.len() as u64);
                let expected = format!("v{expected}").into_bytes();
                let expected = if numbers.chance(30) { vec![] } else { expected };
                StoreCommand::CompareSet { key, expected, desired: value }
            }
            6 => StoreCommand::Delete(key),
            7 => StoreCommand::Append { key, bytes: value },
            8 | 9 => StoreCommand::Push { key: queue, item: value },
            10 => StoreCommand::Pop(queue),
            query => {
                return StoreRequest::Query(match query {
                    11 | 12 => StoreQuery::Get(vec![key]),
                    13 => StoreQuery::Get(both),
                    14 => StoreQuery::Wait(vec![key, b"n".to_vec()]),
                    15 => StoreQuery::Count,
                    _ => StoreQuery::QueueLength { key: queue, least: numbers.range(0, 2) as u32 },
                });
            }
        };
        StoreRequest::Command(command)
    }

    /// Ends the request of a client with its answer, or without any.
    fn finish(&mut self, client: usize, answer: Option<StoreOutcome>) {
        let Some((place, _)) = self.clients[client].waits.take() else { return };
        self.step += 1;
        self.trace.push(format!("request {place} of client {client}: {answer:?}"));
        match answer {
            Some(outcome) => {
                self.conclusion.answered += 1;
                self.history[place].answered = Some((self.step, outcome));
            }
            None => self.conclusion.unknown += 1,
        }
        if self.clients[client].left > 0 {
            self.at(0, 3_000, Event::Call { client });
        }
    }

    /// Carries out the actions of a store.
    fn perform(&mut self, gateway: usize) {
        let from = GatewayId(gateway as u16);
        while let Some(action) = self.stores[gateway].poll_action() {
            match action {
                StoreAction::Message { to, message } => self.send(from, to, message),
                StoreAction::Answer { caller, answer } => {
                    let client = caller.attachment as usize;
                    let current = self.clients[client].waits.map(|(place, _)| place as u64);
                    if current != Some(caller.number) {
                        self.faults.push(format!("an answer to {caller:?} too many"));
                        continue;
                    }
                    let place = caller.number as usize;
                    match answer {
                        Ok(outcome) => self.finish(client, Some(outcome)),
                        Err(failure) if failure.code == StoreFailureCode::TimedOut => {
                            // It changed nothing: a query that finds out nothing stands for it.
                            self.history[place].request = StoreRequest::Query(StoreQuery::Count);
                            self.finish(client, None);
                        }
                        Err(failure) if failure.code == StoreFailureCode::Unconfirmed => {
                            self.finish(client, None);
                        }
                        Err(failure) => self.faults.push(format!("{failure}")),
                    }
                }
            }
        }
        if let Some(due) = self.stores[gateway].poll_timeout() {
            self.step += 1;
            self.events.insert((due.max(self.now), self.step), Event::Wake { gateway });
        }
    }

    fn send(&mut self, from: GatewayId, to: GatewayId, message: StoreMessage) {
        let Schedule { lost_percent, twice_percent, delay_ms_max, .. } = self.schedule;
        let is_across = |side: u64| (side >> from.0) & 1 != (side >> to.0) & 1;
        let numbers = &mut self.schedule.numbers;
        if self.cut.is_some_and(is_across) || numbers.chance(lost_percent) {
            return;
        }
        let copies = if numbers.chance(twice_percent) { 2 } else { 1 };
        for _ in 0..copies {
            // Some come so late that gateways have been started anew meanwhile.
            let most = if self.schedule.numbers.chance(3) { 20_000 } else { delay_ms_max };
            self.at(0, most, Event::Deliver { from, to, message: message.clone() });
        }
    }

    /// Says what is wrong with the run, if anything.
    pub fn judge(&self) -> Result<Conclusion, String> {
        if let Some(fault) = self.faults.first() {
            return Err(fault.clone());
        }
        if let Some(client) = self.clients.iter().find(|client| client.left > 0) {
            return Err(format!("a request never ended: {client:?}"));
        }
        let states: Vec<_> = self.stores.iter().map(|store| store.replica().state()).collect();
        if states.windows(2).any(|pair| pair[0] != pair[1]) {
            return Err(format!("gateways hold different states: {states:?}"));
        }
        if !is_linearizable(&self.history) {
            return Err("no order of the requests explains all answers".to_owned());
        }
        Ok(self.conclusion)
    }

    /// Tells the run, line by line, with the history at the end.
    pub fn trace(&self) -> String {
        let history = self.history.iter().enumerate().map(|(at, of)| format!("{at}: {of:?}"));
        let lines: Vec<String> = self.trace.iter().cloned().chain(history).collect();
        lines.join("\n")
    }
}
