//! The handle of a running relay: it starts the thread, reads counters, and changes the links.

use super::forward::{Forward, RelaySpec};
use super::pump::RelayPump;
use super::shared::{BACKWARD, FORWARD, OwnDrops, RelayCounters, RelayState, lock};
use super::socket::RelaySocket;
use crate::clock::RunClock;
use crate::recording::Recorder;
use crate::{Change, Fidelity, FidelityLimits, FidelityReport, Link, LinkSpec};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
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
    /// No thread or no way to wait.
    #[error("the relay cannot run: {0}")]
    System(#[from] io::Error),
}

/// A relay at work on its own thread. Dropping it stops it.
#[derive(Debug)]
pub struct Relay {
    shared: Arc<Mutex<RelayState>>,
    listening: Vec<Listening>,
    /// Readable when the thread has ended; closing it ends the thread.
    life: UnixStream,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// A bound listening socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listening {
    /// The socket's address, with the port it got.
    pub address: SocketAddr,
    /// The receive buffer that the kernel granted.
    pub receive_buffer_bytes: usize,
}

impl Relay {
    /// Binds every listening address and starts relaying.
    ///
    /// # Errors
    /// [`RelayError`]; nothing stays bound then.
    pub fn start(spec: &RelaySpec) -> Result<Self, RelayError> {
        Self::begin(spec, None)
    }

    /// Binds every listening address, starts relaying, and records all packets. The recording is
    /// complete once [`Relay::stop`] returns without an error.
    ///
    /// # Errors
    /// [`RelayError`]; nothing stays bound then.
    pub fn start_recording(spec: &RelaySpec, mut recorder: Recorder) -> Result<Self, RelayError> {
        recorder.link(FORWARD, "forward", spec.seed, spec.forward);
        recorder.link(BACKWARD, "backward", spec.seed ^ BACKWARD_SEED, spec.backward);
        Self::begin(spec, Some(recorder))
    }

    fn begin(spec: &RelaySpec, recorder: Option<Recorder>) -> Result<Self, RelayError> {
        let mut listening = Vec::new();
        let mut listeners = Vec::new();
        for &Forward { listen, target } in &spec.forwards {
            let error = |source| RelayError::Listen { address: listen, source };
            let port = RelaySocket::bind(listen).map_err(error)?;
            listening.push(Listening {
                address: port.local_address().map_err(error)?,
                receive_buffer_bytes: port.receive_buffer_bytes().map_err(error)?,
            });
            listeners.push((port, target));
        }
        let shared = Arc::new(Mutex::new(RelayState {
            links: [
                Link::new(spec.forward, spec.seed),
                Link::new(spec.backward, spec.seed ^ BACKWARD_SEED),
            ],
            shortest_round_trip: spec.forward.delay() + spec.backward.delay(),
            own: OwnDrops::default(),
            fidelity: Fidelity::default(),
            recorder,
            moved: [Vec::new(), Vec::new()],
            clock: RunClock::start(),
        }));
        let (mut life, pump_life) = UnixStream::pair()?;
        let pump = RelayPump::new(listeners, Arc::clone(&shared), pump_life)?;
        let thread =
            std::thread::Builder::new().name("wan-sim relay".into()).spawn(move || pump.run())?;
        // Until its thread runs.
        life.read_exact(&mut [0])?;
        Ok(Self { shared, listening, life, thread: Some(thread) })
    }

    /// The listening sockets, in the order of the forwards.
    pub fn listening(&self) -> &[Listening] {
        &self.listening
    }

    /// The counters of both links and of the relay itself so far.
    pub fn counters(&self) -> RelayCounters {
        let shared = lock(&self.shared);
        RelayCounters {
            forward: shared.links[FORWARD].counters(),
            backward: shared.links[BACKWARD].counters(),
            own: shared.own,
        }
    }

    /// How true the relay is to its links so far.
    pub fn fidelity(&self) -> FidelityReport {
        let shared = lock(&self.shared);
        let limits = FidelityLimits::for_round_trip(shared.shortest_round_trip);
        shared.fidelity.report(&limits, &shared.clock.elapsed())
    }

    /// Bytes that wait for either link's rate: there, and back.
    pub fn queues(&self) -> [ByteCount; 2] {
        let mut shared = lock(&self.shared);
        let now = shared.clock.now();
        [FORWARD, BACKWARD].map(|direction| shared.links[direction].queue_bytes(now))
    }

    /// Changes both links: for packets that arrive from now on, and the rate for those that
    /// wait as well.
    pub fn set_links(&self, forward: LinkSpec, backward: LinkSpec) {
        let mut shared = lock(&self.shared);
        shared.change(FORWARD, Change::Spec(forward));
        shared.change(BACKWARD, Change::Spec(backward));
        let round_trip = forward.delay() + backward.delay();
        shared.shortest_round_trip = shared.shortest_round_trip.min(round_trip);
        drop(shared);
        // It sleeps until what was next; full, it is awake anyway.
        let _ = (&self.life).write(&[0]);
    }

    /// Cuts both links, or joins them again.
    pub fn set_blackhole(&self, cut: bool) {
        let change = if cut { Change::Cut } else { Change::Join };
        let mut shared = lock(&self.shared);
        shared.change(FORWARD, change);
        shared.change(BACKWARD, change);
    }

    /// Stops relaying; packets under way are lost. Returns the last counters.
    ///
    /// # Errors
    /// What ended the thread before its time, or left the recording unfinished.
    pub fn stop(mut self) -> io::Result<RelayCounters> {
        self.end()?;
        if let Some(recorder) = lock(&self.shared).recorder.take() {
            recorder.finish()?;
        }
        Ok(self.counters())
    }

    fn end(&mut self) -> io::Result<()> {
        let _ = self.life.shutdown(std::net::Shutdown::Both);
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(io::Error::other("the relay's thread panicked")),
        }
    }
}

/// Readable once the relay has ended by itself.
impl AsFd for Relay {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.life.as_fd()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Makes the two directions draw differently under one seed.
const BACKWARD_SEED: u64 = 0x6261_636b_7761_7264;
