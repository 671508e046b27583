//! The thread of one site: it takes the site's packets through their links to the other sites.

use super::frame::{FrameBuffer, FrameDamage, FrameDestination, VIRTIO_HEADER_BYTES};
use super::host_receipts::HostReceipts;
use super::segment_runs::{SegmentRun, SegmentRuns};
use super::status::LinkStatus;
use super::tun::Tun;
use crate::fidelity::READ_GAP_MAX;
use crate::mutex::lock_mutex;
use crate::priority;
use crate::recording::Recorder;
use crate::run_clock::{RunClock, thread_cpu_run_clock};
use crate::{Decided, EmulatedLink, Fidelity, Packet, PacketFates, PacketFlow, PacketName};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::num::NonZeroU64;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use units::{Span, TimeNs};

/// The state that a site's thread shares with the lab.
#[derive(Debug)]
pub(super) struct PumpedSite {
    /// The links to the other sites, by index of the receiving site.
    pub(super) links: Vec<Option<SitePumpLink>>,
    /// The port that all of its links share.
    pub(super) egress: Option<SitePumpLink>,
    pub(super) fidelity: Fidelity,
    /// Packets to where no link leads.
    pub(super) unreachable: u64,
}

/// A link, with its number in a recording.
#[derive(Debug)]
pub(super) struct SitePumpLink {
    pub(super) number: usize,
    pub(super) link: EmulatedLink,
}

/// The receiving port that all links to a site share.
#[derive(Debug)]
pub(super) struct SitePumpPort {
    pub(super) port: SitePumpLink,
    /// The time of the last packet. Each sender's thread brings its own, so a late packet counts as
    /// coming at this time.
    last: TimeNs,
}

/// The state of the thread of one site.
pub(super) struct SitePump {
    pub(super) site: usize,
    pub(super) clock: RunClock,
    pub(super) tuns: Arc<Vec<Tun>>,
    pub(super) state: Arc<Mutex<PumpedSite>>,
    /// The ingress ports, by index of the receiving site.
    pub(super) ingress: Arc<Vec<Option<Mutex<SitePumpPort>>>>,
    pub(super) recorder: Recording,
    /// Readable when the lab ends.
    pub(super) life: UnixStream,
    pub(super) under_way: BTreeMap<(TimeNs, u64), PendingDelivery>,
    /// Segments whose fate a queue decides when they leave it, by receiving site and packet.
    pub(super) queued: BTreeMap<(usize, PacketName), Vec<u8>>,
    pub(super) hosts: HostReceipts,
    pub(super) sent: u64,
    pub(super) step: Span,
    /// Memory for large buffers: new pages cost more than packets.
    pub(super) spare: Vec<Vec<u8>>,
}

/// A buffer in flight to a site, or to the port of a site.
pub(super) struct PendingDelivery {
    to: usize,
    packets: u64,
    buffer: Vec<u8>,
    /// The times when the segments reach the receiving port; empty without a port.
    at_port: Vec<TimeNs>,
}

impl PumpedSite {
    /// Makes the state of a site in a lab of `sites` sites, without links yet.
    pub(super) fn new(sites: usize) -> Self {
        let links = (0..sites).map(|_| None).collect();
        Self { links, egress: None, fidelity: Fidelity::default(), unreachable: 0 }
    }
}

impl SitePumpPort {
    /// Makes the ingress port of a site around an idle link.
    pub(super) fn new(port: SitePumpLink) -> Self {
        Self { port, last: TimeNs::default() }
    }
}

impl SitePumpLink {
    /// Offers a packet that enters the link at `at`, and records the packet with its fate.
    fn offer(&mut self, at: TimeNs, packet: Packet, recorder: &Recording) -> PacketFates {
        let offered = self.link.offer(at, packet);
        if let Some(recorder) = recorder {
            lock_mutex(recorder).write_packet(self.number, at, packet, &offered);
        }
        offered
    }

    /// Returns the fates that the link has decided by `now`, and records them.
    fn take_decided(&mut self, now: TimeNs, recorder: &Recording) -> Vec<Decided> {
        let decided = self.link.take_decided(now);
        if let Some(recorder) = recorder {
            lock_mutex(recorder).write_decided(self.number, &decided);
        }
        decided
    }

