//! Messages to the service manager that started the gateway, by the protocol of sd_notify(3).
//!
//! `run` says when the gateway is ready and when it stops. [`ServiceManager::ping_while_alive`]
//! says that the engine still answers. Nothing is sent where no service manager has set variables.

use crate::cli::output::logging::LOG_TARGET;
use gateway::host::{Host, RealHost};
use gateway::warn_if_due;
use gateway::warnings::{WarningCause, Warnings};
use std::convert::Infallible;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// 4 pings: as many are sent in the time after which the service manager (systemd) takes a silent
/// gateway for dead. So three pings in a row may be lost or late.
/// Tested by `pings_follow_the_answers_of_the_engine`.
const PINGS_PER_TIMEOUT: u32 = 4;

/// 1 s: the longest time in which a message waits for a service manager (systemd) that does not
/// read. Then the message is dropped, with a warning in the log. The time is chosen.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// Service manager of this process, such as systemd; or none.
#[derive(Debug)]
pub(super) struct ServiceManager {
    /// Own socket, and the address of the manager's.
    channel: Option<(UnixDatagram, SocketAddr)>,
    /// Time without a ping after which the manager ends this process.
    watchdog: Option<Duration>,
    warnings: Warnings,
}

impl ServiceManager {
    /// Returns the service manager that the environment names; none where NOTIFY_SOCKET is unset or
    /// empty. A variable that cannot be used is logged, and then nothing is sent.
    pub(super) fn from_environment(warnings: Warnings) -> Self {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let own = std::process::id().to_string();
        // The variables of a parent are inherited, and are not for this process.
        let is_watched = variable("WATCHDOG_PID").is_none_or(|pid| *pid == *own);
        let watchdog = variable("WATCHDOG_USEC").filter(|_| is_watched);
        let Some(address) = variable("NOTIFY_SOCKET") else {
            return Self { channel: None, watchdog: None, warnings };
        };
        let connected = Self::connect(&address, watchdog.as_deref(), warnings.clone());
        connected.unwrap_or_else(|error| {
            warn_if_due!(
                warnings.is_due(WarningCause::ServiceManager, "variables", RealHost.now()),
                target: LOG_TARGET,
                "the service manager hears nothing of this gateway: NOTIFY_SOCKET={address:?}, \
                 WATCHDOG_USEC={watchdog:?}: {error}"
            );
            Self { channel: None, watchdog: None, warnings }
        })
    }

    /// Makes a socket for messages to `address`: an absolute path, or `@` and an abstract name.
    /// `watchdog` is a number of microseconds above 0. Anything else is an error.
    fn connect(address: &OsStr, watchdog: Option<&OsStr>, warnings: Warnings) -> io::Result<Self> {
        let address = match address.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            [b'/', ..] => SocketAddr::from_pathname(address)?,
            _ => {
                return Err(invalid_service_variable(
                    "neither an absolute path nor an abstract name",
                ));
            }
        };
        let microseconds = |text: &OsStr| text.to_str()?.parse::<u64>().ok().filter(|us| *us > 0);
        let watchdog = match watchdog.map(microseconds) {
            Some(None) => {
                return Err(invalid_service_variable("the time is not a number of microseconds"));
            }
            Some(Some(us)) => Some(Duration::from_micros(us)),
            None => None,
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(SEND_TIMEOUT))?;
        Ok(Self { channel: Some((socket, address)), watchdog, warnings })
    }

    /// Says that trainers may attach at the gateway, and that units ordered after it may start.
    pub(super) fn tell_ready(&self, gateway: &str) {
        self.send(&format!("READY=1\nSTATUS=gateway {gateway} serves trainers\n"));
    }

    /// Says that the gateway ends on purpose.
    pub(super) fn tell_stopping(&self, gateway: &str) {
        self.send(&format!("STOPPING=1\nSTATUS=gateway {gateway} finishes what was posted\n"));
    }

    /// Pings the manager as long as `is_alive` answers with true. A gateway whose engine is stuck
    /// stops pinging, so that the manager restarts it.
    pub(super) async fn ping_while_alive(&self, is_alive: impl AsyncFn() -> bool) -> Infallible {
        let Some(timeout) = self.watchdog else { return std::future::pending().await };
        loop {
            if is_alive().await {
                self.send("WATCHDOG=1\n");
            }
            tokio::time::sleep(timeout / PINGS_PER_TIMEOUT).await;
        }
    }

    /// Sends a message. One that is lost is logged: the manager's own timeouts act on it.
    fn send(&self, message: &str) {
        let Some((socket, address)) = &self.channel else { return };
        if let Err(error) = socket.send_to_addr(message.as_bytes(), address) {
            warn_if_due!(
                self.warnings.is_due(WarningCause::ServiceManager, "messages", RealHost.now()),
                target: LOG_TARGET,
                "the service manager did not take {message:?}: {error}; it may restart this gateway"
            );
        }
    }
}

