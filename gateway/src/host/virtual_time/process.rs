//! A simulated process: its tasks and sockets can be stopped, resumed and killed.

use crate::sync::lock;
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
pub(super) struct Process {
    /// The span that names the process in logs.
    span: Span,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    stopped: bool,
    killed: bool,
    next: u64,
    tasks: BTreeMap<u64, AbortHandle>,
    /// Wakers of tasks that were due while the process was stopped.
    due: Vec<Waker>,
    sockets: Vec<Weak<Socket>>,
}

impl Process {
    pub fn new(name: &str) -> Arc<Self> {
        let span = tracing::info_span!("process", name);
        Arc::new(Self { span, state: Mutex::default() })
    }

    pub fn spawn(self: &Arc<Self>, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        let mut state = lock(&self.state);
        if state.killed {
            return;
        }
        state.next += 1;
        let id = state.next;
        let task = ProcessTask { process: Arc::clone(self), id, task };
        // The task cannot run or end before this returns: there is one thread.
        state.tasks.insert(id, tokio::spawn(task).abort_handle());
    }

    pub fn stop(&self) {
        lock(&self.state).stopped = true;
    }

    pub fn resume(&self) {
        let due = {
            let mut state = lock(&self.state);
            state.stopped = false;
            std::mem::take(&mut state.due)
        };
        due.into_iter().for_each(Waker::wake);
    }

    /// Closes the sockets before it aborts the tasks, so that nothing more is sent.
    pub fn kill(&self) {
        let (sockets, tasks) = {
            let mut state = lock(&self.state);
            state.killed = true;
            (std::mem::take(&mut state.sockets), std::mem::take(&mut state.tasks))
        };
        for socket in sockets.iter().filter_map(Weak::upgrade) {
            socket.close();
        }
        tasks.into_values().for_each(|task| task.abort());
    }

    /// Makes a socket that is closed when the process is killed.
    pub fn own(&self, socket: Arc<dyn AsyncUdpSocket>) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let socket = Socket {
            address: socket.local_addr()?,
            segments_max: (socket.max_transmit_segments(), socket.max_receive_segments()),
            inner: Mutex::new(Some(socket)),
        };
        let socket = Arc::new(socket);
        lock(&self.state).sockets.push(Arc::downgrade(&socket));
        Ok(socket)
    }
}

/// A task of a process, which is not polled while the process is stopped.
struct ProcessTask {
    process: Arc<Process>,
    id: u64,
    task: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Future for ProcessTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        {
            let mut state = lock(&self.process.state);
            if state.stopped {
                state.due.push(context.waker().clone());
                return Poll::Pending;
            }
        }
        let process = Arc::clone(&self.process);
        let _in_it = process.span.enter();
        self.task.as_mut().poll(context)
    }
}

impl Drop for ProcessTask {
    fn drop(&mut self) {
        lock(&self.process.state).tasks.remove(&self.id);
    }
}

/// The runtime of quinn, whose tasks belong to the process.
#[derive(Debug)]
pub(super) struct QuicRuntime(pub Arc<Process>);

impl Runtime for QuicRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        quinn::TokioRuntime.new_timer(at)
    }

    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.0.spawn(task);
    }

    fn wrap_udp_socket(&self, socket: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        quinn::TokioRuntime.wrap_udp_socket(socket)
    }

    fn now(&self) -> Instant {
        quinn::TokioRuntime.now()
    }
}

#[derive(Debug)]
struct Socket {
    address: SocketAddr,
    segments_max: (usize, usize),
    /// The real socket; `None` after the process was killed.
    inner: Mutex<Option<Arc<dyn AsyncUdpSocket>>>,
}

impl Socket {
    fn close(&self) {
        *lock(&self.inner) = None;
    }

    fn inner(&self) -> Option<Arc<dyn AsyncUdpSocket>> {
        lock(&self.inner).clone()
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.inner().map_or_else(|| Box::pin(Closed) as _, AsyncUdpSocket::create_io_poller)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.inner().map_or(Ok(()), |socket| socket.try_send(transmit))
    }

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

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    fn max_transmit_segments(&self) -> usize {
        self.segments_max.0
    }

    fn max_receive_segments(&self) -> usize {
        self.segments_max.1
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

#[derive(Debug)]
struct Closed;

impl UdpPoller for Closed {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
