//! The thread of one site: it takes the site's packets through their links to the other sites.

use super::frame::{Damage, Destination, Frame, HEADER_BYTES};
use super::hosts::Hosts;
use super::status::LinkStatus;
use super::tun::Tun;
use crate::clock::{RunClock, thread_cpu};
use crate::priority;
use crate::recording::Recorder;
use crate::{Delivery, Fidelity, FidelityLimits, Link, Offered, Packet};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::num::NonZeroU64;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use units::{Span, TimeNs};

/// The state that a site's thread shares with the lab.
#[derive(Debug)]
pub(super) struct SiteState {
    /// One entry for each destination.
    pub(super) links: Vec<Option<Numbered>>,
    /// The port that all of its links share.
    pub(super) egress: Option<Numbered>,
    pub(super) fidelity: Fidelity,
    /// Packets to where no link leads.
    pub(super) unreachable: u64,
}

/// A link, with its number in a recording.
#[derive(Debug)]
pub(super) struct Numbered {
    pub(super) number: usize,
    pub(super) link: Link,
}

/// The receiving port that all links to a site share.
#[derive(Debug)]
pub(super) struct Ingress {
    pub(super) port: Numbered,
    /// The time of the last packet. Each sender's thread brings its own, so a late packet counts as
    /// coming at this time.
    last: TimeNs,
}

pub(super) struct SitePump {
    pub(super) site: usize,
    pub(super) clock: RunClock,
    pub(super) tuns: Arc<Vec<Tun>>,
    pub(super) state: Arc<Mutex<SiteState>>,
    /// One entry for each destination.
    pub(super) ingress: Arc<Vec<Option<Mutex<Ingress>>>>,
    pub(super) recorder: Recording,
    /// Readable when the lab ends.
    pub(super) life: UnixStream,
    pub(super) under_way: BTreeMap<(TimeNs, u64), PendingDelivery>,
    pub(super) hosts: Hosts,
    pub(super) sent: u64,
    pub(super) step: Span,
    /// Memory for large buffers: new pages cost more than packets.
    pub(super) spare: Vec<Vec<u8>>,
}

pub(super) struct PendingDelivery {
    to: usize,
    packets: u64,
    buffer: Vec<u8>,
    /// The times when the segments reach the receiving port; empty without a port.
    at_port: Vec<TimeNs>,
}

impl SiteState {
    pub(super) fn new(sites: usize) -> Self {
        let links = (0..sites).map(|_| None).collect();
        Self { links, egress: None, fidelity: Fidelity::default(), unreachable: 0 }
    }
}

impl Ingress {
    pub(super) fn new(port: Numbered) -> Self {
        Self { port, last: TimeNs::default() }
    }
}

impl Numbered {
    fn offer(&mut self, at: TimeNs, packet: Packet, recorder: &Recording) -> Offered {
        let offered = self.link.offer(at, packet);
        if let Some(recorder) = recorder {
            lock(recorder).offered(self.number, at, packet, &offered);
        }
        offered
    }

    pub(super) fn status(
        &mut self,
        now: TimeNs,
        from: Option<String>,
        to: Option<String>,
    ) -> LinkStatus {
        let (counters, queue) = (self.link.counters(), self.link.queue_bytes(now));
        LinkStatus { from, to, counters, queue, queue_peak: self.link.queue_bytes_peak() }
    }
}

type Recording = Option<Arc<Mutex<Recorder>>>;

impl SitePump {
    pub(super) fn run(mut self) -> io::Result<()> {
        // The default slack of 50 us would delay every packet by as much.
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
        priority::raise();
        let mut buffer = Vec::new();
        let (mut last, mut accounted) = (self.now(), TimeNs::default());
        let mut drained = true;
        // From here on, being held up is noticed.
        self.life.write_all(&[0])?;
        loop {
            self.deliver();
            if drained {
                self.rest(last)?;
            }
            let Some(readable) = self.wait()? else {
                return Ok(());
            };
            let now = self.now();
            let gap = Span::from_ns(now.since(last).ns().saturating_sub(HEARTBEAT.ns()));
            last = now;
            if readable || gap > LIMITS.read_gap {
                lock(&self.state).fidelity.read(gap, &LIMITS);
            }
            if now.since(accounted) >= HEARTBEAT {
                lock(&self.state).fidelity.worked(thread_cpu());
                accounted = now;
            }
            drained = false;
            for _ in 0..READS_MAX {
                // Shorter only after it was kept: zeros for each small packet would cost more than it.
                buffer.resize(BUFFER_BYTES, 0);
                let Some(len) = self.tuns[self.site].read(&mut buffer)? else {
                    drained = true;
                    break;
                };
                self.accept(&mut buffer, len);
            }
        }
    }

    fn now(&self) -> TimeNs {
        self.clock.now()
    }

