//! Capture of the log of one thread.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use tracing::Dispatch;
use tracing::dispatcher::{DefaultGuard, set_default};
use tracing_subscriber::fmt::MakeWriter;

/// Sends this thread's logs to a subscriber made by the caller, until both guards are dropped. With
/// one subscriber alone, the first thread that passes a log statement would decide for all threads
/// whether it is enabled; therefore there are two.
pub fn listen(listener: impl Fn() -> Dispatch) -> (Dispatch, DefaultGuard) {
    let other = listener();
    let guard = set_default(&listener());
    (other, guard)
}

/// The log of one thread's simulation.
#[derive(Debug, Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Records the log of this thread until both guards are dropped.
    pub fn listen(&self) -> (Dispatch, DefaultGuard) {
        let text = || tracing_subscriber::fmt().with_writer(self.clone()).with_ansi(false);
        listen(|| Dispatch::new(text().finish()))
    }

    /// The log so far.
    ///
    /// # Panics
    /// After a panic while something was logged.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("no panic inside")).into_owned()
    }
}

impl Write for Log {
    /// Appends all bytes to the log.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic inside").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    /// Does nothing: no byte is buffered elsewhere.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    /// Returns a writer to the same log.
    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
