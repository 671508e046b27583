//! The handle of a running relay: it starts the thread, reads counters, and changes the links.

use super::forward::{Forward, RelaySpec};
use super::loop_check::{announce_loop_check_forwards, find_forward_loop, loop_check_forwards};
use super::relay_pump::RelayPump;
use super::relay_socket::{RelaySocket, connect_relay_socket_to};
use super::relay_state::{BACKWARD_LINK, FORWARD_LINK, OwnDrops, RelayCounters, RelayState};
use crate::mutex::lock_mutex;
use crate::recording::Recorder;
use crate::run_clock::RunClock;
use crate::{Change, EmulatedLink, Fidelity, FidelityLimits, FidelityReport, LinkSpec, Script};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use units::ByteCount;

/// The system refused something the relay needs.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The address is taken, or not of this machine. The caller's fault.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// Two forwards listen on one address. The caller's fault.
    #[error("two forwards listen on {0}: give each an address of its own")]
    ListenTwice(SocketAddr),
    /// No packet can be sent to the target. The caller's fault.
    #[error("cannot send to target {address}: {source}; give the address of a host")]
    Target {
        /// The address asked for.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// This host has no way to the target now.
    #[error("cannot send to target {address}: {source}")]
    Unreachable {
        /// The address asked for.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// Packets of a forward come back to where they were sent to. The caller's fault.
    #[error(
        "{0} forwards to itself, alone or through other relays: a packet would go round for ever; \
         give another target"
    )]
    Loop(SocketAddr),
    /// No thread or no way to wait.
    #[error("the relay cannot run: {0}")]
    System(#[from] io::Error),
}

/// Returns whether one of our own listeners has an address, or all addresses, of this port.
fn running_relay_listens_already(listening: &[Listening], address: SocketAddr) -> bool {
    let is_everywhere = |of: SocketAddr| of.ip().is_unspecified();
    listening.iter().map(|own| own.address).any(|own| {
        let overlaps = own.ip() == address.ip() || is_everywhere(own) || is_everywhere(address);
        own.port() == address.port() && overlaps
    })
}

/// A relay at work on its own thread. Dropping it stops it.
#[derive(Debug)]
pub struct RunningRelay {
    shared: Arc<Mutex<RelayState>>,
    listening: Vec<Listening>,
    /// Sockets whose names tell other relays of the forwards.
    _announced: Vec<UnixDatagram>,
    /// Readable when the thread has ended; closing it ends the thread.
    life: UnixStream,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// A bound listening socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listening {
    /// The socket's address, with the port it got.
    pub address: SocketAddr,
    /// Bytes of the receive buffer that the kernel granted.
    pub receive_buffer_bytes: usize,
}

impl RunningRelay {
    /// Binds every listening address and starts relaying.
    ///
    /// # Errors
    /// [`RelayError`]; nothing stays bound then.
    pub fn start(spec: &RelaySpec) -> Result<Self, RelayError> {
        Self::start_with(spec, None)
    }

    /// Binds every listening address, starts relaying, and records all packets. The recording is
    /// complete once [`RunningRelay::stop`] returns without an error.
    ///
    /// # Errors
    /// [`RelayError`]; nothing stays bound then.
    pub fn start_recording(spec: &RelaySpec, mut recorder: Recorder) -> Result<Self, RelayError> {
        recorder.write_link(FORWARD_LINK, "forward", spec.seed, spec.forward);
        recorder.write_conditions(FORWARD_LINK, &spec.conditions);
        recorder.write_link(
            BACKWARD_LINK,
            "backward",
            spec.seed ^ EmulatedLink::BACKWARD_SEED_MASK,
            spec.backward,
        );
        recorder.write_conditions(BACKWARD_LINK, &spec.conditions);
        Self::start_with(spec, Some(recorder))
    }

