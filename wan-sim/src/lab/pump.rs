//! One site's thread: what the site sends meets its links and goes to the others.

use super::tun::Tun;
use super::vnet::{Damage, Destination, Frame};
use crate::recording::Recorder;
use crate::{Fate, Fidelity, FidelityLimits, Link, Packet};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::num::NonZeroU64;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use units::{Span, TimeNs};

/// What a site's thread shares with the lab.
#[derive(Debug)]
pub(super) struct SiteState {
    /// By destination, with the link's number in a recording.
    pub(super) links: Vec<Option<(usize, Link)>>,
    pub(super) fidelity: Fidelity,
    /// Packets to where no link leads.
    pub(super) unreachable: u64,
}

pub(super) struct Pump {
    pub(super) site: usize,
    pub(super) origin: Instant,
    pub(super) tuns: Arc<Vec<Tun>>,
    pub(super) state: Arc<Mutex<SiteState>>,
    pub(super) recorder: Option<Arc<Mutex<Recorder>>>,
    /// Readable when the lab ends.
    pub(super) life: UnixStream,
    pub(super) under_way: BTreeMap<(TimeNs, u64), Outgoing>,
    pub(super) sent: u64,
}

pub(super) struct Outgoing {
    to: usize,
    packets: u64,
    buffer: Vec<u8>,
}

impl Pump {
    pub(super) fn run(mut self) -> io::Result<()> {
        // The default slack of 50 us would delay every packet by as much.
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
        // Ahead of the programs under test, where allowed.
        let _ = rustix::process::setpriority_process(None, -20);
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut last = self.now();
        // From here on, being held up is noticed.
        self.life.write_all(&[0])?;
        loop {
            self.deliver();
            let Some(readable) = self.wait()? else {
                return Ok(());
            };
            let now = self.now();
            let gap = Span::from_ns(now.since(last).ns().saturating_sub(HEARTBEAT.ns()));
            last = now;
            if readable || gap > LIMITS.read_gap {
                lock(&self.state).fidelity.read(gap, &LIMITS);
            }
            for _ in 0..READS_MAX {
                let Some(len) = self.tuns[self.site].read(&mut buffer)? else {
                    break;
                };
                self.accept(&buffer[..len]);
            }
        }
    }

    fn now(&self) -> TimeNs {
        TimeNs::from_ns(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn deliver(&mut self) {
        let mut now = self.now();
        while let Some(entry) = self.under_way.first_entry() {
            let due = entry.key().0;
            if due > now {
                break;
            }
            let outgoing = entry.remove();
            let written = self.tuns[outgoing.to].write(&outgoing.buffer);
            let mut state = lock(&self.state);
            match written {
                Ok(()) => state.fidelity.delivered(now.since(due)),
                Err(_) => state.fidelity.dropped(outgoing.packets),
            }
            drop(state);
            // Writing includes the receiver's work, so it takes time.
            now = self.now();
        }
    }

    /// Waits for packets or the next delivery. Whether there are packets; `None` at the end.
    fn wait(&self) -> io::Result<Option<bool>> {
        let tun = &self.tuns[self.site];
        let mut fds = [PollFd::new(&self.life, PollFlags::IN), PollFd::new(tun, PollFlags::IN)];
        let due = self.under_way.first_key_value().map(|((due, _), _)| *due);
        let wait = due.map_or(HEARTBEAT, |due| due.since(self.now()).min(HEARTBEAT));
        let wait = Timespec { tv_sec: 0, tv_nsec: wait.ns().cast_signed() };
        match rustix::event::poll(&mut fds, Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [life, tun] = fds.map(|fd| !fd.revents().is_empty());
        Ok((!life).then_some(tun))
    }

    /// Offers each segment of a buffer to its link, and keeps those that will arrive.
    fn accept(&mut self, buffer: &[u8]) {
        // Neighbour discovery and the like have no place between sites.
        let Some(frame) = Frame::parse(buffer) else {
            return;
        };
        let state = Arc::clone(&self.state);
        let mut state = lock(&state);
        let to = site_of(frame.destination()).filter(|to| *to < self.tuns.len());
        let Some((to, (number, link))) = to.and_then(|to| Some((to, state.links[to].as_mut()?)))
        else {
            state.unreachable += 1;
            return;
        };
        let now = self.now();
        let mut run: Option<Run> = None;
        for segment in 0..frame.segments() {
            let ip_bytes = frame.ip_bytes(segment);
            let packet = Packet { ip_bytes, ecn_capable: frame.ecn_capable() };
            let offered = link.offer(now, packet);
            if let Some(recorder) = &self.recorder {
                lock(recorder).offered(*number, now, packet, &offered);
            }
            if let Fate::Deliver(delivery) = offered.fate {
                let damage = Damage { marked: delivery.marked, corrupt_bit: delivery.corrupt_bit };
                match &mut run {
                    Some(run) if run.takes(segment, damage, delivery.at) => {
                        run.end = segment + 1;
                        run.due = delivery.at;
                    }
                    _ => {
                        let next = Run::new(segment, damage, delivery.at);
                        if let Some(run) = run.replace(next) {
                            self.keep(&frame, to, &run);
                        }
                    }
                }
            }
            if let Some(Fate::Deliver(delivery)) = offered.copy {
                let damage = Damage { marked: delivery.marked, corrupt_bit: delivery.corrupt_bit };
                self.keep(&frame, to, &Run::new(segment, damage, delivery.at));
            }
        }
        if let Some(run) = run {
            self.keep(&frame, to, &run);
        }
    }

    fn keep(&mut self, frame: &Frame<'_>, to: usize, run: &Run) {
        let buffer = frame.emit(run.start..run.end, run.damage);
        let packets = (run.end - run.start) as u64;
        self.sent += 1;
        self.under_way.insert((run.due, self.sent), Outgoing { to, packets, buffer });
    }
}

/// Neighbouring segments of a buffer that met the same and arrive close together.
struct Run {
    start: usize,
    end: usize,
    damage: Damage,
    first_due: TimeNs,
    due: TimeNs,
}

impl Run {
    fn new(segment: usize, damage: Damage, due: TimeNs) -> Self {
        Self { start: segment, end: segment + 1, damage, first_due: due, due }
    }

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

/// Segments that arrive within this time go out in one write, with the last of them.
const RUN_SPAN_MAX: Span = Span::from_ns(100_000);
/// The longest wait, so that a longer one means that the thread was held up.
const HEARTBEAT: Span = Span::from_ms(10);
/// Buffers read before deliveries have their turn.
const READS_MAX: usize = 32;
/// A virtio header and the longest IP packet.
const BUFFER_BYTES: usize = super::vnet::HEADER_BYTES + 65_535;
pub(super) const LIMITS: FidelityLimits = FidelityLimits::DEFAULT;
