//! Signals that mean nothing to a gateway, and would end it.
//!
//! Schedulers send them to all processes of a job, as Slurm does ahead of a time limit. `run` listens
//! from its start, on its own thread.

use super::LOG_TARGET;
use std::convert::Infallible;
use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::info;

/// The signals, each caught since [`StraySignals::listen`].
pub(super) struct StraySignals {
    user_1: Signal,
    user_2: Signal,
    alarm: Signal,
}

impl StraySignals {
    /// Catches SIGUSR1, SIGUSR2 and SIGALRM from now on, which would otherwise end the process.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {
            user_1: signal(SignalKind::user_defined1())?,
            user_2: signal(SignalKind::user_defined2())?,
            alarm: signal(SignalKind::alarm())?,
        })
    }

    /// Logs each of these signals, with the signals that the sender may have meant. Never returns.
    pub(super) async fn tell(mut self) -> Infallible {
        loop {
            let name = tokio::select! {
                _ = self.user_1.recv() => "SIGUSR1",
                _ = self.user_2.recv() => "SIGUSR2",
                _ = self.alarm.recv() => "SIGALRM",
            };
            info!(
                target: LOG_TARGET,
                "{name} means nothing to a gateway: SIGHUP reads its files again, SIGTERM stops it"
            );
        }
    }
}