/// Returns the error of a variable that cannot be used.
fn invalid_service_variable(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;
    use tokio::time::timeout;

    /// Returns a service manager that wants a ping every 8 s, and the socket where it listens.
    fn manager_of_8_s() -> (ServiceManager, UnixDatagram, tempfile::TempDir) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notify");
        let listening = UnixDatagram::bind(&path).expect("free");
        listening.set_nonblocking(true).expect("ours");
        let watchdog = Some(OsStr::new("8000000"));
        let manager = ServiceManager::connect(path.as_os_str(), watchdog, Warnings::default())
            .expect("valid");
        (manager, listening, folder)
    }

    /// Receives and returns all messages that have arrived.
    fn messages(listening: &UnixDatagram) -> Vec<String> {
        let mut found = Vec::new();
        let mut buffer = [0; 256];
        while let Ok(bytes) = listening.recv(&mut buffer) {
            found.push(String::from_utf8_lossy(&buffer[..bytes]).into_owned());
        }
        found
    }

    #[test]
    fn a_manager_hears_of_start_and_stop() {
        let (manager, listening, _folder) = manager_of_8_s();
        manager.tell_ready("east-0");
        manager.tell_stopping("east-0");
        let heard = messages(&listening);
        assert!(heard[0].starts_with("READY=1\nSTATUS=gateway east-0 "), "{heard:?}");
        assert!(heard[1].starts_with("STOPPING=1\nSTATUS="), "{heard:?}");
        assert_eq!(heard.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn pings_follow_the_answers_of_the_engine() {
        let (manager, listening, _folder) = manager_of_8_s();
        let seven_seconds = Duration::from_secs(7);
        let answered = manager.ping_while_alive(async || true);
        assert!(timeout(seven_seconds, answered).await.is_err());
        // At 0, 2, 4 and 6 s.
        assert_eq!(messages(&listening), ["WATCHDOG=1\n"; 4]);
        let refused = manager.ping_while_alive(async || false);
        assert!(timeout(seven_seconds, refused).await.is_err());
        let stuck = manager.ping_while_alive(async || pending::<bool>().await);
        assert!(timeout(seven_seconds, stuck).await.is_err());
        assert!(messages(&listening).is_empty());
    }

    #[test]
    fn an_abstract_name_is_an_address() {
        let name = format!("landbridge-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("short");
        let listening = UnixDatagram::bind_addr(&address).expect("free");
        listening.set_nonblocking(true).expect("ours");
        let named = format!("@{name}");
        let manager =
            ServiceManager::connect(OsStr::new(&named), None, Warnings::default()).expect("valid");
        manager.tell_ready("east-0");
        assert_eq!(messages(&listening).len(), 1);
    }

    #[test]
    fn variables_that_mean_nothing_are_refused() {
        let connect = |address: &str, time: &str| {
            ServiceManager::connect(
                OsStr::new(address),
                Some(OsStr::new(time)),
                Warnings::default(),
            )
        };
        assert!(connect("/run/notify", "1000").is_ok());
        for (address, time) in [("notify", "1000"), ("vsock:2:1", "1000"), ("/run/notify", "0")] {
            assert!(connect(address, time).is_err(), "{address} {time}");
        }
        assert!(connect("/run/notify", "soon").is_err());
    }
}
