//! Accepts connections at a gateway's socket, and looks after its file.

use super::error::ListenError;
use super::gateway_socket::{GatewaySocket, GatewaySocketSpec, SocketFile};
use crate::host::{BoxFuture, Host, RealHost};
use crate::local::trainer_listener::{
    AcceptedConnection, ConnectionSource, IncomingConnection, TrainerListener,
    receive_trainer_listener_descriptor,
};
use crate::warn_if_due;
use crate::warnings::{WarningCause, Warnings};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

/// 2 s: time from one check that the socket file is there to the next. Programs that clean folders
/// delete the file without a word, and the check makes it again. A trainer that attaches waits for
/// longer than 2 s.
/// Tested by `a_deleted_socket_file_is_made_again`.
const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// A listening Unix socket. Its file is made again when others delete it, and removed on drop.
pub struct UnixSocketListener {
    socket: Arc<Mutex<WatchedUnixListener>>,
    problem: watch::Receiver<Option<String>>,
}

/// A socket, and the time of the next look at its file.
struct WatchedUnixListener {
    socket: GatewaySocket,
    next_check: Instant,
    problem: watch::Sender<Option<String>>,
    warnings: Warnings,
}

impl UnixSocketListener {
    /// Listens at a path, for the users whom `spec` admits. A socket file that a gateway has left
    /// is replaced; any other file at the path is left alone.
    ///
    /// # Errors
    /// Another gateway or file has the path, or others could replace the socket there.
    pub fn open(spec: GatewaySocketSpec, warnings: Warnings) -> Result<Self, ListenError> {
        let socket = GatewaySocket::open(spec)?;
        let (sender, problem) = watch::channel(None);
        let next_check = Instant::now() + FILE_CHECK_INTERVAL;
        let watched = WatchedUnixListener { socket, next_check, problem: sender, warnings };
        Ok(Self { socket: Arc::new(Mutex::new(watched)), problem })
    }

    /// Returns a channel with the reason why trainers cannot attach, if there is one. It lags
    /// behind the socket file by seconds.
    pub fn problem(&self) -> watch::Receiver<Option<String>> {
        self.problem.clone()
    }
}

impl TrainerListener for UnixSocketListener {
    /// Waits for the next connection to the Unix socket.
    fn accept(&self) -> BoxFuture<io::Result<IncomingConnection>> {
        let socket = Arc::clone(&self.socket);
        Box::pin(async move {
            let stream = socket.lock().await.accept().await?;
            let source = ConnectionSource::User(stream.peer_cred()?.uid());
            let handshake = Box::pin(async move {
                let memory = receive_trainer_listener_descriptor(&stream).await?;
                Ok(AcceptedConnection { stream: Box::new(stream) as _, memory })
            });
            Ok(IncomingConnection { source, handshake })
        })
    }
}

impl WatchedUnixListener {
    /// Waits for the next connection, and looks after the socket file meanwhile.
    async fn accept(&mut self) -> io::Result<UnixStream> {
        loop {
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(self.next_check) => self.look_after_file(),
                accepted = self.socket.listener.accept() => return Ok(accepted?.0),
            }
        }
    }

    /// Makes the socket file again if it was deleted; logs it, and a failure to do so once.
    fn look_after_file(&mut self) {
        self.next_check = Instant::now() + FILE_CHECK_INTERVAL;
        let path = self.socket.path().display().to_string();
        let problem = match self.socket.restore() {
            Ok(SocketFile::InPlace) => None,
            Ok(SocketFile::MadeAgain) => {
                let text = format!(
                    "{path} was deleted, and is made again; attached trainers do not notice: keep \
                     programs that clean folders away from it"
                );
                self.log_warning("made again", &text);
                None
            }
            Err(error) => Some(format!("trainers cannot attach: {path} is gone: {error}")),
        };
        let text = problem.clone();
        let has_changed = self.problem.send_if_modified(|known| {
            let has_changed = *known != problem;
            *known = problem;
            has_changed
        });
        if let Some(text) = text.filter(|_| has_changed) {
            self.log_warning("gone", &text);
        }
    }

    /// Logs a line about the socket file and what has become of it, as a warning if one is due.
    fn log_warning(&self, state: &str, text: &str) {
        let is_due = self.warnings.is_due(WarningCause::Socket, state, RealHost.now());
        warn_if_due!(is_due, "{text}");
    }
}