    /// Binds every listening address and starts the thread, which writes to `recorder` where there
    /// is one.
    fn start_with(spec: &RelaySpec, recorder: Option<Recorder>) -> Result<Self, RelayError> {
        let mut listening = Vec::new();
        let mut listeners = Vec::new();
        for &Forward { listen, target } in &spec.forwards {
            let error = |source: io::Error| {
                let is_taken = source.kind() == io::ErrorKind::AddrInUse;
                match is_taken && running_relay_listens_already(&listening, listen) {
                    true => RelayError::ListenTwice(listen),
                    false => RelayError::Listen { address: listen, source },
                }
            };
            let port = RelaySocket::bind(listen).map_err(error)?;
            listening.push(Listening {
                address: port.local_address().map_err(error)?,
                receive_buffer_bytes: port.receive_buffer_bytes().map_err(error)?,
            });
            listeners.push((port, target));
        }
        let bound: Vec<Forward> = std::iter::zip(&spec.forwards, &listening)
            .map(|(forward, bound)| Forward { listen: bound.address, ..*forward })
            .collect();
        bound.iter().try_for_each(|forward| check_running_relay_target(forward.target))?;
        // Announced first: of two relays that start at once one sees the other.
        let announced = announce_loop_check_forwards(&bound);
        if let Some(listen) = find_forward_loop(&bound, &loop_check_forwards()) {
            return Err(RelayError::Loop(listen));
        }
        let link = |link: LinkSpec, seed: u64| {
            EmulatedLink::under(link, Script::default(), &spec.conditions, seed)
        };
        let shared = Arc::new(Mutex::new(RelayState {
            links: [
                link(spec.forward, spec.seed),
                link(spec.backward, spec.seed ^ EmulatedLink::BACKWARD_SEED_MASK),
            ],
            shortest_round_trip: spec.forward.delay() + spec.backward.delay(),
            own: OwnDrops::default(),
            fidelity: Fidelity::default(),
            recorder,
            moved: [Vec::new(), Vec::new()],
            decided: [Vec::new(), Vec::new()],
            clock: RunClock::start(),
        }));
        let (mut life, pump_life) = UnixStream::pair()?;
        let pump = RelayPump::new(listeners, Arc::clone(&shared), pump_life)?;
        let thread =
            std::thread::Builder::new().name("wan-sim relay".into()).spawn(move || pump.run())?;
        // Until its thread runs.
        life.read_exact(&mut [0])?;
        Ok(Self { shared, listening, _announced: announced, life, thread: Some(thread) })
    }

    /// Returns the listening sockets, in the order of the forwards.
    pub fn listening(&self) -> &[Listening] {
        &self.listening
    }

    /// Returns the counters of both links and of the relay itself so far.
    pub fn counters(&self) -> RelayCounters {
        let shared = lock_mutex(&self.shared);
        RelayCounters {
            forward: shared.links[FORWARD_LINK].counters(),
            backward: shared.links[BACKWARD_LINK].counters(),
            own: shared.own,
        }
    }

    /// Returns the fidelity report of the relay so far.
    pub fn fidelity(&self) -> FidelityReport {
        let shared = lock_mutex(&self.shared);
        let limits = FidelityLimits::for_round_trip(shared.shortest_round_trip);
        shared.fidelity.report(&limits, &shared.clock.elapsed())
    }

    /// Returns the bytes that wait for the rate of the forward link and of the backward link.
    pub fn queue_bytes(&self) -> [ByteCount; 2] {
        let mut shared = lock_mutex(&self.shared);
        let now = shared.clock.now();
        [FORWARD_LINK, BACKWARD_LINK].map(|direction| shared.links[direction].queue_bytes(now))
    }

    /// Changes both links for packets that arrive from now on. A new rate also holds for packets
    /// that wait.
    pub fn set_links(&self, forward: LinkSpec, backward: LinkSpec) {
        let mut shared = lock_mutex(&self.shared);
        shared.change_link(FORWARD_LINK, Change::Spec(forward));
        shared.change_link(BACKWARD_LINK, Change::Spec(backward));
        let round_trip = forward.delay() + backward.delay();
        shared.shortest_round_trip = shared.shortest_round_trip.min(round_trip);
        drop(shared);
        // Wakes the thread, which sleeps until the next delivery. A full socket wakes it, too.
        let _ = (&self.life).write(&[0]);
    }

    /// Cuts both links if `cut` is true: packets offered from now on are dropped. Joins them again
    /// if not.
    pub fn set_blackhole(&self, cut: bool) {
        let change = if cut { Change::Cut } else { Change::Join };
        let mut shared = lock_mutex(&self.shared);
        shared.change_link(FORWARD_LINK, change);
        shared.change_link(BACKWARD_LINK, change);
    }

    /// Stops relaying; packets under way are lost. Returns the last counters.
    ///
    /// # Errors
    /// The error that ended the thread before its time, or left the recording unfinished.
    pub fn stop(mut self) -> io::Result<RelayCounters> {
        self.stop_thread()?;
        if let Some(recorder) = lock_mutex(&self.shared).recorder.take() {
            recorder.finish()?;
        }
        Ok(self.counters())
    }

    /// Stops the thread; returns the error that ended it before its time.
    fn stop_thread(&mut self) -> io::Result<()> {
        let _ = self.life.shutdown(std::net::Shutdown::Both);
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(io::Error::other("the relay's thread panicked")),
        }
    }
}

/// Checks that packets can be sent to a target. None is sent.
fn check_running_relay_target(address: SocketAddr) -> Result<(), RelayError> {
    connect_relay_socket_to(address).map_err(|source| match source.kind() {
        // A link-local address without its interface, and the broadcast address of a network.
        io::ErrorKind::InvalidInput | io::ErrorKind::PermissionDenied => {
            RelayError::Target { address, source }
        }
        _ => RelayError::Unreachable { address, source },
    })
}

impl AsFd for RunningRelay {
    /// Returns a descriptor that is readable once the relay has ended by itself.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.life.as_fd()
    }
}

impl Drop for RunningRelay {
    /// Stops the thread and ignores its error; packets under way are lost.
    fn drop(&mut self) {
        let _ = self.stop_thread();
    }
}
