//! The trainers' listener of a simulated gateway, with a gate for each rank. A gate passes no bytes
//! while the rank's process is stopped.

use gateway::host::BoxFuture;
use gateway::local::trainer_listener::{
    self, AcceptedConnection, InProcessTrainerListener, IncomingConnection, TrainerListener,
    TrainerListenerConnector, TrainerStream,
};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Switch that tells whether the process of a rank runs.
#[derive(Debug, Default)]
pub(in crate::faults) struct Gate {
    state: Mutex<(bool, Vec<Waker>)>,
}

impl Gate {
    /// Closes or opens the gate.
    pub fn shut(&self, shut: bool) {
        let waiting = {
            let mut state = self.lock();
            state.0 = shut;
            std::mem::take(&mut state.1)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    fn pass(&self, context: &Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if !state.0 {
            return Poll::Ready(());
        }
        state.1.push(context.waker().clone());
        Poll::Pending
    }

    fn lock(&self) -> MutexGuard<'_, (bool, Vec<Waker>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A listener with a gate for each rank.
pub(in crate::faults) struct GatedDoor {
    ways: Vec<(InProcessTrainerListener, Arc<Gate>)>,
}

/// A listener with these gates, and the connectors that lead to them.
pub(in crate::faults) fn door(gates: Vec<Arc<Gate>>) -> (GatedDoor, Vec<TrainerListenerConnector>) {
    let (doors, knockers): (Vec<_>, Vec<_>) =
        gates.iter().map(|_| trainer_listener::in_process_trainer_listener()).unzip();
    (GatedDoor { ways: doors.into_iter().zip(gates).collect() }, knockers)
}

impl TrainerListener for GatedDoor {
    /// Waits for the next connection of any rank. Its stream passes bytes only while the rank's
    /// gate is open.
    fn accept(&self) -> BoxFuture<io::Result<IncomingConnection>> {
        let mut coming: Vec<_> =
            self.ways.iter().map(|(door, gate)| (door.accept(), Arc::clone(gate))).collect();
        Box::pin(async move {
            let (knock, gate) = std::future::poll_fn(|context| {
                for (coming, gate) in &mut coming {
                    if let Poll::Ready(knock) = coming.as_mut().poll(context) {
                        return Poll::Ready((knock, Arc::clone(gate)));
                    }
                }
                Poll::Pending
            })
            .await;
            let IncomingConnection { source, handshake } = knock?;
            let handshake = Box::pin(async move {
                let AcceptedConnection { stream, memory } = handshake.await?;
                Ok(AcceptedConnection {
                    stream: Box::new(GatedStream { stream, gate }) as _,
                    memory,
                })
            });
            Ok(IncomingConnection { source, handshake })
        })
    }
}

/// The end of a connection that the gateway holds, behind a gate.
struct GatedStream {
    stream: Box<dyn TrainerStream>,
    gate: Arc<Gate>,
}

impl AsyncRead for GatedStream {
    /// Reads bytes, once the gate is open.
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        std::task::ready!(self.gate.pass(context));
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for GatedStream {
    /// Writes bytes, once the gate is open.
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        std::task::ready!(self.gate.pass(context));
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    /// Flushes the stream, even while the gate is shut.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    /// Shuts the stream down, even while the gate is shut.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