    /// Returns the status at `now` of this link, which leads from site `from` to site `to`.
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

/// The recorder that all threads of a lab share; `None` when nothing is recorded.
type Recording = Option<Arc<Mutex<Recorder>>>;

impl SitePump {
    /// Carries the packets of the site until the lab ends. Signals the lab when the thread is
    /// ready.
    pub(super) fn run(mut self) -> io::Result<()> {
        // The default slack of 50 us would delay every packet by as much.
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
        priority::raise_thread_priority();
        let mut buffer = Vec::new();
        let (mut last, mut accounted) = (self.now(), TimeNs::default());
        let mut drained = true;
        // From here on, a delay of this thread is measured.
        self.life.write_all(&[0])?;
        loop {
            self.settle_queues();
            self.deliver_due();
            if drained {
                self.sleep_until_step(last)?;
            }
            if !self.wait_for_packets()? {
                return Ok(());
            }
            let now = self.now();
            let gap = Span::from_ns(now.since(last).ns().saturating_sub(HEARTBEAT_INTERVAL.ns()));
            last = now;
            if gap > READ_GAP_MAX {
                lock_mutex(&self.state).fidelity.record_read(gap);
            }
            if now.since(accounted) >= HEARTBEAT_INTERVAL {
                lock_mutex(&self.state).fidelity.record_cpu_time(thread_cpu_run_clock());
                accounted = now;
            }
            drained = false;
            for _ in 0..READS_PER_TURN_MAX {
                // Only a new buffer is shorter: zeros before each read would cost more than a small
                // packet.
                buffer.resize(READ_BUFFER_BYTES, 0);
                let Some(len) = self.tuns[self.site].read(&mut buffer)? else {
                    drained = true;
                    break;
                };
                self.accept_frame(&mut buffer, len);
            }
        }
    }

    /// Returns the time since the lab started, by the clock of all its threads.
    fn now(&self) -> TimeNs {
        self.clock.now()
    }

    /// Writes the buffers that are due to their sites, for at most [`DELIVERY_TURN_MAX`].
    fn deliver_due(&mut self) {
        let begun = self.now();
        let mut now = begun;
        while let Some(entry) = self.under_way.first_entry() {
            let due = entry.key().0;
            if due > now {
                break;
            }
            let outgoing = entry.remove();
            if !outgoing.at_port.is_empty() {
                self.enter_ingress_port(&outgoing);
                continue;
            }
            let late = self.hosts.lateness(outgoing.to, due, now);
            let begin = self.now();
            let written = self.tuns[outgoing.to].write(&outgoing.buffer);
            let mut state = lock_mutex(&self.state);
            match written {
                Ok(()) => state.fidelity.record_delivery(late),
                Err(_) => state.fidelity.record_drops(outgoing.packets),
            }
            drop(state);
            if outgoing.buffer.capacity() >= READ_BUFFER_BYTES
                && self.spare.len() < SPARE_BUFFERS_MAX
            {
                self.spare.push(outgoing.buffer);
            }
            now = self.now();
            self.hosts.add_receipt(outgoing.to, begin, now);
            if now.since(begun) > DELIVERY_TURN_MAX {
                return;
            }
        }
        self.hosts.clear_receipts();
    }

    /// Schedules the segments whose delivery a queue has decided, and drops others.
    fn settle_queues(&mut self) {
        if self.queued.is_empty() {
            return;
        }
        let (now, state) = (self.now(), Arc::clone(&self.state));
        let mut state = lock_mutex(&state);
        let links = state.links.iter_mut().enumerate();
        let decided = links
            .filter_map(|(to, link)| Some((to, link.as_mut()?.take_decided(now, &self.recorder))));
        let decided: Vec<_> = decided.collect();
        drop(state);
        for (to, decided) in decided {
            for Decided { packet, fate, .. } in decided {
                let Some(buffer) = self.queued.remove(&(to, packet)) else { continue };
                // It was a frame when it was queued.
                let Some(frame) = FrameBuffer::parse(&buffer) else { continue };
                let mut runs = SegmentRuns::new(self.ingress[to].is_some());
                runs.add_segment(0, PacketFates { number: packet.number, fate, copy: None });
                self.schedule_runs(&frame, to, runs);
            }
        }
    }

    /// Returns when this thread has to act next: for a delivery, or for a queue's decision.
    fn next_due(&self) -> Option<TimeNs> {
        let due = self.under_way.first_key_value().map(|((due, _), _)| *due);
        if self.queued.is_empty() {
            return due;
        }
        let state = lock_mutex(&self.state);
        let links = state.links.iter().flatten();
        links.filter_map(|numbered| numbered.link.next_decision()).chain(due).min()
    }