    /// Delivers what is due, but not for so long that what the site sends would wait.
    fn deliver(&mut self) {
        let begun = self.now();
        let mut now = begun;
        while let Some(entry) = self.under_way.first_entry() {
            let due = entry.key().0;
            if due > now {
                break;
            }
            let outgoing = entry.remove();
            if !outgoing.at_port.is_empty() {
                self.enter(&outgoing);
                continue;
            }
            let late = self.hosts.lateness(outgoing.to, due, now);
            let begin = self.now();
            let written = self.tuns[outgoing.to].write(&outgoing.buffer);
            let mut state = lock(&self.state);
            match written {
                Ok(()) => state.fidelity.delivered(late),
                Err(_) => state.fidelity.dropped(outgoing.packets),
            }
            drop(state);
            if outgoing.buffer.capacity() >= BUFFER_BYTES && self.spare.len() < SPARE_MAX {
                self.spare.push(outgoing.buffer);
            }
            now = self.now();
            self.hosts.received(outgoing.to, begin, now);
            if now.since(begun) > TURN {
                return;
            }
        }
        self.hosts.idle();
    }

    /// Sleeps until a step has passed since `last`, while packets are in flight and none is due.
    fn rest(&self, last: TimeNs) -> io::Result<()> {
        let (now, next) = (self.now(), last + self.step);
        let due = self.under_way.first_key_value().map(|((due, _), _)| *due);
        if due.is_some_and(|due| due > now) && next > now {
            await_any(&mut [PollFd::new(&self.life, PollFlags::IN)], next.since(now))?;
        }
        Ok(())
    }

    /// Waits for packets or the next delivery. Whether there are packets; `None` at the end.
    fn wait(&self) -> io::Result<Option<bool>> {
        let tun = &self.tuns[self.site];
        let mut fds = [PollFd::new(&self.life, PollFlags::IN), PollFd::new(tun, PollFlags::IN)];
        let due = self.under_way.first_key_value().map(|((due, _), _)| *due);
        let wait = due.map_or(HEARTBEAT, |due| due.since(self.now()).min(HEARTBEAT));
        await_any(&mut fds, wait)?;
        let [life, tun] = fds.map(|fd| !fd.revents().is_empty());
        Ok((!life).then_some(tun))
    }

    /// Offers each segment of what was read into a buffer to its port and its link, and keeps
    /// those that will arrive.
    fn accept(&mut self, buffer: &mut Vec<u8>, len: usize) {
        let state = Arc::clone(&self.state);
        let mut state = lock(&state);
        let Some(frame) = Frame::parse(&buffer[..len]) else {
            // Whatever a site sent, it met no link.
            state.fidelity.dropped(1);
            return;
        };
        let SiteState { links, egress, unreachable, .. } = &mut *state;
        let to = site_of(frame.destination()).filter(|to| *to < self.tuns.len());
        let Some((to, link)) = to.and_then(|to| Some((to, links[to].as_mut()?))) else {
            *unreachable += 1;
            return;
        };
        let now = self.now();
        let mut runs = Runs::new(self.ingress[to].is_some());
        for segment in 0..frame.segments() {
            let packet = packet(&frame, segment);
            let at = egress.as_mut().map_or(Some(now), |port| {
                port.offer(now, packet, &self.recorder).fate.delivery().map(|sent| sent.at)
            });
            let Some(at) = at else { continue };
            runs.add(segment, link.offer(at, packet, &self.recorder));
        }
        drop(state);
        if len >= ADOPTED_BYTES_MIN
            && let Some(run) = runs.whole(frame.segments())
        {
            let empty = self.spare.pop().unwrap_or_default();
            let mut buffer = std::mem::replace(buffer, empty);
            buffer.truncate(len);
            self.send(to, run, buffer);
        } else {
            self.keep(&frame, to, runs);
        }
    }

    /// Offers what has come off its link to the port of its site.
    fn enter(&mut self, outgoing: &PendingDelivery) {
        let ingress = Arc::clone(&self.ingress);
        // Both were so when it was kept.
        let (Some(frame), Some(ingress)) = (Frame::parse(&outgoing.buffer), &ingress[outgoing.to])
        else {
            return;
        };
        let mut ingress = lock(ingress);
        let mut runs = Runs::new(false);
        for (segment, at) in outgoing.at_port.iter().enumerate() {
            ingress.last = ingress.last.max(*at);
            let (at, packet) = (ingress.last, packet(&frame, segment));
            runs.add(segment, ingress.port.offer(at, packet, &self.recorder));
        }
        drop(ingress);
        self.keep(&frame, outgoing.to, runs);
    }

    fn keep(&mut self, frame: &Frame<'_>, to: usize, runs: Runs) {
        for run in runs.done.into_iter().chain(runs.last) {
            let buffer = frame.emit(run.start..run.end, run.damage);
            self.send(to, run, buffer);
        }
    }

