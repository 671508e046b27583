//! A simulated process: its tasks and sockets can be stopped, resumed and killed.

use crate::lock::lock_ignoring_poison;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, UdpPoller};
use std::collections::BTreeMap;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Instant;
use tokio::task::AbortHandle;
use tracing::Span;

/// The tasks and sockets of a simulated process. A killed process never runs again.
#[derive(Debug)]
pub(super) struct VirtualProcess {
    /// The span that names the process in logs.
    span: Span,
    state: Mutex<ProcessState>,
}

#[derive(Debug, Default)]
struct ProcessState {
    stopped: bool,
    killed: bool,
    next: u64,
    tasks: BTreeMap<u64, AbortHandle>,
    /// Wakers of tasks that were due while the process was stopped.
    due: Vec<Waker>,
    /// The last time at which a task ran, and the number of such times so far.
    woken_at: Option<tokio::time::Instant>,
    wakeups: u64,
    sockets: Vec<Weak<VirtualProcessSocket>>,
}

impl VirtualProcess {
    /// Makes a process without tasks; logs call it `name`.
    pub fn new(name: &str) -> Arc<Self> {
        let span = tracing::info_span!("process", name);
        Arc::new(Self { span, state: Mutex::default() })
    }

    /// Spawns a task that stops, resumes and ends with the process.
    pub fn spawn(self: &Arc<Self>, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        let mut state = lock_ignoring_poison(&self.state);
        if state.killed {
            return;
        }
        state.next += 1;
        let id = state.next;
        let task = VirtualProcessTask { process: Arc::clone(self), id, task };
        // The task cannot run or end before this returns: there is one thread.
        state.tasks.insert(id, tokio::spawn(task).abort_handle());
    }

    /// Keeps the tasks of the process from being polled until [`VirtualProcess::resume`].
    pub fn stop(&self) {
        lock_ignoring_poison(&self.state).stopped = true;
    }

    /// Lets the tasks of a stopped process run again, and wakes those that were due.
    pub fn resume(&self) {
        let due = {
            let mut state = lock_ignoring_poison(&self.state);
            state.stopped = false;
            std::mem::take(&mut state.due)
        };
        due.into_iter().for_each(Waker::wake);
    }

    /// Kills the process: closes its sockets, then aborts its tasks, so that nothing more is sent.
    pub fn kill(&self) {
        let (sockets, tasks) = {
            let mut state = lock_ignoring_poison(&self.state);
            state.killed = true;
            (std::mem::take(&mut state.sockets), std::mem::take(&mut state.tasks))
        };
        for socket in sockets.iter().filter_map(Weak::upgrade) {
            socket.close();
        }
        tasks.into_values().for_each(|task| task.abort());
    }

    /// Returns how often the process has woken: the times of the clock at which a task of it ran.
    pub fn wakeups(&self) -> u64 {
        lock_ignoring_poison(&self.state).wakeups
    }

    /// Wraps a socket in one that is closed when the process is killed.
    pub fn wrap_socket(
        &self,
        socket: Arc<dyn AsyncUdpSocket>,
    ) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let socket = VirtualProcessSocket {
            address: socket.local_addr()?,
            segments_max: (socket.max_transmit_segments(), socket.max_receive_segments()),
            inner: Mutex::new(Some(socket)),
        };
        let socket = Arc::new(socket);
        lock_ignoring_poison(&self.state).sockets.push(Arc::downgrade(&socket));
        Ok(socket)
    }
}

/// A task of a process, which is not polled while the process is stopped.
struct VirtualProcessTask {
    process: Arc<VirtualProcess>,
    id: u64,
    task: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Future for VirtualProcessTask {
    type Output = ();

    /// Polls the task within the process's log span. While the process is stopped, only keeps the
    /// waker, which [`VirtualProcess::resume`] wakes.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        {
            let mut state = lock_ignoring_poison(&self.process.state);
            if state.stopped {
                state.due.push(context.waker().clone());
                return Poll::Pending;
            }
            let now = tokio::time::Instant::now();
            if state.woken_at.replace(now) != Some(now) {
                state.wakeups += 1;
            }
        }
        let process = Arc::clone(&self.process);
        let _entered = process.span.enter();
        self.task.as_mut().poll(context)
    }
}

impl Drop for VirtualProcessTask {
    /// Takes the task out of the list of its process's tasks, since it has ended.
    fn drop(&mut self) {
        lock_ignoring_poison(&self.process.state).tasks.remove(&self.id);
    }
}

/// The runtime of quinn, whose tasks belong to the process.
#[derive(Debug)]
pub(super) struct VirtualProcessRuntime(pub Arc<VirtualProcess>);

impl Runtime for VirtualProcessRuntime {
    /// Makes a timer of tokio's paused clock.
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        quinn::TokioRuntime.new_timer(at)
    }

    /// Spawns a task of the process.
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.0.spawn(task);
    }

    /// Wraps a socket of the system, which a simulation never uses.
    fn wrap_udp_socket(&self, socket: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        quinn::TokioRuntime.wrap_udp_socket(socket)
    }

    /// Returns the time of tokio's paused clock.
    fn now(&self) -> Instant {
        quinn::TokioRuntime.now()
    }
}

/// A socket of a process, which closes when the process is killed.
#[derive(Debug)]
struct VirtualProcessSocket {
    address: SocketAddr,
    segments_max: (usize, usize),
    /// The real socket; `None` after the process was killed.
    inner: Mutex<Option<Arc<dyn AsyncUdpSocket>>>,
}

impl VirtualProcessSocket {
    /// Closes the real socket; sends are dropped and nothing is received from then on.
    fn close(&self) {
        *lock_ignoring_poison(&self.inner) = None;
    }

    /// Returns the real socket; `None` after the process was killed.
    fn inner(&self) -> Option<Arc<dyn AsyncUdpSocket>> {
        lock_ignoring_poison(&self.inner).clone()
    }
}

impl AsyncUdpSocket for VirtualProcessSocket {
    /// Makes a poller of the real socket; a closed socket is always writable.
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.inner()
            .map_or_else(|| Box::pin(ClosedProcessPoller) as _, AsyncUdpSocket::create_io_poller)
    }

    /// Sends datagrams; drops them after the process was killed.
    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.inner().map_or(Ok(()), |socket| socket.try_send(transmit))
    }

    /// Receives datagrams; receives nothing after the process was killed.
    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        match self.inner() {
            Some(socket) => socket.poll_recv(context, buffers, metas),
            None => Poll::Pending,
        }
    }

    /// Returns the address that the socket is bound to.
    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    /// Returns the most datagrams that one call of `try_send` takes.
    fn max_transmit_segments(&self) -> usize {
        self.segments_max.0
    }

    /// Returns the most datagrams that one receive buffer takes.
    fn max_receive_segments(&self) -> usize {
        self.segments_max.1
    }

    /// Returns false: datagrams of the virtual network are never fragmented.
    fn may_fragment(&self) -> bool {
        false
    }
}

/// The poller of a closed socket, which is always writable.
#[derive(Debug)]
struct ClosedProcessPoller;

impl UdpPoller for ClosedProcessPoller {
    /// Returns ready, since sends of a closed socket are dropped.
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