    /// Sleeps until the wake-up step has passed since `last`, if packets are in flight and none is
    /// due.
    fn sleep_until_step(&self, last: TimeNs) -> io::Result<()> {
        let (now, next) = (self.now(), last + self.step);
        let due = self.next_due();
        if due.is_some_and(|due| due > now) && next > now {
            wait_until_site_pump_readable(
                &mut [PollFd::new(&self.life, PollFlags::IN)],
                next.since(now),
            )?;
        }
        Ok(())
    }

    /// Waits for packets of the site or the next delivery. Returns false when the lab ends.
    fn wait_for_packets(&self) -> io::Result<bool> {
        let tun = &self.tuns[self.site];
        let mut fds = [PollFd::new(&self.life, PollFlags::IN), PollFd::new(tun, PollFlags::IN)];
        let due = self.next_due();
        let wait =
            due.map_or(HEARTBEAT_INTERVAL, |due| due.since(self.now()).min(HEARTBEAT_INTERVAL));
        wait_until_site_pump_readable(&mut fds, wait)?;
        let [life, _] = fds.map(|fd| !fd.revents().is_empty());
        Ok(!life)
    }

    /// Offers each segment of the frame in `buffer` to the egress port and the link, and schedules
    /// the segments that will arrive. The frame has `len` bytes.
    fn accept_frame(&mut self, buffer: &mut Vec<u8>, len: usize) {
        let state = Arc::clone(&self.state);
        let mut state = lock_mutex(&state);
        let Some(frame) = FrameBuffer::parse(&buffer[..len]) else {
            // A buffer that is no IP packet meets no link.
            state.fidelity.record_drops(1);
            return;
        };
        let PumpedSite { links, egress, unreachable, .. } = &mut *state;
        let to = site_pump_of_address(frame.destination()).filter(|to| *to < self.tuns.len());
        let Some((to, link)) = to.and_then(|to| Some((to, links[to].as_mut()?))) else {
            *unreachable += 1;
            return;
        };
        let now = self.now();
        let mut runs = SegmentRuns::new(self.ingress[to].is_some());
        // One path takes all flows, so recordings need not name them.
        let flow = if link.link.path_count() > 1 { frame.flow() } else { PacketFlow::default() };
        for segment in 0..frame.segment_count() {
            let packet = site_pump_segment_packet(&frame, segment).with_flow(flow);
            let at = egress.as_mut().map_or(Some(now), |port| {
                port.offer(now, packet, &self.recorder).fate.delivery().map(|sent| sent.at)
            });
            let Some(at) = at else { continue };
            let offered = link.offer(at, packet, &self.recorder);
            for name in offered.queued() {
                let buffer = frame.emit_run(segment..segment + 1, FrameDamage::default());
                self.queued.insert((to, name), buffer);
            }
            runs.add_segment(segment, offered);
        }
        drop(state);
        if len >= ADOPTED_BYTES_MIN
            && let Some(run) = runs.take_whole(frame.segment_count())
        {
            let empty = self.spare.pop().unwrap_or_default();
            let mut buffer = std::mem::replace(buffer, empty);
            buffer.truncate(len);
            self.schedule_delivery(to, run, buffer);
        } else {
            self.schedule_runs(&frame, to, runs);
        }
    }

    /// Offers segments that have come off their link to the ingress port of the receiving site, and
    /// schedules the segments that will arrive.
    fn enter_ingress_port(&mut self, outgoing: &PendingDelivery) {
        let ingress = Arc::clone(&self.ingress);
        // Both were so when it was kept.
        let (Some(frame), Some(ingress)) =
            (FrameBuffer::parse(&outgoing.buffer), &ingress[outgoing.to])
        else {
            return;
        };
        let mut ingress = lock_mutex(ingress);
        let mut runs = SegmentRuns::new(false);
        for (segment, at) in outgoing.at_port.iter().enumerate() {
            ingress.last = ingress.last.max(*at);
            let (at, packet) = (ingress.last, site_pump_segment_packet(&frame, segment));
            runs.add_segment(segment, ingress.port.offer(at, packet, &self.recorder));
        }
        drop(ingress);
        self.schedule_runs(&frame, outgoing.to, runs);
    }