    fn send(&mut self, to: usize, run: Run, buffer: Vec<u8>) {
        let Run { start, end, due, at_port, .. } = run;
        let packets = (end - start) as u64;
        self.sent += 1;
        self.under_way.insert((due, self.sent), PendingDelivery { to, packets, buffer, at_port });
    }
}

/// Until one is readable, or for so long, which is less than a second.
fn await_any(fds: &mut [PollFd<'_>], at_most: Span) -> io::Result<()> {
    let at_most = Timespec { tv_sec: 0, tv_nsec: at_most.ns().cast_signed() };
    match rustix::event::poll(fds, Some(&at_most)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn packet(frame: &Frame<'_>, segment: usize) -> Packet {
    Packet { ip_bytes: frame.ip_bytes(segment), ecn_capable: frame.ecn_capable() }
}

/// A buffer's segments, joined again where they arrive together.
struct Runs {
    done: Vec<Run>,
    last: Option<Run>,
    /// A port follows, which each segment meets at its own time.
    before_port: bool,
}

/// Neighbouring segments of a buffer that met the same and arrive close together.
struct Run {
    start: usize,
    end: usize,
    damage: Damage,
    first_due: TimeNs,
    due: TimeNs,
    at_port: Vec<TimeNs>,
}

impl Runs {
    fn new(before_port: bool) -> Self {
        Self { done: Vec::new(), last: None, before_port }
    }

    /// The one run, where all segments arrive together and unharmed.
    fn whole(&mut self, segments: usize) -> Option<Run> {
        let whole = |run: &mut Run| {
            run.start == 0 && run.end == segments && run.damage == Damage::default()
        };
        if self.done.is_empty() { self.last.take_if(whole) } else { None }
    }

    fn add(&mut self, segment: usize, offered: Offered) {
        for (name, Delivery { at, marked, corrupt_bit }) in offered.deliveries() {
            let damage = Damage { marked: marked.is_some(), corrupt_bit };
            let at_port = if self.before_port { vec![at] } else { Vec::new() };
            match &mut self.last {
                Some(run) if !name.copy && run.takes(segment, damage, at) => {
                    run.end = segment + 1;
                    run.due = at;
                    run.at_port.extend(at_port);
                }
                _ => {
                    let (start, end, first_due, due) = (segment, segment + 1, at, at);
                    let run = Run { start, end, damage, first_due, due, at_port };
                    if name.copy {
                        self.done.push(run);
                    } else {
                        self.done.extend(self.last.replace(run));
                    }
                }
            }
        }
    }
}

impl Run {
    fn takes(&self, segment: usize, damage: Damage, at: TimeNs) -> bool {
        self.end == segment
            && self.damage == damage
            && damage.corrupt_bit.is_none()
            && at >= self.due
            && at.since(self.first_due) <= RUN_SPAN_MAX
    }
}

/// The number of the site with this address.
fn site_of(destination: Destination) -> Option<usize> {
    let (prefix_fits, number) = match destination {
        Destination::V4([a, b, high, low]) => ([a, b] == [10, 77], [high, low]),
        Destination::V6(bytes) => {
            let fits = bytes[..2] == [0xfd, 0x77] && bytes[2..14].iter().all(|byte| *byte == 0);
            (fits, [bytes[14], bytes[15]])
        }
    };
    usize::from(u16::from_be_bytes(number)).checked_sub(1).filter(|_| prefix_fits)
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves no half-made change: each is one step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The time between wake-ups of a thread while packets are in flight. With few processors, a thread
/// that wakes for every few packets interrupts their senders and receivers each time.
pub(super) fn step(shortest_round_trip: Span) -> Span {
    Span::from_ns(shortest_round_trip.ns() / 100).clamp(STEP_MIN, STEP_MAX)
}

/// 100 us: the shortest step. A packet is late by half a step on average: 1 % of 10 ms, one way.
const STEP_MIN: Span = Span::from_ns(100_000);
/// 250 us: the longest step between two wake-ups. A packet is then 125 us late on average.
const STEP_MAX: Span = Span::from_ns(250_000);
/// Segments that arrive within this time go out in one write, with the last of them.
const RUN_SPAN_MAX: Span = Span::from_ns(100_000);
/// The longest wait, so that a longer one means that the thread was held up.
const HEARTBEAT: Span = Span::from_ms(10);
/// Deliveries take so long before reads have their turn: a site's stack may take as long for a few
/// hundred acknowledgements.
const TURN: Span = Span::from_ms(1);
/// Buffers read before deliveries have their turn.
const READS_MAX: usize = 32;
/// Below this, a copy costs less than the rest of the buffer is worth.
const ADOPTED_BYTES_MIN: usize = 16 << 10;
/// Large buffers kept for reuse.
const SPARE_MAX: usize = 512;
/// A virtio header and the longest IP packet.
const BUFFER_BYTES: usize = HEADER_BYTES + 65_535;
/// The limits that decide whether a read gap counts.
const LIMITS: FidelityLimits = FidelityLimits::DEFAULT;