    /// Schedules one buffer for each run of segments of `frame`, to the site with index `to`.
    fn schedule_runs(&mut self, frame: &FrameBuffer<'_>, to: usize, runs: SegmentRuns) {
        for run in runs.done.into_iter().chain(runs.last) {
            let buffer = frame.emit_run(run.start..run.end, run.damage);
            self.schedule_delivery(to, run, buffer);
        }
    }

    /// Schedules `buffer`, which holds the segments of `run`, to the site with index `to`.
    fn schedule_delivery(&mut self, to: usize, run: SegmentRun, buffer: Vec<u8>) {
        let SegmentRun { start, end, due, at_port, .. } = run;
        let packets = (end - start) as u64;
        self.sent += 1;
        self.under_way.insert((due, self.sent), PendingDelivery { to, packets, buffer, at_port });
    }
}

/// Waits until one of `fds` is readable, or for `at_most`, which is less than a second.
fn wait_until_site_pump_readable(fds: &mut [PollFd<'_>], at_most: Span) -> io::Result<()> {
    let at_most = Timespec { tv_sec: 0, tv_nsec: at_most.ns().cast_signed() };
    match rustix::event::poll(fds, Some(&at_most)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Returns length and ECN capability of one segment of `frame`, as a link needs them.
fn site_pump_segment_packet(frame: &FrameBuffer<'_>, segment: usize) -> Packet {
    let ip_bytes = frame.segment_ip_bytes(segment);
    if frame.is_ecn_capable() { Packet::ecn_capable(ip_bytes) } else { Packet::new(ip_bytes) }
}

/// Returns the index of the site with this address; `None` for an address outside the lab.
fn site_pump_of_address(destination: FrameDestination) -> Option<usize> {
    let (prefix_fits, number) = match destination {
        FrameDestination::V4([a, b, high, low]) => ([a, b] == [10, 77], [high, low]),
        FrameDestination::V6(bytes) => {
            let fits = bytes[..2] == [0xfd, 0x77] && bytes[2..14].iter().all(|byte| *byte == 0);
            (fits, [bytes[14], bytes[15]])
        }
    };
    usize::from(u16::from_be_bytes(number)).checked_sub(1).filter(|_| prefix_fits)
}

/// Returns the time between wake-ups of a site's thread while packets are in flight: 1 % of the
/// shortest round trip, from [`WAKE_UP_STEP_MIN`] to [`WAKE_UP_STEP_MAX`].
///
/// With few processors, a thread that wakes for every few packets interrupts their senders and
/// receivers each time.
pub(super) fn site_pump_wake_up(shortest_round_trip: Span) -> Span {
    Span::from_ns(shortest_round_trip.ns() / 100).clamp(WAKE_UP_STEP_MIN, WAKE_UP_STEP_MAX)
}

/// 100 us: the shortest time between two wake-ups of a site's thread while packets are in flight,
/// at an RTT of 10 ms or less. A packet is then 50 us late on average.
const WAKE_UP_STEP_MIN: Span = Span::from_ns(100_000);
/// 250 us: the longest time between two wake-ups of a site's thread while packets are in flight, at
/// an RTT of 25 ms or more. A packet is then 125 us late on average.
const WAKE_UP_STEP_MAX: Span = Span::from_ns(250_000);
/// 10 ms: the longest sleep of a site's thread, a chosen time. A longer gap between two reads shows
/// that the thread was delayed.
const HEARTBEAT_INTERVAL: Span = Span::from_ms(10);
/// 1 ms: the longest time for which a site's thread delivers packets before it reads again; further
/// packets are delivered after the read. A network stack takes as long for some hundred
/// acknowledgements.
const DELIVERY_TURN_MAX: Span = Span::from_ms(1);
/// 32 buffers: the most that a site's thread reads from its TUN device before it delivers again;
/// further buffers are read after that. The number is chosen, so that deliveries are not late.
const READS_PER_TURN_MAX: usize = 32;
/// 16 KiB: a shorter buffer from a TUN device is copied, which costs less than a new read buffer. A
/// longer one that passes its link whole is passed on without a copy. The limit is chosen.
const ADOPTED_BYTES_MIN: usize = 16 << 10;
/// 512 read buffers of a TUN device, 32 MiB: the most that a site's thread keeps for reuse; further
/// ones are freed. The limit of memory is chosen.
const SPARE_BUFFERS_MAX: usize = 512;
/// 65,545 bytes: the length of a read buffer of a TUN device, for a virtio header and the longest
/// IP packet.
const READ_BUFFER_BYTES: usize = VIRTIO_HEADER_BYTES + 65_535;
